"""Leases that a process holds: by a block, by the thread or task that acquired them, and renewed meanwhile.

Two threads for each alias renew all leases: those of locks and permits that were acquired with renew=True,
and of jobs. They don't depend on the event loop, so a lease is also renewed while a coroutine blocks the
loop. Leases on the same server that are due at about the same time share a round trip. Servers that failed
are tried last and for a short time only, so that the leases on other servers are renewed in time. The
second thread never waits for a server, so that a loss is reported in time. The heartbeats of workers have
two such threads of their own: neither delays the other.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
import os
import re
import socket
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import Context, ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from ...core import after_fork
from ...core.clients import server_of
from ...core.commands import Confirmation, batched
from ...core.connection import Address
from ...core.operations import LoopGuard, Script, Service, Steps, describe, log_exception, perform_renewal
from ...core.outcome import deadline, no_retries_when
from ...errors import ConfigurationError, MessagingError, OutcomeUnknown, Unavailable
from .things import Thing

logger = logging.getLogger(__name__)

#: maximum number of characters of a host name in a token
MAX_HOST_LENGTH = 40
#: maximum number of characters that name a task in a token, which has 255 bytes at most
MAX_SUFFIX_LENGTH = 150
_SUFFIX = re.compile(r":[0-9a-f]{16}:(task:[^/\s]+/[^/\s]+)\Z")
#: leases that share a round trip at most
BATCH = 100
#: part of the interval by which a lease may be renewed early, to share a round trip
EARLY = 0.1
#: part of the interval after which a failed renewal is repeated, and the most seconds
RETRY, MAX_RETRY = 0.5, 1.0
#: seconds for which a node of a Cluster that doesn't reply may delay the renewals on others
NODE_TIMEOUT = 1.0
#: names that a log line lists at most
MAX_LOGGED_NAMES = 3

F = TypeVar("F", bound=Callable[..., Any])
O = TypeVar("O", bound="Owned")  # noqa: E741


class Leasable(Service):
    """What a block, or each call of a decorated function, can hold: a lease that is acquired at its start and
    released at its end."""

    #: an async version of `release`
    arelease: Callable[..., Awaitable[None]]

    @abstractmethod
    def acquire(self) -> bool:
        """Acquire the lease; returns False if it was not free in time."""

    @abstractmethod
    async def aacquire(self) -> bool:
        """An async version of `acquire`."""

    @abstractmethod
    def release(self) -> None:
        """Release the lease."""

    @abstractmethod
    def _not_acquired(self) -> MessagingError:
        """The error of a block that could not acquire the lease."""

    @abstractmethod
    def _log_failed_release(self, failure: MessagingError) -> None:
        """Log that the lease was not released."""

    def _must_raise(self, failure: MessagingError) -> bool:
        """Whether a block that ended without an error raises this failure of its release."""
        return True

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self._not_acquired()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except MessagingError as failure:
            self._handle_failed_release(failure, error)

    async def __aenter__(self) -> Self:
        if not await self.aacquire():
            raise self._not_acquired()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.arelease()
        except MessagingError as failure:
            self._handle_failed_release(failure, error)

    def _handle_failed_release(self, failure: MessagingError, error: BaseException | None) -> None:
        """Raise the failure of a release, or log it if the block itself raised an error."""
        if error is None and self._must_raise(failure):
            raise failure
        self._log_failed_release(failure)

    def __call__(self, function: F) -> F:
        """Decorate a function, or a coroutine function: each call of it is such a block."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__qualname__} is a generator function: its body would run after {self!r} was "
                "released. Use a with block inside it."
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def async_version(*args: Any, **kwargs: Any) -> Any:
                async with self:
                    return await function(*args, **kwargs)

            return cast(F, async_version)

        @functools.wraps(function)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return cast(F, blocking)


class Owned(ABC):
    """What one thread or task holds. Its leases are not renewed any more after the thread or task has
    ended, or when this object is destroyed, since nothing could release them then."""

    __slots__ = ("__weakref__",)

    @abstractmethod
    def end_renewal(self) -> None:
        """Stop renewing its leases."""

    def __del__(self) -> None:
        self.end_renewal()


#: the task that runs in this context: the alias of its backend, and its id
running_task: ContextVar[tuple[str, str] | None] = ContextVar("running_task", default=None)


def new_token() -> str:
    """A unique token for one acquire: host, process id and a random part, to show who holds a lock or a
    permit; and inside a task, that one."""
    task = running_task.get()
    return f"{_process()}:{os.urandom(8).hex()}{'' if task is None else _suffix(*task)}"


def _suffix(alias: str, job_id: str) -> str:
    """The task at the end of a token; nothing if its name is so long that a token has no room for it.

    >>> _suffix("default", "0a5d")
    ':task:default/0a5d'
    """
    suffix = f":{Thing('task', job_id, alias)}"
    return suffix if len(suffix) <= MAX_SUFFIX_LENGTH else ""


