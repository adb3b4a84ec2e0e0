"""Timers: what starts, extends and cancels them, and what calls their handlers when they are due.

The jobs of all timers are in one slot, whose queues are the namespaces.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from inspect import iscoroutine
from typing import Any

from django.db import close_old_connections

from ... import conf
from ...core import encoding
from ...core.encoding import current_prefix, encoded, tag
from ...core.operations import (
    Script,
    Service,
    Steps,
    asynchronous,
    log_exception,
    name_of,
    operation,
    perform,
)
from ...errors import LimitExceeded, MessagingError, TaskTimeout
from ...handlers import Expired, TimerHandler, title
from ..common.arguments import Duration, milliseconds, request, settled, to_datetime, window
from ..jobs import threads
from ..jobs.engine import Claimed, Engine, LeasedJob, Outcome, Settlement, registered_queues
from ..jobs.executor import RunningJob
from ..jobs.keys import JobKeys, request_offset, request_shard
from ..jobs.poller import Round, default_alias, register, rounds_of_slot
from ..jobs.queue import retry_delay
from ..jobs.sources import Queue, Source, register_sources
from ..jobs.threads import EventLoopEnded

#: the slot of all timers of a prefix: one claim, and one wait, covers every namespace
TIMERS = ("expiry", "timers")
#: ms after which a timer is tried again that could not be started; the others go on
START_DELAY = 1000
logger = logging.getLogger(__name__)


def timer_key(prefix: str, namespace: str, name: str) -> str:
    """STRING: a timer's payload, as JSON. Expires when the timer is due, unless another client changes its
    TTL; a key without a TTL is deleted when the timer starts."""
    return f"{tag(prefix, *TIMERS)}:timer:{timer_name(namespace, name)}"


def timer_name(namespace: str, name: str) -> str:
    """The unique key of a timer's job until the timer starts. So the HASH `uniques` of JobKeys maps names to
    jobs; a field is deleted when the timer starts, is cancelled, or dies.

    >>> timer_name("order", "a:b")
    'order:a%3Ab'
    """
    return f"{encoded(namespace)}:{encoded(name)}"


def namespaces_key(prefix: str) -> str:
    """ZSET namespace → ms at which the last of its timers is due. The poller removes old names of empty
    namespaces."""
    return tag(prefix, *TIMERS) + ":namespaces"


def with_timer(queue: list[str], prefix: str, namespace: str, name: str) -> list[str]:
    """The KEYS of a script about a timer, in the order of _timers.lua. `queue`: the records of the jobs, and
    the queue of the namespace."""
    return [*queue, timer_key(prefix, namespace, name), namespaces_key(prefix)]


class Expiry(Service):
    """The timers of a namespace: a kind of timers, with one handler (`on_expiry`).

    >>> orders = Expiry("order")
    >>> timer_id = orders.start("17", 30, {"total": 9.5})
    >>> 29 < orders.remaining("17") <= 30
    True
    >>> orders.extend("17", 3600), orders.cancel("17"), orders.cancel("17")
    (True, True, False)

    A timer that was started, and not cancelled before it was due, is completed once: its handler is called
    until it has returned. That may be late, while no listener runs, but never early by the server's clock.
    `start`, `extend` and `cancel` take effect at once, even for a timer that a listener is about to start.

    Beside each timer there is a key with its payload and a TTL, for other clients to read. If they extend the
    life of that key (EXPIRE, PERSIST), that counts when the timer is due: the timer then waits until the key
    expires, or starts at once if the key has no TTL. Deleting the key changes nothing.
    """

    def __init__(self, namespace: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.namespace = encoding.name(namespace, "namespace")
        self._jobs = JobKeys(self._prefix, *TIMERS)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.namespace!r})"

    @operation
    def start(
        self, name: str, after: Duration, payload: Any = None, *, request_id: str | None = None
    ) -> Steps[str]:
        """Have the handler called with `payload` after this time (more than 0; no upper limit in practice).
        Returns the id of this start.

        It replaces a timer of the same name that has not started; one that has started runs on. A repeat with
        the same `request_id` changes nothing and returns the first id. Request ids belong to the namespace
        and name: put the user into an id that a user has chosen. Only the listener knows which namespaces
        have handlers: timers of a namespace without a handler wait for one.

        >>> len(Expiry("order").start("18", 0.5, request_id="order 18"))
        24

        Raises LimitExceeded (JOB_MAX_BYTES, JOB_MAX_WAITING).
        """
        unique, job_id = self._unique(name), os.urandom(12).hex()
        ms = milliseconds(after, "after", minimum=1)
        stored = encoding.text(encoding.dumps(payload), "a timer's payload", setting="JOB_MAX_BYTES")
        settings = conf.current()
        limit = settings.JOB_MAX_WAITING
        # one request id may start timers of several names
        request_key = f"{unique}:{request(request_id)}"
        job = (job_id, encoding.string(name), stored, settings.JOB_MAX_ATTEMPTS)
        shard = request_shard(request_key)
        offset = request_offset(shard, window())
        words = (request_key, window(), offset, limit, self.namespace, unique, ms, *job)
        queue = self._jobs.for_request(shard, self.namespace)
        changed = with_timer(queue, self._prefix, self.namespace, name)
        reply = yield Script("expiries/start", changed, words)
        if isinstance(reply, int):
            raise LimitExceeded(
                "timers waiting in a namespace", limit=limit, actual=reply, setting="JOB_MAX_WAITING"
            )
        return str(reply.decode())

    astart = asynchronous(start)

    @operation
    def extend(self, name: str, after: Duration) -> Steps[bool]:
        """Make a timer due this long from now, whether that is later or earlier. False if it has started or
        doesn't exist."""
        ms = milliseconds(after, "after", minimum=1)
        words = (self._unique(name), self.namespace, ms, "")
        return bool((yield Script("expiries/extend", self._keys(name), words)))

    aextend = asynchronous(extend)

    @operation
    def cancel(self, name: str) -> Steps[bool | None]:
        """Cancel a timer: its handler isn't called. False if it has started or doesn't exist; None if a reply
        was lost and the repeat found no timer, so that either may be true."""
        words = (self._unique(name), "")
        return settled((yield Script("expiries/cancel", self._keys(name), words, settles=True)))

    acancel = asynchronous(cancel)

    @operation
    def remaining(self, name: str) -> Steps[float | None]:
        """Seconds until a timer is due, 0 if it is due and has not started; None if it has started or doesn't
        exist.

        >>> print(Expiry("order").remaining("no such timer"))
        None
        """
        words = (self._unique(name),)
        ms: int = yield Script("expiries/remaining", self._keys(name), words)
        return None if ms < 0 else ms / 1000

    aremaining = asynchronous(remaining)

    def _unique(self, name: str) -> str:
        return timer_name(self.namespace, encoding.name(name, "name"))

    def _keys(self, name: str) -> list[str]:
        queue = self._jobs.queue(self.namespace).with_records
        return with_timer(queue, self._prefix, self.namespace, name)


