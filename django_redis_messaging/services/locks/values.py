"""The public state of a lock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..moments import to_datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class LockInfo:
    """The state of a lock at one moment."""

    read_at: datetime
    """The moment, by the server's clock."""
    holder: str | None
    """The token of the holder: host, process id and a random part; of another program, the token that it
    chose. None: the lock is free."""
    acquired_at: datetime | None
    """When the holder acquired it; None if the lock is free or held by another program, or was handed to a
    waiting client that has not confirmed it yet."""
    expires_at: datetime | None
    """When the lease ends; None without one."""
    fence: int
    """The fence of the latest acquire; 0 if there was none for a day."""
    waiting: int
    """The number of waiting clients."""
    waiters: tuple[str, ...]
    """The tokens of the first waiting clients, in the order in which they will acquire the lock."""


def parse_info(reply: list[Any]) -> LockInfo:
    """The reply of lock_info.lua."""
    now, holder, remaining, fence, is_owner, waiting, *waiters = reply
    held = holder is not None
    return LockInfo(
        read_at=to_datetime(now),
        holder=_text(holder) if held else None,
        acquired_at=to_datetime(int(fence) / 1000) if held and is_owner else None,
        expires_at=to_datetime(now + remaining) if remaining >= 0 else None,
        fence=int(fence),
        waiting=waiting,
        waiters=tuple(map(_text, waiters)),
    )


def _text(token: bytes) -> str:
    """A token as text: other programs may use any bytes."""
    return token.decode(errors="backslashreplace")
