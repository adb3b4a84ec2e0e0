"""What can go wrong. One root, one class for each thing a caller may want to tell apart.

Bad arguments are not here: they are `ValueError` or `TypeError`, raised before anything is sent.
"""

from redis import exceptions as driver


class MessagingError(Exception):
    """The root of every error this app raises by itself."""


class ConfigurationError(MessagingError):
    """The site's settings, or the server they point at, can't be used as they are."""


class NotAMember(MessagingError):
    """The user is not a member of the chat, so may neither read nor change it."""


class NotPermitted(MessagingError):
    """The user is a member, but this needs the author of the message or an owner of the chat."""


class ChatNotFound(MessagingError):
    """No chat has this id: it was never created, or its last member left."""


class ChatExists(MessagingError):
    """A chat with this id exists already, and was created by another request."""


class LimitExceeded(MessagingError):
    """Something is larger, or there is more of it, than a limit allows. What is too much was not stored."""

    def __init__(self, what: str, *, limit: int, actual: int) -> None:
        super().__init__(f"{what}: {actual} is over the limit of {limit}.")
        #: the limit that applied, in the unit the message names
        self.limit = limit
        #: what it would have become
        self.actual = actual


class Unavailable(MessagingError):
    """Redis could not be reached, or refused, until the deadline. The operation was not applied."""


class OutcomeUnknown(MessagingError):
    """A request was sent and its reply never came: the operation may have been applied, wholly or in part.
    Repeat it with the same `request_id` to make sure that it is, once."""


class LeaseLost(MessagingError):
    """The lease of a job ended before the job did: somebody else may have it now."""


class LockError(MessagingError, driver.LockError):
    """A lock was not acquired, or isn't held by this thread or task. redis-py's own class is a base."""


class LockNotOwnedError(LockError, driver.LockNotOwnedError):
    """The lease of a lock ended before it was released: somebody else may have had it since."""


class SemaphoreError(MessagingError):
    """No permit of a semaphore is held by this caller, or not any more."""


class TaskCancelled(MessagingError):
    """The error of a task's result that was cancelled before it began."""


class TaskTimeout(MessagingError):
    """A task took longer than it may."""
