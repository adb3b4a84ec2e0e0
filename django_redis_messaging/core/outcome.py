"""The outcome of an operation: how long it is attempted, what a failure means, and who has its writes.

An attempt that was sent without a reply may have been applied. Repeating it is safe: every step carries
what makes it idempotent (a request id, a token, a fence); a step that must not be repeated is marked
`once`. `Attempts` counts the attempts at a step, until its deadline. The final error is `OutcomeUnknown` if
the operation may have been applied, and `Unavailable` if it was not. After one attempt without a reply, an
error reply to a later attempt proves nothing about the first one.

A primary replies before its replicas have the write, so a failover can lose it. With the setting DURABILITY,
WAIT follows each writing call in the same round trip: it replies once that many replicas have the write.
"""

from __future__ import annotations

import math
import random
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, NamedTuple, TypeVar

from redis import exceptions as driver
from redis.exceptions import RedisError

from .. import conf
from ..errors import ConfigurationError, InvalidArgument, MessagingError, OutcomeUnknown, Unavailable
from .commands import Words

T = TypeVar("T")
#: seconds: minimum time to wait for a reply, even of the last attempt before the deadline
MIN_READING_TIME = 0.1
#: the innermost block of `deadline`
_block: ContextVar[Block | None] = ContextVar("block", default=None)
_is_cancelled: ContextVar[Callable[[], bool]] = ContextVar("is_cancelled", default=lambda: False)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Limit the total time of this block's operations to `seconds`; COMMAND_DEADLINE still limits each.
    After that time, an operation makes one short attempt, then raises Unavailable or OutcomeUnknown. An
    operation that waits for longer than the rest of the block raises Unavailable. Tasks of asyncio that are
    created in the block inherit the limit until the end of the block; threads that are started in it don't.

    >>> with deadline(2):
    ...     Inbox("ann").unread()
    0

    A nested block can only shorten the time.
    """
    if not seconds > 0:
        raise InvalidArgument(f"seconds must be greater than 0, not {seconds!r}.")
    block = Block(time.monotonic() + seconds, _block.get())
    with _setting(_block, block):
        try:
            yield
        finally:
            block.own_end = math.inf


class Block:
    """A block of `deadline`. The tasks that inherit it may outlive it: then only outer blocks limit them."""

    __slots__ = ("_outer", "own_end")

    def __init__(self, own_end: float, outer: Block | None) -> None:
        #: monotonic; infinite after the block
        self.own_end = own_end
        self._outer = outer

    @property
    def end(self) -> float:
        """When the operations of the block have to end: monotonic."""
        return self.own_end if self._outer is None else min(self.own_end, self._outer.end)


def without_deadline() -> Context:
    """A copy of the current context without a deadline, for background tasks that serve others, too."""
    context = copy_context()
    context.run(_block.set, None)
    return context


@contextmanager
def no_retries_when(condition: Callable[[], bool]) -> Iterator[None]:
    """Steps sent in this block are not retried while `condition` is true, even before their deadline."""
    with _setting(_is_cancelled, condition):
        yield


@contextmanager
def _setting(variable: ContextVar[T], value: T) -> Iterator[None]:
    before = variable.set(value)
    try:
        yield
    finally:
        # A coroutine that is collected is closed in another context, in which nothing was set.
        with suppress(ValueError):
            variable.reset(before)


def seconds_allowed(began: float) -> float:
    """Seconds that a step begun at `began` may take, including all its attempts."""
    longest, block = conf.current().COMMAND_DEADLINE, _block.get()
    return longest if block is None else max(min(block.end - began, longest), 0)


def reading_time(reply_timeout: float, ends: float) -> float:
    """Seconds to wait for a reply, or for a connection, before `ends`."""
    return max(min(reply_timeout, ends - time.monotonic()), MIN_READING_TIME)


def time_left() -> float:
    """Seconds until the innermost block of `deadline` ends; infinite without one."""
    block = _block.get()
    return math.inf if block is None else block.end - time.monotonic()


#: seconds: maximum of the first pause; the maximum doubles with each attempt
FIRST_PAUSE = 0.02
#: seconds: maximum of any pause
MAX_PAUSE = 1.0


class NotSent(Exception):
    """No connection was available in time, so nothing was sent."""


class Unconfirmed(RedisError):
    """A call was applied, but perhaps too few replicas have it."""


class Attempts:
    """The attempts at one step."""

    def __init__(
        self, seconds: float, *, began: float, reply_timeout: float, writes: bool, once: bool
    ) -> None:
        self.ends = began + seconds
        #: whether an attempt was sent without a reply: it may have been applied
        self.unanswered = False
        self._began = began
        self._reply_timeout = reply_timeout
        self._writes = writes
        self._once = once
        self._pauses = 0

    @property
    def remaining(self) -> float:
        """Seconds until the deadline."""
        return self.ends - time.monotonic()

    @property
    def reading_time(self) -> float:
        """Seconds to wait for a reply before the next attempt."""
        return reading_time(self._reply_timeout, self.ends)

    def pause_after(self, error: Exception, *, partly: bool = False) -> float:
        """Seconds to wait before the next attempt; raises the final error if this was the last one. `partly`:
        some calls of a pipeline have been applied."""
        if isinstance(error, Unconfirmed):
            raise self._unconfirmed(error) from error
        cause = error.__cause__ if isinstance(error, NotSent) else error
        denial = _denial(error)
        if denial is not None:
            raise self._final(denial_error(denial), cause, partly=partly) from error
        if isinstance(error, driver.ResponseError) and not is_temporary(error):
            raise self._final(translate_error(error), cause, partly=partly) from error
        self.unanswered = self.unanswered or not _is_answered(error)
        if (self._once and self.unanswered) or self.remaining <= 0 or _is_cancelled.get()():
            raise self._final(self._unavailable(cause), cause, partly=partly) from error
        self._pauses += 1
        if isinstance(error, driver.AskError) and self._pauses == 1:
            return 0.0  # the redirect names the server to use
        return min(backoff(self._pauses, first=FIRST_PAUSE, longest=MAX_PAUSE), max(self.remaining, 0))

    def error_of(self, error: Exception, alone: bool) -> MessagingError:
        """The final error of one call of several, by its own latest error. `alone`: the call is for one
        resource; else a script that raised an error may have changed some of its resources before."""
        if isinstance(error, Unconfirmed):
            return self._unconfirmed(error)
        denial = _denial(error)
        if denial is not None:
            return denial_error(denial)
        if not _is_answered(error):
            return self._unknown(error, unanswered=True)
        if not isinstance(error, driver.ResponseError) or is_temporary(error):
            return self._unavailable(error.__cause__ if isinstance(error, NotSent) else error)
        final = translate_error(error)
        is_whole = alone or isinstance(final, Unavailable)
        return final if is_whole else self._unknown(error, unanswered=False)

    def _final(self, error: MessagingError, cause: BaseException | None, *, partly: bool) -> MessagingError:
        """The error to raise: `error`, or OutcomeUnknown if an unanswered attempt may have been applied."""
        unknown = self.unanswered or (partly and isinstance(error, Unavailable))
        if not (self._writes and unknown):
            return error
        return self._unknown(cause, unanswered=self.unanswered)

    def _unknown(self, cause: BaseException | None, *, unanswered: bool) -> OutcomeUnknown:
        failure = f"did not reply within {self._seconds:.1f} s" if unanswered else "refused a part"
        return OutcomeUnknown(
            f"Redis {failure} ({cause}): the operation may have been applied, completely or partly. Repeat "
            "it with the same request_id to make sure."
        )

    def _unconfirmed(self, error: Unconfirmed) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"The operation was applied, but {error}: a failover may lose it. Repeat it with the same "
            "request_id to make sure."
        )

    def _unavailable(self, cause: BaseException | None) -> Unavailable:
        reason = "" if cause is None else f" ({cause})"
        remedy = " Start the server that the CACHES entry names, or correct its LOCATION."
        return Unavailable(
            f"Redis was not available for {self._seconds:.1f} s{reason}: the operation was not applied."
            f"{remedy if _is_unreachable(cause) else ''}"
        )

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began


#: doublings after which the pause grows no more, whatever its limit: keeps the power in range
MAX_DOUBLINGS = 40


def backoff(failures: int, *, first: float = 0.2, longest: float = 10.0) -> float:
    """Seconds to wait after that many failures (1, 2 …): `first`, doubled each time, at most `longest`; then
    reduced by up to a half at random, so that clients that failed together don't retry together.

    >>> 0.4 <= backoff(3) <= 0.8
    True
    """
    # redis-py's EqualJitterBackoff takes twice as long, and raises OverflowError after 1,024 failures.
    pause = min(first * 2.0 ** min(failures - 1, MAX_DOUBLINGS), longest)
    return pause * random.uniform(0.5, 1)  # noqa: S311


#: error replies after which a later attempt may succeed, and nothing was applied: by the driver's class …
_TEMPORARY = (
    driver.BusyLoadingError,
    driver.ReadOnlyError,
    driver.TryAgainError,
    driver.ClusterDownError,
    driver.MasterDownError,
    driver.AskError,  # and MovedError
)
#: … or by the beginning of their text
_TEMPORARY_TEXT = ("BUSY ", "MISCONF ", "NOREPLICAS ", "UNBLOCKED ")
# Redis 6.2 wraps the error of a command in a script: "... user_script: 5: -READONLY ..."
_TEMPORARY_INSIDE = re.compile(r" -(?:READONLY|MISCONF|NOREPLICAS|TRYAGAIN|CLUSTERDOWN|MASTERDOWN) ")
#: error replies after which a new connection may succeed
_NEEDS_OTHER_CONNECTION = (driver.AuthenticationError, driver.BusyLoadingError, driver.ClusterDownError)
_DEMOTED = (driver.ReadOnlyError, driver.MasterDownError)
_DEMOTED_INSIDE = re.compile(r" -(?:READONLY|MASTERDOWN) ")
#: errors that retries can't fix
_DENIED = (
    driver.AuthenticationError,
    driver.AuthorizationError,
    driver.NoPermissionError,
    ssl.SSLCertVerificationError,
)
#: beginnings of the error replies to a new connection that retries can't fix: protected mode, and SELECT
_REFUSED_TEXT = ("DENIED ", "DB index is out of range", "SELECT is not allowed")


def is_temporary(error: RedisError) -> bool:
    """Whether a later attempt may succeed after this error reply; nothing was applied."""
    text = str(error)
    return (
        isinstance(error, _TEMPORARY)
        or text.startswith(_TEMPORARY_TEXT)
        or bool(_TEMPORARY_INSIDE.search(text))
    )


def is_demotion(error: Exception) -> bool:
    """Whether an error shows that this server is a replica now."""
    return isinstance(error, _DEMOTED) or bool(_DEMOTED_INSIDE.search(str(error)))


def needs_other_connection(replies: Sequence[object]) -> bool:
    """Whether a reply shows that this connection is useless: its server is a replica now, is not ready, or
    has no such user any more."""
    return any(
        isinstance(reply, _NEEDS_OTHER_CONNECTION)
        or (isinstance(reply, driver.ResponseError) and is_demotion(reply))
        for reply in replies
    )


def topology_may_have_changed(error: Exception) -> bool:
    """Whether an error of a Cluster may mean that other servers own the keys now."""
    if isinstance(error.__cause__, driver.MaxConnectionsError):
        return False
    lost = isinstance(error, NotSent | driver.ConnectionError | driver.TimeoutError | driver.ClusterDownError)
    return lost or is_demotion(error)


def translate_error(error: driver.ResponseError) -> MessagingError:
    """The app's error for an error reply of the server."""
    text = str(error)
    if isinstance(error, driver.OutOfMemoryError) or "OOM command not allowed" in text:
        return Unavailable(
            "Redis is out of memory (maxmemory): nothing was written. Reading, acknowledging and deleting "
            "still work. Raise maxmemory or remove data."
        )
    if "WRONGTYPE" in text or "wrong kind of value" in text:
        return ConfigurationError(
            "A key of this app has another type, so another program writes keys with the same prefix. Give "
            "the app its own PREFIX or database."
        )
    # The driver removes the error code, CROSSSLOT, from the text.
    if isinstance(error, driver.ClusterCrossSlotError) or "same slot" in text:
        return ConfigurationError(f"The server is a Redis Cluster that this alias can't route to: {text}")
    if "scripting engine" in text:
        return ConfigurationError(
            f"The server can't run Lua scripts, which this app needs: {text}. Start a Valkey with its Lua "
            "module."
        )
    if "NOPERM" in text or "ACL" in text or "user executing the script" in text:
        return _permission_error(text)
    return MessagingError(f"Redis replied with an error: {text}")


