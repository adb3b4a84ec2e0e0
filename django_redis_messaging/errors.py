"""The exceptions of this app: one base class, and a class for each case that callers may handle differently.

An argument of a wrong type raises a plain `TypeError` before anything is sent.
"""

from collections.abc import Sequence
from typing import Any

# As a cache of django-redis loads redis-py: if two threads begin by different modules of that, they wait for
# one another, and Python ends this by an ImportError in one of them, or in both.
import django_redis.client  # noqa: F401
from redis import exceptions as driver


class MessagingError(Exception):
    """The base class of all errors of this app."""


class ConfigurationError(MessagingError):
    """The site's settings, or the server that they name, can't be used as configured."""


class InvalidArgument(MessagingError, ValueError):
    """An argument has a value that is not allowed. Raised before anything is sent."""


class NotAMember(MessagingError):
    """The user is not a member of the chat, and so may neither read nor change it."""


class NotPermitted(MessagingError):
    """Only the author of the message or an owner of the chat may do this; or a person may not be added."""


class ChatNotFound(MessagingError):
    """No chat has this id: it was never created, or its last member has left."""


class ChatExists(MessagingError):
    """A chat with this id exists already, and was created by another request."""

    def __init__(self, *args: object, chat_id: str = "") -> None:
        super().__init__(*args)
        #: the id
        self.chat_id = chat_id


class ScheduleExists(MessagingError):
    """A schedule of this name is stored already, with other values."""


class LimitExceeded(MessagingError):
    """A size or a number exceeds a limit. The excess was not stored."""

    def __init__(self, what: str, *, limit: int, actual: int, setting: str = "") -> None:
        named = f" ({setting})" if setting else ""
        super().__init__(f"{what}: {actual} is over the limit of {limit}{named}.")
        #: the limit, in the unit that the message names
        self.limit = limit
        #: the name of its setting in REDIS_MESSAGING; empty if it is fixed
        self.setting = setting
        #: the value that exceeded the limit
        self.actual = actual


class RateExceeded(LimitExceeded):
    """A user did something too often: see the settings that end in _RATE. Nothing was changed."""

    def __init__(self, what: str, *, limit: int, retry_after: float, setting: str = "") -> None:
        super().__init__(what, limit=limit, actual=limit + 1, setting=setting)
        #: seconds after which the same is allowed
        self.retry_after = retry_after


class Unavailable(MessagingError):
    """Redis was unreachable, or rejected the operation, until the deadline. The operation was not applied."""


class OutcomeUnknown(MessagingError):
    """A request was sent, but no reply arrived: the operation may have been applied, completely or partly.
    Repeat it with the same `request_id` to make sure that it is applied once.

    `received` is what other parts of the request returned; only Inbox.pending(ack=True) has any."""

    def __init__(self, *args: object, received: Sequence[Any] = ()) -> None:
        super().__init__(*args)
        self.received = list(received)


class LeaseLost(MessagingError):
    """The lease of a job, a lock or a permit ended before the work did: another client may have it now."""


class LockError(MessagingError, driver.LockError):
    """A lock was not acquired, or is not held by this thread or task. Also a redis-py LockError."""


class LockNotOwnedError(LockError, LeaseLost, driver.LockNotOwnedError):
    """The lease of a lock ended before its release: another client may have held it since."""


class SemaphoreError(MessagingError):
    """No permit of the semaphore is free, or this thread or task holds none."""


class PermitLost(SemaphoreError, LeaseLost):
    """The lease of a permit ended before its release: another client may have held it since."""


class LatchError(MessagingError):
    """A latch ceased to exist while a client waited for it, or the round of a count is over."""


class FileChannelError(MessagingError):
    """A file channel is in a state that doesn't allow this call; the message says what to do."""


class UnknownConsumer(FileChannelError):
    """The file channel has no consumer of this name."""


class FileChanged(MessagingError):
    """A file changed while it was published. It was not published."""


class FileCorrupt(MessagingError):
    """A stored or compressed file is damaged: a block is missing, a checksum differs, or it is truncated."""


class BatchNotFound(MessagingError):
    """No batch of tasks has this id: it was not enqueued yet, or it ended and its time is over."""


class BatchClosed(MessagingError):
    """The batch of tasks has ended or was cancelled, so no calls can be added to it."""


class TaskCancelled(MessagingError):
    """The error of the result of a task that was cancelled, before it started or while it ran."""


class TaskExpired(MessagingError):
    """The error of the result of a task that was not started before its `expires`."""


class TaskTimeout(MessagingError):
    """A task exceeded its timeout."""


class RetriesExhausted(MessagingError):
    """A task called retry() in its last attempt."""
