"""How much waits in queues, and how fast it is worked off: what decides how many workers are needed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...core.commands import batched
from ...core.operations import Command, Steps
from .engine import Engine, Paused, parse_paused
from .heartbeats import heartbeat_calls, parse_heartbeats

#: queues of a slot that one script counts, and the numbers that it replies of each
PAGE, NUMBERS = 50, 6


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
    """The loads of queues, in one round trip; in two where their jobs have many priorities, or many leases
    have expired. The rates are those of the workers' latest heartbeats."""
    loads, _ = yield from read_loads_and(queues, ())
    return loads


def read_loads_and(
    queues: Sequence[tuple[Engine, str]], more: Sequence[Command]
) -> Steps[tuple[list[QueueLoad], list[Any]]]:
    """As `read_loads`, with the replies of further commands, in the same round trip."""
    slots: dict[str, tuple[Engine, list[str]]] = {}
    for engine, queue in queues:
        slots.setdefault(engine.keys.tag, (engine, []))[1].append(queue)
    pages = [(engine, page) for engine, names in slots.values() for page in batched(names, PAGE)]
    # the consumers of delay queues store no heartbeats
    beating = [engine.keys for engine, _ in slots.values() if engine.slot[1] != "queue"]
    beats = [call for keys in beating for call in heartbeat_calls(keys)]
    counts, replies = yield from _count(pages, [*beats, *more])
    rates = {keys.tag: _rates(*pair) for keys, pair in zip(beating, batched(replies, 2), strict=False)}
    loads = [
        _load(queue, counts[engine.keys.tag, queue], rates.get(engine.keys.tag, {}).get(queue, 0.0))
        for engine, queue in queues
    ]
    return loads, replies[len(beats) :]


def _count(
    pages: Sequence[tuple[Engine, Sequence[str]]], more: Sequence[Command]
) -> Steps[tuple[dict[tuple[str, str], Sequence[int]], list[Any]]]:
    """The numbers of queues, by slot and name; and the replies to `more`. Queues that a script has left out
    take a further round trip."""
    replies = yield [*(engine.stats_call(*names) for engine, names in pages), *more]
    counts: dict[tuple[str, str], Sequence[int]] = {}
    left = []
    for (engine, names), reply in zip(pages, replies, strict=False):
        found = list(batched(reply, NUMBERS))
        counts |= {(engine.keys.tag, name): one for name, one in zip(names, found, strict=False)}
        if len(found) < len(names):
            left += [(engine, [name]) for name in names[len(found) :]]
    if left:
        others, _ = yield from _count(left, ())
        counts |= others
    return counts, replies[len(pages) :]


def _rates(clock: Sequence[bytes], flat: Sequence[bytes]) -> dict[str, float]:
    """The rate at each queue. A worker that has been silent for long doesn't count."""
    rates: dict[str, float] = defaultdict(float)
    for one in parse_heartbeats(clock, flat):
        for queue, rate in one.rates.items() if one.is_recent else ():
            rates[queue] += rate
    return rates


def _load(queue: str, numbers: Sequence[int], rate: float) -> QueueLoad:
    ready, delayed, leased, dead, oldest, parked = numbers
    age = None if oldest < 0 else oldest / 1000
    return QueueLoad(queue, ready, delayed, leased, dead, age, round(rate, 3), parked)
