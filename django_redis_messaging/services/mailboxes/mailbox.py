"""A mailbox: one recipient, who pulls. A mail waits until it is read, and only limits remove it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ... import conf
from ...core import encoding
from ...core.commands import batched
from ...core.encoding import name, tag
from ...core.operations import Command, Script, Service, Steps, asynchronous, operation
from ...errors import InvalidArgument, LimitExceeded
from ..common.arguments import (
    MAX_ITEMS,
    UserOrId,
    checked_id,
    count,
    flag,
    format_cursor,
    member_id,
    parse_cursor,
    request,
    settled,
    to_datetime,
    window,
)


class MailboxKeys:
    """The keys of one user's mailbox, in one slot. Capped on write; deleted by forget().

    Scripts take them in one order, that of `all_keys`; most take the first ones only. They name them with
    mailbox_at() of _mailbox.lua.
    """

    def __init__(self, prefix: str, user: str) -> None:
        self.tag = tag(prefix, "mailbox", user)

    @property
    def newest(self) -> str:
        """STRING "last-ms-epoch-acked": id and time of the newest mail ever, the mailbox's epoch (µs), and
        the id up to which the user has acked."""
        return self.tag + ":newest"

    @property
    def ids(self) -> str:
        """LIST of the ids of the stored mails, in order."""
        return self.tag + ":ids"

    @property
    def mail(self) -> str:
        """HASH id → entry; the format is in _mailbox.lua. Expires when the newest mail is too old."""
        return self.tag + ":mail"

    @property
    def marked(self) -> str:
        """ZSET id → id of mails above the position that were marked as read."""
        return self.tag + ":marked"

    @property
    def groups(self) -> str:
        """ZSET group → id of its unread mail."""
        return self.tag + ":groups"

    @property
    def lost(self) -> str:
        """ZSET first id → last id: runs of mails that a limit removed; the latest 1000 runs."""
        return self.tag + ":lost"

    @property
    def fetched(self) -> str:
        """STRING: ms of the user's latest fetch."""
        return self.tag + ":fetched"

    @property
    def requests(self) -> list[str]:
        """HASH sender NUL request id → first answer; also the id of a call that marks or clears → how many:
        two keys, used by turns, for one window each. Each expires before its next turn."""
        return [self.tag + ":requests:0", self.tag + ":requests:1"]

    @functools.cached_property
    def peeking(self) -> tuple[str, ...]:
        """The first keys, for reading mails without a cursor."""
        return (self.newest, self.ids, self.mail, self.marked)

    @functools.cached_property
    def changing(self) -> tuple[str, ...]:
        """The first keys, for changes that need no request."""
        return (*self.peeking, self.groups, self.lost)

    @functools.cached_property
    def sending(self) -> tuple[str, ...]:
        """The first keys, for sending, marking and clearing."""
        return (*self.changing, *self.requests)

    @functools.cached_property
    def all_keys(self) -> tuple[str, ...]:
        """All keys of the mailbox."""
        return (*self.sending, self.fetched)


@dataclass(frozen=True, kw_only=True)
class Mail:
    """One mail of a mailbox."""

    id: int
    """Greater than that of every earlier mail in this mailbox."""
    payload: Any
    """Any JSON value."""
    sender: str | None
    group: str | None
    """The group of the mail: it replaced the group's previous unread mail."""
    count: int
    """Number of mails of its group that it represents, including itself; 1 without a group."""
    read: bool
    sent_at: datetime
    """By the server's clock; never earlier than the previous mail."""
    cursor: str
    """Opaque reference to this mail. Prefer it to the id for acks: it detects lost data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MailPage:
    """A page of mails, oldest first, or newest first with `newest_first`."""

    messages: list[Mail]
    cursor: str
    """The end of the page: read on after it. Set even if `messages` is empty."""
    gap: int
    """How many mails after `after` were removed by a limit; without `after`, how many unacked mails were.
    With `newest_first`, 0 until the last page, where `has_more` is False."""
    has_more: bool
    """Whether there are more mails in the direction of reading."""
    reset: bool
    """The cursor refers to a mail that does not exist: Redis lost data, or the user was forgotten. This is
    the first page; discard earlier ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MailboxStatus:
    """The state of a mailbox."""

    unread: int
    acked_id: int
    """Id up to which the user has acked; 0 before the first ack."""
    last_fetched_at: datetime | None
    """Time of the user's latest fetch; None if the user has never fetched."""
    full: bool
    """Whether the next mail removes the oldest."""
    # not part of the public status
    last_id: int = field(default=0, compare=False, repr=False)
    """Id of the newest mail ever sent; 0 before the first."""


def encode_content(payload: Any, sender: str | None, group: str | None) -> str:
    """Encode an entry without the two numbers at its beginning, which the script adds."""
    encoded = encoding.dumps(payload)
    limit, size = conf.current().MAIL_MAX_BYTES, len(encoded.encode())
    if size > limit:
        raise LimitExceeded("a mail's payload (bytes)", limit=limit, actual=size, setting="MAIL_MAX_BYTES")
    return f"{_string_or_null(sender)},{_string_or_null(group)},{encoded}]"


