"""What a worker exchanges with Redis: claims, settlements and heartbeats; and the leases that it holds.

A claim also settles the leases of all jobs that have ended meanwhile. Two threads wait for Redis in place of
the worker's loop: one for wake-ups, while lanes are idle and nothing is ready; one extends the leases.

If the reply to a claim is lost, its jobs would come back at the end of their leases as jobs that have lost
their worker, and one with a single attempt would be dead. So the worker releases them, by the token of the
claim.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from time import monotonic

from ... import conf
from ...core.commands import batched
from ...core.operations import LoopGuard, log_exception, perform, perform_renewal
from ...core.outcome import backoff, deadline, time_left
from ...errors import MessagingError, OutcomeUnknown, Unavailable
from ..common.leases import RenewedByCall
from .engine import (
    PAGE,
    POLL_INTERVAL,
    Claimed,
    Engine,
    Extended,
    FollowUp,
    Lease,
    Outcome,
    Settlement,
    new_token,
)
from .executor import UNSETTLED, Report, log_lost_lease
from .placement import Job

logger = logging.getLogger(__name__)

#: claims whose lost replies are remembered, the latest ones
MAX_LOST_CLAIMS = 1000
#: seconds between two extensions of leases, at most: a cancellation is noticed by the next one
MAX_EXTEND_INTERVAL = 1.0
#: seconds before a follow-up that could not be pushed is tried again
FOLLOW_UP_INTERVAL = 1.0

_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
#: outcomes after which a job has ended for good
_FINAL = (Outcome.DONE, Outcome.DEAD, Outcome.CANCELLED)


class Leases:
    """The leases that a worker holds, and how many of its jobs have ended."""

    def __init__(self) -> None:
        #: jobs that were claimed and have not ended, by number: one whose lease was lost may be claimed again
        self.jobs: dict[int, Job] = {}
        #: of jobs that have ended
        self.settlements: list[Settlement] = []
        #: those that another job follows: a claim has no keys for the queue of that
        self.follow_ups: list[Settlement] = []
        #: jobs that were started and ended
        self.done = 0
        #: by queue: jobs that ended for good
        self.ended: Counter[str] = Counter()

    @property
    def is_settled(self) -> bool:
        """Whether no job that has ended is to be settled."""
        return not self.settlements and not self.follow_ups

    def __bool__(self) -> bool:
        return bool(self.jobs) or not self.is_settled

    def release(self, job: Job, delay: float = 0.0) -> None:
        """Release a job that has not started, uncharged. If it shall be cancelled, it ends with that."""
        self.settlements.append(job.leased.lease.settlement(Outcome.RELEASE, round(1000 * delay)))

    def end(self, job: Job, report: Report) -> None:
        """Let a job be settled as its executor has reported."""
        lease = job.leased.lease
        if report.ended == UNSETTLED:
            return
        outcome = _OUTCOMES[report.ended]
        if outcome in _FINAL:
            self.ended[lease.queue] += 1
        follow_up = None
        if report.follow_up is not None and job.place is not None:
            announce = partial(job.place.host.executor.announce, report.number)
            follow_up = FollowUp(*report.follow_up, announce)
        settlement = Settlement(lease, outcome, report.ms, report.line, follow_up)
        (self.settlements if follow_up is None else self.follow_ups).append(settlement)


class Claims:
    """The calls of one worker that claim jobs and settle their leases. One that fails begins an outage, which
    ends when one succeeds."""

    def __init__(
        self,
        engine: Engine,
        using: str,
        worker: str,
        queues: Sequence[str] | Mapping[str, int],
        lease: float,
    ) -> None:
        self.engine = engine
        self.using = using
        #: id of the worker
        self.worker = worker
        #: seconds that a lease lasts
        self.lease = lease
        self.lease_ms = round(lease * 1000)
        self.order = QueueOrder(queues)
        self.leases = Leases()
        self.lost = LostClaims(engine, using, self.order.queues, lease)
        self.outage: Outage | None = None
        #: whether a claim was answered since the last heartbeat
        self.was_answered = False
        #: when to push follow-ups again: monotonic
        self.next_follow_up = 0.0

    def claim(self, count: int) -> Claimed:
        """Claim up to `count` jobs, and settle leases; raises MessagingError."""
        settlements, began = self.leases.settlements[:PAGE], monotonic()
        try:
            claimed = self._exchange(settlements, count)
        except MessagingError as error:
            self._note_outage(error, settlements, began)
            raise
        self._note_settled(settlements, claimed.applied)
        return claimed

    def settle_follow_ups(self) -> None:
        """Settle the jobs that another one follows, each alone, if that is due. One that fails holds up no
        others; the first error is raised then: a MessagingError."""
        if not self.leases.follow_ups or monotonic() < self.next_follow_up:
            return
        with deadline(conf.current().COMMAND_DEADLINE):
            failures = self._try_follow_ups()
        if failures:
            self.next_follow_up = monotonic() + FOLLOW_UP_INTERVAL
            raise failures[0]
        if self.leases.is_settled:  # else the outage still knows which settlements may have been applied
            self.outage = None

    def _try_follow_ups(self) -> list[MessagingError]:
        """Settle them until the deadline. Those that fail are the last ones the next time."""
        waiting = self.leases.follow_ups
        failed: list[Settlement] = []
        failures: list[MessagingError] = []
        for one in list(waiting):
            began = monotonic()
            try:
                self._settle_and_push(one)
            except MessagingError as error:
                self._note_outage(error, [one], began)
                failed.append(one)
                failures.append(error)
                if time_left() <= 0:
                    break
            else:
                waiting.remove(one)
        # in one step: the heartbeat reads them
        waiting[:] = [*(one for one in waiting if one not in failed), *failed]
        return failures

    def seconds_to_retry(self) -> float:
        """Seconds until Redis is to be tried again; 0.0 without an outage, or if that is due."""
        return 0.0 if self.outage is None else max(self.outage.retry_at - monotonic(), 0.0)

    def settle_all(self) -> None:
        """Settle all leases, until the deadline. Those that can't be settled are logged."""
        leases = self.leases
        while not leases.is_settled:
            page, follow_up = leases.settlements[:PAGE], leases.follow_ups[:1]
            try:
                if follow_up:
                    self._settle_and_push(follow_up[0])
                    leases.follow_ups.remove(follow_up[0])
                else:
                    self._note_settled(page, self._exchange(page, 0).applied)
            except MessagingError as error:
                # without a reply, a repeat is harmless: leases that were settled are stale
                if not isinstance(error, OutcomeUnknown) or time_left() <= 0:
                    _log_unsettled(follow_up or page, error)
                    del (leases.follow_ups if follow_up else leases.settlements)[: len(follow_up or page)]

    def _exchange(self, settlements: Sequence[Settlement], count: int) -> Claimed:
        """Settle these leases and claim jobs, in one call; raises MessagingError."""
        queues = self.order.next() if count else self.order.queues
        if self.lost:
            self.lost.release()
        token, ms = new_token(), self.lease_ms
        steps = self.engine.claim(queues, count, ms, worker=self.worker, token=token, settlements=settlements)
        try:
            claimed = perform(self.using, steps)
        except OutcomeUnknown:
            if count:
                self.lost.add(token)
            raise
        if count:
            self.was_answered = True
        return claimed

    def _settle_and_push(self, settlement: Settlement) -> None:
        """Settle a lease and push the job that follows; raises MessagingError."""
        follow_up = settlement.follow_up
        if follow_up is None:
            return
        moment = perform(self.using, self.engine.settle_and_push(settlement, follow_up))
        follow_up.pushed(moment or 0)
        if moment == 0 and not (self.outage is not None and settlement.lease in self.outage.sent):
            log_lost_lease(settlement)

    def _note_settled(self, settlements: Sequence[Settlement], applied: Sequence[bool]) -> None:
        del self.leases.settlements[: len(settlements)]
        outage, self.outage = self.outage, None
        if not all(applied):
            for one, was_applied in zip(settlements, applied, strict=True):
                # one that was sent without a reply may have been applied then
                if not was_applied and not (outage is not None and one.lease in outage.sent):
                    log_lost_lease(one)

    def _note_outage(self, error: MessagingError, settlements: Sequence[Settlement], began: float) -> None:
        """A call with these settlements has failed; it began at this moment: monotonic."""
        self.outage = self.outage or Outage(began=began)
        self.outage.add(error, settlements)


