"""The bell: how many notifications a user has not read, for any page of the site."""

from __future__ import annotations

import logging

from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..core.retry import deadline
from ..errors import MessagingError
from ..services.mailboxes import Mailbox
from ..services.mails import MailboxStatus
from . import identity as identities

_logger = logging.getLogger(__name__)
#: more than this is shown as "99+"
MOST_SHOWN = 99
#: seconds after which a page is shown without the count
PATIENCE = 0.25


class Bell:
    """What the bell shows to whoever asks. Nothing is looked up before it is needed, and then once."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    @cached_property
    def shown(self) -> bool:
        """Whether there is a bell for this user at all."""
        user = getattr(self._request, "user", None)
        return user is not None and identities.current().may_use(user)

    @property
    def unread(self) -> int | None:
        """How many are unread: one round trip to Redis. None: nobody is signed in, or Redis is away."""
        return self._status.unread if self._status else None

    @property
    def state(self) -> str:
        """Changes with what the page of notifications shows; empty where it isn't known."""
        return state(self._status) if self._status else ""

    @cached_property
    def _status(self) -> MailboxStatus | None:
        if not self.shown:
            return None
        mailbox = Mailbox(identities.current().member_id(self._request.user))
        try:
            # A page of the site must not wait for the bell.
            with deadline(PATIENCE):
                return mailbox.status()
        except MessagingError as error:
            _logger.warning("The bell has no count: %s", error)
            return None

    @property
    def label(self) -> str:
        return label(self.unread)

    @property
    def text(self) -> str:
        return text(self.unread)


def state(status: MailboxStatus) -> str:
    """How many are unread, and which is the newest: one may be read when another one comes."""
    return f"{status.unread}-{status.last_id}"


def label(unread: int | None) -> str:
    """What a screen reader says.

    >>> label(None), label(1), label(2)
    ('Notifications', 'Notifications: 1 unread', 'Notifications: 2 unread')
    """
    if unread is None:
        return _("Notifications")
    if not unread:
        return _("Notifications: none unread")
    spoken = ngettext("Notifications: %(count)d unread", "Notifications: %(count)d unread", unread)
    return spoken % {"count": unread}


def text(unread: int | None) -> str:
    """What stands on the bell.

    >>> text(None), text(0), text(99), text(100)
    ('', '', '99', '99+')
    """
    if not unread:
        return ""
    return str(unread) if unread <= MOST_SHOWN else f"{MOST_SHOWN}+"
