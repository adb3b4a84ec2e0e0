"""Tasks with follow-ups whose workers are killed, or whose replies are lost: each success enqueues one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from django_redis_messaging import Unavailable
from django_redis_messaging.core import commands
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.jobs.engine import Outcome
from django_redis_messaging.tasks import wait_for_result
from django_redis_messaging.tasks.backend import prepare_follow_up
from django_redis_messaging.tasks.compat import TaskResult, TaskResultStatus, task_enqueued
from tests.support.proxy import LossyProxy
from tests.support.workers import backend, burst, engine, keys, server
from tests.tasks import jobs

from ..support.faults import PATIENCE, SHARE, Connect
from ..support.worker_processes import worker_pool

pytestmark = [pytest.mark.one_server, pytest.mark.promise]


def test_worker_killed_before_it_settles_enqueues_nothing(
    lasting: EmbeddedServer, connect: Connect, tmp_path: Path
) -> None:
    """The next attempt, of another worker, has one follow-up."""
    options = ["--concurrency", "1", "--lease", "1", "--verbosity", "0"]
    with worker_pool(connect(lasting), tmp_path, 2, *options):
        result = jobs.crash.using(then=jobs.echo.using(then=jobs.echo)).enqueue("before the ack")
        pid = wait_for_result(result, PATIENCE).return_value
        second = wait_for_result(backend().get_result(result.then_id), PATIENCE)  # type: ignore[attr-defined]
        third = wait_for_result(backend().get_result(second.then_id), PATIENCE)  # type: ignore[attr-defined]
    assert len(result.worker_ids) == 2
    assert (second.return_value, third.return_value) == ([[pid], {}], [[[[pid], {}]], {}])
    assert server().zcard(keys().finished) == 3


def test_lost_replies(lossy: LossyProxy) -> None:
    """Each lease is settled once, and a repeat gets the answer that was lost."""
    lossy.lose_next(0)
    size = 50
    results = [jobs.echo.using(then=jobs.note.using(queue_name="other")).enqueue(at) for at in range(size)]
    leased = engine().claim(["default"], size, 1_000_000).jobs
    lossy.lose_some(SHARE)
    for result, one in zip(results, leased, strict=True):
        follow_up = prepare_follow_up(backend(), result, "value")
        settlement = one.lease.settlement(Outcome.DONE, 60_000, 'R"value"')
        assert engine().settle_and_push(settlement, follow_up)
    assert lossy.lost > size * SHARE / 2
    lossy.lose_next(0)
    assert engine().stats("other")[:4] == [size, 0, 0, 0]
    assert {backend().get_result(one.id).status for one in results} == {TaskResultStatus.SUCCESSFUL}


def test_full_memory(fill: Callable[[], None]) -> None:
    """Workers go on: a task ends together with the push of its follow-up, and a client can wait for that."""
    result = jobs.double.enqueue(4)
    [leased] = engine().claim(["default"], 1, 1_000_000).jobs
    fill()
    with pytest.raises(Unavailable):
        jobs.note.enqueue(1)
    with pytest.raises(TimeoutError):
        wait_for_result(result, 0.01)
    settlement = leased.lease.settlement(Outcome.DONE, 60_000, "R8")
    assert engine().settle_and_push(settlement, prepare_follow_up(backend(), result, 8))
    assert wait_for_result(result).return_value == 8
    with pytest.raises(TimeoutError):
        wait_for_result(backend().get_result(result.then_id), 0.01)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("script", "earlier"), [("jobs/settle", 0), ("jobs/claim", 1)])
def test_worker_sends_the_signal_once(
    script: str, earlier: int, lasting: EmbeddedServer, connect: Connect
) -> None:
    """Also if the worker settles twice: the reply to the settlement is lost, or that to the next claim."""
    sent: list[str] = []

    def receive(task_result: TaskResult, **_: object) -> None:
        sent.append(task_result.id)

    connect(lasting)
    jobs.double.enqueue(1)
    burst()  # the server has the scripts now
    with LossyProxy(lasting.socket, asking=commands.load(script).sha.encode()) as lossy:
        connect(lossy)
        result = jobs.double.enqueue(4)
        task_enqueued.connect(receive)
        try:
            lossy.lose_one_after(earlier)
            burst()
        finally:
            task_enqueued.disconnect(receive)
        assert lossy.lost == 1
        assert sent == [result.then_id]  # type: ignore[attr-defined]
