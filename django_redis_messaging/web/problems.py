"""The answers to requests that fail: statuses, codes and texts in one place."""

from __future__ import annotations

import dataclasses
import math

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from ..errors import (
    ChatExists,
    ChatNotFound,
    InvalidArgument,
    LimitExceeded,
    MessagingError,
    NotAMember,
    NotPermitted,
    OutcomeUnknown,
    RateExceeded,
    Unavailable,
)

#: seconds for Retry-After when Redis is unavailable
UNAVAILABLE_RETRY = 5
#: seconds for Retry-After when a user is in the maximum number of chats
TOO_MANY_CHATS_RETRY = 3600
#: seconds for Retry-After when a user, or the process, has the maximum number of streams
STREAMS_RETRY = 60


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a failed request is answered with."""

    status: int
    code: str
    message: str | Promise
    #: seconds, for the Retry-After header
    retry_after: int | None = None
    #: the name of the form's field that must be corrected, if it is one
    field: str = ""


class Problem(Exception):
    """Raised by a view to end the request with `answer`."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.code)
        self.answer = answer


SIGN_IN = Answer(401, "sign_in", _("Sign in to continue."))
#: for input that can't be stored or shown again: lone surrogates, which the charset of a request can produce
NOT_TEXT = Answer(400, "invalid", _("This contains characters that are not allowed."))
INVALID = Answer(400, "invalid", _("This is not valid. Check what you entered."))
NOT_PERMITTED = Answer(403, "not_permitted", _("You don't have permission to do this."))
#: for a page that was made for another user, who has signed out since
OTHER_USER = Answer(403, "other_user", _("You are signed in as another user. Reload the page."))
NOT_IN_DIRECTORY = Answer(
    403, "not_in_directory", _("You can only message people in your contacts."), field="to"
)
BLOCKED = Answer(
    403, "blocked", _("You have blocked this person. Unblock them to write to them."), field="to"
)
NO_PERSON = Answer(404, "not_found", _("This person is not one of your contacts."))
#: the same answer whether the chat doesn't exist or the user isn't a member: nobody can probe for chats
NOT_FOUND = Answer(404, "not_found", _("This chat doesn't exist, or you are not a member of it."))
GONE = Answer(410, "gone", _("This message no longer exists."))
TOO_LONG = Answer(
    413, "too_long", _("This is too long. Shorten it, or split it into several messages."), field="body"
)
TITLE_TOO_LONG = Answer(413, "too_long", _("The title is too long. Shorten it."), field="title")
TOO_MANY_MEMBERS = Answer(413, "too_many_members", _("A chat can't have this many members."), field="to")
TOO_MANY_AT_ONCE = Answer(
    413, "too_many_people", _("That's too many people at once. Choose fewer."), field="to"
)
TOO_MANY_BLOCKS = Answer(413, "too_many_blocks", _("You have blocked too many people. Unblock someone."))
EXISTS = Answer(409, "exists", _("This chat already exists."))
TOO_FAST = Answer(429, "too_fast", _("You are doing this too often. Wait a moment."))
TOO_MANY_CHATS = Answer(
    429,
    "too_many_chats",
    _("You or someone you invited is in too many chats. Leave some chats first."),
    TOO_MANY_CHATS_RETRY,
)
#: for streams that the server does not offer, or not now: the client polls
NOT_LIVE = Answer(501, "not_live", _("This server doesn't push changes. Poll for them."))
STREAM_ONLY = Answer(
    406,
    "stream_only",
    _("Changes are sent as an event stream. Accept text/event-stream, or poll the feeds."),
)
TOO_MANY_STREAMS = Answer(
    429, "too_many_streams", _("You have this open too often. Close some windows."), STREAMS_RETRY
)
OUTCOME_UNKNOWN = Answer(
    503,
    "outcome_unknown",
    _("The server did not respond in time. Your change may have been saved; it is safe to try again."),
    UNAVAILABLE_RETRY,
)
UNAVAILABLE = Answer(
    503, "unavailable", _("Messages are temporarily unavailable. Try again."), UNAVAILABLE_RETRY
)

#: (error class, for LimitExceeded the name of its setting) → answer. Other errors are defects of the site,
#: not of the request: they have no answer, and are raised.
ANSWERS: dict[tuple[type, str], Answer] = {
    (InvalidArgument, ""): INVALID,
    (NotAMember, ""): NOT_FOUND,
    (ChatNotFound, ""): NOT_FOUND,
    (ChatExists, ""): EXISTS,
    (NotPermitted, ""): NOT_PERMITTED,
    (LimitExceeded, ""): TOO_LONG,
    (LimitExceeded, "TITLE_MAX_BYTES"): TITLE_TOO_LONG,
    (LimitExceeded, "CHAT_MAX_MEMBERS"): TOO_MANY_MEMBERS,
    (LimitExceeded, "INVITE_RATE"): TOO_MANY_AT_ONCE,
    (LimitExceeded, "SEARCH_RATE"): TOO_MANY_AT_ONCE,
    (LimitExceeded, "USER_MAX_BLOCKS"): TOO_MANY_BLOCKS,
    (LimitExceeded, "USER_MAX_CHATS"): TOO_MANY_CHATS,
    (OutcomeUnknown, ""): OUTCOME_UNKNOWN,
    (Unavailable, ""): UNAVAILABLE,
}


def answer_to(error: MessagingError) -> Answer | None:
    """The answer to an error of the services, or None for an error that isn't in the table."""
    if isinstance(error, RateExceeded):
        return dataclasses.replace(TOO_FAST, retry_after=math.ceil(error.retry_after))
    setting = error.setting if isinstance(error, LimitExceeded) else ""
    keys = [(type(error), setting), *((kind, "") for kind in type(error).__mro__)]
    return next((ANSWERS[key] for key in keys if key in ANSWERS), None)


def invalid(message: str | Promise, field: str = "") -> Problem:
    """The problem of a request whose data isn't valid, with a specific text."""
    return Problem(dataclasses.replace(INVALID, message=message, field=field))
