"""The keys of jobs, queues and workers."""

from __future__ import annotations

import functools

from ...core.keys import FORMAT, encoded, tag
from ...core.steps import Hint


class JobKeys:
    """The keys of the jobs of one slot: of one delay queue, or of all queues of a task backend."""

    def __init__(self, prefix: str, kind: str, value: str) -> None:
        self.tag = tag(prefix, kind, value)
        self._queues: dict[str, QueueKeys] = {}

    @functools.cached_property
    def jobs(self) -> str:
        """HASH job id → payload, opaque. A field is deleted with its job: acked, cancelled, purged, or when
        the result expires."""
        return self.tag + ":jobs"

    @functools.cached_property
    def states(self) -> str:
        """HASH job id → state, in the format of lua/_records.lua. Deleted with the payload."""
        return self.tag + ":states"

    @functools.cached_property
    def log(self) -> str:
        """HASH job id → lines: results and errors of its attempts, opaque. Deleted with the payload."""
        return self.tag + ":outcomes"

    @functools.cached_property
    def finished(self) -> str:
        """ZSET job id → ms until which its result is kept. Each insertion deletes some that have expired."""
        return self.tag + ":finished"

    @functools.cached_property
    def uniques(self) -> str:
        """HASH unique key → id of the job that has it. A field is deleted when its job ends."""
        return self.tag + ":uniques"

    @functools.cached_property
    def aliases(self) -> str:
        """HASH a + id → id of the job that it stands for; j + job id → the ids that stand for it. Deleted
        with the job."""
        return self.tag + ":aliases"

    @functools.cached_property
    def requests(self) -> list[str]:
        """Two HASHes request id → first answer, used in turn, one window each. Each expires when its next
        turn begins."""
        return [self.tag + ":requests:0", self.tag + ":requests:1"]

    @functools.cached_property
    def workers(self) -> str:
        """HASH worker id → heartbeat, in the format of lua/workers_beat.lua. A worker removes its own; each
        heartbeat removes those that are too old."""
        return self.tag + ":workers"

    @functools.cached_property
    def queues(self) -> str:
        """ZSET name → ms of a recent push or sweep: the queues of a backend that allows any. Pruned by age
        when read."""
        return self.tag + ":queues"

    @functools.cached_property
    def records(self) -> list[str]:
        """The first KEYS of every job script, in this order."""
        return [
            self.jobs,
            self.states,
            self.log,
            self.finished,
            self.uniques,
            self.aliases,
            *self.requests,
        ]

    def queue(self, value: str) -> QueueKeys:
        """The keys of one of its queues."""
        found = self._queues.get(value)
        if found is None:
            found = self._queues[value] = QueueKeys(self, value)
        return found


class QueueKeys:
    """The jobs of one queue, by where they are. Redis deletes each key with its last member."""

    def __init__(self, jobs: JobKeys, value: str) -> None:
        self.tag = f"{jobs.tag}:queue:{encoded(value)}"
        #: the KEYS of a script about one queue: the records, then the queue
        self.with_records = [*jobs.records, *self.all]

    @functools.cached_property
    def ready(self) -> str:
        """ZSET job id → place: (100 - priority) * 2^45 + order. Capped on push."""
        return self.tag + ":ready"

    @functools.cached_property
    def delayed(self) -> str:
        """ZSET job id → ms at which it is due. Capped on push, together with `ready`."""
        return self.tag + ":delayed"

    @functools.cached_property
    def leased(self) -> str:
        """ZSET job id → ms at which its lease ends. The next claim of any client requeues expired ones."""
        return self.tag + ":leased"

    @functools.cached_property
    def dead(self) -> str:
        """ZSET job id → ms at which it died. Capped, and pruned by age, with each dead job that is added."""
        return self.tag + ":dead"

    @functools.cached_property
    def bell(self) -> Hint:
        """ZSET of at most one marker: the queue may have a job. One waiting worker takes the marker."""
        return Hint(self.tag + ":bell")

    @functools.cached_property
    def all(self) -> list[str]:
        """The KEYS of a queue, behind the records, in the order of the scripts."""
        return [self.ready, self.delayed, self.leased, self.dead, self.bell]


def queues_key(prefix: str) -> str:
    """ZSET name → ms of a recent push or sweep: the delay queues. Pruned by age when read."""
    return f"{prefix}:{FORMAT}:{{queues}}"
