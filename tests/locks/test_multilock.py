"""Several locks at once: MultiLock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_redis_messaging import (
    ConfigurationError,
    LeaseLost,
    LimitExceeded,
    Lock,
    LockError,
    LockNotOwnedError,
    MultiLock,
    conf,
)
from django_redis_messaging.core.operations import Listen
from django_redis_messaging.services.locks import multilock
from django_redis_messaging.services.locks.lock import LockKeys

from ..conftest import Call
from ..support.leases import join, lose, renewed, until_async, waiters
from ..support.round_trips import round_trips
from ..support.server import DEADLINE, all_keys, finish, reply_to, server, snapshot, steps, until

#: seconds; longer than any test
LONG = 1000


def ttl(name: str) -> int:
    return int(server().pttl(Lock(name).key))


def held(*names: str) -> list[bool]:
    return [Lock(name).locked() for name in names]


def waiting(name: str) -> int:
    return int(server().zcard(LockKeys(conf.prefix(), Lock(name).key).line))


@pytest.mark.one_server
@pytest.mark.parametrize("busy", ["a", "b", "c"])
def test_one_call_acquires_all_or_none(busy: str) -> None:
    """Nothing is left to release when one is busy."""
    several = MultiLock(["a", "b", "c"], timeout=LONG)
    with several:
        pass  # the server has the scripts
    assert round_trips(several.acquire) == 1
    several.release()
    with Lock(busy, timeout=LONG):
        assert round_trips(lambda: several.acquire(blocking=False)) == 1
        assert sum(held("a", "b", "c")) == 1


class TestHolding:
    async def test_it_holds_the_locks_of_its_names(self, call: Call) -> None:
        both = MultiLock(["b", "a", "b"], timeout=LONG)
        assert both.names == ("a", "b")
        assert both.fences == {"a": 0, "b": 0}
        assert not await call(both, "owned")
        assert await call(both, "acquire")
        assert await call(both, "owned")
        for name, fence in both.fences.items():
            assert not await call(Lock(name), "acquire", blocking=False)
            assert (await call(Lock(name), "info")).fence == fence > 0
        await call(both, "release")
        assert held("a", "b") == [False, False]
        with pytest.raises(LockError, match="can't release: this thread or task hasn't acquired it"):
            await call(both, "release")

    async def test_it_acquires_all_or_none(self, call: Call) -> None:
        """Whichever is busy; also when it gives up after a while."""
        names = ["a", "b", "c"]
        for busy in names:
            with Lock(busy, timeout=LONG):
                for timeout in (0, 0.05):
                    assert not await call(MultiLock(names), "acquire", blocking_timeout=timeout)
                    assert held(*names) == [name == busy for name in names]
                    assert waiting(busy) == 0
            assert [Lock(name).info().fence for name in names if name > busy] == [0] * names[::-1].index(busy)
        assert await call(MultiLock(names), "acquire", blocking=False)

    async def test_a_free_lock_for_which_others_wait_is_busy(self, call: Call) -> None:
        lock = Lock("b", timeout=LONG)
        lock.acquire()
        body, _ = join(Lock("b"), "first")
        lose(lock)
        assert not await call(MultiLock(["a", "b"]), "acquire", blocking=False)
        assert server().get(lock.key) == b"first"
        assert held("a") == [False]
        body.close()

    @pytest.mark.timing
    async def test_when_it_waited_all_leases_begin_together(self, call: Call) -> None:
        """Meanwhile it holds those before the busy one, whose leases it extends, and none after it."""
        several = MultiLock([*"abcd"], timeout=0.4)
        busy = Lock("c", timeout=LONG)
        assert await call(busy, "acquire")
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(
                lambda: (several.acquire(None, DEADLINE), several.owned(), list(map(ttl, "abcd")))
            )
            until(lambda: waiting("c") == 1)
            ends = time.monotonic() + 1
            while time.monotonic() < ends:
                assert held(*"abcd") == [True, True, True, False]
            await call(busy, "release")
            acquired, owned, left = ended.result(DEADLINE)
        assert acquired and owned
        assert min(left) > 0
        assert max(left) - min(left) < 100

    async def test_it_queues_as_a_lock_does(self, call: Call) -> None:
        both, lock = MultiLock(["a", "b"], timeout=LONG), Lock("b", timeout=LONG)
        assert await call(both, "acquire")
        with waiters(Lock("b")) as [first], ThreadPoolExecutor(1) as pool:
            second = pool.submit(both.acquire, None, DEADLINE)
            until(lambda: waiting("a") == 1)
            await call(both, "release")
            first.leave()
            assert second.result(DEADLINE)
        assert lock.locked()

    def test_it_is_woken_by_each_lock_that_it_waits_for(self) -> None:
        several, busy = MultiLock([*"abc"]), [Lock("b", timeout=LONG), Lock("c", timeout=LONG)]
        for lock in busy:
            lock.acquire()
        body = steps(several._acquire, several._attempts(True, None))
        step = next(body)
        for lock in busy:
            while not isinstance(step, Listen):
                step = body.send(reply_to(step))
            lock.release()
            woken = server().execute_command(*step.words)
            assert woken, f"not by {lock.name}"
            step = body.send(woken)
        body.close()

    def test_it_polls_often_only_while_it_holds_some(self) -> None:
        for names, busy, is_often in (("ab", "a", False), ("cd", "d", True)):
            both = MultiLock([*names], timeout=0.1)
            with Lock(busy, timeout=LONG):
                body = steps(both._acquire, both._attempts(True, None))
                step = next(body)
                while not isinstance(step, Listen):
                    step = body.send(reply_to(step))
                assert (step.seconds < 0.1) is is_often
                body.close()

    @pytest.mark.parametrize("is_taken", [False, True])
    def test_after_a_late_reply_all_leases_are_restarted(
        self, is_taken: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a Cluster: the retries of one call may last longer than the leases that the others began."""
        delay = 0.0
        monkeypatch.setattr(multilock, "monotonic", lambda: time.monotonic() + delay)
        both = MultiLock(["a", "b"], timeout=LONG)
        body = steps(both._acquire, both._attempts(False, None))
        step = body.send(reply_to(next(body)))
        reply = reply_to(step)
        assert len(reply) == 2
        delay = LONG
        lose(Lock("a"))
        assert not is_taken or Lock("a").acquire()
        fences = finish(body, body.send(reply))
        assert held(*"ab") == [True, not is_taken]
        assert [fence > old for fence, old in zip(fences, reply, strict=False)] == (
            [] if is_taken else [True, False]
        )

    async def test_extensions(self, call: Call) -> None:
        both = MultiLock(["a", "b"], timeout=10)
        for verb in ("extend", "reacquire"):
            with pytest.raises(LockError, match=f"can't {verb}"):
                await call(both, verb, *([1] if verb == "extend" else []))
        assert await call(both, "acquire")
        assert await call(both, "extend", 10) is True
        assert all(18_000 < ttl(name) <= 20_000 for name in "ab")
        assert await call(both, "extend", 5, replace_ttl=True) is True
        assert all(4000 < ttl(name) <= 5000 for name in "ab")
        assert await call(both, "reacquire") is True
        assert all(8000 < ttl(name) <= 10_000 for name in "ab")

    @pytest.mark.parametrize(("verb", "words"), [("release", ()), ("extend", (LONG,)), ("reacquire", ())])
    async def test_a_lost_lease_is_named_and_the_others_are_used(
        self, call: Call, verb: str, words: tuple[int, ...]
    ) -> None:
        several = MultiLock([*"abc"], timeout=10)
        assert await call(several, "acquire")
        lose(Lock("b"))
        server().pexpire(Lock("c").key, 100)
        assert not await call(several, "owned")
        with pytest.raises(LockNotOwnedError, match=rf"can't {verb} \['b'\]") as lost:
            await call(several, verb, *words)
        assert lost.value.lock_name == "b"
        assert held(*"abc") == ([False] * 3 if verb == "release" else [True, False, True])
        assert verb == "release" or ttl("c") > 5000

    async def test_blocks_and_decorators(self, caplog: pytest.LogCaptureFixture) -> None:
        both = MultiLock(["a", "b"])

        @both
        async def fences() -> dict[str, int]:
            return both.fences

        assert min((await fences()).values()) > 0
        with (
            pytest.raises(LockError, match=r"MultiLock\(\['b', 'c'\]\) could not be acquired"),
            both,
            MultiLock(["b", "c"], blocking=False),
        ):
            pytest.fail("it was acquired")
        with MultiLock(["a", "b"], raise_on_release_error=False):
            lose(Lock("a"))
        assert "can't release ['a']" in caplog.text
        assert held("a", "b", "c") == [False] * 3


