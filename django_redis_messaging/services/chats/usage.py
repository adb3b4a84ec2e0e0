"""What operators see of chats: their sizes, and which members messages are stored for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...core.operations import Script, Steps
from ..common.arguments import to_datetime
from .keys import ChatKeys
from .values import Message, make_messages

#: members that one call describes: it may load a message for each
MAX_READERS = 25
#: maximum number of bytes of the newest messages
TAIL_BYTES = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """A member of a chat."""

    user: str
    read_id: int
    """Id up to which the member has acked."""
    joined_at: datetime
    role: str
    unread: int
    muted_until: datetime | None
    pinned: int
    """Messages that are stored only until this member has read them, beyond those kept for scroll-back."""
    pinned_bytes: int
    hides: bool
    """Whether the member hides from others what they have read: see Choices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatUsage:
    """What a chat stores."""

    chat_id: str
    title: str
    open: bool
    created_at: datetime
    active_at: datetime
    last_id: int
    first_id: int
    keep_last: int
    bytes: int
    """Of the messages, as counted for CHAT_MAX_BYTES."""
    member_count: int
    readers: list[Reader]
    """Members, those who have read least first."""

    @property
    def name(self) -> str:
        """The chat's id."""
        return self.chat_id

    @property
    def messages(self) -> int:
        """The number of stored messages."""
        return self.last_id - self.first_id + 1


def read_usage(
    prefix: str, chat_ids: Sequence[str], *, first: int = 0, readers: int = 1
) -> Steps[list[ChatUsage]]:
    """What chats store, without those that don't exist; with up to so many `readers`, from that rank on."""
    if not chat_ids:
        return []
    args = (first, min(readers, MAX_READERS))
    replies = yield [Script("chats/usage", ChatKeys(prefix, one).following, args) for one in chat_ids]
    pairs = zip(chat_ids, replies, strict=True)
    return [_parse(chat_id, *reply) for chat_id, reply in pairs if isinstance(reply, list)]


def read_tail(prefix: str, chat_id: str, limit: int) -> Steps[list[Message]]:
    """The newest messages of a chat, the oldest of them first."""
    reply = yield Script("chats/tail", ChatKeys(prefix, chat_id).reading, (limit, TAIL_BYTES))
    if not isinstance(reply, list):
        return []
    epoch, first, *entries = reply
    return make_messages(chat_id, int(epoch), first, entries)


def _parse(
    chat_id: str, title: bytes, is_open: bytes, created: bytes, active: bytes, *rest: Any
) -> ChatUsage:
    last, first, keep, size, members, readers = rest
    return ChatUsage(
        chat_id=chat_id,
        title=title.decode(),
        open=is_open == b"1",
        created_at=to_datetime(created),
        active_at=to_datetime(active),
        last_id=last,
        first_id=first,
        keep_last=keep,
        bytes=size,
        member_count=members,
        readers=[_parse_reader(*reader) for reader in readers],
    )


def _parse_reader(user: bytes, position: int, joined: bytes, role: bytes, *rest: Any) -> Reader:
    unread, muted, pinned, pinned_bytes, hides = rest
    return Reader(
        user=user.decode(),
        read_id=position,
        joined_at=to_datetime(joined),
        role=role.decode(),
        unread=unread,
        muted_until=to_datetime(muted) if int(muted) else None,
        pinned=pinned,
        pinned_bytes=pinned_bytes,
        hides=bool(hides),
    )
