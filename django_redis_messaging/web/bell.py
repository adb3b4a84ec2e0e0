"""The bell, the number of unread messages, and notifications, as templates and JSON show them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..core.outcome import deadline
from ..errors import MessagingError
from ..services.chats.inbox import Inbox
from ..services.mailboxes import Mailbox
from ..services.mailboxes.mailbox import Mail, MailboxStatus
from ..services.mailboxes.notifications import Notification, notification
from . import identity as identities
from .people import People, Person
from .stream_access import can_stream

_logger = logging.getLogger(__name__)

#: higher counts are shown as "99+"
MAX_SHOWN_COUNT = 99
#: seconds after which a page is rendered without the count
COUNT_TIMEOUT = 0.25
#: attribute of the request that keeps the number of unread messages, so that a page reads it once
_UNREAD = "_messaging_unread"


class Bell:
    """The bell for the user of a request. The count is read on first use, once."""

    #: whether a template has rendered it
    rendered = False

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    @classmethod
    def of(cls, request: HttpRequest) -> Bell:
        """The bell of a request, always the same."""
        bell = getattr(request, "_messaging_bell", None)
        if not isinstance(bell, cls):
            bell = cls(request)
            setattr(request, "_messaging_bell", bell)  # noqa: B010 (not an attribute that HttpRequest declares)
        return bell

    @cached_property
    def shown(self) -> bool:
        """Whether this user gets a bell."""
        user = getattr(self._request, "user", None)
        return user is not None and identities.current().may_use(user)

    @property
    def stream_user(self) -> str:
        """The member id for a stream of changes; empty if the server pushes none."""
        return identities.current().member_id(self._request.user) if can_stream(self._request) else ""

    @property
    def unread(self) -> int | None:
        """The number of unread notifications, in one round trip to Redis.

        None if nobody is signed in or Redis is unavailable.
        """
        return self._status.unread if self._status else None

    @property
    def state(self) -> str:
        """A value that changes with the notifications; empty if it could not be read."""
        return state(self._status) if self._status else ""

    @cached_property
    def _status(self) -> MailboxStatus | None:
        if not self.shown:
            return None
        mailbox = Mailbox(identities.current().member_id(self._request.user))
        try:
            # A page of the site must not wait for the bell.
            with deadline(COUNT_TIMEOUT):
                return mailbox.status()
        except MessagingError as error:
            _logger.warning("Reading the number of unread notifications failed, showing none: %s", error)
            return None

    @property
    def label(self) -> str:
        return label(self.unread)

    @property
    def text(self) -> str:
        return text(self.unread)


def state(status: MailboxStatus) -> str:
    """The unread count and the newest id: the count alone stays equal if one is read and another arrives."""
    return f"{status.unread}-{status.last_id}"


def as_json(status: MailboxStatus) -> dict[str, Any]:
    """What the bell shows."""
    unread = status.unread
    return {"unread": unread, "label": label(unread), "text": text(unread), "state": state(status)}


def label(unread: int | None) -> str:
    """The label of the bell for screen readers.

    >>> label(None), label(1), label(2)
    ('Notifications', 'Notifications: 1 unread', 'Notifications: 2 unread')
    """
    if unread is None:
        return _("Notifications")
    if not unread:
        return _("Notifications: none unread")
    text = ngettext("Notifications: %(count)d unread", "Notifications: %(count)d unread", unread)
    return text % {"count": unread}


def text(unread: int | None) -> str:
    """The count that is shown on the bell.

    >>> text(None), text(0), text(99), text(100)
    ('', '', '99', '99+')
    """
    if not unread:
        return ""
    return str(unread) if unread <= MAX_SHOWN_COUNT else f"{MAX_SHOWN_COUNT}+"


def unread_messages(request: HttpRequest) -> int | None:
    """The number of unread messages in the chats of the request's user, read once for each request.

    None if nobody is signed in, the user may not use the pages, or Redis is unavailable.
    """
    if not hasattr(request, _UNREAD):
        setattr(request, _UNREAD, _read_unread(request))
    unread: int | None = getattr(request, _UNREAD)
    return unread


def _read_unread(request: HttpRequest) -> int | None:
    identity, user = identities.current(), getattr(request, "user", None)
    if user is None or not identity.may_use(user):
        return None
    try:
        # A page of the site must not wait for the number.
        with deadline(COUNT_TIMEOUT):
            return Inbox(identity.member_id(user)).unread()
    except MessagingError as error:
        _logger.warning("Reading the number of unread messages failed, showing none: %s", error)
        return None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NotificationView:
    """A notification with everything a template needs to show it."""

    mail: Mail
    content: Notification
    #: None if the mail has none
    sender: Person | None

    @property
    def level(self) -> str:
        """The level as a word: not everyone can distinguish colours."""
        words = {"success": _("Success"), "warning": _("Warning"), "error": _("Error")}
        return words.get(self.content.level, _("Information"))

    @property
    def as_json(self) -> dict[str, Any]:
        """The notification as JSON, without its payload: a browser gets only what the page shows."""
        mail, sender = self.mail, self.sender
        return {
            "id": mail.id,
            "cursor": mail.cursor,
            "text": self.content.text,
            "url": self.content.url,
            "level": self.content.level,
            "sender": mail.sender,
            "label": sender.label if sender else "",
            **(sender.looks if sender else {}),
            "group": mail.group,
            "count": mail.count,
            "read": mail.read,
            "sent_at": mail.sent_at.isoformat(),
        }


def notification_views(mails: Sequence[Mail], *, people: People) -> list[NotificationView]:
    """The mails as notifications."""
    add_senders(people, mails)
    return [
        NotificationView(
            mail=mail,
            content=notification(mail.payload),
            sender=people[mail.sender] if mail.sender else None,
        )
        for mail in mails
    ]


def add_senders(people: People, mails: Iterable[Mail]) -> None:
    """Add the senders of the mails."""
    people.show(mail.sender for mail in mails if mail.sender)
