"""What locks, also those of writers, and permits of semaphores have in common: blocks, owners, the queue, and
invalid arguments."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_redis_messaging import (
    ConfigurationError,
    InvalidArgument,
    LeaseLost,
    Lock,
    ReadWriteLock,
    Semaphore,
    Unavailable,
    deadline,
)
from django_redis_messaging.core import clients
from django_redis_messaging.errors import TaskTimeout
from django_redis_messaging.services.locks import lock as locks
from django_redis_messaging.services.rwlocks import rwlock
from django_redis_messaging.services.semaphores import semaphore as semaphores

from ..conftest import Call
from ..support.leases import (
    KINDS,
    Kind,
    blocked,
    join,
    lose,
    nobody_is_blocked,
    scripts,
    until_async,
    waiters,
)
from ..support.scripts import Planting
from ..support.server import DEADLINE, all_keys, server, snapshot, until

#: seconds: longer than any test
LONG = 1000
#: seconds
SHORT = 0.15
#: seconds of tolerance for a busy machine
SLACK = 2.0
pytestmark = pytest.mark.usefixtures("closing")
#: the operations of a holder
by_operation = pytest.mark.parametrize(
    ("kind", "verb", "words"),
    [
        ("lock", "release", ()),
        ("lock", "extend", (1,)),
        ("lock", "extend", (1, True)),
        ("lock", "reacquire", ()),
        ("semaphore", "release", ()),
        ("semaphore", "refresh", ()),
        ("write lock", "release", ()),
        ("write lock", "extend", ()),
    ],
    indirect=["kind"],
)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


class TestBlocks:
    async def test_a_block_holds_it_until_its_end_or_an_error(self, kind: Kind) -> None:
        lease = kind.new()
        with lease as entered:
            assert entered is lease
            assert not kind.new().acquire(blocking=False)
        async with lease as entered:
            assert entered is lease
            assert not await kind.new().aacquire(blocking=False)
        with pytest.raises(ZeroDivisionError), lease:
            raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError):
            async with lease:
                raise ZeroDivisionError
        assert kind.new().acquire(blocking=False)

    @pytest.mark.parametrize(
        ("kind", "options", "message"),
        [
            ("lock", {"blocking": False}, "could not be acquired"),
            ("lock", {"blocking_timeout": 0.01}, "could not be acquired"),
            ("semaphore", {}, "is free: use blocking=True"),
            ("semaphore", {"blocking": True, "blocking_timeout": 0.01}, "became free in time"),
        ],
        indirect=["kind"],
    )
    async def test_a_block_that_can_not_begin(
        self, kind: Kind, options: dict[str, Any], message: str
    ) -> None:
        kind.new().acquire()
        with pytest.raises(kind.error, match=message), kind.new(**options):
            pytest.fail("it was acquired")
        with pytest.raises(kind.error, match=message):
            async with kind.new(**options):
                pytest.fail("it was acquired")
        assert kind.new().info().waiting == 0

    async def test_a_lease_lost_inside_a_block_is_reported(self, kind: Kind) -> None:
        with pytest.raises(kind.lost, match=r"had expired.*renew=True"), kind.new() as lease:
            lose(lease)
        with pytest.raises(kind.lost, match=r"had expired.*renew=True"):
            async with kind.new() as lease:
                lose(lease)

    @pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, asyncio.CancelledError])
    async def test_a_lost_lease_does_not_replace_the_error_of_a_block(
        self, kind: Kind, error: type[BaseException], caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(error), kind.new() as lease:
            lose(lease)
            raise error
        with pytest.raises(error):
            async with kind.new() as lease:
                lose(lease)
                raise error
        assert caplog.text.count("'door' was not released: ") == 2

    async def test_a_decorated_function_or_method_holds_it(self, kind: Kind) -> None:
        class Shop:
            @kind.new()
            def open(self, hours: int) -> tuple[int, bool]:
                """Open for some hours."""
                return hours, kind.new().acquire(blocking=False)

            @kind.new()
            async def aopen(self, hours: int) -> tuple[int, bool]:
                return hours, await kind.new().aacquire(blocking=False)

        assert Shop().open(3) == (3, False)
        assert await Shop().aopen(hours=4) == (4, False)
        assert (Shop.open.__name__, Shop.open.__doc__) == ("open", "Open for some hours.")
        assert kind.new().acquire()

    def test_a_generator_can_not_be_decorated(self, kind: Kind) -> None:
        def numbers() -> Any:
            yield 1

        async def anumbers() -> Any:
            yield 1

        for function in (numbers, anumbers):
            with pytest.raises(TypeError, match=r"numbers.*generator"):
                kind.new()(function)


class TestOwners:
    @by_operation
    async def test_a_caller_that_holds_nothing_changes_nothing(
        self, kind: Kind, verb: str, words: tuple[Any, ...], call: Call
    ) -> None:
        """One that has not acquired it, another task, another thread, and one that has released it."""
        lease = kind.new()

        async def refused(operation: Callable[..., Any], *arguments: Any) -> None:
            before = snapshot()
            with pytest.raises(kind.error, match=kind.not_held.format(verb=verb)) as found:
                await operation(*arguments, *words)
            assert not isinstance(found.value, LeaseLost)
            assert snapshot() == before

        await refused(call, lease, verb)
        assert await call(lease, "acquire")
        await asyncio.create_task(refused(call, lease, verb))
        await refused(asyncio.to_thread, getattr(lease, verb))
        await call(lease, "release")
        assert await call(kind.new(), "acquire")
        await refused(call, lease, verb)

    @by_operation
    @pytest.mark.parametrize("taken", [False, True])
    async def test_a_holder_whose_lease_has_ended_changes_nothing(
        self, kind: Kind, verb: str, words: tuple[Any, ...], taken: bool, call: Call
    ) -> None:
        lease = kind.new()
        assert await call(lease, "acquire")
        lose(lease)
        if taken:
            assert await call(kind.new(), "acquire")
        before = snapshot()
        if verb == "refresh":
            assert [await call(lease, verb) for _ in range(2)] == [False, False]
        for _ in range(2 if verb in {"extend", "reacquire"} else 0):
            with pytest.raises(kind.lost, match="had expired"):
                await call(lease, verb, *words)
        with pytest.raises(kind.lost, match="had expired"):
            await call(lease, "release")
        assert snapshot() == before

    async def test_blocking_and_async_calls_of_a_task_share_its_state(self, kind: Kind) -> None:
        owner = kind.new(renew=True)
        assert owner.acquire()
        await owner.arelease()
        assert await owner.aacquire()
        owner.release()

    async def test_nothing_is_kept_of_an_ended_task(self, kind: Kind) -> None:
        owner = kind.new(renew=True)
        task = asyncio.create_task(owner.aacquire())
        await task
        ended = weakref.ref(task)
        del task
        async with asyncio.timeout(DEADLINE):
            while ended() is not None:
                gc.collect()
                await asyncio.sleep(0.01)


@pytest.mark.timing
class TestQueue:
    @pytest.fixture
    def without_polling(self, plant: Planting, monkeypatch: pytest.MonkeyPatch) -> None:
        """Waiting clients don't poll, and their tickets don't expire."""
        plant(("locks/_locks", "TICKET = 2000", "TICKET = 36e5"))
        monkeypatch.setattr(locks, "KEEP_INTERVAL", 3600.0)
        for module in (semaphores, rwlock):
            monkeypatch.setattr(module, "POLL_INTERVAL", 3600.0)
            monkeypatch.setattr(module, "WAITER_TTL", 3_600_000)

    def test_a_release_wakes_threads_in_order(self, kind: Kind, without_polling: None) -> None:
        lease = kind.new(timeout=LONG)
        lease.acquire()
        with waiters(lease, 4) as threads:
            lease.release()
            for at, thread in enumerate(threads):
                assert thread.acquired.result(DEADLINE), "it was not woken"
                assert not any(later.acquired.done() for later in threads[at + 1 :])
                thread.leave()
        assert lease.info().waiting == 0

    async def test_a_release_wakes_tasks_in_order(self, kind: Kind, without_polling: None) -> None:
        lease, got = kind.new(timeout=LONG), list[int]()
        assert await lease.aacquire()

        async def wait(number: int) -> None:
            assert await lease.aacquire(blocking=True)
            got.append(number)
            await lease.arelease()

        async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(wait(number))
                await until_async(lambda: lease.info().waiting == number + 1)  # noqa: B023
            await lease.arelease()
        assert got == [0, 1, 2, 3, 4]

    def test_a_client_that_gave_up_takes_no_wakeup(self, kind: Kind, without_polling: None) -> None:
        """Its read on the server outlives it for two seconds, maybe at the same place as that of the next."""
        lease = kind.new(timeout=LONG)
        lease.acquire()
        nobody_is_blocked()
        assert not kind.new().acquire(blocking=True, blocking_timeout=0.05)
        assert blocked() == 1
        with waiters(lease) as [thread]:
            until(lambda: blocked() == 2)
            lease.release()
            thread.leave()

    async def test_a_client_without_time_left_leaves(self, kind: Kind, call: Call) -> None:
        kind.new(timeout=LONG).acquire()
        began = time.monotonic()
        assert await call(kind.new(), "acquire", blocking=True, blocking_timeout=SHORT) is False
        assert SHORT - locks.FINAL_POLL_MARGIN - 0.005 <= time.monotonic() - began < DEADLINE
        assert await call(kind.new(), "acquire", blocking=True, blocking_timeout=timedelta(0)) is False
        with pytest.raises(Unavailable), deadline(0.2):
            await call(kind.new(), "acquire", blocking=True, blocking_timeout=LONG)
        assert kind.new().info().waiting == 0

    async def test_a_cancelled_task_leaves(self, kind: Kind, without_polling: None) -> None:
        lease = kind.new()
        assert await lease.aacquire()
        task = asyncio.create_task(kind.new().aacquire(blocking=True))
        await until_async(lambda: lease.info().waiting == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await lease.ainfo()).waiting == 0
        await lease.arelease()
        assert await kind.new().aacquire(blocking=False)

    def test_an_interrupted_thread_leaves(self, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
        lease = kind.new()
        lease.acquire()

        def interrupted(*_: object) -> None:
            assert lease.info().waiting == 1
            raise KeyboardInterrupt

        monkeypatch.setattr(clients.Client, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kind.new().acquire(blocking=True)
        assert lease.info().waiting == 0

    @pytest.mark.parametrize("interrupt", [KeyboardInterrupt, TaskTimeout])
    def test_an_interrupt_after_the_grant_releases_it(
        self, kind: Kind, interrupt: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease = kind.new(timeout=LONG)
        store = type(lease)._store

        def interrupted(*args: Any) -> bool:
            store(*args)
            raise interrupt

        with monkeypatch.context() as patched:
            patched.setattr(type(lease), "_store", interrupted)
            with pytest.raises(interrupt):
                lease.acquire()
        with pytest.raises(kind.error, match=kind.not_held.format(verb="release")):
            lease.release()
        assert kind.new().acquire(blocking=False)

    @pytest.mark.parametrize("suspended", [True, False])
    async def test_a_coroutine_closed_while_it_waits_logs_nothing(self, kind: Kind, suspended: bool) -> None:
        """By the end of an event loop, or by garbage collection."""
        assert await kind.new().aacquire()
        waits = kind.new().aacquire(blocking=True)
        if suspended:
            waits.send(None)
        waits.close()

    async def test_tasks_that_wait_poll_for_each_other(
        self, kind: Kind, plant: Planting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plant(("locks/_locks", "TICKET = 2000", "TICKET = 1000"))
        monkeypatch.setattr(locks, "KEEP_INTERVAL", 0.4)
        lease, count = kind.new(timeout=LONG), 40
        line, polled = (getattr(lease._keys, part) for part in kind.queue)
        await lease.aacquire()
        tasks = [asyncio.create_task(kind.new().aacquire(blocking=True)) for _ in range(count)]
        await until_async(lambda: server().zcard(line) == count)
        order, before = server().zrange(line, 0, -1), scripts()
        await asyncio.sleep(1.2)  # a client that didn't poll would count as dead
        assert scripts() - before <= 1.2 / 0.4 + 10
        assert (await lease.ainfo()).waiting == count
        assert server().zrange(line, 0, -1) == order
        # one that is not in the queue any more polls itself: for example after a failover that lost it
        server().delete(line, polled)
        began = time.monotonic()
        await until_async(lambda: server().zcard(line) == count)
        assert time.monotonic() - began < 2 * 0.4 + SLACK, "one client an interval"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (await lease.ainfo()).waiting == 0


def printer(limit: Any = 1, **options: Any) -> Semaphore:
    return Semaphore("printer", limit, **options)


NAN, INF = float("nan"), float("inf")
#: durations that no operation accepts, by their error
BAD_DURATIONS: dict[type[Exception], list[Any]] = {
    InvalidArgument: [-1, -0.001, NAN, INF, -INF, 1e12, timedelta(seconds=-1)],
    TypeError: [True, "1", 1j],
}
#: the operations that take a duration, by the name of the argument
DURATIONS: dict[str, list[Callable[[Any], object]]] = {
    "timeout": [
        lambda bad: Lock("door", timeout=bad),
        lambda bad: printer(timeout=bad),
        lambda bad: ReadWriteLock("door", timeout=bad),
    ],
    "blocking_timeout": [
        lambda bad: Lock("door", blocking_timeout=bad),
        lambda bad: Lock("door").acquire(blocking_timeout=bad),
        lambda bad: printer().acquire(True, blocking_timeout=bad),
        lambda bad: ReadWriteLock("door", blocking_timeout=bad),
        lambda bad: ReadWriteLock("door").read.acquire(blocking_timeout=bad),
    ],
    "additional_time": [
        lambda bad: Lock("door").extend(bad),
        lambda bad: Lock("door").extend(bad, replace_ttl=True),
    ],
}
#: the operations of a held lease with a waiting client, and the keys whose types each must check
TAKES: dict[str, dict[str, tuple[Callable[[Any], object], str]]] = {
    "lock": {
        "acquire": (lambda lock: Lock(lock.name).acquire(blocking=False), "key fence line seen"),
        "wait": (lambda lock: Lock(lock.name).acquire(blocking_timeout=0.01), "key fence line seen"),
        "release": (lambda lock: lock.release(), "key line seen releases"),
        "extend": (lambda lock: lock.extend(1), "key fence"),
        "reacquire": (lambda lock: lock.reacquire(), "key"),
        "locked": (lambda lock: lock.locked(), ""),
        "owned": (lambda lock: lock.owned(), "key"),
    },
    "semaphore": {
        "acquire": (lambda one: Semaphore(one.name, 1).acquire(), "holders limit line waiting gate"),
        "wait": (lambda one: Semaphore(one.name, 1).acquire(True, 0.01), "holders limit line waiting gate"),
        "release": (lambda one: one.release(), "holders limit line waiting gate"),
        "refresh": (lambda one: one.refresh(), "holders"),
        "set_limit": (lambda one: one.set_limit(9), "holders limit line waiting gate"),
        "info": (lambda one: one.info(), "holders limit waiting"),
    },
    "write lock": {
        "acquire": (
            lambda one: ReadWriteLock(one.name).write.acquire(blocking=False),
            "holders grants readers writers alive gate",
        ),
        "wait": (
            lambda one: ReadWriteLock(one.name).read.acquire(blocking_timeout=0.01),
            "holders grants readers writers alive gate",
        ),
        "release": (lambda one: one.release(), "holders grants readers writers alive gate"),
        "extend": (lambda one: one.extend(), "holders grants"),
        "owned": (lambda one: one.owned(), "holders"),
        "info": (lambda one: one.info(), "holders grants alive"),
    },
}
PARTS = {
    "lock": "key fence line seen releases",
    "semaphore": "holders limit line waiting gate",
    "write lock": "holders grants readers writers alive gate",
}


class TestBadInput:
    @pytest.mark.one_server
    @pytest.mark.parametrize("error", BAD_DURATIONS)
    def test_durations(self, error: type[Exception]) -> None:
        for bad in BAD_DURATIONS[error]:
            for name, acts in DURATIONS.items():
                for act in acts:
                    with pytest.raises(error, match=name):
                        act(bad)
        assert all_keys() == []

    @pytest.mark.one_server
    @pytest.mark.parametrize("zero", [0, timedelta(0)])
    def test_a_lease_is_longer_than_zero(self, zero: Any) -> None:
        for name in ("timeout", "additional_time"):
            for act in DURATIONS[name]:
                with pytest.raises(InvalidArgument, match="must be between"):
                    act(zero)

    @pytest.mark.parametrize(
        ("kind", "operation"),
        [(kind, operation) for kind, operations in TAKES.items() for operation in operations],
    )
    def test_keys_of_another_type(self, kind: str, operation: str) -> None:
        act, takes = TAKES[kind][operation]
        for part in PARTS[kind].split():
            lease = KINDS[kind].new(part, timeout=LONG)
            assert lease.acquire()
            join(KINDS[kind].new(part, timeout=LONG), "first")
            key = getattr(lease._keys, part)
            server().delete(key)
            server().sadd(key, "not ours")
            before = snapshot()
            if part in takes.split():
                with pytest.raises(ConfigurationError, match="another type"):
                    act(lease)
                assert snapshot() == before, part
            else:
                act(lease)
                assert snapshot()[key] == before[key], part