class TimerEngine(Engine):
    """The timers of a prefix."""

    counts_lost = True

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix, *TIMERS)
        self._prefix = prefix

    def claim(self, queues: Sequence[str], count: int, lease: int, **options: Any) -> Steps[Claimed]:
        """As Engine.claim, with the namespaces in random order: none is always served first."""
        return (yield from super().claim(random.sample(queues, len(queues)), count, lease, **options))

    def confirm(self, leased: LeasedJob, name: str) -> Steps[int]:
        """Start a timer that was claimed. 0 if it has started; the ms by which to delay it; or -1 if the
        lease is stale: the timer was cancelled, replaced, extended, or claimed by another listener."""
        namespace, job_id, fence, token = leased.lease
        keys = with_timer(self.keys.queue(namespace).with_records, self._prefix, namespace, name)
        return int((yield Script("expiries/confirm", keys, (job_id, fence, token))))

    def namespaces(self) -> Steps[list[str]]:
        """The namespaces that have or had timers."""
        return registered_queues(namespaces_key(self._prefix))


class Firing:
    """Makes attempts at timers, for the lanes of a worker."""

    def __init__(self, engine: TimerEngine, using: str, handlers: Mapping[str, TimerHandler]) -> None:
        self._engine = engine
        self._using = using
        self._handlers = handlers

    def __call__(self, running: RunningJob) -> Settlement | None:
        """Start a timer and call its handler; None if the lease is stale."""
        leased = running.leased
        namespace, job_id = leased.lease.queue, leased.lease.id
        try:
            name, payload = _decode(leased)
        except (TypeError, ValueError) as error:  # an unreadable timer must not stop the others
            logger.error("Timer id=%s of %r can't be decoded; moved to dead letters.", job_id, namespace)
            return running.settlement(Outcome.DEAD, line=_failure(f"The timer can't be decoded: {error}"))
        return self._fire(running, name, payload)

    def _fire(self, running: RunningJob, name: str, payload: Any) -> Settlement | None:
        leased = running.leased
        namespace, job_id = leased.lease.queue, leased.lease.id
        try:
            delay = perform(self._using, self._engine.confirm(leased, name))
        except MessagingError as error:
            logger.warning("Starting timer id=%s failed; released: %s", job_id, error)
            return running.settlement(Outcome.RELEASE, START_DELAY)
        if delay < 0:
            return None
        if delay > 0:
            return running.settlement(Outcome.RELEASE, delay)
        due_at = to_datetime(leased.state.moment)
        expired = Expired(name, namespace, payload, job_id, leased.lease.fence, due_at)
        threads.prepare_connections()
        try:
            _call(self._handlers[namespace], expired, running)
        except BaseException as error:  # SystemExit too: a lane that ended would start no more timers
            return _failed(self._handlers[namespace], running, error)
        finally:
            close_old_connections()
        return running.settlement(Outcome.DONE)


