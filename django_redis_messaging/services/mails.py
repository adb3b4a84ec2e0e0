"""What the operations of a mailbox return, and how mail is stored: the form of an entry is in
lua/_mailbox.lua."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from .. import conf
from ..core import payloads
from ..errors import LimitExceeded
from .chats import entries


@dataclass(frozen=True, kw_only=True)
class Mail:
    """One mail of a mailbox."""

    id: int
    """Greater than that of any mail before, in this mailbox."""
    payload: Any
    """What was sent: anything JSON can say."""
    sender: str | None
    group: str | None
    """The group whose unread mail it is: it replaced the one before."""
    count: int
    """How many mails of its group it stands for, itself among them; 1 without a group."""
    read: bool
    sent_at: datetime
    """By the server's clock; never earlier than the mail before."""
    cursor: str
    """Opaque; names this very mail. Ack by it rather than by the id: it notices lost data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MailPage:
    """Some mails, in the order of reading: oldest first, or with `newest_first` the other way round."""

    messages: list[Mail]
    cursor: str
    """Where these end: read on after it. There is one also without mails."""
    gap: int
    """How many mails a limit removed: of those after `after`; without it, of those that were not acked.
    With `newest_first` it is told at the end, where `has_more` is False."""
    has_more: bool
    """Whether there are more in the direction of reading."""
    reset: bool
    """The cursor names a mail that isn't there: Redis lost data, or the user was forgotten. The page begins
    at the beginning: drop what you have, and take this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MailboxStatus:
    """What a sender may want to know of a mailbox."""

    unread: int
    acked_id: int
    """The id up to which the user has acked; 0 before the first ack."""
    last_fetched_at: datetime | None
    """When the user last fetched; None: never."""
    full: bool
    """Whether the next mail removes the oldest."""
    # left out of comparisons: what a status says is the four above
    last_id: int = field(default=0, compare=False, repr=False)
    """The id of the newest mail ever; 0 before the first."""


def rest_of_entry(payload: Any, sender: str | None, group: str | None) -> str:
    """All of an entry but the two numbers that the server puts in front."""
    encoded = payloads.dumps(payload)
    limit, size = conf.current().MAIL_MAX_BYTES, len(encoded.encode())
    if size > limit:
        raise LimitExceeded("payload (bytes, MAIL_MAX_BYTES)", limit=limit, actual=size)
    return f"{_nullable(sender)},{_nullable(group)},{encoded}]"


def _nullable(value: str | None) -> str:
    return "null" if value is None else payloads.string(value)


def as_stored(payload: Any) -> Any:
    """What comes back of `payload`: a tuple, for one, as a list. The usual ones need no decoding."""
    if type(payload) in _PLAIN:
        return payload
    if type(payload) is dict and all(type(value) in _PLAIN for value in payload.values()):
        return dict(payload)
    return payloads.loads_all([payloads.dumps(payload).encode()])[0]


def mail(epoch: int, number: int, entry: Sequence[Any], *, read: bool) -> Mail:
    """A decoded entry as a Mail."""
    ms, count, sender, group, payload = entry
    made = _new(Mail)
    # A frozen dataclass's own __init__ sets field by field, which takes three times as long.
    _set(
        made,
        "__dict__",
        {
            "id": number,
            "payload": payload,
            "sender": sender,
            "group": group,
            "count": count,
            "read": read,
            "sent_at": _at(ms / 1000, UTC),
            "cursor": f"{epoch:x}-{number:x}-{ms:x}",
        },
    )
    return made


def page(reply: Sequence[Any], after: str | int | None) -> MailPage:
    """The reply of a fetch after some place."""
    epoch, begin, gap, has_more, reset, ids, raw, unread = reply
    decoded = payloads.loads_all(raw)
    era = int(epoch)
    mails = [
        mail(era, int(number), entry, read=not new)
        for number, entry, new in zip(ids, decoded, unread, strict=True)
    ]
    end = after if isinstance(after, str) and not reset else entries.cursor(era, begin)
    return MailPage(
        messages=mails,
        cursor=mails[-1].cursor if mails else end,
        gap=gap,
        has_more=bool(has_more),
        reset=bool(reset),
    )


_PLAIN = {str, int, float, bool, type(None)}
_new, _set, _at = object.__new__, object.__setattr__, datetime.fromtimestamp