def _string_or_null(value: str | None) -> str:
    return "null" if value is None else encoding.string(value)


def as_stored(payload: Any) -> Any:
    """`payload` as it will be read: for example, a tuple becomes a list. Common payloads need no decoding."""
    if type(payload) in _PLAIN:
        return payload
    if type(payload) is dict and all(type(value) in _PLAIN for value in payload.values()):
        return dict(payload)
    return encoding.loads_all([encoding.dumps(payload).encode()])[0]


def make_mail(epoch: int, number: int, entry: Sequence[Any], *, read: bool) -> Mail:
    """Make a Mail of a decoded entry."""
    ms, count, sender, group, payload = entry
    mail = _new(Mail)
    # The __init__ of a frozen dataclass sets field by field, which takes three times as long.
    _set(
        mail,
        "__dict__",
        {
            "id": number,
            "payload": payload,
            "sender": sender,
            "group": group,
            "count": count,
            "read": read,
            "sent_at": _fromtimestamp(ms / 1000, UTC),
            "cursor": f"{epoch:x}-{number:x}-{ms:x}",
        },
    )
    return mail


def make_page(reply: Sequence[Any], after: str | int | None) -> MailPage:
    """Make a page of the reply to a fetch after `after`."""
    epoch, start, gap, has_more, reset, ids, raw, unread = reply
    epoch = int(epoch)
    mails = [
        make_mail(epoch, int(number), entry, read=not is_unread)
        for number, entry, is_unread in zip(ids, encoding.loads_all(raw), unread, strict=True)
    ]
    end = after if isinstance(after, str) and not reset else format_cursor(epoch, start)
    return MailPage(
        messages=mails,
        cursor=mails[-1].cursor if mails else end,
        gap=gap,
        has_more=bool(has_more),
        reset=bool(reset),
    )


_PLAIN = {str, int, float, bool, type(None)}
_new, _set, _fromtimestamp = object.__new__, object.__setattr__, datetime.fromtimestamp