def task_of_token(token: str) -> Thing | None:
    """The task in which a token was made, or None.

    >>> task_of_token("web1:17:fea3e129e51a00c2:task:default/0a5d")
    Thing(kind='task', name='0a5d', where='default')
    >>> task_of_token("web1:17:fea3e129e51a00c2")
    """
    found = _SUFFIX.search(token)
    return Thing.parse(found[1]) if found else None


@functools.cache
def _process() -> str:
    return f"{socket.gethostname()[:MAX_HOST_LENGTH]}:{os.getpid()}"


after_fork(_process.cache_clear)


def current_owner() -> int:
    """A number that identifies the running task, or the thread if no task is running, while it exists."""
    task = _current_task()
    return threading.get_ident() if task is None else id(task)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop
        return None


#: number of forks by which this process descends from the first one
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


after_fork(_count_fork)


class SharedOwner(Generic[O]):
    """One state for all threads and tasks of a process. `make_empty`: see Owners."""

    def __init__(self, make_empty: Callable[[], O]) -> None:
        self._make_empty = make_empty
        self._forks, self._state = _forks, make_empty()

    @property
    def current(self) -> O:
        """The state. A forked child holds nothing of what its parent held."""
        if self._forks != _forks:
            self._forks, self._state = _forks, self._make_empty()
        return self._state


class Owners(threading.local, Generic[O]):
    """The states of each thread and of each of its tasks. `make_empty` makes the state of one that holds
    nothing."""

    def __init__(self, make_empty: Callable[[], O]) -> None:
        self._make_empty = make_empty
        self._reset()

    def _reset(self) -> None:
        self._forks = _forks
        self._thread = self._make_empty()
        self._tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], O] = weakref.WeakKeyDictionary()

    @property
    def current(self) -> O:
        """The state of the running task, or of the thread if no task is running."""
        if self._forks != _forks:
            self._reset()  # a forked child holds nothing of what its parent held
        task = _current_task()
        if task is None:
            return self._thread
        own = self._tasks.get(task)
        if own is None:
            own = self._tasks[task] = self._make_empty()
            reference = weakref.ref(own)
            task.add_done_callback(lambda _: _end_renewal(reference()))
        return own


def _end_renewal(own: Owned | None) -> None:
    if own is not None:
        own.end_renewal()


class Renewal:
    """What the renewer of an alias renews after each `interval` seconds, from its start until its end.

    A subclass starts it. A renewal that is still in progress at the end must be harmless: it carries a token
    or a fence.
    """

    def __init__(self, using: str, name: str, interval: float) -> None:
        self.name = name
        #: seconds between two renewals
        self.interval = interval
        #: the moment of the next renewal; monotonic
        self.due = 0.0
        #: the moment up to which the lease is known to last; monotonic
        self.valid_until = math.inf
        self._using = using
        self._ended = False

    @property
    def is_active(self) -> bool:
        """Whether it has neither ended nor been lost."""
        return not self._ended

    def end(self) -> None:
        """Stop renewing. It doesn't wait, so a destructor may call it."""
        self._ended = True
        renewer = _renewers.get((self._using, type(self)))
        if renewer is not None:
            renewer.discard(self)

    def _register(self) -> None:
        _renewer(self._using, type(self)).add(self)


class RenewedLease(Renewal):
    """A lease that is extended to `seconds` after each third of them, from `start` until `end`, or until it
    is lost.

    It is lost if another client may have the resource: the reply of `script` says so, or no renewal succeeded
    before the lease can have ended, counted from the sending of the latest successful request. Then `on_lost`
    is called, in a thread of its own. With `until_refused`, only a reply says so: nothing but a request of
    another client takes such a lease from its holder.

    As a block, it is renewed inside the block.
    """

    def __init__(
        self,
        using: str,
        name: str,
        seconds: float,
        script: Script,
        on_lost: Callable[[], object] | None = None,
        *,
        is_held: Callable[[Any], bool] = bool,
        until_refused: bool = False,
    ) -> None:
        super().__init__(using, name, seconds / 3)
        #: extends the lease to `seconds`, unless it is longer
        self.script = script
        #: whether a reply of the script says that the lease was extended
        self.is_held = is_held
        self._seconds = math.inf if until_refused else seconds
        self._on_lost = on_lost

    def start(self, sent_at: float) -> None:
        """Start to renew the lease; `sent_at`: when the request was sent that has granted it."""
        self.due, self.valid_until = sent_at + self.interval, sent_at + self._seconds
        self._register()

    def __enter__(self) -> Self:
        self.start(monotonic())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()

    def confirm(self, sent_at: float) -> None:
        """Store that a renewal sent at this moment succeeded."""
        self.valid_until = max(self.valid_until, sent_at + self._seconds)

    def change_end(self, moment: float) -> None:
        """Store that the holder has changed the end of the lease; renew it in time."""
        self.valid_until = moment
        self.due = min(self.due, monotonic() + (moment - monotonic()) / 3)
        if self.is_active:
            self._register()

    def report_loss(self) -> None:
        """Call `on_lost`."""
        logger.warning("The lease of %r was lost: another client may hold it now.", self.name)
        if self._on_lost is not None:
            # not in this thread: other leases have to be renewed meanwhile
            name, report = f"lost lease of {self.name}", partial(self._report, self._on_lost)
            threading.Thread(target=report, name=name, daemon=True).start()

    def _report(self, on_lost: Callable[[], object]) -> None:
        with LoopGuard(logger, "The on_lost callback of %r failed.", self.name):
            on_lost()


