"""Summaries of chats, their order in a user's list, and the places at which its pages begin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from ...core import payloads
from ...core.keys import name
from ...errors import InvalidArgument
from ..moments import to_datetime
from . import entries
from .values import ChatSummary

#: a cursor of the list: ms of the latest activity, in hexadecimal digits, and the chat id
_CURSOR = re.compile(r"([0-9a-f]{11})-(.+)", re.DOTALL)


class After(NamedTuple):
    """Where a page of the list begins: below this chat, or below this place. A cursor may also be the id of
    another chat, which then counts."""

    chat_id: str
    place: tuple[datetime, str] | None

    def rank_in(self, chats: Sequence[ChatSummary]) -> int:
        """The rank of the first chat of the page."""
        for rank, chat in enumerate(chats):
            if chat.chat_id == self.chat_id:
                return rank + 1
        if self.place is None:
            raise InvalidArgument(
                "after is not a cursor, nor one of this user's chats (any more): start with the first page."
            )
        return sum(_place(chat) >= self.place for chat in chats)


def parse_after(value: str) -> After:
    """Parse and check a cursor of the list or a chat id."""
    match = _CURSOR.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return After(name(value, "after"), None)
    return After(value, (to_datetime(int(match[1], 16)), name(match[2], "after")))


def sort(chats: Iterable[ChatSummary]) -> list[ChatSummary]:
    """The list of chats: the latest activity first."""
    return sorted(chats, key=_place, reverse=True)


def _place(chat: ChatSummary) -> tuple[datetime, str]:
    return chat.active_at, chat.chat_id


def make(chat_id: str, item: list[Any]) -> ChatSummary:
    """The summary of a chat, from its item in the reply of inbox_chats."""
    epoch, title, unread, active, member_count, muted, last, newest, members = item
    message = None
    if newest:
        decoded = payloads.loads_all([newest])[0]
        message = entries.make_message(chat_id, int(epoch), last, decoded)
    return ChatSummary(
        chat_id=chat_id,
        title=title.decode(),
        unread=unread,
        last_message=message,
        active_at=to_datetime(active),
        member_count=member_count,
        members=[member.decode() for member in members],
        muted=bool(muted),
        cursor=f"{int(active):011x}-{chat_id}",
    )
