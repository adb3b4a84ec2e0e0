"""Leaders: one of many processes does a thing; when it ends or dies, the next one takes over."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Generic, TypeVar, cast

from ...core.connection import run_blocking
from ...core.encoding import name as checked
from ...core.operations import Listen, Service, Steps
from ...core.outcome import deadline, no_retries_when, time_left
from ...errors import ConfigurationError, InvalidArgument, LeaseLost, LockError, MessagingError
from ..common.arguments import Duration, Stop
from ..common.consuming import Loop, pause_after
from ..common.leases import RenewedLease, new_token
from ..common.waiters import Waiters
from .lock import LEAVE_DEADLINE, Attempt, Lock, LockInfo

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: the beginning of the name of the lock
LEADER = "leader:"
#: seconds between two checks of a waiting candidate whether it must stop
STOP_INTERVAL = 0.2


class Leader(Service):
    """One of many processes leads: `run` waits for the leadership, and calls a function while it has it.

    >>> Leader("importer").run(lambda term: f"leads: {not term.is_set()}")
    'leads: True'

    Candidates lead in the order of their arrival. The leadership is the lock `leader:NAME` with a lease of
    `timeout` seconds, which is renewed while the function runs: if its process dies, the next candidate leads
    when the lease ends. If the lease is lost, `on_lost` is called with a LeaseLost, in a thread of its own.

    A leader that is suspended for longer than its lease, or that was deposed, may go on for a moment after
    the next one has begun. What it writes should carry `term.fence`, which grows with each term: see
    `fenced_update`.
    """

    def __init__(
        self,
        name: str,
        *,
        timeout: Duration = 10,
        on_lost: Callable[[LeaseLost], object] | None = None,
        using: str | None = None,
    ) -> None:
        super().__init__(using=using)
        self.name = checked(name, "name")
        self._lock = LeaderLock(LEADER + name, timeout=timeout, renew=True, on_lost=on_lost, using=using)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def run(self, function: Callable[[Term], T], *, stop: Stop | None = None) -> T | None:
        """Wait for the leadership, call `function(term)`, hand the leadership over; returns what it returned.

        `function` should return soon after `term` is set: `while not term.is_set(): …`, or a loop that takes
        `stop=term`. If it raises, the leadership is handed over and the error is raised. If its leadership
        was lost, this candidate waits for it anew, so `function` can be called several times.

        Once `stop` is set, a candidate leaves the queue, and the term of a leader is set; returns None if
        `function` was not called. During an outage of Redis it retries; in a block of `deadline`, until that
        ends. Raises LockError if this thread or task leads already, Unavailable or OutcomeUnknown at the end
        of such a block, ConfigurationError.
        """
        if inspect.iscoroutinefunction(function):
            raise needs_arun(function)
        campaign = Campaign(self._lock, function, stop, blocking=True)
        return campaign.run_blocking()

    async def arun(
        self, function: Callable[[Term], T | Awaitable[T]], *, stop: Stop | None = None
    ) -> T | None:
        """An async version of `run`, for coroutine functions, and plain ones that return soon. A coroutine is
        not cancelled when the term is set."""
        return await Campaign(self._lock, function, stop, blocking=False).run()

    def info(self) -> LockInfo:
        """Who leads (`holder`), since when, the fence of the term, and the candidates that wait.

        >>> Leader("importer").info().holder is None
        True
        """
        return self._lock.info()

    async def ainfo(self) -> LockInfo:
        """An async version of `info`."""
        return await self._lock.ainfo()

    def step_down(self) -> bool:
        """Depose the present leader: the next candidate leads. Returns False if no process leads.

        The term of the deposed leader is set when its lease is renewed next, after a third of `timeout` at
        most. If it still runs, it waits for the leadership anew, behind the others.
        """
        holder = self.info().holder
        return holder is not None and self._lock.release_holder(holder)

    async def astep_down(self) -> bool:
        """An async version of `step_down`."""
        holder = (await self.ainfo()).holder
        return holder is not None and await self._lock.arelease_holder(holder)


class Term:
    """A term of leadership. It is set once the leader must end, so it can be passed as `stop=`."""

    def __init__(self, fence: int, renewal: RenewedLease, stop: Stop) -> None:
        self._fence = fence
        self._renewal = renewal
        self._stop = stop

    @property
    def fence(self) -> int:
        """Greater than that of every earlier term: the server time in µs at its beginning, or more."""
        return self._fence

    def is_set(self) -> bool:
        """Whether the leader must end: the leadership is lost, or `stop` of `run` is set."""
        return self.lost or self._stop.is_set()

    @property
    def lost(self) -> bool:
        """Whether another process may lead: the lease was lost, or has ended by the clock of this process,
        which may have been suspended."""
        return not self._renewal.is_active or self._renewal.valid_until <= monotonic()


class Stopped(Exception):
    """A candidate must not wait any longer."""


class LeaderLock(Lock):
    """A lock whose waiting clients can be stopped. Each campaign has a copy with its own `stop`."""

    stop: Stop
    _when_full = 1

    def _wait(self, attempt: Attempt, queue: Waiters, reply: list[Any]) -> Steps[int]:
        steps, answer = super()._wait(attempt, queue, reply), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as ended:
                return int(ended.value)
            answer = (yield from self._listen(step)) if isinstance(step, Listen) else (yield step)

    def _listen(self, step: Listen) -> Steps[Any]:
        """Wait as the step does, but raise Stopped once `stop` is set. That leaves the queue, as an interrupt
        does."""
        ends = monotonic() + step.seconds
        while not self.stop.is_set():
            if (left := ends - monotonic()) <= 0:
                return None
            seconds = min(left, STOP_INTERVAL)
            found = yield Listen(step.stream, step.last, seconds=seconds, match=step.match)
            if found is not None:
                return found
        raise Stopped


class Campaign(Loop, Generic[T]):
    """A call of `Leader.run` or `arun`."""

    def __init__(
        self,
        lock: LeaderLock,
        function: Callable[[Term], T | Awaitable[T]],
        stop: Stop | None,
        *,
        blocking: bool,
    ) -> None:
        super().__init__(stop, blocking=blocking)
        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}.")
        self._lock = copy.copy(lock)
        self._lock.stop = self.stop
        # a coroutine may be closed outside its task
        self._holding = self._lock._holding
        self._function = function
        #: attempts to wait for the leadership that failed in succession
        self._failures = 0

    def run_blocking(self) -> T | None:
        """Run the campaign in the blocking style."""
        return run_blocking(type(self).run, self)

    async def run(self) -> T | None:
        """Wait for the leadership and lead, until the function has ended its term, or `stop` is set."""
        result, goes_on = None, True
        while goes_on and not self.stop.is_set():
            token = new_token().encode()
            try:  # from before the acquire: after it, an interrupt can come at any time
                if await self._acquire(token):
                    result = await self._lead()
            except GeneratorExit:
                self._holding.forget(token)  # a closed coroutine can't await: the lease ends
                raise
            finally:
                goes_on = not await self._hand_over(token)
        return result

    async def _acquire(self, token: bytes) -> bool:
        """Wait for the leadership; returns False if `stop` is set, and after a failure and a pause."""
        try:
            with no_retries_when(self.stop.is_set):
                await self.do(self._lock.acquire, self._lock.aacquire, token=token)
        except Stopped:
            return False
        except (ConfigurationError, InvalidArgument, LockError):
            raise
        except MessagingError as error:
            self._failures += 1
            seconds = pause_after(self._failures)
            if self.stop.is_set():
                return False
            if time_left() <= 0:
                raise
            seconds = min(seconds, time_left())
            message = "Waiting for the lock %r failed, retrying in %.1f s: %s"
            logger.warning(message, self._lock.name, seconds, error)
            await self.pause(seconds)
            return False
        self._failures = 0
        return True

    async def _lead(self) -> T | None:
        """Call the function for one term; returns its result."""
        term = self._term()
        result = self._function(term) if not term.is_set() else None
        if inspect.isawaitable(result):
            if self._blocking:
                if inspect.iscoroutine(result):
                    result.close()
                raise needs_arun(self._function)
            result = await result
        return cast("T | None", result)

    def _term(self) -> Term:
        return Term(self._holding.fence, cast(RenewedLease, self._holding.renewal), self.stop)

    async def _hand_over(self, token: bytes) -> bool:
        """Release the lock if it was acquired with this token; returns False if it was not, or was lost.
        After its end, the lease is released, too: it may last for longer on the server."""
        holding = self._holding
        if holding.token != token:
            return False
        was_lost = self._term().lost
        left = cast(RenewedLease, holding.renewal).valid_until - monotonic()
        try:
            with deadline(max(left, LEAVE_DEADLINE)):
                await self.do(self._lock.release, self._lock.arelease)
        except LockError:
            return False
        except MessagingError as error:
            # The lease ends soon. Without its token, a later campaign waits for that.
            holding.token = None
            logger.warning("The lock %r was not released: %s", self._lock.name, error)
        return not was_lost


def needs_arun(function: object) -> TypeError:
    """The error of `run` for a function that returns a coroutine."""
    return TypeError(f"{function!r} returns an awaitable: pass it to arun().")
