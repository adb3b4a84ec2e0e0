"""What a user has not acked in a chat, from the items in the reply of inbox_pending.

An item is a list of six fields and the messages; or bytes, the value of the chat's newest, if everything is
acked; or an error.
"""

from __future__ import annotations

from typing import Any, TypeVar

from . import entries
from .values import Pending

T = TypeVar("T")

#: number of fields before the messages of an item, and the place of has_more among them
_FIELDS, _HAS_MORE = 6, 4


def make(chat_id: str, item: list[Any]) -> Pending:
    """The messages of an item."""
    newest, first, stamp, gap, has_more, reset, *raw = item
    epoch = _epoch_of(newest)
    messages = entries.make_messages(chat_id, epoch, first, raw)
    return Pending(
        chat_id=chat_id,
        messages=messages,
        cursor=entries.end_cursor(epoch, first, stamp.decode(), messages),
        gap=gap,
        has_more=bool(has_more),
        reset=bool(reset),
    )


def seen(item: Any) -> str:
    """What the user has now seen of the chat, in the format of lua/_seen.lua; '' if that has not changed."""
    if isinstance(item, bytes):
        return item.decode()
    if not isinstance(item, list):
        return ""
    newest, first, _, gap, has_more, reset, *messages = item
    if not reset:
        return ""
    position = first - gap - 1
    return f"!{position}-{_epoch_of(newest)}" if messages or has_more else newest.decode()


def message_count(item: Any) -> int:
    """The number of messages of an item."""
    return len(item) - _FIELDS if isinstance(item, list) else 0


def is_postponed(item: Any) -> bool:
    """Whether an item has no messages only because the maximum of all chats was reached."""
    return isinstance(item, list) and len(item) == _FIELDS and bool(item[_HAS_MORE])


def cut_to_total(pairs: list[tuple[T, Any]], total: int) -> list[tuple[T, Any]]:
    """Remove messages beyond the total: on a Cluster, each chat has a script of its own."""
    cut: list[tuple[T, Any]] = []
    for entry, item in pairs:
        found = message_count(item)
        if found > total:
            item = item[: _FIELDS + total]
            item[_HAS_MORE] = 1
        total -= min(found, total)
        cut.append((entry, item))
    return cut


def _epoch_of(newest: bytes) -> int:
    return int(newest.split(b"-")[3])
