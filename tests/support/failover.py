"""Traffic of all services while a primary fails and a replica takes over, and a report of what was lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event

from django_redis_messaging import Lock, conf
from django_redis_messaging.services.broadcasts.broadcast import BroadcastKeys
from django_redis_messaging.services.chats.keys import ChatKeys
from django_redis_messaging.services.expiries.timers import TIMERS
from django_redis_messaging.services.jobs.keys import JobKeys

from .load import Load
from .message_load import Broadcasts, Chats
from .replicated_primary import ClusterShard, Shard
from .work_load import Jobs, Locks, Timers

#: seconds to wait for a condition, also on a busy machine
PATIENCE = 60.0
#: operations of each resource before the fault, and after it
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
    """Traffic of all services, on a resource of each primary."""

    def __init__(self, shard: Shard) -> None:
        prefix, spread = conf.prefix(), shard.spread
        self.chats = Chats(spread(lambda name: ChatKeys(prefix, name).log))
        self.chats.create()
        #: those on the shard that fails
        self.affected_chats = self.chats.names[:1]
        self.loads: list[Load] = [
            self.chats,
            Broadcasts(spread(lambda name: BroadcastKeys(prefix, name).head)),
            Jobs(spread(lambda name: JobKeys(prefix, "queue", name).jobs)),
            Timers(["order"]),
            Locks(spread(lambda name: Lock(name).key)),
        ]
        #: a key of the shard that fails
        self.filler = JobKeys(prefix, *TIMERS).tag + ":filler"
        self._futures: list[Future[None]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run all loads during the block. At its end the producers stop, and then, once everything is
        processed, the consumers."""
        no_more, end = Event(), Event()
        producers = [one for load in self.loads for one in load.producers]
        consumers = [one for load in self.loads for one in load.consumers]
        with ThreadPoolExecutor(len(producers) + len(consumers) + 1) as pool:
            try:
                producing = [pool.submit(one, no_more) for one in producers]
                producing.append(pool.submit(lambda: asyncio.run(self._run_coroutines(no_more))))
                self._futures = [*producing, *(pool.submit(one, end) for one in consumers)]
                self.until(lambda: self.each_has(ENOUGH, 0.0))
                yield
                no_more.set()
                wait(producing, PATIENCE, FIRST_EXCEPTION)
                self.until(lambda: all(load.is_drained for load in self.loads))
            finally:
                no_more.set()
                end.set()
            for future in self._futures:
                future.result(PATIENCE)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition; raises the error of a load that has ended by one."""
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
        times = (times for load in self.loads for times in load.acknowledged.values())
        return all(len(one) >= number and one[-number] > since for one in times)

    @property
    def errors(self) -> int:
        """How many errors the callers got."""
        return sum(sum(load.errors.values()) for load in self.loads)

    def report(self, since: float) -> Report:
        for load in self.loads:
            load.check()
        return Report(
            outage=max(load.outage(since) for load in self.loads),
            running={load.things: load.total for load in self.loads},
            lost={load.things: load.lost for load in self.loads},
            doubled=sum(load.doubled for load in self.loads),
            repeated=sum(load.repeated for load in self.loads),
            reported=sum(load.reported for load in self.loads),
            errors={
                name: sum(load.errors[name] for load in self.loads)
                for name in ("Unavailable", "OutcomeUnknown")
            },
            violations=[one for load in self.loads for one in load.violations],
        )

    async def _run_coroutines(self, stop: Event) -> None:
        await asyncio.gather(*(one(stop) for load in self.loads for one in load.coroutines))


#: breaks a shard; returns the moment from which the time without service counts
Fault = Callable[[Shard, Traffic], float]


def kill_primary(shard: Shard, traffic: Traffic) -> float:
    """Kill the primary (SIGKILL), and restart it when the service is back."""
    since = time.monotonic()
    shard.kill()
    killed = time.monotonic()
    traffic.until(lambda: traffic.each_has(1, killed))
    shard.restart()
    return since


def freeze_primary(shard: Shard, traffic: Traffic) -> float:
    """Freeze the primary (SIGSTOP), and resume it once a replica has taken over."""
    since = time.monotonic()
    shard.servers[shard.primary].freeze()
    traffic.until(shard.has_failed_over)
    shard.thaw([shard.primary])
    return since


def kill_primary_all_behind(shard: Shard, traffic: Traffic) -> float:
    """Kill the primary while no replica has its last writes."""
    return _kill_primary(shard, traffic, behind=shard.replicas)


def kill_primary_one_behind(shard: Shard, traffic: Traffic) -> float:
    """Kill the primary while one replica does not have its last writes."""
    return _kill_primary(shard, traffic, behind=shard.replicas[:1])


def _kill_primary(shard: Shard, traffic: Traffic, behind: list[int]) -> float:
    """Freeze replicas until some writes have been acknowledged, or refused for lack of confirmations. Then
    kill the primary, and resume these replicas."""
    errors, began = traffic.errors, time.monotonic()
    shard.freeze(behind, traffic.filler)
    traffic.until(lambda: traffic.each_has(ENOUGH, began) or traffic.errors >= errors + ENOUGH)
    since = time.monotonic()
    shard.kill()
    shard.thaw(behind)
    traffic.until(shard.has_failed_over)
    shard.restart()
    return since


def move_slots(shard: Shard, traffic: Traffic) -> float:
    """Move the slots that are used to other primaries and back."""
    since = time.monotonic()
    assert isinstance(shard, ClusterShard)
    shard.move_slots(traffic.filler)
    return since


def cut_off_primary(shard: Shard, traffic: Traffic) -> float:
    """Cut the network between the primary, with this process, and the other servers, until these have a
    primary of their own, which is used too, and the former one accepts no more writes."""
    assert shard.network is not None
    far = Chats(traffic.affected_chats, using="far")
    with ThreadPoolExecutor(1, initializer=shard.network.enter_far_side) as pool:
        shard.network.cut()
        try:
            traffic.until(shard.has_failed_over)
            pool.submit(far.send_some, ENOUGH).result(PATIENCE)
            traffic.until(lambda: not shard.accepts_writes())
        finally:
            shard.network.heal()
            healed = time.monotonic()
    traffic.chats.sent |= far.sent
    return healed


def run(fault: Fault, shard: Shard) -> Report:
    """Run traffic, break the shard, and wait until each resource has acknowledged operations again and all
    servers are in sync."""
    traffic = Traffic(shard)
    shard.replicate(traffic.filler)
    with traffic.running():
        since = fault(shard, traffic)
        over = time.monotonic()
        traffic.until(lambda: traffic.each_has(ENOUGH, over))
        traffic.until(shard.is_whole)
    return traffic.report(since)
