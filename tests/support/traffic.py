"""All services in use by threads and tasks, while something happens to their servers, and what came of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from threading import Event

from django_redis_messaging.core import clients

from .clusters import PATIENCE
from .services import Call, Shared, Spread, Story, awaiting, blocking

#: seconds between two operations of a caller
PACE = 0.01
#: seconds between two stories of a caller
PAUSE = 0.05
#: operations of each resource before a fault, and after it
ENOUGH = 20


@dataclass
class Report:
    """What a fault did to the traffic."""

    #: s: the longest time that a resource was without an acknowledged operation
    outage: float
    #: what was running → the number of acknowledged operations
    running: dict[str, int]
    #: what was running → the number of acknowledged operations without effect
    lost: dict[str, int]
    #: operations that were applied twice
    doubled: int
    #: handlers of jobs and timers that were called again, with a larger fence
    repeated: int
    #: how often readers got `reset` or `missed`, and holders of a lock LockNotOwnedError
    reported: int
    #: class of an error → how often a caller got it
    errors: dict[str, int]
    violations: list[str] = field(repr=False)


class Traffic:
    """Callers of shared resources, one of each primary, and beside them callers with stories of their own."""

    def __init__(
        self,
        spread: Spread,
        services: Sequence[type[Shared]],
        stories: Sequence[Story] = (),
        **options: float,
    ) -> None:
        self.services = [service(spread, **options) for service in services]
        self._stories = stories
        self._futures: list[Future[None]] = []
        #: how often a story has been completed
        self.told = 0
        for service in self.services:
            service.begin()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run all callers during the block. At its end those that produce stop, and then, once everything is
        processed, those that consume."""
        no_more, end = Event(), Event()
        every = [(service, name) for service in self.services for name in service.names]
        producing: list[Callable[[], Awaitable[object]]] = [
            *((lambda one=one: self._produce(one, one.names, blocking, no_more)) for one in self.services),
            *((lambda story=story: self._tell(story, blocking, no_more)) for story in self._stories[::2]),
            lambda: self._produce_async(no_more),
        ]
        with ExitStack() as stack, ThreadPoolExecutor(len(producing) + len(every)) as pool:
            for service in self.services:
                stack.enter_context(service.processing())
            try:
                producers = [pool.submit(_run, one) for one in producing]
                consumers = [pool.submit(_run, lambda one=one: _consume(*one, end)) for one in every]
                self._futures = [*producers, *consumers]
                self.until(lambda: self.each_has(ENOUGH, 0.0) and self.told >= len(self._stories))
                yield
                no_more.set()
                wait(producers, PATIENCE, FIRST_EXCEPTION)
                self.until(lambda: all(service.is_drained for service in self.services))
            finally:
                no_more.set()
                end.set()
            for future in self._futures:
                future.result(PATIENCE)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition; raises the error of a caller that has ended by one."""
        ends = time.monotonic() + PATIENCE
        while not condition():
            for future in self._futures:
                if future.done():
                    future.result()
            if time.monotonic() > ends:
                raise TimeoutError(f"not within {PATIENCE} s")
            time.sleep(0.005)

    def each_has(self, number: int, since: float) -> bool:
        """Whether each resource has had so many acknowledged operations since a moment."""
        times = (times for service in self.services for times in service.acknowledged.values())
        return all(len(one) >= number and one[-number] > since for one in times)

    def keep(self) -> None:
        """What has been acknowledged so far may not be lost."""
        for service in self.services:
            service.kept = service.items

    @property
    def errors(self) -> int:
        """How many errors the callers got."""
        return sum(sum(service.errors.values()) for service in self.services)

    def report(self, since: float) -> Report:
        for service in self.services:
            asyncio.run(service.check(blocking))
            if lost := service.kept & service.lost:
                service.violations.append(f"{service.things} that the replicas had were lost: {lost}")
        return Report(
            outage=max(service.outage(since) for service in self.services),
            running={service.things: service.total for service in self.services},
            lost={service.things: len(service.lost) for service in self.services},
            doubled=sum(service.doubled for service in self.services),
            repeated=sum(service.repeated for service in self.services),
            reported=sum(service.reported for service in self.services),
            errors={
                name: sum(service.errors[name] for service in self.services)
                for name in ("Unavailable", "OutcomeUnknown")
            },
            violations=[one for service in self.services for one in service.violations],
        )

    async def _produce(self, service: Shared, names: list[str], call: Call, stop: Event) -> None:
        for number in count():
            for name in names:
                await service.produce(call, name, f"{call.__name__} {number}")
            if stop.is_set():
                return
            await asyncio.sleep(PACE)

    async def _produce_async(self, stop: Event) -> None:
        every = [(service, [name]) for service in self.services for name in service.names]
        await asyncio.gather(
            *(self._produce(*one, awaiting, stop) for one in every),
            *(self._tell(story, awaiting, stop) for story in self._stories[1::2]),
        )

    async def _tell(self, story: Story, call: Call, stop: Event) -> None:
        while not stop.is_set():
            await story(call, f"{story.__qualname__}-{call.__name__}")
            self.told += 1
            await asyncio.sleep(PAUSE)


async def _consume(service: Shared, name: str, stop: Event) -> None:
    while not stop.is_set():
        await service.consume(blocking, name)
        await asyncio.sleep(PACE)


def _run(caller: Callable[[], Awaitable[object]]) -> None:
    """Run a caller in an event loop of its own."""

    async def run() -> None:
        try:
            await caller()
        finally:
            await clients.aclose()

    asyncio.run(run())
