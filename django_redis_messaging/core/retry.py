"""What to do when an attempt fails: again, after a pause, until a deadline; then say what is known.

An attempt that was sent and not answered may have been applied. Sending it again is safe, since every step
carries what makes it idempotent (a request id, a token, a fence); a step that must not be repeated says
`once`. At the end `OutcomeUnknown` (it may have been applied) is told apart from `Unavailable` (it was not):
once an attempt went unanswered, no refusal of a later one is proof.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context

from redis import exceptions as driver

from .. import conf
from ..errors import ConfigurationError, MessagingError, OutcomeUnknown, Unavailable

#: seconds: the first pause is up to this long, each next one up to twice as long
FIRST_PAUSE = 0.02
#: seconds: no pause is longer
LONGEST_PAUSE = 1.0
#: seconds: the last attempt has at least this long, however near the deadline is
SHORTEST_READING_TIME = 0.1

#: replies of a server that did nothing and may do it later, by the class the driver gives them …
_LATER = (
    driver.BusyLoadingError,
    driver.ReadOnlyError,
    driver.TryAgainError,
    driver.ClusterDownError,
    driver.MasterDownError,
    driver.AskError,  # and MovedError
)
#: … or by how their text begins
_LATER_TEXT = ("BUSY ", "MISCONF ", "NOREPLICAS ", "UNBLOCKED ")
# Redis 6.2 puts the error of a script's command inside one of its own: "... user_script: 5: -READONLY ..."
_LATER_INSIDE = re.compile(r" -(?:READONLY|MISCONF|NOREPLICAS|TRYAGAIN|CLUSTERDOWN|MASTERDOWN) ")
_ELSEWHERE = (driver.AuthenticationError, driver.BusyLoadingError, driver.ClusterDownError)
_DEMOTED = (driver.ReadOnlyError, driver.MasterDownError)
_DEMOTED_INSIDE = re.compile(r" -(?:READONLY|MASTERDOWN) ")
#: replies that no waiting cures
_DENIED = (driver.AuthenticationError, driver.AuthorizationError, driver.NoPermissionError)


_given_up: ContextVar[Callable[[], bool]] = ContextVar("given_up", default=lambda: False)


@contextmanager
def given_up_when(holds: Callable[[], bool]) -> Iterator[None]:
    """Steps sent in this block are not tried again once this holds, though their deadline is not reached."""
    before = _given_up.set(holds)
    try:
        yield
    finally:
        _given_up.reset(before)


#: the end of the innermost block of `deadline`; monotonic
_ends: ContextVar[float | None] = ContextVar("ends", default=None)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """All that this block does with Redis takes `seconds` together, where COMMAND_DEADLINE does not end it
    sooner. Past that, a call has one short attempt, and then raises Unavailable or OutcomeUnknown; one that
    waits, for longer than the block, raises Unavailable.

    >>> with deadline(2):
    ...     Inbox("ann").unread()
    0

    A block in a block can only make the time shorter.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be greater than 0, not {seconds!r}.")
    ends, outer = time.monotonic() + seconds, _ends.get()
    before = _ends.set(ends if outer is None else min(ends, outer))
    try:
        yield
    finally:
        _ends.reset(before)


def without_deadline() -> Context:
    """The context at hand, for what goes on after the block of `deadline` that it was begun in."""
    context = copy_context()
    context.run(_ends.set, None)
    return context


def seconds_allowed(began: float) -> float:
    """Seconds that a step which began then may take, with all its attempts."""
    longest, ends = conf.current().COMMAND_DEADLINE, _ends.get()
    return longest if ends is None else max(min(ends - began, longest), 0)


def reading_time(patience: float, ends: float) -> float:
    """Seconds to wait for a reply, or for a connection, before `ends`."""
    return max(min(patience, ends - time.monotonic()), SHORTEST_READING_TIME)


def time_left() -> float:
    """Seconds until the innermost block of `deadline` ends; endless where there is none."""
    ends = _ends.get()
    return math.inf if ends is None else ends - time.monotonic()


class NotSent(Exception):
    """There was no connection in time: the request never left."""


