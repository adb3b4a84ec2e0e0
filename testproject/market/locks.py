"""One lock for each item. Everything that changes an item takes it first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from django_redis_messaging import Lock, LockError, MultiLock

from .errors import Busy

#: seconds to wait for the locks of items
LOCK_TIMEOUT = 10


def item_lock(item_id: int) -> Lock:
    """The lock of an item. Its fence protects each write, so a lease that was lost is only logged."""
    return Lock(f"item:{item_id}", renew=True, raise_on_release_error=False)


@contextmanager
def hold_items(item_ids: Iterable[int]) -> Iterator[dict[int, int]]:
    """Hold the locks of all these items; yields the fence of each."""
    names = {item_lock(pk).name: pk for pk in item_ids}
    several = MultiLock(names, renew=True, blocking_timeout=LOCK_TIMEOUT, raise_on_release_error=False)
    with ExitStack() as held:
        try:
            held.enter_context(several)
        except LockError:
            raise Busy from None
        yield {names[name]: fence for name, fence in several.fences.items()}
