"""The return values of mailbox operations, and the encoding of stored mail (see lua/_mailbox.lua)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ... import conf
from ...core import payloads
from ...errors import LimitExceeded
from ..cursors import format_cursor


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
    encoded = payloads.dumps(payload)
    limit, size = conf.current().MAIL_MAX_BYTES, len(encoded.encode())
    if size > limit:
        raise LimitExceeded("a mail's payload (bytes)", limit=limit, actual=size, setting="MAIL_MAX_BYTES")
    return f"{_string_or_null(sender)},{_string_or_null(group)},{encoded}]"


def _string_or_null(value: str | None) -> str:
    return "null" if value is None else payloads.string(value)


def as_stored(payload: Any) -> Any:
    """`payload` as it will be read: for example, a tuple becomes a list. Common payloads need no decoding."""
    if type(payload) in _PLAIN:
        return payload
    if type(payload) is dict and all(type(value) in _PLAIN for value in payload.values()):
        return dict(payload)
    return payloads.loads_all([payloads.dumps(payload).encode()])[0]


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
        for number, entry, is_unread in zip(ids, payloads.loads_all(raw), unread, strict=True)
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