class QueueOrder:
    """Strict: the first queue is served first, always. With weights: each queue comes first in a share of the
    claims that is proportional to its weight; the others follow, so that no claim is in vain.

    The shares are even ("smooth weighted round-robin", nginx): with weights of 3 and 1, the first four claims
    serve a, a, b and a first.

    >>> order = QueueOrder({"a": 3, "b": 1})
    >>> [order.next()[0] for _ in range(4)]
    ['a', 'a', 'b', 'a']
    >>> QueueOrder(["b", "a"]).next()
    ['b', 'a']
    """

    def __init__(self, queues: Sequence[str] | Mapping[str, int]) -> None:
        #: in the order in which they were given; members of enumerations become plain strings
        self.queues = [str.__str__(queue) for queue in queues]
        weights = queues.values() if isinstance(queues, Mapping) else ()
        self._weights = dict(zip(self.queues, weights, strict=False))
        self._total = sum(self._weights.values())
        #: how far each queue is behind its share
        self._behind = dict.fromkeys(self._weights, 0)

    def next(self) -> list[str]:
        """The queues in the order of the next claim."""
        if not self._weights:
            return self.queues
        for queue, weight in self._weights.items():
            self._behind[queue] += weight
        order = sorted(self.queues, key=self._behind.__getitem__, reverse=True)
        self._behind[order[0]] -= self._total
        return order


