"""What a worker says to Redis about the jobs of one slot."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.operations import Command, PopHint, Script, Service, Steps, asynchronous, operation
from .engine import Claimed, Engine, Verdict

#: ms of silence after which a worker is not counted any more
SILENT = 120_000


class LeaseStore(Service):
    """The jobs of one slot, whose queues share their records."""

    def __init__(self, kind: str, value: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self._engine = Engine(self._prefix, kind, value)

    @operation
    def claim(
        self,
        queues: Sequence[str],
        count: int,
        lease: int,
        *,
        worker: str = "-",
        verdicts: Sequence[Verdict] = (),
    ) -> Steps[Claimed]:
        """Settle, do what is due, take what is next."""
        return (yield from self._engine.claim(queues, count, lease, worker=worker, verdicts=verdicts))

    aclaim = asynchronous(claim)

    @operation
    def rings(self, queues: Sequence[str], seconds: float) -> Steps[bool]:
        """Wait at the bells of these queues: whether one rings within that time."""
        bells = [self._engine.place(queue).bell for queue in queues]
        return (yield PopHint(*bells, seconds=seconds)) is not None

    arings = asynchronous(rings)

    @operation
    def settle(self, verdict: Verdict) -> Steps[bool | None]:
        """Say what became of a job."""
        return (yield from self._engine.settle(verdict))

    asettle = asynchronous(settle)

    @operation
    def extend(self, leases: Sequence[tuple[str, str, int, str]], lease: int) -> Steps[list[bool]]:
        """Let leases (queue, id, fence, token) end later; of each, whether it is still the caller's."""
        return (yield from self._engine.extend(leases, lease))

    aextend = asynchronous(extend)

    @operation
    def beat(self, worker: str, *, consumed: bool, began: int, running: int, done: int) -> Steps[int]:
        """Note that a worker lives; the server's clock (ms)."""
        now = yield Script(
            "workers_beat", [self._engine.keys.workers], (worker, int(consumed), began, running, done, SILENT)
        )
        return int(now)

    abeat = asynchronous(beat)

    @operation
    def leave(self, worker: str) -> Steps[None]:
        """Note that a worker has ended."""
        yield Command("HDEL", self._engine.keys.workers, worker)

    aleave = asynchronous(leave)