def _permission_error(reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"The ACL of this user denies something that the app needs: {reason.rstrip('.')}. Allow it: "
        "docs/security.md lists all permissions."
    )


def denial_error(denial: BaseException) -> ConfigurationError:
    """The error for a rejected user, password, permission or certificate."""
    if isinstance(denial, ssl.SSLCertVerificationError):
        reason = denial.verify_message.rstrip(".")
        return ConfigurationError(
            f"The certificate of the Redis server is not trusted: {reason}. Check ssl_ca_certs in the CACHES "
            "entry, and that the certificate has the name or address in its LOCATION."
        )
    if str(denial).startswith(_REFUSED_TEXT):
        reason = str(denial).partition(".")[0]  # that of protected mode goes on for 800 characters
        return ConfigurationError(f"Redis refused the connection: {reason}. Check the CACHES entry.")
    reason = str(denial).rstrip(".?")
    if isinstance(denial, driver.NoPermissionError):
        return _permission_error(reason)
    return ConfigurationError(
        f"Redis rejected the user or password: {reason}. Correct them in the CACHES entry: "
        '"LOCATION": "redis://USER:PASSWORD@HOST:6379/1", or "redis://:PASSWORD@HOST:6379/1" for the default '
        "user."
    )


def _denial(error: BaseException | None) -> BaseException | None:
    """The denial that caused `error`, or None."""
    while error is not None and not isinstance(error, _DENIED):
        if isinstance(error, driver.ResponseError) and str(error).startswith(_REFUSED_TEXT):
            break
        # of a failed handshake, the driver names no cause
        is_handshake = isinstance(error.__context__, ssl.SSLCertVerificationError)
        error = error.__context__ if is_handshake else error.__cause__
    return error


