"""What the operations of chats and inboxes return, and the entries of logs that messages are made of.

_log.lua describes the format of an entry.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from ... import conf
from ...core import encoding
from ...errors import LimitExceeded
from ..common import arguments
from ..common.arguments import to_datetime

Role = Literal["owner", "member"]
EventKind = Literal["joined", "added", "left", "removed", "renamed", "owner", "member"]

#: characters of a title in an event
MAX_TITLE = 100
#: the quotes of a string: bytes
_QUOTES = 2
#: bytes of UTF-8
_MAX_CHARACTER = 4
#: elements of an entry without reply_to, data and mentions, and of one without mentions
_WITHOUT_OPTIONAL, _WITHOUT_MENTIONS = 9, 11

_new, _set, _fromtimestamp = object.__new__, object.__setattr__, datetime.fromtimestamp


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message as it is stored."""

    id: int
    """1, 2, 3 … in the order of the chat, without holes."""
    cursor: str
    """Opaque reference to this message. Prefer it to the id for acks: it detects lost data."""
    chat_id: str
    sender: str
    body: str
    """Empty once deleted."""
    data: Any
    """Data attached by the sender: any JSON value, or None."""
    reply_to: int | None
    """Id of the message that this one replies to."""
    mentions: tuple[str, ...] = ()
    """The members whom it mentions: of those named by the sender, who were members when it was sent. An edit
    keeps them."""
    kind: str
    """Always "text"."""
    sent_at: datetime
    """By the server's clock; never earlier than the previous message."""
    edited_at: datetime | None
    """When the body was last replaced, or the message deleted."""
    deleted: bool
    """Whether this is the tombstone of a deleted message."""

    @property
    def nonce(self) -> int:
        """`zlib.crc32` of the request id with which it was sent.

        A client that lost the answer and returns after REQUEST_WINDOW finds out with it whether one of the
        messages since is its own.
        """
        return int(self.cursor.rpartition("-")[2], 16) & 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page of a chat's messages, oldest first."""

    messages: list[Message]
    cursor: str
    """The end of the page: ack it to mark the messages as read, or read on after it. If `messages` is empty,
    it is the cursor of the message before the page."""
    gap: int
    """How many messages directly before the first of these were removed by a limit."""
    has_more: bool
    """Whether there are more in the direction of reading: newer with `after`, older otherwise."""
    reset: bool
    """The cursor refers to a message that does not exist: the chat was created anew, or Redis lost data.
    The page begins at the stored position; discard earlier pages."""
    role: Role = field(default="member", compare=False)
    """The reader's role in the chat when the page was read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatEvent:
    """Something that happened to a chat. It is no message: it doesn't count as unread."""

    number: int
    """1, 2, 3 … in the order of the chat."""
    kind: EventKind
    """The users "joined" alone, "left", were "added" or "removed" by the actor, or became an "owner" or a
    plain "member"; or the actor "renamed" the chat."""
    at: datetime
    after_id: int
    """Id of the newest message at that time; 0 if there was none."""
    actor: str
    """Who did it; "" if the chat itself did: an owner left, and the longest-standing member became one."""
    users: list[str]
    """To whom it happened: the first three."""
    count: int
    """To how many users it happened."""
    title: str
    """The new title, if the chat was renamed: its first 100 characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Messages that a search has found, newest first."""

    messages: list[Message]
    before: int
    """Where the search ended: pass it to the next call."""
    complete: bool
    """Whether the oldest message was reached."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What changed in a chat since the last call."""

    chat_id: str
    messages: list[Message]
    """The messages after the cursor, oldest first."""
    cursor: str
    """The end of `messages`, or of those that were read before: continue after it."""
    gap: int
    """How many messages directly before the first of these were removed by a limit."""
    has_more: bool
    """Whether there are more new or edited messages: call again."""
    reset: bool
    """The cursor refers to a message that does not exist: the chat was created anew, or Redis lost data.
    The messages begin at the stored position; discard earlier ones."""
    role: Role
    """The reader's role in the chat."""
    joined_at: datetime
    """When the reader joined. Another time than in the last answer: they left and joined again."""
    edited: list[Message]
    """The messages up to the cursor that were edited or deleted, the latest edit last. Empty in the first
    call."""
    edit_numbers: list[int]
    """The number of the latest edit of each of `edited`."""
    edits: int
    """The number of the last edit that was read: pass it to the next call."""
    edits_missed: bool
    """Whether further messages may have been edited. The chat lists the last 100 messages that were edited.
    Read anew the messages that you show."""
    members: list[str]
    """The 200 members who joined first, the first one first. Empty if nothing changed since `moved`, there
    are no new messages and events, and nobody is typing."""
    positions: dict[str, int]
    """Member → id up to which the member has acked, for those of `members` who let others see it; empty if
    READ_RECEIPTS is off."""
    newcomers: list[str]
    """Those of `positions` who joined after the newest message: they begin at it, but have not read it.
    Empty if `last_sender` is."""
    moved: int
    """Stands for the title, the members, and the positions, but not for positions that have moved because the
    member sent a message: these come with it. Pass it to the next call."""
    title: str
    member_count: int
    last_id: int
    """Id of the newest message; 0 if none was sent."""
    last_sender: str
    """The sender of the newest message; "" if `members` is empty or the user can't see the message."""
    oldest_id: int
    """Id of the oldest message that the user can see; `last_id + 1` if there is none."""
    removed: int
    """How many messages before the oldest one were sent since the user joined, and removed by a limit."""
    resumed: bool
    """Whether the history begins where the user unblocked the other member of this direct chat."""
    read_id: int
    """Id up to which the user has acked."""
    unread: int
    """Number of messages by others after it that are still stored."""
    muted_until: datetime | None
    """When the user's mute of the chat ends; None if there is none."""
    typists: list[str]
    """The members who are typing, the latest first, without the user; at most 10."""
    event: int
    """The number of the latest event: pass it to the next call, as `events`."""
    events: list[ChatEvent]
    """What happened to the chat since the user joined, of the latest 100 events: those after `events`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending:
    """The messages of one chat that a member has not acked, oldest first."""

    chat_id: str
    messages: list[Message]
    """Includes the member's own, for their other devices."""
    cursor: str
    """The end of the messages: ack it after processing them. If `messages` is empty, it is the cursor of the
    message before them."""
    gap: int
    """How many messages directly before the first of these were removed by a limit."""
    has_more: bool
    """Whether there are more unacked messages. If `messages` is empty, other chats have used up `total`."""
    reset: bool
    """Since the user last acked everything, the chat lost data. Discard the messages you have; these replace
    them, even if there are none. Reported once, and again only until these are acked. A loss of the whole
    server, a chat that was deleted and created anew, or a further loss before everything is acked, is
    detected by Chat.history(after=cursor) only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A member of a chat."""

    user: str
    read_id: int
    """Id up to which the member has acked, even if they let nobody see it: don't show it to others."""
    joined_at: datetime
    role: Role
    suspended: bool = field(default=False, repr=False, compare=False)
    """Whether the member has blocked the other one of this direct chat. The other one must not learn it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatInfo:
    """A chat without its messages."""

    chat_id: str
    title: str
    open: bool
    """Whether anyone can join without being added."""
    keep_last: int
    created_at: datetime
    active_at: datetime
    """When the newest message was sent, or the chat created."""
    last_id: int
    """Id of the newest message; 0 if none was sent."""
    first_id: int
    """Id of the oldest message still stored; `last_id + 1` if there is none."""
    edits: int
    """How many times messages were edited or deleted. If it has changed, messages you show may be
    outdated."""
    member_count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatSummary:
    """A chat as its member sees it in a list."""

    chat_id: str
    title: str
    unread: int
    """Number of messages by others that the member has not acked and that are still stored."""
    last_message: Message | None
    """The newest message, if the member may see it and it is still stored. If it is stored in more than 512
    bytes, this is an excerpt: without `data`, `reply_to` and `mentions`, its body cut to about 500 bytes and
    "…"."""
    active_at: datetime
    member_count: int
    members: list[str]
    """The first few members, the longest-standing first: a label for chats without a title."""
    muted: bool
    cursor: str
    """The chat's place in the list: `chats(after=cursor)` continues below it, even if the chat has moved or
    is gone."""


class Names(list[str]):
    """Names of users: a list, and whether there are more.

    >>> Names(["ann", "bob"], has_more=True)
    ['ann', 'bob']
    """

    def __init__(self, names: Iterable[str] = (), *, has_more: bool = False) -> None:
        super().__init__(names)
        #: whether the limit left out further names
        self.has_more = has_more


def make_events(latest: int, entries: list[bytes]) -> list[ChatEvent]:
    """Make events of the last entries of their list; `latest` is the number of the last one."""
    first = latest - len(entries) + 1
    return [_make_event(number, *entry) for number, entry in enumerate(encoding.loads_all(entries), first)]


def _make_event(number: int, ms: int, after_id: int, kind: EventKind, actor: str, *rest: Any) -> ChatEvent:
    """Make an event of its entry: see _info.lua."""
    users: list[Any] = list(rest or [actor])
    title, count = "", len(users)
    if kind == "renamed":
        title, users, count = rest[0], [], 0
    elif type(users[-1]) is int:
        count = users.pop()
    return ChatEvent(
        number=number, kind=kind, at=to_datetime(ms), after_id=after_id,
        actor=actor, users=users, count=count, title=title,
    )  # fmt: skip


def limits() -> tuple[int, int, int]:
    """The limits of a log: number of entries, their age in ms (0: none), and their bytes."""
    settings = conf.current()
    return settings.CHAT_MAX_LENGTH, int((settings.CHAT_MAX_AGE or 0) * 1000), settings.CHAT_MAX_BYTES


def limits_without_bytes() -> tuple[int, int]:
    """The limits that lists of chats apply: that of bytes would load an entry of each chat."""
    length, age, _ = limits()
    return length, age


def max_age() -> int:
    """The maximum age of an entry: ms, 0 for none."""
    return limits_without_bytes()[1]


def random_step() -> int:
    """A random number, for count_move of _positions.lua."""
    return int.from_bytes(os.urandom(2)) + 1


def parse_cursor(value: str | int, what: str) -> tuple[int, int | str, str]:
    """Parse and check a cursor or a bare id: the id, the epoch, and the stamp as text, both '' for a bare
    id."""
    number, epoch, stamp = arguments.parse_cursor(value, what)
    return number, epoch, stamp if isinstance(stamp, str) else f"{stamp >> 32}-{stamp & 0xFFFFFFFF}"


def author_json(user: str) -> str:
    """A user's name as entries contain it."""
    return encoding.string(user)


