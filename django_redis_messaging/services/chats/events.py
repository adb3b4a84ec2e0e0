"""The events of a chat: who joined and left, and what became of its title and its owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ...core.steps import batched
from ..moments import to_datetime
from .values import ChatEvent, EventKind

#: characters of a title in an event
MAX_TITLE = 100
#: values of an event: see lua/_events.lua
_VALUES = 10


def make_events(values: Sequence[bytes]) -> list[ChatEvent]:
    """Make events of their stored values."""
    return [_make_event([value.decode() for value in event]) for event in batched(values, _VALUES)]


def _make_event(values: Sequence[str]) -> ChatEvent:
    number, ms, after_id, kind, actor, title, count, *users = values
    return ChatEvent(
        number=int(number),
        kind=cast(EventKind, kind),
        at=to_datetime(int(ms)),
        after_id=int(after_id),
        actor=actor,
        users=[user for user in users if user],
        count=int(count),
        title=title,
    )
