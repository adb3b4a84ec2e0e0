"""The public state of a semaphore."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from ...core.steps import batched
from ..moments import to_datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class SemaphoreInfo:
    """The state of a semaphore at one moment."""

    limit: int
    """The number of permits: the stored limit, or the constructor's if none is stored."""
    held: int
    """The number of permits held; greater than `limit` after that was lowered."""
    waiting: int
    """The number of waiting clients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SemaphoreHolder:
    """A held permit."""

    token: str
    """Identifies the permit: host, process id and a random part."""
    expires_at: datetime
    """When its lease ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SemaphoreWaiter:
    """A client that waits for a permit."""

    token: str
    """Identifies the client: host, process id and a random part."""
    since: datetime
    """When it began to wait."""


def parse_pairs(reply: Sequence[bytes]) -> Iterator[tuple[str, datetime]]:
    """The tokens and moments (µs) of a reply."""
    for token, us in batched(reply, 2):
        yield token.decode(), to_datetime(int(us) / 1000)
