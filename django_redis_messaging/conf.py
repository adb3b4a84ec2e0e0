"""The app's settings: one dict, `REDIS_MESSAGING`, read when first needed and again when it changes.

REDIS_MESSAGING = {"ALIAS": "messaging", "CHAT_MAX_LENGTH": 5000}
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from .errors import ConfigurationError

NAME = "REDIS_MESSAGING"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Each setting with its default. Durations are seconds, sizes bytes of UTF-8."""

    #: the CACHES alias whose Redis is used; None: "messaging" if there is one, else "default"
    ALIAS: str | None = None
    #: first part of every key; a callable is asked whenever an object is made (one prefix a tenant)
    PREFIX: str | Callable[[], str] = "messaging"
    #: how long an operation is tried before Unavailable or OutcomeUnknown
    COMMAND_DEADLINE: float = 10.0
    #: how long a request id is remembered, at least
    REQUEST_WINDOW: int = 120
    #: dotted path of a callable (operation, seconds, outcome), called after each operation
    OBSERVE: str | None = None

    #: messages kept for scroll-back once every member has acked them; 0: gone when all have read
    CHAT_KEEP_LAST: int = 1000
    #: messages a chat holds at most, read or not
    CHAT_MAX_LENGTH: int = 10_000
    #: age at which a message is removed, read or not; None: never
    CHAT_MAX_AGE: float | None = None
    #: members a chat may have
    CHAT_MAX_MEMBERS: int = 1000
    #: chats a user may be a member of
    USER_MAX_CHATS: int = 5000
    #: size of a message as stored: body and data together
    MESSAGE_MAX_BYTES: int = 64 * 1024
    #: size of a chat's title
    TITLE_MAX_BYTES: int = 512
    #: how long somebody who typed counts as typing
    TYPING_WINDOW: float = 6.0
    #: chats with more members than this don't track typing
    TYPING_MAX_MEMBERS: int = 100

    #: entries a directory holds at most: one for each word of each label and alias
    DIRECTORY_MAX_ENTRIES: int = 5_000_000
    #: size of a contact's label, and of each alias
    LABEL_MAX_BYTES: int = 255

    #: attempts a job may have, unless its queue or task says otherwise; then it is dead
    JOB_MAX_ATTEMPTS: int = 5
    #: jobs that may wait in a queue, ready and delayed together
    JOB_MAX_WAITING: int = 10_000_000
    #: size of a job's payload; of a task's arguments, and of what it returns
    JOB_MAX_BYTES: int = 512 * 1024
    #: dead jobs a queue keeps; the oldest go first
    JOB_MAX_DEAD: int = 10_000
    #: how long a dead job is kept
    JOB_DEAD_TTL: float = 14 * 86_400.0

    #: the longest pause before a failed job's second attempt; it doubles from attempt to attempt
    JOB_BACKOFF: float = 1.0
    #: the longest pause between two attempts
    JOB_BACKOFF_MAX: float = 3600.0

    #: mails a mailbox holds at most, read or not; the oldest go first
    MAILBOX_MAX_LENGTH: int = 1000
    #: age at which a mail is removed, read or not; None: never
    MAILBOX_MAX_AGE: float | None = 90 * 86_400.0
    #: size of a mail's payload
    MAIL_MAX_BYTES: int = 64 * 1024
    #: hosts that notifications may lead to besides ALLOWED_HOSTS, written as there; "*": any
    LINK_HOSTS: Sequence[str] = ()

    #: how long an event of a broadcast is kept, at least; one bucket more at most
    BROADCAST_RETENTION: float = 300.0
    #: the time that the events of one bucket were published in: they expire together
    BROADCAST_BUCKET: float = 10.0
    #: events that a channel keeps at most; the oldest go first
    BROADCAST_MAX_LENGTH: int = 100_000
    #: size of an event's payload
    BROADCAST_MAX_BYTES: int = 64 * 1024

    #: dotted path of the class that says who is who: see web/identity.py
    IDENTITY: str = "django_redis_messaging.web.identity.Identity"
    #: messages a user may send through the pages in a minute
    SEND_RATE: int = 60
    #: chats a user may create through the pages in an hour
    CREATE_RATE: int = 60


@functools.cache
def current() -> Settings:
    """The settings in force. Unknown keys are ignored here and reported by a check."""
    given = configured()
    known = {field.name for field in dataclasses.fields(Settings)}
    return Settings(**{key: value for key, value in given.items() if key in known})


def configured() -> dict[str, Any]:
    """The dict as the site wrote it."""
    given = getattr(django_settings, NAME, {})
    if not isinstance(given, dict):
        raise ConfigurationError(f"{NAME} must be a dict, not {type(given).__name__}.")
    return given


def alias() -> str:
    """The CACHES alias that is used where none is named."""
    chosen = current().ALIAS
    if chosen is not None:
        return chosen
    return "messaging" if "messaging" in django_settings.CACHES else "default"


def prefix() -> str:
    """The first part of every key, for an object that is being made now."""
    chosen = current().PREFIX
    return chosen() if callable(chosen) else chosen


def _forget(*, setting: str, **_: object) -> None:
    if setting in {NAME, "CACHES"}:
        current.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_redis_messaging.conf")