class Mailbox(Service):
    """The mail of one user. Creating the object does no I/O.

    *Every mail is kept until the user discards it, in the order of sending. If a limit on number or age
    (MAILBOX_MAX_LENGTH, MAILBOX_MAX_AGE) removed mails, the reader gets the size of the gap; if Redis lost
    data, the reader gets `reset`.*

    >>> mailbox = Mailbox("mailbox-example")
    >>> first = mailbox.send({"text": "Your order was sent."})
    >>> page = mailbox.fetch(unread=True)
    >>> [mail.payload["text"] for mail in page.messages]
    ['Your order was sent.']
    >>> mailbox.ack(page.cursor), mailbox.unread()
    (1, 0)
    """

    def __init__(self, user: UserOrId, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.user = member_id(user, "user")
        self._keys = MailboxKeys(self._prefix, self.user)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.user!r})"

    @operation
    def send(
        self,
        payload: Any,
        *,
        sender: UserOrId | None = None,
        group: str | None = None,
        request_id: str | None = None,
    ) -> Steps[Mail]:
        """Put a mail into the mailbox; `payload` is any JSON value.

        A mail of a `group` replaces the unread mail of that group, and its `count` is one higher. A repeat
        with the same `request_id` by the same `sender` (None is a sender of its own) sends nothing and
        returns the first mail, as far as it is still stored. If the mailbox is full, the oldest mail is
        removed; check `status().full` to avoid that.

        >>> box = Mailbox("group-example")
        >>> box.send("1 new answer", group="topic-7").count, box.send("2 new answers", group="topic-7").count
        (1, 2)
        >>> [mail.payload for mail in box.fetch().messages]
        ['2 new answers']

        Raises LimitExceeded (MAIL_MAX_BYTES).
        """
        sender = None if sender is None else member_id(sender, "sender")
        reply = yield Script(
            "mailboxes/send", self._keys.sending, sending_arguments(payload, sender, group, request_id)
        )
        first = None
        if type(reply) is list:  # a repeat
            reply, first = reply
        number, ms, epoch, times = map(int, reply.split(b"-"))
        entry = [ms, times, sender, group, as_stored(payload)]
        if first is not None:
            [entry] = encoding.loads_all([first])
        return make_mail(epoch, number, entry, read=False)

    asend = asynchronous(send)

    @operation
    def fetch(
        self,
        *,
        after: str | int | None = None,
        limit: int = 100,
        unread: bool | None = None,
        newest_first: bool = False,
    ) -> Steps[MailPage]:
        """Read a page of mail, oldest first, without marking anything as read.

        `after` is the cursor or id at the end of the previous page; without it, reading begins at the oldest
        stored mail. `unread=True` returns only unread mail, `unread=False` only read mail. `newest_first`
        reverses the direction. `limit` is between 1 and 1000. A page contains at least one mail but
        otherwise ends before it exceeds 256 KiB.

        >>> box = Mailbox("fetch-example")
        >>> for number in range(3):
        ...     mail = box.send(number)
        >>> page = box.fetch(limit=2)
        >>> [mail.payload for mail in page.messages], page.has_more
        ([0, 1], True)
        >>> [mail.payload for mail in box.fetch(after=page.cursor).messages]
        [2]

        Raises InvalidArgument for an invalid cursor.
        """
        cursor = ("", "", "") if after is None else parse_cursor(after, "after")
        read_filter = "all" if unread is None else "unread" if flag(unread, "unread") else "read"
        reply = yield Script(
            "mailboxes/fetch",
            self._keys.all_keys,
            (
                "older" if flag(newest_first, "newest_first") else "newer",
                *cursor,
                count(limit, "limit"),
                read_filter,
                *limits(),
            ),
        )
        return make_page(reply, after)

    afetch = asynchronous(fetch)

    @operation
    def ack(self, up_to: str | int) -> Steps[int]:
        """Mark everything up to a mail as read; returns the position, which never moves back.

        `up_to` is a cursor or an id; an id above the newest means the newest. A cursor whose mail no longer
        exists because Redis lost data moves nothing. Raises InvalidArgument for an invalid cursor.
        """
        cursor = parse_cursor(up_to, "up_to")
        return int((yield Script("mailboxes/ack", self._keys.changing, cursor)))

    aack = asynchronous(ack)

    @operation
    def mark_read(self, ids: Iterable[int]) -> Steps[int]:
        """Mark at most 1000 mails as read; returns how many of them were unread.

        Ids of mails that do not exist (any more) are ignored. Takes a round trip for each 500.
        """
        unread = 0
        for page in batched(_checked_ids(ids)):
            made = request(None)  # so that a repeat after a lost reply returns the first number
            unread += yield Script("mailboxes/mark", self._keys.sending, (made, window(), *limits(), *page))
        return unread

    amark_read = asynchronous(mark_read)

    @operation
    def unread(self) -> Steps[int]:
        """Count the unread mails; the mail of a group counts once."""
        unread, *_ = yield _status(self._keys)
        return int(unread)

    aunread = asynchronous(unread)

    @operation
    def discard(self, id: int) -> Steps[bool | None]:
        """Remove one mail; False if it does not exist (any more). Leaves no gap.

        None if a reply was lost and the retry found no such mail: this call may have removed it.
        """
        args = (checked_id(id, "id"), *limits())
        return settled((yield Script("mailboxes/discard", self._keys.changing, args, settles=True)))

    adiscard = asynchronous(discard)

    @operation
    def clear(self) -> Steps[int]:
        """Remove and ack all mail, read or not; returns how many mails were removed. Leaves no gap."""
        args = (request(None), window(), *limits())
        return int((yield Script("mailboxes/clear", self._keys.sending, args)))

    aclear = asynchronous(clear)

    @operation
    def status(self) -> Steps[MailboxStatus]:
        """Describe the mailbox for senders: how much is unread, the latest fetch, whether it is full.

        >>> Mailbox("status-example").status()
        MailboxStatus(unread=0, acked_id=0, last_fetched_at=None, full=False)
        """
        return (yield from read_status(self._keys))

    astatus = asynchronous(status)


def read_status(keys: MailboxKeys) -> Steps[MailboxStatus]:
    """The state of the mailbox with these keys."""
    unread, acked, fetched, length, last = yield _status(keys)
    return MailboxStatus(
        unread=unread,
        acked_id=acked,
        last_fetched_at=to_datetime(fetched) if fetched else None,
        full=length >= conf.current().MAILBOX_MAX_LENGTH,
        last_id=last,
    )


def _status(keys: MailboxKeys) -> Script:
    return Script("mailboxes/status", keys.all_keys, limits())


def sending_arguments(
    payload: Any, sender: str | None, group: str | None, request_id: str | None
) -> tuple[str | int, ...]:
    """The arguments of send.lua, checked. `sender` is a member id, or None."""
    if group is not None:
        name(group, "group")
    content = encode_content(payload, sender, group)
    return f"{sender or ''}\0{request(request_id)}", window(), content, group or "", *limits()


def limits() -> tuple[int, int]:
    """The limits of a mailbox: number of mails, and their age in ms (0: none)."""
    settings = conf.current()
    return settings.MAILBOX_MAX_LENGTH, int((settings.MAILBOX_MAX_AGE or 0) * 1000)


def _checked_ids(ids: Iterable[int]) -> list[int]:
    if isinstance(ids, int | str) or not isinstance(ids, Iterable):
        raise TypeError(f"ids must be a list of mail ids, not {type(ids).__name__}: wrap it in a list.")
    checked = [checked_id(id, "ids") for id in ids]
    if len(checked) > MAX_ITEMS:
        raise InvalidArgument(
            f"ids must have at most {MAX_ITEMS} items, not {len(checked)}: use ack for more."
        )
    return checked


def forget_mail(prefix: str, user: str) -> Steps[None]:
    """Delete a user's mailbox."""
    yield Command("UNLINK", *MailboxKeys(prefix, user).all_keys)