class TestGivingUp:
    async def test_a_cancelled_task_holds_nothing(self) -> None:
        several = MultiLock([*"abc"], timeout=LONG)
        with Lock("b", timeout=LONG):
            task = asyncio.create_task(several.aacquire())
            await until_async(lambda: waiting("b") == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert held(*"abc") == [False, True, False]
            assert waiting("b") == 0

    async def test_an_error_ends_it_with_nothing_held(
        self, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A full queue, and keys of another type."""
        with Lock("b", timeout=LONG):
            join(Lock("b"), "first")
            monkeypatch.setattr(multilock, "MAX_WAITING", 1)
            with pytest.raises(LimitExceeded):
                await call(MultiLock([*"abc"]), "acquire")
            assert held(*"abc") == [False, True, False]
        for part in ("key", "fence"):
            name = f"typed {part}"
            server().sadd(getattr(LockKeys(conf.prefix(), Lock(name).key), part), "not ours")
            with pytest.raises(ConfigurationError, match="another type"):
                await call(MultiLock(["a", name]), "acquire")
            assert held("a") == [False]

    @pytest.mark.parametrize("first", [Lock, MultiLock])
    async def test_it_is_not_reentrant(self, call: Call, first: Callable[..., Any]) -> None:
        own = MultiLock(["a", "b"])
        assert await call(own, "acquire")
        with pytest.raises(LockError, match="not reentrant"):
            await call(own, "acquire")
        assert not await call(own, "acquire", blocking=False)
        assert await call(own, "owned")
        other = first("z" if first is Lock else ["y", "z"], renew=True)
        assert await call(other, "acquire")
        with pytest.raises(LockError, match="'z' is held by this thread or task already"):
            await call(MultiLock(["x", "z"]), "acquire")
        assert held("x", "z") == [False, True]
        if first is MultiLock:
            with pytest.raises(LockError, match="not reentrant"):
                await call(Lock("z"), "acquire")

    async def test_a_lock_lost_while_it_waits_is_acquired_again_without_the_later_ones(
        self, call: Call
    ) -> None:
        """Otherwise it would wait for a lock while it holds a later one, and might wait for ever."""
        several = MultiLock([*"abc"], timeout=LONG)
        lock_c, lock_a = Lock("c", timeout=LONG), Lock("a", timeout=LONG)
        assert await call(lock_c, "acquire")
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(several.acquire, None, DEADLINE)
            until(lambda: waiting("c") == 1)
            server().set(lock_a.key, "another client", px=LONG * 1000)
            until(lambda: waiting("a") == 1)
            until(lambda: not Lock("b").locked() and waiting("c") == 0)
            await call(lock_c, "release")
            assert await call(Lock("c"), "acquire", blocking_timeout=0)
            lose(lock_a)
            until(lambda: held(*"ab") == [True, True] and waiting("c") == 1)
            lose(lock_c)
            assert ended.result(DEADLINE)


@pytest.mark.timing
class TestRenewal:
    async def test_each_lease_is_renewed_and_a_loss_is_reported_once(self, call: Call) -> None:
        lost: list[LeaseLost] = []
        several = MultiLock([*"abc"], timeout=0.5, renew=True, on_lost=lost.append)
        for _ in range(2):
            assert await call(several, "acquire")
            began = time.monotonic()
            until(lambda began=began: time.monotonic() > began + 0.8)  # type: ignore[misc]
            assert await call(several, "owned")
            lost.clear()
            lose(Lock("a"))
            lose(Lock("c"))
            until(lambda: not renewed("a") and not renewed("c"))
            until(lambda: lost)
            assert held("b") == [True]
            with pytest.raises(LockNotOwnedError, match=r"\['a', 'c'\]"):
                await call(several, "release")
            assert renewed("b") == []
            assert len(lost) == 1
            assert isinstance(lost[0], LockNotOwnedError)

    def test_an_extension_changes_when_it_is_renewed(self) -> None:
        both = MultiLock(["a", "b"], timeout=LONG, renew=True)
        with both:
            assert both.extend(0.5, replace_ttl=True)
            until(lambda: min(map(ttl, "ab")) > 500_000)


BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"names": "a" * 300}, TypeError, "names must be a list, not a str"),
    ({"names": []}, ValueError, "between 1 and 100 different names, not 0"),
    ({"names": map(str, range(101))}, ValueError, "not 101"),
    ({"names": ["a", ""]}, ValueError, "name is empty"),
    ({"names": ["a", 1]}, TypeError, "name must be a str"),
    ({"timeout": None}, TypeError, "timeout must be seconds"),
    ({"timeout": 0}, ValueError, "timeout must be between"),
    ({"on_lost": print}, ValueError, "on_lost needs renew=True"),
    ({"raise_on_release_error": 0}, TypeError, "raise_on_release_error"),
]


@pytest.mark.one_server
@pytest.mark.parametrize(("options", "error", "words"), BAD_OPTIONS)
def test_bad_options(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        MultiLock(**{"names": ["a"], **options})


async def test_bad_arguments_change_nothing(call: Call) -> None:
    before = snapshot()
    for words in ({"blocking": 1}, {"blocking_timeout": -1}):
        with pytest.raises((TypeError, ValueError)):
            await call(MultiLock([*"ab"]), "acquire", **words)
    assert snapshot() == before


async def test_a_hundred_names(call: Call) -> None:
    many = MultiLock([f"name {number:02}" for number in range(100)], timeout=LONG)
    assert await call(many, "acquire")
    assert len({*many.fences.values()}) > 0 and min(many.fences.values()) > 0
    await call(many, "release")
    assert all(server().pttl(key) > 0 for key in all_keys())