def body_json(body: str) -> str:
    """A body as entries contain it, checked.

    A text of quotes takes twice its bytes, one of control characters six times: that much is not stored.
    """
    stored = encoding.string(encoding.text(body, "body", setting="MESSAGE_MAX_BYTES"))
    limit = 2 * conf.current().MESSAGE_MAX_BYTES + _QUOTES
    if len(stored) * _MAX_CHARACTER > limit and len(stored.encode()) > limit:
        raise LimitExceeded(
            "body as stored, with escaped control characters (bytes)",
            limit=limit,
            actual=len(stored.encode()),
            setting="MESSAGE_MAX_BYTES",
        )
    return stored


def as_stored(data: Any) -> Any:
    """`data` as it will be read: for example, a tuple becomes a list."""
    return None if data is None else encoding.loads_all([encoding.dumps(data, "data").encode()])[0]


def encode_content(
    sender: str, body: str, data: Any, reply_to: int | None, request_id: str, *, has_mentions: bool = False
) -> bytes:
    """Encode an entry without its time, mentions, offset and size, which the script adds."""
    author = author_json(sender).encode()
    text = body_json(body).encode()
    optional = b""
    if data is not None or reply_to is not None or has_mentions:
        stored = encoding.dumps(data, "data").encode()
        optional = f",{encoding.dumps(reply_to)},".encode() + stored
        limit = conf.current().MESSAGE_MAX_BYTES
        size = len(body.encode()) + (0 if data is None else len(stored))
        if size > limit:
            raise LimitExceeded(
                "body and data (bytes)", limit=limit, actual=size, setting="MESSAGE_MAX_BYTES"
            )
    nonce = zlib.crc32(request_id.encode())
    return b"%d,0,%d,%d,%b,%b%b" % (nonce, len(author), len(text), author, text, optional)


