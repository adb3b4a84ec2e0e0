"""The services on a Cluster of several nodes while slots migrate and primaries change."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from django.test import override_settings
from redis.crc import key_slot

from django_redis_messaging import (
    Broadcast,
    Chat,
    DelayQueue,
    Inbox,
    Lock,
    Mailbox,
    OutcomeUnknown,
    Semaphore,
    Unavailable,
    conf,
)
from django_redis_messaging.services.chats.keys import ChatKeys
from django_redis_messaging.services.jobs.keys import JobKeys
from tests.support.clusters import NODE_TIMEOUT, Cluster

from ..support.faults import PATIENCE, leading_to

pytestmark = [pytest.mark.promise, pytest.mark.usefixtures("closing")]
#: number of changes in each test; number of slot migrations in one change
CHANGES, MOVES = 3, 4
Change = Callable[[str], None]


@pytest.fixture(params=[5_000])
def cluster(request: pytest.FixtureRequest, own_prefix: str) -> Iterator[Cluster]:
    """A Cluster that the test may break, and the alias that points to it. The node timeout (ms) is long: on a
    busy machine no node may be considered dead, and no write that was not yet replicated be lost."""
    with (
        Cluster(replicas=True, node_timeout=request.param) as cluster,
        leading_to(cluster.url(0), own_prefix),
    ):
        yield cluster


@pytest.fixture(params=["moves", pytest.param("fails over", marks=pytest.mark.long)])
def change(request: pytest.FixtureRequest, cluster: Cluster) -> Change:
    """Move the slot of a key to another node, or fail over its primary. No acknowledged write is lost."""

    def migrate_slot(key: str) -> None:
        slot = key_slot(key.encode())
        for _ in range(MOVES):
            cluster.migrate(slot, cluster.another(slot))

    def fail_over_primary(key: str) -> None:
        cluster.fail_over(cluster.owner(key_slot(key.encode())))

    return migrate_slot if request.param == "moves" else fail_over_primary


@contextmanager
def in_background(*functions: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run functions in threads during the block. Each ends when its event is set."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(functions)) as pool:
        futures = [pool.submit(function, stop) for function in functions]
        try:
            yield
        finally:
            stop.set()
        for future in futures:
            future.result(2 * PATIENCE)


def test_chat_loses_no_messages(change: Change) -> None:
    chat = Chat.create("ann", ["bob"], chat_id="talk")
    sent: list[int] = []
    got: list[int] = []

    def send(stop: threading.Event) -> None:
        while not stop.is_set():
            sent.append(chat.send("ann", "hello").id)

    async def asend(stop: threading.Event) -> None:
        while not stop.is_set():
            sent.append((await chat.asend("ann", "hello")).id)

    def read(stop: threading.Event) -> None:
        while not stop.is_set():
            for pending in Inbox("bob").pending():
                assert (pending.gap, pending.reset) == (0, False)
                got.extend(message.id for message in pending.messages)
                chat.ack("bob", pending.messages[-1].cursor)

    with in_background(send, lambda stop: asyncio.run(asend(stop)), read):
        for _ in range(CHANGES):
            change(ChatKeys(conf.prefix(), "talk").log)
    got += [message.id for pending in Inbox("bob").pending(limit=1000) for message in pending.messages]
    assert sorted(sent) == list(range(1, len(sent) + 1))
    assert list(dict.fromkeys(got)) == sorted(sent)


def test_queue_loses_no_jobs(change: Change) -> None:
    queue, numbers = DelayQueue("mail"), itertools.count()
    pushed: list[int] = []
    done: list[int] = []

    def push(stop: threading.Event) -> None:
        while not stop.is_set():
            number = next(numbers)
            queue.push(number)
            pushed.append(number)

    def work(stop: threading.Event) -> None:
        while not stop.is_set():
            for job in queue.pop(10, lease=2, wait=0.5):
                done.append(job.data)
                queue.ack(job)

    with in_background(push, work, work):
        for _ in range(CHANGES):
            change(JobKeys(conf.prefix(), "queue", "mail").queue("mail").ready)
    while len(set(done)) < len(pushed):  # the lease of a job whose claim got no reply must expire
        done += [job.data for job in queue.pop(100, wait=PATIENCE)]
    assert sorted(set(done)) == sorted(pushed)


def test_lock_has_one_holder(change: Change) -> None:
    inside, max_inside, fences = [0], [0], [0]

    def hold(stop: threading.Event) -> None:
        while not stop.is_set():
            with Lock("door", timeout=2 * PATIENCE) as lock:
                inside[0] += 1
                max_inside[0] = max(max_inside[0], inside[0])
                fences.append(lock.fence)
                inside[0] -= 1

    with in_background(hold, hold, hold):
        for _ in range(CHANGES):
            change(Lock("door").key)
    assert max_inside == [1]
    assert fences == sorted(set(fences))
    assert len(fences) > CHANGES


@pytest.mark.parametrize("cluster", [NODE_TIMEOUT], indirect=True)
def test_services_continue_after_a_primary_was_killed(cluster: Cluster) -> None:
    """The killed node is the one in LOCATION. Writes that its replica had received are kept."""
    names = [f"n{number}" for number in range(12)]
    for name in names:
        Chat.create("ann", ["bob"], "hello", chat_id=name)
        Mailbox(name).send("hello")
        Broadcast(name).publish("hello")
        DelayQueue(name).push("hello")
    cluster.kill(0)
    assert {pending.chat_id for pending in Inbox("bob").pending()} == set(names)
    for name in names:
        assert Chat(name).send("bob", "yes").id == 2
        assert Mailbox(name).unread() == 1
        assert [event.payload for event in Broadcast(name).fetch().events] == ["hello"]
        assert [job.data for job in DelayQueue(name).pop()] == ["hello"]
        with Lock(name) as lock, Semaphore(name, 1):
            assert lock.owned()
    assert Inbox("ann").unread() == len(names)


@pytest.mark.long
@pytest.mark.parametrize("cluster", [NODE_TIMEOUT], indirect=True)
def test_claims_find_the_replica_of_a_frozen_primary(cluster: Cluster) -> None:
    """A claim is not repeated after a lost reply, and a worker may send nothing else."""
    queue: DelayQueue[str] = DelayQueue("mail")
    at = cluster.owner(key_slot(JobKeys(conf.prefix(), "queue", "mail").jobs.encode()))
    messaging = {"PREFIX": conf.prefix(), "COMMAND_DEADLINE": 1.0}
    with override_settings(REDIS_MESSAGING=messaging):
        assert queue.pop() == []
        cluster.servers[at].freeze()
        try:
            ends = time.monotonic() + PATIENCE
            while not popped_nothing(queue):
                assert time.monotonic() < ends
        finally:
            cluster.servers[at].thaw()


def popped_nothing(queue: DelayQueue[str]) -> bool:
    """Whether a claim was answered."""
    try:
        return queue.pop() == []
    except (OutcomeUnknown, Unavailable):  # the latter: the greeting of a new connection had no reply
        return False
