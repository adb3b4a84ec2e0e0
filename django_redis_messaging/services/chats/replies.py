"""What the scripts of chats reply: changes, summaries, and refusals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from ... import conf
from ...core import encoding
from ...core.encoding import name
from ...errors import ChatExists, ChatNotFound, InvalidArgument, LimitExceeded, NotAMember, NotPermitted
from ..common.arguments import to_datetime
from .values import (
    Changes,
    ChatEvent,
    ChatSummary,
    Message,
    end_cursor,
    make_events,
    make_message,
    make_messages,
)

_new, _set = object.__new__, object.__setattr__
#: a cursor of the list: ms of the latest activity, in hexadecimal digits, and the chat id
_CURSOR = re.compile(r"([0-9a-f]{11})-(.+)", re.DOTALL)
#: below the ms of any chat
_LOST = -1
#: above any number of edits or events, and any fingerprint, which have 48 bits
_MAX_KNOWN = 10**15
#: reply of a script that refuses → the error class and its message
REFUSALS: dict[bytes, tuple[type[Exception], str]] = {
    b"no chat": (
        ChatNotFound,
        "Chat {chat!r} does not exist: it was never created, was deleted, or its last member left.",
    ),
    b"no member": (NotAMember, "{user!r} is not a member of chat {chat!r}. A member can add them."),
    b"no other": (NotAMember, "{other!r} is not a member of chat {chat!r}."),
    b"not added": (NotAMember, "{other!r} is not a member of chat {chat!r} and can't add members."),
    b"no remover": (NotAMember, "{other!r} is not a member of chat {chat!r} and can't remove members."),
    b"closed": (NotAMember, "Chat {chat!r} is not open: a member must add {user!r} (by=…)."),
    b"removed": (NotPermitted, "{user!r} was removed from chat {chat!r}: only an owner can add them again."),
    b"opted out": (NotPermitted, "{user!r} left chat {chat!r} and does not want to be added again."),
    b"damaged": (
        ChatNotFound,
        "Chat {chat!r} has lost some of its keys: run manage.py messaging_repair to rebuild them.",
    ),
    b"no members": (
        ChatNotFound,
        "Chat {chat!r} can't be repaired: both its members and its roster are lost. Chat.delete removes the "
        "rest of it.",
    ),
    b"no owner": (NotPermitted, "Only an owner of chat {chat!r} can do this."),
    b"no author": (NotPermitted, "{user!r} did not write this message in chat {chat!r}."),
    b"last owner": (NotPermitted, "Chat {chat!r} must keep an owner: make another member an owner first."),
    b"exists": (ChatExists, "Chat {chat!r} already exists: choose another chat_id, or join it."),
    b"no message": (
        InvalidArgument,
        "reply_to must be the id of a message in chat {chat!r}: it is above the newest.",
    ),
    b"full": (LimitExceeded, "members of a chat"),
}


class Place(NamedTuple):
    """The place of a chat in the list: places are sorted by latest activity."""

    #: ms of the latest activity
    active: int
    chat_id: bytes


class After(NamedTuple):
    """Where a page of the list begins: below this chat, or below this place. A cursor may also be the id of
    another chat, which then counts."""

    chat_id: bytes
    place: Place | None

    def rank_in(self, places: Sequence[Place]) -> int:
        """The rank of the first chat of the page."""
        for rank, place in enumerate(places):
            if place.chat_id == self.chat_id:
                return rank + 1
        if self.place is None:
            raise InvalidArgument(
                "after is not a cursor, nor one of this user's chats (any more): start with the first page."
            )
        return sum(place >= self.place for place in places)


def parse_after(value: str) -> After:
    """Parse and check a cursor of the list or a chat id."""
    match = _CURSOR.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return After(name(value, "after").encode(), None)
    chat_id = name(match[2], "after").encode()
    return After(value.encode(), Place(int(match[1], 16), chat_id))


def sort_places(chats: Iterable[bytes], newest: Iterable[bytes | None]) -> tuple[list[Place], list[Place]]:
    """The places of chats, the latest activity first, and those of chats without a valid newest key."""
    places = sorted(map(Place, map(_active, newest), chats), reverse=True)
    lost = len(places)
    while lost and places[lost - 1].active == _LOST:
        lost -= 1
    return places[:lost], places[lost:]


def _active(newest: bytes | None) -> int:
    """The ms in the value of a chat's newest key."""
    try:
        return _LOST if newest is None else int(newest.split(b"-", 2)[1])
    except (ValueError, IndexError):
        return _LOST