class RenewedByCall(Renewal):
    """Calls `renew` at its start, and after each `interval` seconds, until its end: for leases whose script
    is another one each time, and what must be renewed with them.

    `renew` has to notice by itself what is lost. It may raise MessagingError: that is logged, and it is
    repeated after half of the interval, or a second.
    """

    def __init__(self, using: str, name: str, interval: float, renew: Callable[[], object]) -> None:
        super().__init__(using, name, interval)
        self._renew = renew
        #: held while it is called. Reentrant: the call may end it
        self._calling = threading.RLock()

    def start(self) -> None:
        """Start to renew, at once."""
        self.due = monotonic()
        self._register()

    def call(self) -> None:
        """Renew, unless it has ended."""
        with self._calling:
            if self.is_active:
                self._renew()

    def end_and_wait(self, seconds: float) -> None:
        """End, and wait up to `seconds` for a call in progress: if it ends in time, it is the last."""
        self.end()
        if self._calling.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            self._calling.release()


class _Alarm:
    """Wakes a thread at the earliest of some moments, which change meanwhile."""

    def __init__(self, earliest: Callable[[], float]) -> None:
        self._earliest = earliest
        #: the thread needs no wake-up for a later moment; monotonic
        self._rings_at = math.inf
        #: has an item if the thread must calculate anew when it rings. Unlike an Event, reentrant.
        self._changed: SimpleQueue[None] = SimpleQueue()

    def add(self, moment: float) -> None:
        """Report a new moment; monotonic."""
        if moment < self._rings_at:
            self._changed.put(None)

    def wait(self) -> None:
        """Wait until the earliest moment."""
        while True:
            self._rings_at = math.inf  # a moment that is added from here on causes a wake-up
            self._rings_at = self._earliest()
            left = self._rings_at - monotonic()
            if left <= 0:
                return
            with suppress(Empty):
                self._changed.get(timeout=min(left, threading.TIMEOUT_MAX))


#: what is renewed together: the leases on a server that as many replicas confirm, or those of a call
Turn = tuple[Address | None, Confirmation | None] | RenewedByCall


