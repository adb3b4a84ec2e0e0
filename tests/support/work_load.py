"""Jobs, timers and locks during a fault."""

from __future__ import annotations

import asyncio
import functools
import itertools
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from threading import Event, Thread

from django_redis_messaging import DelayQueue, Expired, Expiry, Lock, LockNotOwnedError
from django_redis_messaging.handlers import TimerHandler
from django_redis_messaging.services.jobs.worker import Limits
from django_redis_messaging.services.listening import Listener
from tests.support.engines import timers

from .load import PACE, Load

#: seconds: lease of a job or lock whose holder got no reply
LEASE = 2.0
#: seconds that a worker waits for a job
WAIT = 0.2
#: seconds: delay of the timers
DELAY = 0.2
#: number of jobs claimed at once
CLAIMED = 10


class Jobs(Load):
    """Each queue has a caller that pushes and one that claims and acks, in a thread and in a task."""

    things = "jobs"

    def __init__(self, names: list[str], using: str | None = None) -> None:
        super().__init__(names, using)
        #: acknowledged data
        self.pushed: list[str] = []
        #: data → the ids and fences with which it was handled
        self.handled: dict[str, list[tuple[str, int]]] = {}
        #: data whose ack was acknowledged
        self.acked: list[str] = []

    @property
    def producers(self) -> list[Callable[[Event], None]]:
        return [self._push]

    @property
    def coroutines(self) -> list[Callable[[Event], Awaitable[None]]]:
        return [self._apush]

    @property
    def consumers(self) -> list[Callable[[Event], None]]:
        return [functools.partial(self._work, name) for name in self.names]

    @property
    def is_drained(self) -> bool:
        stats = [DelayQueue(name, using=self.using).stats() for name in self.names]
        return not any(one.ready + one.delayed + one.leased for one in stats)

    def check(self) -> None:
        self.lost += len(set(self.pushed) - set(self.handled))
        for data, runs in self.handled.items():
            ids, fences = [id_ for id_, _ in runs], [fence for _, fence in runs]
            self.doubled += len(set(ids)) - 1
            self.repeated += len(runs) - len(set(ids))
            if fences != sorted(set(fences)):
                self.violations.append(f"job {data}: fences {fences}")
        self.lost += sum(times - 1 for times in Counter(self.acked).values())
        if dead := [job for name in self.names for job in DelayQueue(name, using=self.using).dead()]:
            self.violations.append(f"dead jobs: {dead}")

    def _push(self, stop: Event) -> None:
        for number in itertools.count():
            for name in self.names:
                queue = DelayQueue(name, using=self.using)
                data, request_id = f"{name} thread {number}", uuid.uuid4().hex
                self.insist(name, lambda: queue.push(data, request_id=request_id))  # noqa: B023
                self.pushed.append(data)
            if stop.wait(PACE):
                return

    async def _apush(self, stop: Event) -> None:
        await asyncio.gather(*(self._apush_to(name, stop) for name in self.names))

    async def _apush_to(self, name: str, stop: Event) -> None:
        queue = DelayQueue(name, using=self.using)
        for number in itertools.count():
            data, request_id = f"{name} task {number}", uuid.uuid4().hex
            await self.ainsist(name, lambda: queue.apush(data, request_id=request_id))  # noqa: B023
            self.pushed.append(data)
            await asyncio.sleep(PACE)
            if stop.is_set():
                return

    def _work(self, name: str, stop: Event) -> None:
        queue = DelayQueue(name, using=self.using)
        while not stop.is_set():
            for job in self.attempt(lambda: queue.pop(CLAIMED, lease=LEASE, wait=WAIT), []):
                self.handled.setdefault(job.data, []).append((job.id, job.fence))
                if self.attempt(lambda: queue.ack(job), None):  # noqa: B023
                    self.acked.append(job.data)


class Timers(Load):
    """Callers that start timers, and a listener in this process."""

    things = "timers"

    def __init__(self, names: list[str], using: str | None = None) -> None:
        super().__init__(names, using)
        self.started: list[str] = []
        #: name of a timer → the ids and fences with which its handler was called
        self.fired: dict[str, list[tuple[str, int]]] = {}

    @property
    def producers(self) -> list[Callable[[Event], None]]:
        return [self._start]

    @property
    def coroutines(self) -> list[Callable[[Event], Awaitable[None]]]:
        return [self._astart]

    @property
    def consumers(self) -> list[Callable[[Event], None]]:
        return [self._listen]

    @property
    def is_drained(self) -> bool:
        return not any(sum(timers().stats(name)[:3]) for name in self.names)

    def check(self) -> None:
        self.lost += len(set(self.started) - set(self.fired))
        for name, runs in self.fired.items():
            ids, fences = [id_ for id_, _ in runs], [fence for _, fence in runs]
            self.doubled += len(set(ids)) - 1
            self.repeated += len(runs) - len(set(ids))
            if fences != sorted(set(fences)):
                self.violations.append(f"timer {name}: fences {fences}")

    def _start(self, stop: Event) -> None:
        for number in itertools.count():
            for namespace in self.names:
                name, request_id = f"{namespace} thread {number}", uuid.uuid4().hex
                timer = Expiry(namespace, using=self.using)
                self.insist(namespace, lambda: timer.start(name, DELAY, request_id=request_id))  # noqa: B023
                self.started.append(name)
            if stop.wait(PACE):
                return

    async def _astart(self, stop: Event) -> None:
        for number in itertools.count():
            for namespace in self.names:
                name, request_id = f"{namespace} task {number}", uuid.uuid4().hex
                timer = Expiry(namespace, using=self.using)
                await self.ainsist(namespace, lambda: timer.astart(name, DELAY, request_id=request_id))  # noqa: B023
                self.started.append(name)
            await asyncio.sleep(PACE)
            if stop.is_set():
                return

    def _listen(self, stop: Event) -> None:
        handlers = {name: TimerHandler(name, self._fire, None) for name in self.names}
        listener = Listener(handlers, [], Limits(concurrency=2, drain=LEASE, lease=LEASE))
        thread = Thread(target=listener.run, daemon=True)
        thread.start()
        stop.wait()
        listener.stop()
        thread.join()
        if listener.failed:
            self.violations.append("the listener ended by an error")

    def _fire(self, expired: Expired) -> None:
        self.fired.setdefault(expired.name, []).append((expired.id, expired.fence))


class Locks(Load):
    """Each lock is acquired and released by a thread."""

    things = "locks"

    def __init__(self, names: list[str], using: str | None = None) -> None:
        super().__init__(names, using)
        #: resource → the fences of its holders, in their order
        self.fences: dict[str, list[int]] = {name: [] for name in names}

    @property
    def producers(self) -> list[Callable[[Event], None]]:
        return [functools.partial(self._hold, name) for name in self.names]

    def check(self) -> None:
        for name, fences in self.fences.items():
            if fences != sorted(set(fences)):
                self.violations.append(f"lock {name}: the fences {fences} don't grow")

    def _hold(self, name: str, stop: Event) -> None:
        while not stop.wait(PACE):
            lock = Lock(name, timeout=LEASE, using=self.using)
            self.insist(name, lock.acquire)
            self.fences[name].append(lock.fence)
            try:
                self.attempt(lock.release, None)
            except LockNotOwnedError:
                self.reported += 1
