"""A delay queue with a third of all replies lost: each job exists once, and each operation counts once."""

from __future__ import annotations

import threading

import pytest

from django_redis_messaging import OutcomeUnknown
from django_redis_messaging.core import clients, commands
from django_redis_messaging.services.jobs import DelayQueue, Job
from tests.support.proxy import LossyProxy

from ..conftest import Call
from ..support.faults import GENEROUS, PATIENCE, SHARE, Connect

pytestmark = pytest.mark.one_server


#: seconds: longer than any test
LONG = 1000


def pop_all(queue: DelayQueue, lossy: LossyProxy, lease: float | None = LONG) -> list[Job]:
    """Pop all ready jobs, without losing replies."""
    lossy.lose_next(0)
    return queue.pop(500, lease=lease)


async def test_each_pushed_job_exists_once(call: Call, lossy: LossyProxy) -> None:
    queue = DelayQueue("mail")
    ids = [await call(queue, "push", number) for number in range(50)]
    assert lossy.lost > 10
    jobs = pop_all(queue, lossy)
    assert [job.data for job in jobs] == list(range(50))
    assert [job.id for job in jobs] == ids


async def test_each_job_of_push_many_exists_once(call: Call, lossy: LossyProxy) -> None:
    queue = DelayQueue("mail")
    ids: list[str] = []
    for start in range(0, 400, 10):
        ids += await call(queue, "push_many", range(start, start + 10))
    assert lossy.lost > 8
    jobs = pop_all(queue, lossy)
    assert [job.data for job in jobs] == list(range(400))
    assert [job.id for job in jobs] == ids


async def test_each_call_exists_once(call: Call, lossy: LossyProxy) -> None:
    queue = DelayQueue("mail")
    for number in range(40):
        await call(queue, "execute_later", "name", [number])
    assert lossy.lost > 8
    assert [job.data for job in pop_all(queue, lossy)] == [["name", [number]] for number in range(40)]


async def test_each_job_is_acked_once(call: Call, lossy: LossyProxy) -> None:
    """If the first reply was lost, the repeat finds nothing to ack: the result is None (unknown), never
    False."""
    queue = DelayQueue("mail")
    queue.push_many(range(50))
    jobs = pop_all(queue, lossy, LONG)
    lossy.lose_some(SHARE)
    lost = lossy.lost
    results = [await call(queue, "ack", job) for job in jobs]
    assert lossy.lost - lost > 10
    assert set(results) == {True, None}
    lossy.lose_next(0)
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, 0)
    assert [queue.ack(job) for job in jobs] == [False] * 50


@pytest.mark.parametrize("verb", ["retry", "release"])
async def test_retried_and_released_jobs_exist_once(verb: str, call: Call, lossy: LossyProxy) -> None:
    queue = DelayQueue("mail")
    queue.push_many(range(30))
    jobs = pop_all(queue, lossy)
    lossy.lose_some(SHARE)
    for job in jobs:
        await call(queue, verb, job)
    returned = pop_all(queue, lossy)
    assert [(job.data, job.attempts) for job in returned] == [
        (number, 2 if verb == "retry" else 1) for number in range(30)
    ]
    assert lossy.lost > 3


async def test_fail_redrive_and_cancel_count_once(call: Call, lossy: LossyProxy) -> None:
    queue = DelayQueue("mail")
    ids = queue.push_many(range(30))
    jobs = pop_all(queue, lossy)
    lossy.lose_some(SHARE)
    for job in jobs:
        await call(queue, "fail", job, f"reason {job.data}")
    assert {dead.data: dead.reason for dead in await call(queue, "dead")} == {
        number: f"reason {number}" for number in range(30)
    }
    for job_id in ids[:20]:
        await call(queue, "redrive", [job_id])
    for job_id in ids[10:30]:
        await call(queue, "cancel", job_id)
    assert lossy.lost > 15
    assert [job.data for job in pop_all(queue, lossy)] == list(range(10))
    assert (queue.stats().dead, queue.purge()) == (0, 10)


