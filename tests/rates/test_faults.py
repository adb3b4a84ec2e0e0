"""Rate limits and faults: lost replies, full memory, and killed processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest

from django_redis_messaging import OutcomeUnknown, RateLimit
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.rates.rate_limit import Algorithm, OnOutage

from ..conftest import Call
from ..support.child_processes import Stage, enter
from ..support.faults import PATIENCE, Connect, processes
from ..support.proxy import LossyProxy
from ..support.server import until

#: processes that use one key; some of them are killed
CALLERS, KILLED = 8, 3
#: uses per period, and the period in seconds
LIMIT, PERIOD = 50, 0.5
#: seconds: the server counts in ms
CLOCK = 0.002


@pytest.fixture(params=["gcra", "window"])
def algorithm(request: pytest.FixtureRequest) -> Algorithm:
    name: Algorithm = request.param
    return name


def limit_of(algorithm: Algorithm, number: int = 1000, on_outage: OnOutage = "raise") -> RateLimit:
    return RateLimit("calls", number, per=1000, algorithm=algorithm, on_outage=on_outage)


@pytest.mark.one_server
class TestLostReplies:
    @pytest.mark.promise
    async def test_each_use_counts_once(self, call: Call, lossy: LossyProxy, algorithm: Algorithm) -> None:
        # the level falls by less than one use meanwhile
        limit = RateLimit("calls", 1000, per=10**9, algorithm=algorithm)
        for taken in range(1, 41):
            assert (await call(limit, "take", "ann")).remaining == 1000 - taken
        for taken in range(39, 19, -1):
            assert await call(limit, "refund", "ann")
            assert (await call(limit, "peek", "ann")).remaining == 1000 - taken
        assert lossy.lost > 10

    async def test_nothing_is_allowed_by_mistake(
        self, call: Call, connect: Connect, proxy: LossyProxy, algorithm: Algorithm
    ) -> None:
        connect(proxy, COMMAND_DEADLINE=0.2)
        assert (await call(limit_of(algorithm), "peek", "ann")).remaining == 1000  # there is a connection
        proxy.lose_next(1000)
        with pytest.raises(OutcomeUnknown):
            await call(limit_of(algorithm), "take", "ann", request_id="one")
        assert not await call(limit_of(algorithm, on_outage="deny"), "take", "ann", request_id="one")
        proxy.lose_next(0)
        decision = await call(limit_of(algorithm), "take", "ann", request_id="one")
        assert (decision.allowed, decision.remaining) == (True, 999)


@pytest.mark.one_server
async def test_limits_hold_when_memory_is_full(
    call: Call, fill: Callable[[], None], algorithm: Algorithm
) -> None:
    limit = limit_of(algorithm, 3)
    assert await call(limit, "take", "ann")
    fill()
    assert [bool(await call(limit, "take", "ann")) for _ in range(3)] == [True, True, False]
    assert await call(limit, "refund", "ann")
    assert (await call(limit, "peek", "ann")).remaining == 1
    assert await call(limit, "reset", "ann")
    assert [bool(await call(limit, "take", "bob", 3)), bool(await call(limit, "take", "bob"))] == [
        True,
        False,
    ]


def use(stage: Stage, algorithm: Algorithm, seconds: float, connection: Connection) -> None:
    """Use a key as fast as possible; report the moments just before and after each use that was allowed."""
    enter(stage)
    limit, ends = RateLimit("calls", LIMIT, per=PERIOD, algorithm=algorithm), time.monotonic() + seconds
    while (began := time.monotonic()) < ends:
        if limit.take("all"):
            connection.send((began, time.monotonic()))
    connection.send(None)


@pytest.mark.promise
@pytest.mark.one_server
@pytest.mark.parametrize("seconds", [1.5, pytest.param(30.0, marks=pytest.mark.long)])
def test_processes_together_never_exceed_the_limit(
    lasting: EmbeddedServer, connect: Connect, algorithm: Algorithm, seconds: float
) -> None:
    """Some of them are killed."""
    stage, uses, pipes = connect(lasting), list[tuple[float, float]](), list[Connection]()
    started = []
    for _ in range(CALLERS):
        receiving, sending = processes.Pipe(duplex=False)
        process = processes.Process(target=use, args=(stage, algorithm, seconds, sending), daemon=True)
        process.start()
        sending.close()
        pipes.append(receiving)
        started.append(process)
    until(lambda: all(pipe.poll() for pipe in pipes), PATIENCE)
    for process in started[:KILLED]:
        process.kill()
    for pipe in pipes:
        uses += received(pipe)
    for process in started:
        process.join(PATIENCE)
    uses.sort(key=lambda one: one[1])
    most = LIMIT if algorithm == "window" else 2 * LIMIT
    for at in range(len(uses) - most):
        group = uses[at : at + most + 1]  # from the earliest begin to the latest end
        assert group[-1][1] - min(began for began, _ in group) > PERIOD - CLOCK
    assert len(uses) > LIMIT * (1 + seconds / PERIOD) * 0.5, "the limit can be used up"


def received(pipe: Connection) -> list[tuple[float, float]]:
    """What a process has reported until it ended or was killed."""
    found = []
    try:
        while (one := pipe.recv()) is not None:
            found.append(one)
    except EOFError:
        pass
    return found
