"""Latches: counts, request ids, waiting clients, rounds, expiry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from django_redis_messaging import InvalidArgument, Latch, LatchError, LatchInfo, conf
from django_redis_messaging.services.latches import latch as latches
from django_redis_messaging.services.latches.latch import MAX_COUNT, LatchKeys

from ..conftest import Call
from ..support.leases import blocked, nobody_is_blocked, scripts, until_async
from ..support.server import DEADLINE, all_keys, check_types, reply_to, server, steps, until

pytestmark = pytest.mark.usefixtures("closing")


def parts(count: Any = 3, **options: Any) -> Latch:
    """Another object for the same latch."""
    return Latch("parts", count, **options)


def keys() -> LatchKeys:
    return LatchKeys(conf.prefix(), "parts")


@pytest.fixture
def without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting clients don't poll."""
    monkeypatch.setattr(latches, "POLL_INTERVAL", 3600.0)


class TestCounts:
    async def test_it_opens_with_the_last_event(self, call: Call) -> None:
        latch = parts(4)
        assert not await call(latch, "wait_until_open", timeout=0)
        assert [await call(latch, "count_down", n) for n in (1, 2)] == [3, 1]
        assert not await call(latch, "wait_until_open", timeout=timedelta(milliseconds=5))
        assert await call(latch, "count_down") == 0
        assert await call(latch, "wait_until_open")
        assert await call(latch, "count") == 0

    async def test_an_open_latch_stays_open(self, call: Call) -> None:
        latch = parts()
        assert [await call(latch, "count_down", n) for n in (2, 5, 1)] == [1, 0, 0]
        assert (await call(latch, "info")).count == 3

    async def test_the_stored_count_wins(self, call: Call) -> None:
        assert await call(parts(5), "count") == 5
        assert not await call(parts(3), "wait_until_open", 0)
        assert await call(parts(9), "count_down") == 2
        assert (await call(parts(9), "info")).count == 3

    async def test_a_request_id_is_counted_once_in_a_round(self, call: Call) -> None:
        latch = parts(10)
        assert await call(latch, "count_down", 2, request_id="a") == 8
        assert await call(latch, "count_down", request_id="b") == 7
        assert await call(latch, "count_down", 5, request_id="a") == 8
        assert await call(latch, "count") == 7
        await call(latch, "reset")
        assert await call(latch, "count_down", request_id="a") == 9

    def test_request_ids_are_kept_as_long_as_the_latch(self) -> None:
        """Not for a request window only; but an open latch stores no more of them."""
        latch = parts(2, ttl=1000)
        latch.count_down(request_id="a")
        server().delete(*keys().requests)
        assert latch.count_down(request_id="a") == 1
        assert abs(server().pttl(keys().counted) - server().pttl(keys().state)) < 10
        latch.count_down(request_id="b")
        latch.count_down(request_id="c")
        assert server().hkeys(keys().counted) == [b"a", b"b"]

    def test_concurrent_events_get_different_numbers(self) -> None:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: parts(40).count_down(), range(40)))
        assert sorted(found) == list(range(40))

    @pytest.mark.parametrize("value", [0, -1, MAX_COUNT + 1])
    def test_numbers_out_of_range_are_rejected(self, value: int) -> None:
        for act in (parts, parts().count_down, parts().reset):
            with pytest.raises(InvalidArgument, match="must be between 1 and"):
                act(value)

    def test_other_arguments_are_checked(self) -> None:
        for act, error in (
            (lambda: parts("3"), TypeError),
            (lambda: parts().count_down(True), TypeError),
            (lambda: parts().count_down(request_id=""), InvalidArgument),
            (lambda: parts().count_down(round=0), InvalidArgument),
            (lambda: parts(ttl=0), InvalidArgument),
            (lambda: parts().wait_until_open(-1), InvalidArgument),
            (lambda: parts().wait_until_open("1"), TypeError),
            (lambda: Latch("", 1), InvalidArgument),
        ):
            with pytest.raises(error):
                act()
        assert all_keys() == []