def _decode(leased: LeasedJob) -> tuple[str, Any]:
    name, payload = encoding.loads_all(leased.payload.split(b"\n", 1))
    return encoding.name(name, "name"), payload


def _call(handler: TimerHandler, expired: Expired, running: RunningJob) -> None:
    result = running.call(lambda: handler.function(expired), handler.timeout)
    if iscoroutine(result):
        running.call_async(result, handler.timeout)


def _failed(handler: TimerHandler, running: RunningJob, error: BaseException) -> Settlement:
    if running.released or issubclass(type(error), EventLoopEnded):
        return running.settlement(Outcome.RELEASE)
    leased = running.leased
    reason = name_of(type(error))
    if issubclass(type(error), TaskTimeout) and running.overdue >= 0:
        reason = f"{reason}: took longer than {handler.timeout} s"
    log_exception(
        logger,
        error,
        "Timer id=%s of %r: %s failed in attempt %d.",
        leased.lease.id,
        leased.lease.queue,
        title(handler.function),
        leased.state.attempts,
        level=logging.WARNING,
    )
    line = _failure(f"{title(handler.function)}: {reason}")
    return running.settlement(Outcome.RETRY, round(retry_delay(leased.state.failures) * 1000), line)


def _failure(reason: str) -> str:
    """The line of the log for a failed attempt."""
    return "F" + encoding.string(reason)


@register(default_alias)
def timers(using: str) -> Iterable[Round]:
    """One round for each page of namespaces."""
    prefix = current_prefix()
    return rounds_of_slot(using, TimerEngine(prefix), namespaces_key(prefix))


@register_sources
def namespaces() -> list[Source]:
    """The namespaces."""
    using, engine = conf.alias(), TimerEngine(current_prefix())

    def namespace(name: str) -> Queue:
        return Queue(using, "timers", "", name, engine, name)

    return [Source(using, "timers", namespaces_key(current_prefix()), namespace)]
