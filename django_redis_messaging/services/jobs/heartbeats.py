"""Heartbeats: what a worker or a listener stores from time to time, so that others know that it lives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from ...core.commands import Clock, Command, batched
from .engine import HEARTBEAT_TIMEOUT
from .keys import JobKeys


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A worker or a listener, as of its latest heartbeat."""

    #: of the worker: host, process id, and random characters
    id: str
    #: when it was stored, and when the worker started: ms
    beat: int
    started: int
    #: seconds since `beat`
    silent: float
    #: whether it claimed jobs since the heartbeat before, is running some, or has just started
    consumes: bool
    #: number of jobs it was running, and of those it has run
    running: int
    done: int
    #: for each queue that it serves, the jobs that it ends per second
    rates: Mapping[str, float]

    @classmethod
    def parse(cls, worker: bytes, line: bytes, now: int) -> Heartbeat:
        """A heartbeat in the format of workers_beat.lua, at a moment (ms)."""
        words = line.decode().split()
        beat, consumed, started, running, done = map(int, words[:5])
        served = (word.rpartition("=") for word in words[5:])
        rates = {unquote(queue): float(ended.partition("/")[2]) for queue, _, ended in served}
        consumes = running > 0 or consumed >= beat or started >= beat
        silent = max(now - beat, 0) / 1000
        return cls(worker.decode(), beat, started, silent, consumes, running, done, rates)

    @property
    def is_recent(self) -> bool:
        """Whether the worker has not been silent for long."""
        return self.silent * 1000 <= HEARTBEAT_TIMEOUT

    @property
    def alive(self) -> bool:
        """Whether it consumes jobs and is recent."""
        return self.consumes and self.is_recent


def alive(found: Iterable[Heartbeat]) -> list[Heartbeat]:
    """Those of workers or listeners that consume jobs now."""
    return [one for one in found if one.alive]


def heartbeat_calls(keys: JobKeys) -> list[Command]:
    """The calls that read the heartbeats of a slot, to be sent with others."""
    return [Clock(keys.workers), Command("HGETALL", keys.workers, reads=True)]


def parse_heartbeats(clock: Sequence[bytes], flat: Sequence[bytes]) -> list[Heartbeat]:
    """The replies to `heartbeat_calls`."""
    now = Clock.milliseconds(clock)
    return [Heartbeat.parse(worker, line, now) for worker, line in batched(flat, 2)]
