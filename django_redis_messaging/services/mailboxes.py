"""One recipient, who pulls: mail that waits until it is read, and that a limit, not a crash, may remove."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import conf
from ..core.keys import MailboxKeys, name
from ..core.operations import Command, Script, Service, Steps, asynchronous, operation
from .arguments import MOST, count, flag
from .chats import entries
from .mails import Mail, MailboxStatus, MailPage, as_stored, mail, page, rest_of_entry
from .requests import request, settled, window


class Mailbox(Service):
    """The mail of one user. Making the object does no I/O.

    *Every mail is kept until the user discards it, in the order of sending; if a limit of number or age
    (MAILBOX_MAX_LENGTH, MAILBOX_MAX_AGE) removed some, the reader is told the gap; if Redis lost data, the
    reader is told `reset`.*

    >>> mailbox = Mailbox("mailbox-example")
    >>> first = mailbox.send({"text": "Your order was sent."})
    >>> page = mailbox.fetch(unread=True)
    >>> [mail.payload["text"] for mail in page.messages]
    ['Your order was sent.']
    >>> mailbox.ack(page.cursor), mailbox.unread()
    (1, 0)
    """

    def __init__(self, user: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.user = name(user, "user")
        self._keys = MailboxKeys(self._prefix, user)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.user!r})"

    @operation
    def send(
        self,
        payload: Any,
        *,
        sender: str | None = None,
        group: str | None = None,
        request_id: str | None = None,
    ) -> Steps[Mail]:
        """Put a mail into the box; `payload` is anything JSON can say.

        A mail of a `group` replaces the unread one of that group, and its `count` is one more. A repeat
        with the same `request_id` by the same `sender` sends nothing and returns the first answer. Where the
        box is full, the oldest mail goes; `status` says so beforehand.

        >>> box = Mailbox("group-example")
        >>> box.send("1 new answer", group="topic-7").count, box.send("2 new answers", group="topic-7").count
        (1, 2)
        >>> [mail.payload for mail in box.fetch().messages]
        ['2 new answers']

        Raises LimitExceeded (MAIL_MAX_BYTES).
        """
        if sender is not None:
            name(sender, "sender")
        if group is not None:
            name(group, "group")
        rest = rest_of_entry(payload, sender, group)
        reply = yield Script(
            "mailbox_send",
            self._keys.sending,
            (rest, group or "", f"{sender or ''}\0{request(request_id)}", window(), *_limits()),
        )
        number, ms, epoch, times = map(int, reply.split(b"-"))
        entry = [ms, times, sender, group, as_stored(payload)]
        return mail(epoch, number, entry, read=False)

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
        """Read a page of mail, oldest first; nothing moves, and nothing becomes read.

        `after` is the cursor or id the page before ended with; without it, reading begins at the oldest
        mail that is kept. `unread=True` reads only what is unread, `unread=False` only what is read.
        `newest_first` reads the other way round. `limit` is 1 to 1000; a page also ends before it has more
        than 256 KiB, but not before its first mail.

        >>> box = Mailbox("fetch-example")
        >>> for number in range(3):
        ...     mail = box.send(number)
        >>> page = box.fetch(limit=2)
        >>> [mail.payload for mail in page.messages], page.has_more
        ([0, 1], True)
        >>> [mail.payload for mail in box.fetch(after=page.cursor).messages]
        [2]

        Raises ValueError for a cursor that isn't one.
        """
        place = None if after is None else entries.position(after, "after")
        which = "all" if unread is None else "unread" if flag(unread, "unread") else "read"
        reply = yield Script(
            "mailbox_fetch",
            [*self._keys.changing, self._keys.fetched],
            (
                "older" if flag(newest_first, "newest_first") else "newer",
                *(("", "", "") if place is None else place),
                count(limit, "limit"),
                which,
                *_limits(),
            ),
        )
        return page(reply, after)

    afetch = asynchronous(fetch)

    @operation
    def ack(self, up_to: str | int) -> Steps[int]:
        """Mark everything up to a mail as read; returns the position, which never moves back.

        `up_to` is a cursor or an id; beyond the newest means the newest. A cursor whose mail isn't there
        any more, because Redis lost data, moves nothing. Raises ValueError for a cursor that isn't one.
        """
        place = entries.position(up_to, "up_to")
        return int((yield Script("mailbox_ack", self._keys.changing, place)))

    aack = asynchronous(ack)

    @operation
    def mark_read(self, ids: Iterable[int]) -> Steps[int]:
        """Mark these mails as read, at most 1000; returns how many of them were unread.

        Ids of mail that is not there (any more) are passed over.
        """
        wanted = _ids(ids)
        if not wanted:
            return 0
        return int((yield Script("mailbox_mark", self._keys.changing, (*_limits(), *wanted))))

    amark_read = asynchronous(mark_read)

    @operation
    def unread(self) -> Steps[int]:
        """Count the unread mail; one of a group counts once."""
        unread, *_ = yield self._look()
        return int(unread)

    aunread = asynchronous(unread)

    @operation
    def discard(self, id: int) -> Steps[bool | None]:
        """Remove one mail; False where there is no such mail (any more). It leaves no gap.

        None where a reply was lost and the repeat found no such mail, so that either may be.
        """
        words = (entries.identifier(id, "id"), *_limits())
        return settled((yield Script("mailbox_discard", self._keys.changing, words, settles=True)))

    adiscard = asynchronous(discard)

    @operation
    def clear(self) -> Steps[int]:
        """Remove all mail, read or not, and ack it; returns how much there was. It leaves no gap."""
        return int((yield Script("mailbox_clear", self._keys.changing, _limits())))

    aclear = asynchronous(clear)

    @operation
    def status(self) -> Steps[MailboxStatus]:
        """Tell what a sender may want to know: whether the user reads, and whether there is room.

        >>> Mailbox("status-example").status()
        MailboxStatus(unread=0, acked_id=0, last_fetched_at=None, full=False)
        """
        unread, acked, fetched, length, last = yield self._look()
        return MailboxStatus(
            unread=unread,
            acked_id=acked,
            last_fetched_at=entries.moment(fetched) if fetched else None,
            full=length >= conf.current().MAILBOX_MAX_LENGTH,
            last_id=last,
        )

    astatus = asynchronous(status)

    def _look(self) -> Script:
        return Script("mailbox_status", [*self._keys.changing, self._keys.fetched], _limits())


def _limits() -> tuple[int, int]:
    """What a mailbox holds at most: mails, and their age in ms (0: any)."""
    settings = conf.current()
    return settings.MAILBOX_MAX_LENGTH, int((settings.MAILBOX_MAX_AGE or 0) * 1000)


def _ids(ids: Iterable[int]) -> list[int]:
    if isinstance(ids, int | str) or not isinstance(ids, Iterable):
        raise TypeError(f"ids must be a list of mail ids, not {type(ids).__name__}: wrap it in a list.")
    wanted = [entries.identifier(one, "ids") for one in ids]
    if len(wanted) > MOST:
        raise ValueError(f"ids are {len(wanted)}: {MOST} is the most; to read all up to one, ack it.")
    return wanted


def forget_mail(prefix: str, user: str) -> Steps[None]:
    """Delete a user's mailbox."""
    yield Command("DEL", *MailboxKeys(prefix, user).every)
