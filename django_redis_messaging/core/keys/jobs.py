"""The keys of jobs, queues and workers."""

from __future__ import annotations

import functools

from ..steps import Hint
from .names import FORMAT, encoded, tag


class JobKeys:
    """The keys of the jobs of one slot: a delay queue's, or those of all queues of a backend of tasks."""

    def __init__(self, prefix: str, kind: str, value: str) -> None:
        self.tag = tag(prefix, kind, value)
        self._queues: dict[str, QueueKeys] = {}

    @functools.cached_property
    def jobs(self) -> str:
        """HASH job id → payload, opaque. A field goes with its job: acked, cancelled, purged, or its result
        forgotten."""
        return self.tag + ":jobs"

    @functools.cached_property
    def states(self) -> str:
        """HASH job id → state, as lua/_states.lua writes it. Goes with the payload."""
        return self.tag + ":states"

    @functools.cached_property
    def outcomes(self) -> str:
        """HASH job id → lines: what its attempts led to, opaque. Goes with the payload."""
        return self.tag + ":outcomes"

    @functools.cached_property
    def finished(self) -> str:
        """ZSET job id → ms until which its result is kept. Each that is added removes some that are over."""
        return self.tag + ":finished"

    @functools.cached_property
    def uniques(self) -> str:
        """HASH unique key → id of the job that has it. A field goes when its job has come to an end."""
        return self.tag + ":uniques"

    @functools.cached_property
    def aliases(self) -> str:
        """HASH a + id → id of the job that it stands for; j + job id → the ids that stand for it. Goes with
        the job."""
        return self.tag + ":aliases"

    @functools.cached_property
    def requests(self) -> list[str]:
        """Two HASHes request id → first answer, used in turn, a window each; each expires when its turn
        comes again."""
        return [self.tag + ":requests:0", self.tag + ":requests:1"]

    @functools.cached_property
    def workers(self) -> str:
        """HASH worker id → "beat consumed started running done" (moments in ms). A worker removes its own,
        each beat those that are silent."""
        return self.tag + ":workers"

    @functools.cached_property
    def queues(self) -> str:
        """ZSET name → ms of an early push or sweep: the queues there are, where any may be. Pruned by age
        when read."""
        return self.tag + ":queues"

    @functools.cached_property
    def records(self) -> list[str]:
        """What a job consists of, in the order of the scripts."""
        return [self.jobs, self.states, self.outcomes, self.finished, self.uniques, self.aliases]

    def queue(self, value: str) -> QueueKeys:
        """The keys of one of its queues."""
        found = self._queues.get(value)
        if found is None:
            found = self._queues[value] = QueueKeys(self.tag, value)
        return found


class QueueKeys:
    """Where the jobs of one queue are. Each key is gone with its last member."""

    def __init__(self, slot: str, value: str) -> None:
        self.tag = f"{slot}:queue:{encoded(value)}"

    @functools.cached_property
    def ready(self) -> str:
        """ZSET job id → place in the line: (100 - priority) * 2^45 + order. Capped on push."""
        return self.tag + ":ready"

    @functools.cached_property
    def delayed(self) -> str:
        """ZSET job id → ms at which it is due. Capped on push, together with `ready`."""
        return self.tag + ":delayed"

    @functools.cached_property
    def leased(self) -> str:
        """ZSET job id → ms at which its lease ends. What is over goes back at the next claim of anybody."""
        return self.tag + ":leased"

    @functools.cached_property
    def dead(self) -> str:
        """ZSET job id → ms at which it was buried. Capped and aged on burial."""
        return self.tag + ":dead"

    @functools.cached_property
    def bell(self) -> Hint:
        """ZSET of at most one marker: there is something to look at. Whoever waits pops it."""
        return Hint(self.tag + ":bell")

    @functools.cached_property
    def all(self) -> list[str]:
        """In the order of the scripts."""
        return [self.ready, self.delayed, self.leased, self.dead, self.bell]


def queues(prefix: str) -> str:
    """ZSET name → ms of an early push or sweep: the delay queues there are. Pruned by age when read."""
    return f"{prefix}:{FORMAT}:{{queues}}"
