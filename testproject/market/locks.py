"""One lock for each item. Everything that changes an item takes it first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from django_redis_messaging import Lock, LockError

from .errors import Busy

#: seconds to wait for the lock of an item
LOCK_TIMEOUT = 10


def item_lock(item_id: int) -> Lock:
    """The lock of an item. Its fence protects each write, so a lease that was lost is only logged."""
    return Lock(f"item:{item_id}", renew=True, blocking_timeout=LOCK_TIMEOUT, raise_on_release_error=False)


@contextmanager
def hold_items(item_ids: Iterable[int]) -> Iterator[dict[int, int]]:
    """Hold the locks of all these items; yields the fence of each.

    They are taken in sorted order, so that two buyers of the same items can't wait for each other.
    """
    with ExitStack() as held:
        try:
            fences = {pk: held.enter_context(item_lock(pk)).fence for pk in sorted(set(item_ids))}
        except LockError:
            raise Busy from None
        yield fences
