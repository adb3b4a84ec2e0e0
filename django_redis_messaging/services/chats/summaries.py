"""Summaries of chats, their order in a user's list, and the places at which its pages begin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ...core import payloads
from ...core.keys import name
from ...errors import InvalidArgument
from ..common.arguments import to_datetime
from . import entries
from .values import ChatSummary, Message

#: a cursor of the list: ms of the latest activity, in hexadecimal digits, and the chat id
_CURSOR = re.compile(r"([0-9a-f]{11})-(.+)", re.DOTALL)
#: below the ms of any chat
_LOST = -1


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


def sort(chats: Iterable[bytes], newest: Iterable[bytes | None]) -> tuple[list[Place], list[Place]]:
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


def make(chat_id: str, item: list[Any]) -> ChatSummary:
    """The summary of a chat for a member."""
    one = _Item(*item)
    return ChatSummary(
        **shared(chat_id, one.title, one.active, one.member_count, one.members),
        unread=one.unread,
        last_message=_make_newest(chat_id, one.epoch, one.last_id, one.excerpt),
        muted=bool(one.muted),
    )


def make_for(chat_id: str, users: Iterable[str], reply: list[Any]) -> dict[str, ChatSummary]:
    """The summary of a chat for each of the users who are members, from the reply of chats/summarize."""
    epoch, title, active, member_count, last_id, excerpt, members, readers = reply
    message = _make_newest(chat_id, epoch, last_id, excerpt)
    fields = shared(chat_id, title, active, member_count, members)
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
    return entries.make_message(chat_id, int(epoch), last_id, payloads.loads_all([excerpt])[0])


def shared(
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
