"""What can go wrong in a request, and the answer to it: one place for codes, words and statuses."""

from __future__ import annotations

import dataclasses
import math

from django.utils.translation import gettext as _

from ..errors import (
    ChatNotFound,
    LimitExceeded,
    MessagingError,
    NotAMember,
    NotPermitted,
    OutcomeUnknown,
    Unavailable,
)

#: seconds after which to try again when Redis was away
AWAY_RETRY = 5
#: seconds after which to try again when somebody has as many chats as may be
FULL_RETRY = 3600


@dataclasses.dataclass
class Problem(Exception):
    """An answer that is no success."""

    status: int
    code: str
    message: str
    #: seconds, for the Retry-After header
    retry_after: int | None = None


def not_found() -> Problem:
    """The same for a chat that doesn't exist and for one that is none of the user's business."""
    return Problem(404, "not_found", _("There is no such chat, or you are not a member of it."))


def sign_in() -> Problem:
    return Problem(401, "sign_in", _("Sign in first."))


def not_permitted() -> Problem:
    return Problem(403, "not_permitted", _("You may not do this."))


def invalid(message: str) -> Problem:
    return Problem(400, "invalid", message)


def not_in_directory() -> Problem:
    return Problem(403, "not_in_directory", _("You can only write to people in your contacts."))


def too_long() -> Problem:
    return Problem(413, "too_long", _("This is too long. Make it shorter, or send it in parts."))


def too_many_people() -> Problem:
    return Problem(413, "too_many_people", _("A chat can't have this many members."))


def too_many_chats() -> Problem:
    text = _("You, or somebody you invite, are in too many chats already. Leave some first.")
    return Problem(429, "too_many_chats", text, FULL_RETRY)


def too_fast(wait: float) -> Problem:
    return Problem(429, "too_fast", _("That was a lot in a short time. Wait a moment."), math.ceil(wait))


def problem(error: MessagingError) -> Problem | None:
    """The answer to an error of the services; None: it is none of the user's doing nor of the moment."""
    if isinstance(error, NotAMember | ChatNotFound):
        return not_found()
    if isinstance(error, NotPermitted):
        return not_permitted()
    if isinstance(error, LimitExceeded):
        return too_long()
    if isinstance(error, OutcomeUnknown):
        text = _("The server did not answer in time. It may have worked; trying again does no harm.")
        return Problem(503, "outcome_unknown", text, AWAY_RETRY)
    if isinstance(error, Unavailable):
        return Problem(503, "unavailable", _("Messages are away for a moment. Try again."), AWAY_RETRY)
    return None