def _is_answered(error: Exception) -> bool:
    """Whether an attempt that raised `error` was not sent, or was refused by the server."""
    return isinstance(error, NotSent | driver.ResponseError | driver.BusyLoadingError)


def _is_unreachable(cause: BaseException | None) -> bool:
    """Whether the server was not reached, or did not reply: not if it replied with an error, or if all
    connections of this process were in use."""
    has_other_cause = isinstance(cause, driver.BusyLoadingError | driver.MaxConnectionsError)
    return isinstance(cause, driver.ConnectionError | driver.TimeoutError) and not has_other_cause


#: number of replies to `Durability.words`
DURABILITY_REPLIES = 2
#: what the setting DURABILITY must be
DURABILITY_FORM = '{"replicas": an integer above 0, "timeout": seconds above 0}'


class Durability(NamedTuple):
    """How many replicas must confirm each write."""

    replicas: int
    #: seconds
    timeout: float

    def words(self, key: str, seconds: float) -> list[Words]:
        """What to send after calls that write; `key`: of one of them. The last reply is the number of
        confirmations, within the timeout and `seconds`.

        WAIT confirms what its own connection has written, with some servers no more. So a write comes first:
        else a repeated request, which writes nothing, would be confirmed before its first attempt is.
        """
        limit = max(int(1000 * min(self.timeout, seconds)), 1)  # 0 would mean: for ever
        # encoded names never contain this ending; an error reply, as of a full server, doesn't matter
        write: Words = ("SET", f"{key}:%w", "", "PX", "1")
        confirm: Words = ("WAIT", str(self.replicas), str(limit))
        return [write, confirm]

    def failure(self, confirmed: Any) -> Unconfirmed | None:
        """The error to raise after a reply to WAIT, if any."""
        if isinstance(confirmed, RedisError):  # such as UNBLOCKED: the primary was demoted meanwhile
            return Unconfirmed(f"the confirmation failed ({confirmed})")
        if confirmed >= self.replicas:
            return None
        return Unconfirmed(
            f"only {confirmed} of {self.replicas} replicas have confirmed it within {self.timeout} s"
        )


def configured_durability() -> Durability | None:
    """The setting DURABILITY; None: writes are not confirmed. Raises ConfigurationError."""
    setting = conf.current().DURABILITY
    if setting is None:
        return None
    if not is_valid_durability(setting):
        raise ConfigurationError(f"{conf.NAME}['DURABILITY'] must be {DURABILITY_FORM}, not {setting!r}.")
    return Durability(int(setting["replicas"]), setting["timeout"])


def is_valid_durability(setting: Any) -> bool:
    """Whether the setting DURABILITY has the required form.

    >>> is_valid_durability({"replicas": 1, "timeout": 0.5}), is_valid_durability({"replicas": 1})
    (True, False)
    """
    if not isinstance(setting, Mapping) or setting.keys() != {"replicas", "timeout"}:
        return False
    replicas, timeout = setting["replicas"], setting["timeout"]
    return (
        type(replicas) is int
        and replicas > 0
        and type(timeout) in {int, float}
        and 0 < timeout < float("inf")
    )