@pytest.mark.timing
class TestWaiting:
    @pytest.mark.one_server
    def test_threads_are_woken_without_polling(self, without_polling: None) -> None:
        nobody_is_blocked()
        with ThreadPoolExecutor(5) as pool:
            waiting = [pool.submit(parts(1).wait_until_open) for _ in range(5)]
            until(lambda: blocked() == 5)
            calls = scripts()
            parts().count_down()
            assert all(one.result(DEADLINE) for one in waiting)
        assert scripts() - calls <= 1 + 5

    async def test_many_tasks_are_woken(self, without_polling: None) -> None:
        """More than there are connections for waiting."""
        waiting = [asyncio.ensure_future(parts(1).await_until_open(DEADLINE)) for _ in range(300)]
        await until_async(lambda: server().exists(keys().state))
        await parts().acount_down()
        assert all(await asyncio.gather(*waiting))

    async def test_an_opening_before_the_first_read_is_not_missed(self, call: Call) -> None:
        """Even if a new round has begun, or the latch was deleted, since."""
        for then in ("count", "reset", "delete"):
            latch = parts(1)
            body = steps(latch.wait_until_open)
            number = reply_to(next(body))
            await call(latch, "count_down")
            await call(latch, then)
            assert reply_to(body.send(number)), "it would wait"
            with pytest.raises(StopIteration) as ended:
                body.send(reply_to(body.send([])))
            assert ended.value.value is True
            await call(latch, "delete")

    def test_a_client_waits_for_the_next_round(self) -> None:
        latch = parts(1)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(parts(1).wait_until_open)
            until(lambda: latch.info().round)
            number = latch.reset(2)
            latch.count_down(round=number)
            assert not waiting.done()
            latch.count_down(round=number)
            assert waiting.result(DEADLINE)

    def test_a_deletion_wakes_waiting_clients(self, without_polling: None) -> None:
        """Also those that notice it when the latch has been created anew."""
        latch = parts(1)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(parts(1).wait_until_open)
            until(lambda: latch.info().round)
            assert latch.delete()
            assert not parts(5).wait_until_open(0)
            with pytest.raises(LatchError, match="was deleted"):
                waiting.result(DEADLINE)

    async def test_waiting_ends_if_the_latch_expires(
        self, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(latches, "POLL_INTERVAL", 0.05)
        with pytest.raises(LatchError, match=r"has expired \(0\.2 s"):
            await call(parts(ttl=0.2), "wait_until_open")

    def test_waiting_ends_although_the_latch_was_created_anew(self) -> None:
        """After it had expired."""
        body = steps(parts().wait_until_open)
        body.send(reply_to(next(body)))
        server().delete(keys().state)
        parts(7).count_down()
        with pytest.raises(LatchError, match="has expired"):
            body.send(reply_to(body.send(None)))


class TestRounds:
    async def test_rounds(self, call: Call) -> None:
        latch = parts()
        await call(latch, "count_down", 3)
        first = (await call(latch, "info")).round
        second = await call(latch, "reset")
        assert await call(latch, "info") == LatchInfo(count=3, remaining=3, round=second)
        assert not await call(latch, "wait_until_open", 0)
        assert second > first
        third = await call(latch, "reset", 5)
        assert await call(parts(1), "info") == LatchInfo(count=5, remaining=5, round=third)

    async def test_a_late_event_of_an_earlier_round(self, call: Call) -> None:
        """It counts only if it doesn't name its round."""
        latch = parts()
        first, second = [await call(latch, "reset") for _ in range(2)]
        with pytest.raises(LatchError, match=f"Round {first} .* is over"):
            await call(latch, "count_down", round=first)
        assert await call(latch, "count_down", round=second) == 2
        assert await call(latch, "count_down") == 1
        await call(latch, "delete")
        with pytest.raises(LatchError):
            await call(latch, "count_down", round=second)
        assert await call(latch, "info") == LatchInfo(count=3, remaining=3, round=0)

    def test_rounds_grow_although_the_clock_is_set_back(self) -> None:
        latch = parts(1)
        future = latch.reset() + 10**12
        server().hset(keys().state, "round", future)
        assert latch.reset() == future + 1
        latch.count_down()
        latch.delete()
        assert latch.reset() > future + 1
        assert latch.count_down() == 0

    def test_no_client_waits_for_a_round_that_was_lost_with_the_clock(self) -> None:
        """A smaller round began since."""
        body = steps(parts().wait_until_open)
        future = reply_to(next(body)) + 10**12
        body.send(future)
        with pytest.raises(LatchError, match="was lost"):
            body.send(reply_to(body.send(None)))


class TestKeys:
    def test_all_keys_expire(self) -> None:
        latch = parts(2, ttl=50)
        latch.count_down(request_id="a")
        latch.count_down(request_id="b")
        assert set(all_keys()) >= {keys().state, keys().counted, keys().opening}
        assert all(server().pttl(key) > 0 for key in all_keys())
        assert 40_000 < server().pttl(keys().state) <= 50_000

    def test_only_changes_extend_the_time(self) -> None:
        latch = parts(2)
        latch.count_down(request_id="a")
        for act in (
            lambda: latch.wait_until_open(0),
            lambda: latch.count_down(request_id="a"),
            lambda: (latch.count_down(), server().pexpire(keys().state, 5000), latch.count_down()),
        ):
            server().pexpire(keys().state, 5000)
            act()
            assert server().pttl(keys().state) <= 5000
        latch.reset()
        assert server().pttl(keys().state) > 5000

    def test_a_deletion_leaves_only_what_late_clients_need(self) -> None:
        latch = parts(2)
        latch.count_down(request_id="a")
        assert latch.delete()
        assert not latch.delete()
        assert {key.rpartition(":")[0] for key in all_keys() if key != keys().opening} == {
            keys().requests[0].rpartition(":")[0]
        }

    @pytest.mark.parametrize(
        ("act", "used"),
        [
            (lambda: parts().count_down(request_id="a"), "state counted opening requests"),
            (lambda: parts().wait_until_open(0), "state counted opening"),
            (lambda: parts().reset(), "state counted opening requests"),
            (lambda: parts().delete(), "state counted opening requests"),
        ],
        ids=["count_down", "wait", "reset", "delete"],
    )
    def test_keys_of_another_type(self, act: Callable[[], object], used: str) -> None:
        """They are reported, with nothing changed."""
        found = keys()
        named = {"state": found.state, "counted": found.counted, "opening": found.opening}
        named["requests"] = found.requests[0]
        exists = "requests" in used
        check_types(act, named, used, lambda: exists and parts().count_down(request_id="b"))
