"""The number of a user's unread messages, for any page of the site."""

from __future__ import annotations

import logging

from django.http import HttpRequest

from ..core.retry import deadline
from ..errors import MessagingError
from ..services.inboxes import Inbox
from . import identity as identities
from .bell import COUNT_TIMEOUT

_logger = logging.getLogger(__name__)
#: attribute of the request that keeps the number, so that a page reads it once
_KEPT = "_messaging_unread"


def unread_messages(request: HttpRequest) -> int | None:
    """The number of unread messages in the chats of the request's user, read once for each request.

    None if nobody is signed in, the user may not use the pages, or Redis is unavailable.
    """
    if not hasattr(request, _KEPT):
        setattr(request, _KEPT, _read(request))
    unread: int | None = getattr(request, _KEPT)
    return unread


def _read(request: HttpRequest) -> int | None:
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