class LostClaims:
    """The claims of one worker whose replies were lost.

    Their jobs are released before the next claim, and again after each third of a lease, until a lease has
    passed since Redis replied first: a request that was delayed on its way may be executed later.
    """

    def __init__(self, engine: Engine, using: str, queues: Sequence[str], lease: float) -> None:
        self._engine = engine
        self._using = using
        self._queues = list(queues)
        self._lease = lease
        #: token → when it is forgotten: monotonic; infinite until Redis has replied
        self._tokens: dict[str, float] = {}
        #: monotonic
        self._next_release = 0.0

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def add(self, token: str) -> None:
        """Remember a claim."""
        self._tokens[token] = math.inf
        self._next_release = 0.0
        if len(self._tokens) > MAX_LOST_CLAIMS:
            del self._tokens[next(iter(self._tokens))]

    def release(self) -> None:
        """Release the jobs of these claims, if that is due; raises MessagingError."""
        if monotonic() < self._next_release:
            return
        tokens = list(self._tokens)
        released = perform(self._using, self._engine.return_claims(self._queues, tokens))
        now = monotonic()
        self._next_release = now + self._lease / 3
        for token in tokens:
            ends = min(self._tokens.pop(token), now + self._lease)
            if ends > now:
                self._tokens[token] = ends
        if released:
            logger.warning(
                "The reply to a claim was lost; jobs that it had leased were released: %d.", released
            )


@dataclass(slots=True)
class Outage:
    """Failures to reach Redis, in a row."""

    #: when the first call began that failed: monotonic
    began: float = field(default_factory=monotonic)
    #: tries that were planned after a failure
    failures: int = 0
    #: when to try again: monotonic
    retry_at: float = 0.0
    #: whether it has lasted for COMMAND_DEADLINE, or no retry helps
    is_long: bool = False
    #: leases whose settlements were sent without a reply: they may have been applied
    sent: set[Lease] = field(default_factory=set)

    def add(self, error: MessagingError, settlements: Sequence[Settlement]) -> None:
        """Add a failure of a call with these settlements."""
        if isinstance(error, OutcomeUnknown):
            self.sent.update(one.lease for one in settlements)
        may_pass = isinstance(error, OutcomeUnknown | Unavailable)
        self.is_long = not may_pass or monotonic() - self.began >= conf.current().COMMAND_DEADLINE

    def plan(self) -> float:
        """Plan the next try; returns the seconds until then."""
        self.failures += 1
        seconds = backoff(self.failures)
        self.retry_at = monotonic() + seconds
        return seconds


def _log_unsettled(settlements: Sequence[Settlement], error: MessagingError) -> None:
    """Log that leases could not be settled before the worker ended."""
    ids = ", ".join(one.lease.id for one in settlements)
    logger.warning("Settling failed; delivered again when the leases end: jobs id=%s: %s", ids, error)