async def test_pop_is_not_repeated_and_its_jobs_return(
    call: Call, connect: Connect, proxy: LossyProxy
) -> None:
    connect(proxy, COMMAND_DEADLINE=GENEROUS)
    queue = DelayQueue("mail")
    queue.push_many(range(3))
    assert len(await call(queue, "pop", 1, lease=LONG)) == 1
    proxy.lose_next(1)
    with pytest.raises(OutcomeUnknown):
        await call(queue, "pop", 1, lease=0.1)
    assert [job.data for job in await call(queue, "pop", lease=LONG)] == [2]
    [job] = await call(queue, "pop", lease=LONG, wait=PATIENCE)
    assert (job.data, job.attempts) == (1, 2)


async def test_job_popped_without_a_lease_is_lost_with_its_reply(
    call: Call, connect: Connect, proxy: LossyProxy
) -> None:
    """`lease=None` means at most once."""
    connect(proxy, COMMAND_DEADLINE=GENEROUS)
    queue = DelayQueue("mail")
    assert await call(queue, "pop") == []  # the server has the script now: the lost reply is that of the pop
    queue.push_many(range(2))
    proxy.lose_next(1)
    with pytest.raises(OutcomeUnknown):
        await call(queue, "pop", 1, lease=None)
    assert [job.data for job in await call(queue, "pop", lease=None)] == [1]


async def test_repeat_by_the_caller_is_safe(call: Call, connect: Connect, proxy: LossyProxy) -> None:
    connect(proxy, COMMAND_DEADLINE=0.3)
    queue = DelayQueue("mail")
    proxy.lose_next(1000)
    with pytest.raises(OutcomeUnknown):
        await call(queue, "push", "x", request_id="r")
    proxy.lose_next(0)
    job_id = await call(queue, "push", "x", request_id="r")
    assert [(job.id, job.data) for job in queue.pop()] == [(job_id, "x")]


def test_threads_push_pop_and_ack_at_once(lossy: LossyProxy) -> None:
    """Every job is done, some more than once: none is lost and none remains."""
    queue = DelayQueue("mail", max_attempts=1000)
    done: list[int] = []
    pushed = threading.Event()

    def push(start: int) -> None:
        for number in range(start, start + 20):
            queue.push(number)
        clients.close()

    def consume() -> None:
        while not (pushed.is_set() and set(done) == set(range(60)) and queue.stats().leased == 0):
            try:
                jobs = queue.pop(3, lease=0.5, wait=0.05)
            except OutcomeUnknown:
                continue
            for job in jobs:
                done.append(job.data)
                queue.ack(job)
        clients.close()

    pushing = [threading.Thread(target=push, args=[start], daemon=True) for start in (0, 20, 40)]
    consuming = [threading.Thread(target=consume, daemon=True) for _ in range(3)]
    for thread in pushing + consuming:
        thread.start()
    for thread in pushing:
        thread.join(PATIENCE)
    pushed.set()
    for thread in consuming:
        thread.join(2 * PATIENCE)
    assert sorted(set(done)) == list(range(60))
    assert lossy.lost > 20
    lossy.lose_next(0)
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, 0)


async def test_losses_show_without_request_ids(
    call: Call, lossy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses are real: a planted bug is found."""
    read = commands.read
    record_line = "local known = redis.call('HGET', records.states, id)"
    plants = {"if before then": "if false then", record_line: f"id = id .. us {record_line}"}
    source = read("jobs/push.lua")
    for line, mistake in plants.items():
        assert line in source
        source = source.replace(line, mistake)
    monkeypatch.setattr(commands, "read", lambda name: source if name == "jobs/push.lua" else read(name))
    commands.load.cache_clear()
    try:
        queue = DelayQueue("mail")
        for number in range(50):
            await call(queue, "push", number)
        assert len(pop_all(queue, lossy)) > 60
    finally:
        commands.load.cache_clear()