class Attempts:
    """The attempts at one step."""

    def __init__(self, seconds: float, *, began: float, patience: float, writes: bool, once: bool) -> None:
        self.ends = began + seconds
        #: whether one was sent, and no reply came: it may have been applied
        self.unanswered = False
        self._began = began
        self._patience = patience
        self._writes = writes
        self._once = once
        self._pause = FIRST_PAUSE

    @property
    def remaining(self) -> float:
        """Seconds until the deadline."""
        return self.ends - time.monotonic()

    @property
    def reading_time(self) -> float:
        """Seconds to wait for a reply before asking again."""
        return reading_time(self._patience, self.ends)

    def after(self, error: Exception, *, partly: bool = False) -> float:
        """Seconds to wait before the next attempt; raises when there is to be none. `partly`: some of a
        pipeline's calls have been applied."""
        cause = error.__cause__ if isinstance(error, NotSent) else error
        answered = isinstance(error, NotSent | driver.ResponseError | driver.BusyLoadingError)
        denial = _denial(error)
        if denial is not None:
            raise self._final(denied(denial), cause, partly=partly) from error
        if isinstance(error, driver.ResponseError) and not _refused_for_now(error):
            raise self._final(translated(error), cause, partly=partly) from error
        self.unanswered = self.unanswered or not answered
        if (self._once and self.unanswered) or self.remaining <= 0 or _given_up.get()():
            raise self._final(self._unavailable(cause), cause, partly=partly) from error
        if isinstance(error, driver.AskError) and self._pause == FIRST_PAUSE:
            self._pause *= 2
            return 0.0  # it has said where to go
        pause = min(self._pause * random.uniform(0.5, 1), max(self.remaining, 0))  # noqa: S311
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        return pause

    def _final(self, refusal: MessagingError, cause: BaseException | None, *, partly: bool) -> MessagingError:
        """What is raised in the end: a refusal tells what has happened only if all attempts were answered."""
        unknown = self.unanswered or (partly and isinstance(refusal, Unavailable))
        if not (self._writes and unknown):
            return refusal
        return OutcomeUnknown(
            f"Redis failed for {self._seconds:.1f} s ({cause}): the operation may have been applied, wholly "
            "or in part. Repeat it with the same request_id to make sure."
        )

    def _unavailable(self, cause: BaseException | None) -> Unavailable:
        return Unavailable(
            f"Redis can't be reached or refuses, for {self._seconds:.1f} s now ({cause}): the "
            "operation was not applied. Check that the server of the CACHES entry is up."
        )

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began


def denied(denial: BaseException) -> ConfigurationError:
    """A refusal of the user, in our words."""
    return ConfigurationError(
        f"Redis refuses this user or password: {denial}. Check the CACHES entry and the ACL."
    )


def _denial(error: BaseException | None) -> BaseException | None:
    """The denial behind `error`, if there is one."""
    while error is not None and not isinstance(error, _DENIED):
        error = error.__cause__
    return error


def _refused_for_now(error: driver.ResponseError) -> bool:
    text = str(error)
    return isinstance(error, _LATER) or text.startswith(_LATER_TEXT) or bool(_LATER_INSIDE.search(text))


def demoted(error: Exception) -> bool:
    """Whether this server was a primary: another one is now."""
    return isinstance(error, _DEMOTED) or bool(_DEMOTED_INSIDE.search(str(error)))


def misplaced(replies: Sequence[object]) -> bool:
    """Whether a reply says that another connection may do better: this server is not, or not yet, the one
    that serves the alias, or has forgotten the user."""
    return any(
        isinstance(reply, _ELSEWHERE) or (isinstance(reply, driver.ResponseError) and demoted(reply))
        for reply in replies
    )


def may_have_changed(error: Exception) -> bool:
    """Whether other servers may have the keys now, in a Cluster."""
    lost = isinstance(error, NotSent | driver.ConnectionError | driver.TimeoutError | driver.ClusterDownError)
    return lost or demoted(error)


def translated(error: driver.ResponseError) -> MessagingError:
    """A refusal by the server, in our words."""
    text = str(error)
    if isinstance(error, driver.OutOfMemoryError) or "OOM command not allowed" in text:
        return Unavailable(
            "Redis is out of memory (maxmemory): nothing was written. Reading, acking and deleting "
            "still work; raise maxmemory or remove data."
        )
    if "WRONGTYPE" in text or "wrong kind of value" in text:
        return ConfigurationError(
            "A key of this app holds another type, so something else writes under its prefix. Give the app "
            "a PREFIX or a database of its own."
        )
    # the driver takes the code, CROSSSLOT, off the text
    if isinstance(error, driver.ClusterCrossSlotError) or "same slot" in text:
        return ConfigurationError(f"The server is a Redis Cluster that this alias can't route to: {text}")
    if "NOPERM" in text or "ACL" in text or "user executing the script" in text:
        return ConfigurationError(f"The ACL of this user lacks something the app needs: {text}")
    return MessagingError(f"Redis refused: {text}")
