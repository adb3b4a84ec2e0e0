"""How much waits in queues, and how fast it is worked off: what decides how many workers are needed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...core.commands import Script, batched
from ...core.operations import Command, Steps
from .engine import Engine, Paused, parse_paused
from .heartbeats import heartbeat_calls, parse_heartbeats


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """The jobs of a queue, and the rate at which they end."""

    queue: str
    #: jobs that can start now
    ready: int
    #: jobs that are not due yet
    delayed: int
    #: jobs that are running
    leased: int
    #: jobs that have failed for good
    dead: int
    #: seconds for which the oldest ready job has been ready; None: none is
    oldest_age: float | None
    #: jobs that ended per second, over about a minute, at all live workers together
    throughput: float
    #: jobs that wait for a lock, a permit, a rate, or the end of a pause of their task
    parked: int

    @property
    def time_to_drain(self) -> float | None:
        """Seconds until no job is ready, if none is added: 0 if none is ready; None if none ends."""
        if not self.ready:
            return 0.0
        seconds = self.ready / self.throughput if self.throughput else math.inf
        return round(seconds, 1) if math.isfinite(seconds) else None


class Counted(NamedTuple):
    """A queue with its load, and what is paused."""

    load: QueueLoad
    #: None: the queue is not paused
    pause: Paused | None
    #: the tasks of its slot that are paused
    paused_tasks: list[Paused]


def count_queues(queues: Sequence[tuple[Engine, str]]) -> Steps[list[Counted]]:
    """The loads of queues, and what is paused, in one round trip."""
    calls = {engine.keys.paused: engine.paused_call() for engine, _ in queues}
    loads, replies = yield from read_loads_and(queues, list(calls.values()))
    paused = dict(zip(calls, map(parse_paused, replies), strict=True))
    found = zip(queues, loads, strict=True)
    return [_counted(queue, load, paused[engine.keys.paused]) for (engine, queue), load in found]


def _counted(queue: str, load: QueueLoad, paused: Sequence[Paused]) -> Counted:
    own = next((one for one in paused if one.queue == queue), None)
    return Counted(load, own, [one for one in paused if one.task])


def read_loads(queues: Sequence[tuple[Engine, str]]) -> Steps[list[QueueLoad]]:
    """The loads of queues, in one round trip. The rates are those of the workers' latest heartbeats."""
    loads, _ = yield from read_loads_and(queues, ())
    return loads


def read_loads_and(
    queues: Sequence[tuple[Engine, str]], more: Sequence[Command]
) -> Steps[tuple[list[QueueLoad], list[Any]]]:
    """As `read_loads`, with the replies of further commands, in the same round trip."""
    slots = {engine.keys.workers: engine.keys for engine, _ in queues}
    steps: list[Command | Script] = [engine.stats_call(queue) for engine, queue in queues]
    for keys in slots.values():
        steps += heartbeat_calls(keys)
    replies = yield [*steps, *more]
    beats = batched(replies[len(queues) : len(steps)], 2)
    rates = {key: _rates(*pair) for key, pair in zip(slots, beats, strict=True)}
    loads = []
    for (engine, queue), (ready, delayed, leased, dead, oldest, parked) in zip(queues, replies, strict=False):
        age, rate = None if oldest < 0 else oldest / 1000, round(rates[engine.keys.workers][queue], 3)
        loads.append(QueueLoad(queue, ready, delayed, leased, dead, age, rate, parked))
    return loads, replies[len(steps) :]


def _rates(clock: Sequence[bytes], flat: Sequence[bytes]) -> dict[str, float]:
    """The rate at each queue. A worker that has been silent for long doesn't count."""
    rates: dict[str, float] = defaultdict(float)
    for one in parse_heartbeats(clock, flat):
        for queue, rate in one.rates.items() if one.is_recent else ():
            rates[queue] += rate
    return rates