class _Item(NamedTuple):
    """A chat of a member: an item of the reply of chats/inbox_chats."""

    epoch: bytes
    title: bytes
    unread: int
    active: bytes
    member_count: int
    muted: int
    last_id: int
    excerpt: bytes
    members: list[bytes]


def make_summary(chat_id: str, item: list[Any]) -> ChatSummary:
    """The summary of a chat for a member."""
    one = _Item(*item)
    return ChatSummary(
        **summary_fields(chat_id, one.title, one.active, one.member_count, one.members),
        unread=one.unread,
        last_message=_make_newest(chat_id, one.epoch, one.last_id, one.excerpt),
        muted=bool(one.muted),
    )


def make_summaries(chat_id: str, users: Iterable[str], reply: list[Any]) -> dict[str, ChatSummary]:
    """The summary of a chat for each of the users who are members, from the reply of chats/summarize."""
    epoch, title, active, member_count, last_id, excerpt, members, readers = reply
    message = _make_newest(chat_id, epoch, last_id, excerpt)
    fields = summary_fields(chat_id, title, active, member_count, members)
    found = {}
    for user, reader in zip(users, readers, strict=True):
        if reader:
            unread, muted, sees_newest = reader
            newest = message if sees_newest else None
            found[user] = ChatSummary(**fields, unread=unread, muted=bool(muted), last_message=newest)
    return found


def _make_newest(chat_id: str, epoch: bytes, last_id: int, excerpt: bytes) -> Message | None:
    if not excerpt:
        return None
    return make_message(chat_id, int(epoch), last_id, encoding.loads_all([excerpt])[0])


def summary_fields(
    chat_id: str, title: bytes, active: bytes, member_count: int, members: list[bytes]
) -> dict[str, Any]:
    """The fields of a summary that are equal for all members."""
    return {
        "chat_id": chat_id,
        "title": title.decode(),
        "active_at": to_datetime(active),
        "member_count": member_count,
        "members": [member.decode() for member in members],
        "cursor": f"{int(active):011x}-{chat_id}",
    }


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
    messages = make_messages(chat_id, epoch, reply.first, reply.entries)
    members = [member.decode() for member in reply.positions[::2]]
    return {
        "chat_id": chat_id,
        "messages": messages,
        "cursor": end_cursor(epoch, reply.first, reply.stamp.decode(), messages),
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
        "last_sender": encoding.loads_all([reply.last_sender])[0] if reply.last_sender else "",
        "typists": [member.decode() for member in reply.typists],
        "event": reply.event,
        "events": make_events(reply.event, reply.events),
    }


def _make_edited(chat_id: str, reply: _Reply) -> dict[int, Message]:
    """The edited messages by their edit numbers."""
    numbers, ids, epoch = reply.edited[::2], reply.edited[1::2], int(reply.epoch)
    decoded = encoding.loads_all(reply.edited_entries)
    return {
        number: make_message(chat_id, epoch, message_id, entry)
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


def checked_reply(reply: Any, chat_id: str, user: str = "", other: str = "") -> Any:
    """The reply of a script; raises an error if the script refused."""
    if isinstance(reply, bytes) and reply in REFUSALS:
        raise_refusal(reply, chat_id, user, other)
    return reply


def raise_refusal(refusal: bytes, chat_id: str, user: str, other: str) -> NoReturn:
    """Raise the error for a refusal. `other`: another user whom it concerns."""
    kind, text = REFUSALS[refusal]
    if kind is ChatExists:
        raise ChatExists(text.format(chat=chat_id), chat_id=chat_id)
    if kind is LimitExceeded:
        limit = conf.current().CHAT_MAX_MEMBERS
        raise LimitExceeded(text, limit=limit, actual=limit + 1, setting="CHAT_MAX_MEMBERS")
    raise kind(text.format(chat=chat_id, user=user, other=other))
