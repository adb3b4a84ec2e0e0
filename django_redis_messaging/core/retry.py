"""What to do when an attempt fails: again, after a pause, until a deadline; then say what is known.

An attempt that was sent and not answered may have happened. Sending it again is safe, since every step
carries what makes it idempotent (a request id, a token, a fence); a step that must not be repeated says
`once`. At the deadline `OutcomeUnknown` (it may have happened) is told apart from `Unavailable` (it has
not).
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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
_LATER_TEXT = ("BUSY ", "NOREPLICAS ", "UNBLOCKED ")
# Redis 6.2 puts the error of a script's command inside one of its own: "... user_script: 5: -READONLY ..."
_LATER_INSIDE = re.compile(r" -(?:READONLY|NOREPLICAS|TRYAGAIN|CLUSTERDOWN|MASTERDOWN) ")
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


_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Steps sent in this block have this deadline, if COMMAND_DEADLINE is not earlier."""
    before = _deadline.set(seconds)
    try:
        yield
    finally:
        _deadline.reset(before)


def hurry() -> float | None:
    """The deadline of the block of `within` that this is, if any."""
    return _deadline.get()


def deadline() -> float:
    """Seconds that a step may take, with all its attempts."""
    longest, hurried = conf.current().COMMAND_DEADLINE, hurry()
    return longest if hurried is None else min(hurried, longest)


class NotSent(Exception):
    """No connection could be made: the request never left."""


class Attempts:
    """The attempts at one step."""

    def __init__(self, deadline: float, *, began: float, patience: float, writes: bool, once: bool) -> None:
        self.ends = began + deadline
        #: whether one has failed
        self.failed = False
        self._began = began
        self._patience = patience
        self._writes = writes
        self._once = once
        self._pause = FIRST_PAUSE
        self._unanswered = False

    @property
    def remaining(self) -> float:
        """Seconds until the deadline."""
        return self.ends - time.monotonic()

    @property
    def reading_time(self) -> float:
        """Seconds to wait for a reply before asking again."""
        return max(min(self._patience, self.remaining), SHORTEST_READING_TIME)

    def after(self, error: Exception) -> float:
        """Seconds to wait before the next attempt; raises when there is to be none."""
        self.failed = True
        denial = _denial(error)
        if denial is not None:
            raise ConfigurationError(
                f"Redis refuses this user or password: {denial}. Check the CACHES entry and the ACL."
            ) from error
        if isinstance(error, driver.ResponseError) and not _refused_for_now(error):
            raise translated(error) from error
        answered = isinstance(error, NotSent | driver.ResponseError | driver.BusyLoadingError)
        self._unanswered = self._unanswered or not answered
        if (self._once and self._unanswered) or self.remaining <= 0 or _given_up.get()():
            raise self._last(error.__cause__ if isinstance(error, NotSent) else error) from error
        if isinstance(error, driver.AskError) and self._pause == FIRST_PAUSE:
            self._pause *= 2
            return 0.0  # it has said where to go
        pause = min(self._pause * random.uniform(0.5, 1), max(self.remaining, 0))  # noqa: S311
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        return pause

    def _last(self, cause: BaseException | None) -> MessagingError:
        seconds = time.monotonic() - self._began
        if self._unanswered and self._writes:
            return OutcomeUnknown(
                f"No reply from Redis within {seconds:.1f} s ({cause}): it may have happened. "
                "Repeat with the same request_id to make sure."
            )
        return Unavailable(
            f"Redis can't be reached or refuses, for {seconds:.1f} s now ({cause}): nothing has "
            "happened. Check that the server of the CACHES entry is up."
        )


def _denial(error: BaseException | None) -> BaseException | None:
    """The denial behind `error`: the awaiting driver wraps what happens while it connects."""
    while error is not None and not isinstance(error, _DENIED):
        error = error.__cause__
    return error


def _refused_for_now(error: driver.ResponseError) -> bool:
    text = str(error)
    return isinstance(error, _LATER) or text.startswith(_LATER_TEXT) or bool(_LATER_INSIDE.search(text))


def demoted(error: Exception) -> bool:
    """Whether this server was a primary: another one is now."""
    return isinstance(error, _DEMOTED) or bool(_DEMOTED_INSIDE.search(str(error)))


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
            "A key of this app holds another type, so something else writes under its prefix; nothing "
            "was changed. Give the app a PREFIX or a database of its own."
        )
    # the driver takes the code, CROSSSLOT, off the text
    if isinstance(error, driver.ClusterCrossSlotError) or "same slot" in text:
        return ConfigurationError(f"The server is a Redis Cluster that this alias can't route to: {text}")
    if "NOPERM" in text or "ACL" in text or "user executing the script" in text:
        return ConfigurationError(f"The ACL of this user lacks something the app needs: {text}")
    return MessagingError(f"Redis refused: {text}")
