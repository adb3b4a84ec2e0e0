"""What changed in a chat, for each of its readers: the reply of chats/changes.

The script reads for one or several members who know the same. Most of the reply is equal for all of them; a
`_Reader` has the rest. Readers who joined after what the others know see less than they do, and have to read
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...core import payloads
from ...errors import InvalidArgument
from ..common.arguments import to_datetime
from . import entries
from .values import Changes, ChatEvent, Message, make_events

#: above any number of edits or events, and any fingerprint, which have 48 bits
_MAX_KNOWN = 10**15

_new, _set = object.__new__, object.__setattr__


class _Reply(NamedTuple):
    """The reply of chats/changes."""

    epoch: bytes
    first: int
    stamp: bytes
    gap: int
    has_more: int
    reset: int
    title: bytes
    member_count: int
    last_id: int
    last_sender: bytes
    edits: int
    edits_missed: int
    fingerprint: int
    positions: list[Any]
    """Member, position, …; b"-" for a position that is hidden."""
    newcomers: list[bytes]
    edited: list[int]
    """Edit number, message id, …"""
    readers: list[Any]
    """The fields of a `_Reader`, or 0; for each user."""
    typists: list[bytes]
    event: int
    events: list[bytes]
    entries: list[bytes]
    edited_entries: list[bytes]


class _Reader(NamedTuple):
    """What concerns one of the readers alone."""

    join_id: int
    joined_at: int
    event: int
    role: bytes
    oldest: int
    position: int
    unread: int
    muted_until: int
    resumed: int


def make_changes(chat_id: str, users: Sequence[str], raw: list[Any]) -> tuple[dict[str, Changes], list[str]]:
    """The changes for each reader, and the readers for whom the reply is not what they would read alone."""
    reply = _Reply(*raw)
    readers = {user: _Reader(*one) for user, one in zip(users, reply.readers, strict=True) if one}
    edited = _make_edited(chat_id, reply) if reply.edited else {}
    shared = _shared(chat_id, reply)
    after = reply.first - reply.gap - 1
    found = {
        user: _for_reader(user, one, shared, edited)
        for user, one in readers.items()
        if len(readers) == 1 or not (reply.reset or _has_joined_since(one, after, shared["events"]))
    }
    return found, [user for user in readers if user not in found]


def _shared(chat_id: str, reply: _Reply) -> dict[str, Any]:
    """The fields that are equal for all readers, or restricted for some of them by `_for_reader`."""
    epoch = int(reply.epoch)
    messages = entries.make_messages(chat_id, epoch, reply.first, reply.entries)
    members = [member.decode() for member in reply.positions[::2]]
    return {
        "chat_id": chat_id,
        "messages": messages,
        "cursor": entries.end_cursor(epoch, reply.first, reply.stamp.decode(), messages),
        "gap": reply.gap,
        "has_more": bool(reply.has_more),
        "reset": bool(reply.reset),
        "edits": reply.edits,
        "edits_missed": bool(reply.edits_missed),
        "members": members,
        "positions": {
            member: position
            for member, position in zip(members, reply.positions[1::2], strict=True)
            if position != b"-"
        },
        "newcomers": [member.decode() for member in reply.newcomers],
        "moved": reply.fingerprint,
        "title": reply.title.decode(),
        "member_count": reply.member_count,
        "last_id": reply.last_id,
        "last_sender": payloads.loads_all([reply.last_sender])[0] if reply.last_sender else "",
        "typists": [member.decode() for member in reply.typists],
        "event": reply.event,
        "events": make_events(reply.events),
    }


def _make_edited(chat_id: str, reply: _Reply) -> dict[int, Message]:
    """The edited messages by their edit numbers."""
    numbers, ids, epoch = reply.edited[::2], reply.edited[1::2], int(reply.epoch)
    decoded = payloads.loads_all(reply.edited_entries)
    return {
        number: entries.make_message(chat_id, epoch, message_id, entry)
        for number, message_id, entry in zip(numbers, ids, decoded, strict=True)
    }


def _for_reader(user: str, one: _Reader, shared: dict[str, Any], edited: dict[int, Message]) -> Changes:
    visible = {number: message for number, message in edited.items() if message.id >= one.oldest}
    sees_newest = shared["last_id"] >= one.oldest
    changes = _new(Changes)
    # The __init__ of a frozen dataclass sets field by field, which takes three times as long.
    _set(
        changes,
        "__dict__",
        {
            **shared,
            "role": one.role.decode(),
            "joined_at": to_datetime(one.joined_at),
            "edited": list(visible.values()),
            "edit_numbers": list(visible),
            "last_sender": shared["last_sender"] if sees_newest else "",
            "newcomers": shared["newcomers"] if sees_newest else [],
            "oldest_id": one.oldest,
            "removed": one.oldest - 1 - one.join_id,
            "resumed": bool(one.resumed),
            "read_id": one.position,
            "unread": one.unread,
            "muted_until": to_datetime(one.muted_until) if one.muted_until else None,
            "typists": [member for member in shared["typists"] if member != user],
        },
    )
    return changes


def _has_joined_since(one: _Reader, after: int, events: Sequence[ChatEvent]) -> bool:
    """Whether a reader has joined after what the others know, and sees less than they do."""
    return one.join_id > after or (bool(events) and one.event > events[0].number)


def known_number(value: int | None, what: str) -> int | str:
    """A number from an earlier answer as the script takes it."""
    if value is None:
        return ""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{what} must be an int or None, not {type(value).__name__}.")
    if not 0 <= value < _MAX_KNOWN:
        raise InvalidArgument(f"{what} must be between 0 and {_MAX_KNOWN - 1}, not {value}.")
    return value
