"""What operators see of mailboxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ...core import encoding
from ...core.operations import Script, Steps
from ..common.arguments import to_datetime
from .mailbox import Mail, MailboxKeys, limits, make_mail

#: maximum number of bytes of the newest mails
PEEK_BYTES = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class MailboxUsage:
    """What a mailbox stores."""

    name: str
    """The user."""
    mails: int
    unread: int
    last_id: int
    """Id of the newest mail ever sent; 0: there never was one."""
    fetched_at: datetime | None
    """Time of the user's latest fetch."""


def read_usage(prefix: str, users: Sequence[str]) -> Steps[list[MailboxUsage]]:
    """What mailboxes store, without those that never got a mail."""
    if not users:
        return []
    replies = yield [Script("mailboxes/status", MailboxKeys(prefix, one).all_keys, limits()) for one in users]
    return [
        MailboxUsage(
            name=user,
            mails=mails,
            unread=unread,
            last_id=last,
            fetched_at=to_datetime(fetched) if fetched else None,
        )
        for user, (unread, _, fetched, mails, last) in zip(users, replies, strict=True)
        if last
    ]


def read_newest(prefix: str, user: str, limit: int) -> Steps[list[Mail]]:
    """The newest mails, the newest first. The user's latest fetch stays as it is."""
    args = (limit, PEEK_BYTES, *limits())
    epoch, ids, raw, unread = yield Script("mailboxes/peek", MailboxKeys(prefix, user).peeking, args)
    return [
        make_mail(int(epoch), int(number), entry, read=not is_unread)
        for number, entry, is_unread in zip(ids, encoding.loads_all(raw), unread, strict=True)
    ]
