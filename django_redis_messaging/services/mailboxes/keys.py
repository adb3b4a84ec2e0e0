"""The keys of mailboxes."""

from __future__ import annotations

import functools

from ...core.keys import tag


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
    def order(self) -> str:
        """ZSET id → id of the stored mails."""
        return self.tag + ":order"

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
        """Two HASHes sender NUL request id → first answer, used by turns, for one window each; also the id of
        a call that marks or clears → how many. Each expires before its next turn."""
        return [self.tag + ":requests:0", self.tag + ":requests:1"]

    @functools.cached_property
    def changing(self) -> tuple[str, ...]:
        """The first keys, for changes that need no request."""
        return (self.newest, self.order, self.mail, self.marked, self.groups, self.lost)

    @functools.cached_property
    def sending(self) -> tuple[str, ...]:
        """The first keys, for sending, marking and clearing."""
        return (*self.changing, *self.requests)

    @functools.cached_property
    def all_keys(self) -> tuple[str, ...]:
        """All keys of the mailbox."""
        return (*self.sending, self.fetched)
