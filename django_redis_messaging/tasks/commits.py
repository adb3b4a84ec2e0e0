"""What is sent when transactions have been committed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.db import connections, transaction


def left_to_commit(when: bool | str, send: Callable[[], None]) -> bool:
    """Whether `send` will be called by the commits it has to wait for."""
    if when is False:
        return False
    aliases = list(connections) if when is True else [when]
    awaited = {alias for alias in aliases if connections[alias].in_atomic_block}

    def committed(alias: str) -> None:
        awaited.discard(alias)
        if not awaited:
            send()

    # each is asked at once: a transaction that is rolled back says nothing, then or later
    for alias in sorted(awaited):
        transaction.on_commit(partial(committed, alias), using=alias)
    return bool(awaited)
