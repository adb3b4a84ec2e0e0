"""Whether the app can work: its Redis answers and can be written, and its workers consume."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.keys import PROBES, TIMERS, JobKeys, probe
from ..core.operations import Fan, Script, Service, Steps, asynchronous, operation
from .jobs.store import SILENT

#: ms that what a probe writes stays
LIFE = 60_000


@dataclass(frozen=True, slots=True)
class Consumer:
    """A worker, or a listener, as it told of itself at its latest beat."""

    id: str
    #: seconds since then
    silent: float
    #: whether it has asked for jobs since the beat before, or is busy with some, or has just begun
    consumes: bool
    #: jobs it ran
    running: int

    @property
    def alive(self) -> bool:
        """Whether it takes jobs, as far as anybody can tell."""
        return self.consumes and self.silent * 1000 <= SILENT


class Health(Service):
    """Looks, and changes nothing that matters."""

    @operation
    def probe(self) -> Steps[None]:
        """Write something and read it, by a script, in one round trip; on a Cluster in some slots of each
        primary."""
        keys = [([probe(self._prefix, number)], ()) for number in range(PROBES)]
        yield Fan("health_probe", keys, [LIFE])

    aprobe = asynchronous(probe)

    @operation
    def workers(self, alias: str) -> Steps[list[Consumer]]:
        """The workers of a backend of tasks."""
        return (yield from self._consumers("tasks", alias))

    aworkers = asynchronous(workers)

    @operation
    def listeners(self) -> Steps[list[Consumer]]:
        """The listeners that serve timers."""
        return (yield from self._consumers(*TIMERS))

    alisteners = asynchronous(listeners)

    def _consumers(self, kind: str, value: str) -> Steps[list[Consumer]]:
        now, *words = yield Script("workers_list", [JobKeys(self._prefix, kind, value).workers])
        return [_consumer(now, words[at].decode(), words[at + 1]) for at in range(0, len(words), 2)]


def _consumer(now: int, worker: str, line: bytes) -> Consumer:
    beat, consumed, began, running, _ = map(int, line.split())
    busy = running > 0 or consumed >= beat or began >= beat
    return Consumer(worker, max(now - beat, 0) / 1000, busy, running)