def epoch_of(newest: bytes) -> int:
    """The epoch of a chat, from the value of its key newest."""
    _, _, _, epoch, *_ = newest.split(b"-")
    return int(epoch)


def make_message(chat_id: str, epoch: int, number: int, entry: list[Any]) -> Message:
    """Make a Message of a decoded entry."""
    ms, nonce, edited = entry[:3]
    size = len(entry)
    message = _new(Message)
    # The __init__ of a frozen dataclass sets field by field, which takes three times as long.
    _set(
        message,
        "__dict__",
        {
            "id": number,
            "cursor": f"{epoch:x}-{number:x}-{ms << 32 | nonce:x}",
            "chat_id": chat_id,
            "sender": entry[5],
            "body": entry[6],
            "data": entry[8] if size > _WITHOUT_OPTIONAL else None,
            "reply_to": entry[7] if size > _WITHOUT_OPTIONAL else None,
            "mentions": tuple(entry[9]) if size > _WITHOUT_MENTIONS else (),
            "kind": "text",
            "sent_at": _fromtimestamp(ms / 1000, UTC),
            "edited_at": _fromtimestamp(abs(edited) / 1000, UTC) if edited else None,
            "deleted": edited < 0,
        },
    )
    return message


def make_messages(chat_id: str, epoch: int, first: int, raw: list[bytes]) -> list[Message]:
    """Decode entries with ids from `first` on."""
    decoded = encoding.loads_all(raw)
    return [make_message(chat_id, epoch, number, entry) for number, entry in enumerate(decoded, first)]


def end_cursor(epoch: int, first: int, stamp: str, messages: list[Message]) -> str:
    """The cursor of the last of `messages`; if there are none, of the entry before id `first`, which has this
    stamp ("ms-nonce")."""
    if messages:
        return messages[-1].cursor
    ms, nonce = map(int, stamp.split("-"))
    return arguments.format_cursor(epoch, first - 1, ms << 32 | nonce)
