"""Health checks: Redis replies and accepts writes, and the workers consume jobs."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.keys import tag
from ..core.operations import Fan, Script, Service, Steps, asynchronous, operation
from .expiries.keys import TIMERS
from .jobs.engine import HEARTBEAT_TIMEOUT
from .jobs.keys import JobKeys

#: number of keys to write: enough for each primary of a typical Cluster to own some
PROBES = 16
#: ms; the TTL of these keys
PROBE_TTL = 60_000


def probe_key(prefix: str, number: int) -> str:
    """STRING "1", written to verify that writes succeed. Expires within a minute."""
    return tag(prefix, "probe", str(number))


@dataclass(frozen=True, slots=True)
class Consumer:
    """A worker or a listener, as of its latest heartbeat."""

    id: str
    #: seconds since that heartbeat
    silent: float
    #: whether it claimed jobs since the heartbeat before, is running some, or has just started
    consumes: bool
    #: number of jobs it was running
    running: int

    @property
    def alive(self) -> bool:
        """Whether it consumes jobs and its heartbeat is recent."""
        return self.consumes and self.silent * 1000 <= HEARTBEAT_TIMEOUT


class Health(Service):
    """Reads the state of the app, and writes probe keys only."""

    @operation
    def probe(self) -> Steps[None]:
        """Write and read probe keys with a script, in one round trip; on a Cluster, on each primary."""
        keys = [([probe_key(self._prefix, number)], ()) for number in range(PROBES)]
        yield Fan("health_probe", keys, [PROBE_TTL])

    aprobe = asynchronous(probe)

    @operation
    def workers(self, alias: str) -> Steps[list[Consumer]]:
        """The workers of a task backend."""
        return (yield from self._consumers("tasks", alias))

    aworkers = asynchronous(workers)

    @operation
    def listeners(self) -> Steps[list[Consumer]]:
        """The listeners that fire timers."""
        return (yield from self._consumers(*TIMERS))

    alisteners = asynchronous(listeners)

    def _consumers(self, kind: str, value: str) -> Steps[list[Consumer]]:
        now, *words = yield Script("workers_list", [JobKeys(self._prefix, kind, value).workers])
        return [_consumer(now, words[at].decode(), words[at + 1]) for at in range(0, len(words), 2)]


def _consumer(now: int, worker: str, line: bytes) -> Consumer:
    beat, consumed, began, running, _ = map(int, line.split())
    busy = running > 0 or consumed >= beat or began >= beat
    return Consumer(worker, max(now - beat, 0) / 1000, busy, running)