class Wakeups:
    """Waits for wake-ups of some queues, in a thread of its own, when the loop asks for it."""

    def __init__(
        self, engine: Engine, using: str, queues: Sequence[str], on_wakeup: Callable[[], object]
    ) -> None:
        #: whether it waits; the loop sets this to False when `on_wakeup` was called
        self.is_waiting = False
        self._engine = engine
        self._using = using
        self._queues = list(queues)
        self._on_wakeup = on_wakeup
        self._ended = threading.Event()
        #: seconds of the next wait; None: end
        self._asked: SimpleQueue[float | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def wait(self, seconds: float) -> None:
        """Begin to wait, unless it does; at the end, woken or not, it calls `on_wakeup` in its thread."""
        if self.is_waiting or seconds <= 0:
            return
        self.is_waiting = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wake-ups", daemon=True)
            self._thread.start()
        self._asked.put(seconds)

    def end(self) -> None:
        """Wait no more after the wait that goes on."""
        self._ended.set()
        self._asked.put(None)

    def _run(self) -> None:
        with LoopGuard(logger, "Waiting for wake-ups failed; polling instead."):
            while (seconds := self._asked.get()) is not None:
                try:
                    perform(self._using, self._engine.wait(self._queues, seconds))
                except MessagingError as error:
                    if not self._ended.is_set():
                        logger.warning("Waiting for jobs failed, polling instead: %s", error)
                    self._ended.wait(POLL_INTERVAL)
                self._on_wakeup()


class Keeper:
    """Extends the leases of the jobs of a worker in one call, and stores its heartbeat after each third of a
    lease."""

    def __init__(
        self,
        claims: Claims,
        on_extended: Callable[[Sequence[tuple[int, Extended]]], object] = lambda _: None,
        on_failure: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_extended` gets the numbers of jobs that shall be cancelled, or have lost their leases. Both are
        called in the thread of the heartbeat; `on_failure` after an unexpected error, once."""
        self._claims = claims
        self._on_extended = on_extended
        self._on_failure = on_failure
        self._failed = False
        #: start of the worker by the server's clock: ms; 0 before the first heartbeat
        self._started = 0
        self._next_report = 0.0
        self._ending = False
        interval = min(claims.lease / 3, MAX_EXTEND_INTERVAL)
        self._renewal = RenewedByCall(claims.using, f"worker {claims.worker}", interval, self._beat)

    def start(self) -> None:
        """Send the first heartbeat, and go on."""
        self._renewal.start()

    def stop(self) -> None:
        """Stop, and wait for a heartbeat in progress, until the deadline."""
        self._ending = True
        self._renewal.end_and_wait(max(time_left(), 0))

    def _beat(self) -> None:
        """An unexpected error ends the worker; leases are kept until then."""
        try:
            self.keep_leases()
            if monotonic() >= self._next_report:
                self.report()
        except MessagingError:
            raise  # it is repeated
        except BaseException as error:  # SystemExit too: the thread must not end
            if not self._failed:
                self._failed = True
                self._on_failure()
                worker = self._claims.worker
                log_exception(logger, error, "The heartbeat of worker %s failed; stopping.", worker)

    def keep_leases(self) -> None:
        """Extend the leases of all jobs; reports those that are cancelled or lost."""
        leases = self._claims.leases
        for page in batched(list(leases.jobs.values()), PAGE):
            extended = self._extend([job.leased.lease for job in page])
            changed = [
                (job.number, what)
                for job, what in zip(page, extended, strict=True)
                if what is not Extended.IN_FORCE
            ]
            if changed:
                self._on_extended(changed)
        # others must not get jobs that have ended; without an outage, the next claim settles most at once
        late = [] if self._claims.outage is None else leases.settlements
        for unsettled in batched([*late, *leases.follow_ups], PAGE):
            self._extend([one.lease for one in unsettled])

    def _extend(self, leases: Sequence[Lease]) -> list[Extended]:
        claims = self._claims
        return perform_renewal(claims.using, claims.engine.extend(leases, claims.lease_ms))

    def report(self) -> None:
        """Store the state of the worker, unless it is ending."""
        if self._ending:
            return
        claims, leases = self._claims, self._claims.leases
        done = leases.done  # read first: what has run was claimed before
        consumed, claims.was_answered = claims.was_answered, False  # a claim may be answered during the call
        running = len(leases.jobs)
        beat = claims.engine.beat(
            claims.worker,
            consumed=consumed,
            started=self._started,
            running=running,
            done=done,
            # all that it serves, so that others see which queues have a worker
            ended={**dict.fromkeys(claims.order.queues, 0), **leases.ended},
        )
        try:
            now = perform_renewal(claims.using, beat)
        except BaseException:
            claims.was_answered |= consumed
            raise
        self._started = self._started or now
        self._next_report = monotonic() + claims.lease / 3 * 0.9
