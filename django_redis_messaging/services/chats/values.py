"""What the chat operations return: frozen values, never raw bytes or dicts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Role = Literal["owner", "member"]


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message as it is stored."""

    id: int
    """1, 2, 3 … in the chat's one order, without holes."""
    cursor: str
    """Opaque; names this very message. Ack by it rather than by the id: it notices lost data."""
    chat_id: str
    sender: str
    body: str
    """Empty once deleted."""
    data: Any
    """What the sender attached: anything JSON can say, or None."""
    reply_to: int | None
    """Id of the message this one answers."""
    kind: str
    """What it is: "text"."""
    sent_at: datetime
    """By the server's clock; never earlier than the message before."""
    edited_at: datetime | None
    """When the body was last replaced, or the message deleted."""
    deleted: bool
    """A tombstone: the message was here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Some messages of a chat, oldest first."""

    messages: list[Message]
    cursor: str
    """Where these end: ack it to have read them, read on after it. There is one also without messages."""
    gap: int
    """How many messages just before the first of these are gone, because a limit removed them."""
    has_more: bool
    """Whether there are more in the direction of reading: newer with `after`, older without."""
    reset: bool
    """The cursor names a message that isn't there: the chat was recreated, or Redis lost data. The page
    begins at the stored position: drop what you have, and take this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending:
    """What a member has not acked in one chat, oldest first."""

    chat_id: str
    messages: list[Message]
    """The member's own are among them: other devices want them too."""
    cursor: str
    """Where these end: ack it once you are done with them. There is one also without messages."""
    gap: int
    """How many messages just before the first of these are gone, because a limit removed them."""
    has_more: bool
    """Whether more are unacked than these. With no messages: `total` was used up by other chats."""
    reset: bool
    """The chat is another one than it was when the user last had acked all of it, or stands where it stood
    before: it was recreated, or Redis lost data. Drop what you have, and take this: no messages, if there
    are none to take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A member of a chat."""

    user: str
    read_id: int
    """The id up to which the member has acked."""
    joined_at: datetime
    role: Role


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatInfo:
    """A chat without its messages."""

    chat_id: str
    title: str
    open: bool
    """Whether anybody may join alone."""
    keep_last: int
    created_at: datetime
    active_at: datetime
    """When the newest message was sent, or the chat created."""
    last_id: int
    """Id of the newest message; 0 before the first."""
    first_id: int
    """Id of the oldest message still kept; `last_id + 1` where none is."""
    edits: int
    """How often messages were edited or deleted: if it moved, what you show may be old."""
    member_count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatSummary:
    """A chat as its member sees it in a list."""

    chat_id: str
    title: str
    unread: int
    """Messages by others that the member has not acked and that are still there."""
    last_message: Message | None
    """The newest message, if the member may see it and it is still kept."""
    active_at: datetime
    member_count: int
    members: list[str]
    """Some of the members, the longest-standing first: what a chat without a title can be called by."""
    muted: bool
