"""Finds resources of which there is no registry by the names of their keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic

from redis.exceptions import RedisError

from ...core.topology import endpoint, scan
from ...errors import Unavailable


class ScanBudget:
    """How many keys each list of a block may find, and until when they may search."""

    def __init__(self, keys: int, seconds: float) -> None:
        self._keys = keys
        self._ends = monotonic() + seconds
        #: whether a list has ended early
        self.is_spent = False

    def ends_at(self, found: int) -> bool:
        """Whether a list that has found this many keys must end although it has not searched all."""
        if found >= self._keys or monotonic() >= self._ends:
            self.is_spent = True
        return self.is_spent


_budget: ContextVar[ScanBudget | None] = ContextVar("budget", default=None)


@contextmanager
def scan_budget(keys: int, seconds: float) -> Iterator[ScanBudget]:
    """Let each list in this block end once it has found that many keys, or after that time."""
    budget = ScanBudget(keys, seconds)
    before = _budget.set(budget)
    try:
        yield budget
    finally:
        _budget.reset(before)


def scan_keys(using: str, pattern: str) -> Iterator[str]:
    """The matching keys, each once, as far as the `scan_budget` allows. Raises Unavailable."""
    seen, budget = set[bytes](), _budget.get()
    try:
        for _, keys in scan(endpoint(using), pattern):
            if budget is not None and budget.ends_at(len(seen)):
                return
            for key in keys:
                if key not in seen:
                    seen.add(key)
                    yield key.decode(errors="replace")
    except RedisError as error:
        raise Unavailable(f"Redis was not available while its keys were listed: {error}") from error