class LeaseRenewer:
    """The threads that renew the leases of one alias, of one kind, and report their loss."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._leases: set[Renewal] = set()
        #: turns that failed the last time
        self._failing: set[Turn] = set()
        self._losing = threading.Lock()
        self._due = _Alarm(lambda: min((one.due for one in list(self._leases)), default=math.inf))
        self._end = _Alarm(lambda: min((one.valid_until for one in list(self._leases)), default=math.inf))
        for work, name in ((self._run, "renewal"), (self._watch, "end")):
            # an empty context: the block of `deadline` in which a lock is acquired must not limit its renewal
            threading.Thread(
                target=Context().run, args=(work,), name=f"lease {name} of {using}", daemon=True
            ).start()

    def add(self, lease: Renewal) -> None:
        """Renew a lease when it is due, until it ends."""
        self._leases.add(lease)
        self._due.add(lease.due)
        self._end.add(lease.valid_until)

    def discard(self, lease: Renewal) -> None:
        """Forget a lease."""
        self._leases.discard(lease)
        if isinstance(lease, RenewedByCall):
            self._failing.discard(lease)

    def _run(self) -> None:
        while True:
            self._due.wait()
            with LoopGuard(logger, "Renewing leases failed; continuing at the next interval."):
                self._renew_due()

    def _watch(self) -> None:
        while True:
            self._end.wait()
            with LoopGuard(logger, "Reporting the loss of leases failed; continuing with the next one."):
                now = monotonic()
                for lease in list(self._leases):
                    if isinstance(lease, RenewedLease) and lease.valid_until <= now:
                        self._lose(lease)

    def _lose(self, lease: RenewedLease) -> None:
        """Stop renewing a lease, and report that it is lost."""
        with self._losing:  # both threads may notice it
            was_active = lease.is_active
            lease.end()
            self.discard(lease)
        if was_active:
            lease.report_loss()

    def _renew_due(self) -> None:
        """Renew the leases that are due: those on one server together, unless replicas confirm only some of
        them, and each call by itself."""
        now, leases = monotonic(), list(self._leases)
        servers: dict[tuple[Address | None, Confirmation | None], list[RenewedLease]] = {}
        calls: list[RenewedByCall] = []
        for lease in leases:
            if not lease.is_active:  # it ended while another thread changed its end
                self.discard(lease)
            elif lease.due <= now + EARLY * lease.interval:
                lease.due = now + lease.interval
                if isinstance(lease, RenewedByCall):
                    calls.append(lease)
                elif isinstance(lease, RenewedLease):
                    where = self._server_of(lease), lease.script.confirmation
                    servers.setdefault(where, []).append(lease)
        turns: dict[Turn, Callable[[float], bool]] = {
            **{server: partial(self._renew, due) for server, due in servers.items()},
            **{call: partial(self._call, call) for call in calls},
        }
        # if all others fail, too, a lease is still renewed at its next interval
        seconds = min((one.interval for one in leases), default=1.0) / max(len(turns), 1)
        for turn in sorted(turns, key=lambda one: one in self._failing):
            is_node = not isinstance(turn, RenewedByCall) and turn[0] is not None
            if turns[turn](min(seconds, NODE_TIMEOUT) if is_node else seconds):
                self._failing.discard(turn)
            elif not isinstance(turn, RenewedByCall) or turn.is_active:
                self._failing.add(turn)

    def _server_of(self, lease: RenewedLease) -> Address | None:
        with suppress(ConfigurationError):  # which the renewal reports
            return server_of(self._using, lease.script)
        return None

    def _call(self, renewal: RenewedByCall, seconds: float) -> bool:
        """Let a renewal make its call within `seconds`. Returns whether the server replied."""
        try:
            with deadline(seconds), no_retries_when(lambda: not renewal.is_active):
                renewal.call()
        except Exception as error:
            self._handle_failure([renewal], error)
            return not isinstance(error, Unavailable | OutcomeUnknown)
        return True

    def _renew(self, leases: Sequence[RenewedLease], seconds: float) -> bool:
        """Renew leases on one server within `seconds`. Returns whether the server replied."""
        sent_at = monotonic()
        try:
            with deadline(seconds), no_retries_when(lambda: not any(one.is_active for one in leases)):
                replies = perform_renewal(self._using, self._extend(leases))
        except (Unavailable, OutcomeUnknown) as error:
            self._handle_failure(leases, error)
            return False
        except Exception as error:
            if len(leases) > 1:  # one of the keys may be the cause
                for lease in leases:
                    self._renew([lease], seconds)
            else:
                self._handle_failure(leases, error)
            return True
        for lease, reply in zip(leases, replies, strict=True):
            if lease.is_held(reply):
                lease.confirm(lease.script.sent_since(sent_at))
            else:
                self._lose(lease)
        return True

    def _extend(self, leases: Sequence[RenewedLease]) -> Steps[list[Any]]:
        replies: list[Any] = []
        for batch in batched(leases, BATCH):
            replies += yield [one.script for one in batch]
        return replies

    def _handle_failure(self, leases: Sequence[Renewal], error: Exception) -> None:
        now = monotonic()
        for lease in leases:
            lease.due = now + min(RETRY * lease.interval, MAX_RETRY)
        active = [one for one in leases if one.is_active]
        if active:
            pause = min(one.due for one in active) - now
            message, names = "Renewing the lease of %s failed, retrying in %.1f s: %s", _names(active)
            if isinstance(error, MessagingError):
                logger.warning(message, names, pause, error)
            else:
                log_exception(logger, error, message, names, pause, describe(error))


#: (alias, kind of renewal) → its renewer
_renewers: dict[tuple[str, type[Renewal]], LeaseRenewer] = {}
_creating = threading.RLock()


def _renewer(using: str, kind: type[Renewal]) -> LeaseRenewer:
    """The renewer of an alias for one kind of renewals, started at its first use."""
    key = (using, kind)
    found = _renewers.get(key)
    if found is None:
        with _creating:
            found = _renewers.get(key) or _renewers.setdefault(key, LeaseRenewer(using))
    return found


def _names(leases: Sequence[Renewal]) -> str:
    shown = ", ".join(repr(one.name) for one in leases[:MAX_LOGGED_NAMES])
    more = len(leases) - MAX_LOGGED_NAMES
    return shown if more <= 0 else f"{shown} and {more} others"


def _discard_inherited() -> None:
    # A forked child has none of its parent's threads, and holds none of its parent's locks.
    global _creating
    _renewers.clear()
    _creating = threading.RLock()


after_fork(_discard_inherited)
