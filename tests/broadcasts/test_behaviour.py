"""Broadcasts: publishing, reading in order, waiting, and the reporting of losses."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import (
    Batch,
    Broadcast,
    ConfigurationError,
    Event,
    LimitExceeded,
    Unavailable,
)
from django_redis_messaging.core import clients
from django_redis_messaging.services.broadcasts import broadcast

from ..support.leases import blocked, scripts
from ..support.server import all_keys, change, reply_to, server, server_ms, snapshot, steps, until


@pytest.fixture(autouse=True)
def small(messaging_alias: str, settings: Settings) -> None:
    """Buckets of 0.1 s with a long retention."""
    change(settings, BROADCAST_BUCKET=0.1, BROADCAST_RETENTION=9)


@pytest.fixture
def channel(small: None) -> Broadcast:
    return Broadcast("news")


def payloads(batch: Batch) -> list[Any]:
    return [event.payload for event in batch.events]


def seen(batch: Batch) -> tuple[list[Any], bool]:
    return payloads(batch), batch.missed


def published(channel: Broadcast, *items: Any) -> list[Event]:
    return [channel.publish(item) for item in items]


def buckets(channel: Broadcast) -> list[str]:
    """The buckets that exist, the oldest first."""
    found = [key for key in all_keys() if key in set(channel._keys.buckets)]
    return sorted(found, key=lambda key: server().lindex(key, 0).split(b",")[1])


def next_bucket() -> None:
    """Wait until another bucket has begun."""
    now = server_ms() // 100
    until(lambda: server_ms() // 100 > now)


class TestEvents:
    def test_all_readers_get_the_events_in_order(self, channel: Broadcast) -> None:
        start, before = channel.cursor(), server_ms()
        events = published(channel, "a", {"b": [1, None]}, "same", "same")
        published(Broadcast("other"), "elsewhere")
        assert [event.id for event in events] == [1, 2, 3, 4]
        for reader in (channel, Broadcast("news")):
            batch = reader.fetch(start)
            assert batch.events == events
            assert seen(batch) == (["a", {"b": [1, None]}, "same", "same"], False)
        assert before <= events[0].published_at.timestamp() * 1000 <= server_ms() + 1
        assert events[0].published_at.utcoffset() == timedelta(0)

    def test_cursors(self, channel: Broadcast) -> None:
        """That of an event is after it, that of a batch after its last event, a new one after the newest."""
        first, second = published(channel, 1, 2)
        assert payloads(channel.fetch(first.cursor)) == [2]
        batch = channel.fetch()
        assert [event.cursor for event in batch.events] == [first.cursor, second.cursor]
        for cursor in (second.cursor, batch.cursor, channel.cursor()):
            assert channel.fetch(cursor) == Batch([], cursor, missed=False)
        assert payloads(channel.fetch(limit=1)) == [1]

    def test_reading_across_buckets(self, channel: Broadcast) -> None:
        cursor, found = channel.cursor(), []
        for number in range(5):
            channel.publish(number)
            if number == 2:
                batch = channel.fetch(cursor)
                cursor, found = batch.cursor, payloads(batch)
                assert not batch.missed
            next_bucket()
        assert found + payloads(channel.fetch(cursor)) == payloads(channel.fetch()) == list(range(5))
        assert len(buckets(channel)) == 5
        server().delete(*buckets(channel)[:4])
        assert seen(channel.fetch()) == ([4], False), "without a cursor, from the oldest event that is kept"

    def test_more_events_than_one_call_reads(
        self, channel: Broadcast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(broadcast, "PAGE_SIZE", 6)
        published(channel, *range(25))
        first = channel.fetch(limit=20)
        assert payloads(first) == list(range(20))
        for limit in (20, 5):
            assert payloads(channel.fetch(first.cursor, limit=limit)) == list(range(20, 25))

    def test_large_events_make_a_batch_shorter(self, channel: Broadcast) -> None:
        for number in range(120):
            channel.publish([number, "x" * 60_000])
        found: list[int] = []
        cursor, batches = None, 0
        while events := (batch := channel.fetch(cursor)).events:
            assert not batch.missed
            found += [event.payload[0] for event in events]
            cursor, batches = batch.cursor, batches + 1
        assert found == list(range(120))
        assert batches >= 2

    async def test_the_async_versions_do_the_same(self, channel: Broadcast) -> None:
        start = await channel.acursor()
        event = await channel.apublish("x")
        assert (await channel.afetch(start)).events == [event]
        await channel.akeep("me", event.cursor)
        assert await channel.aposition("me") == event.cursor
        await clients.aclose()

    def test_a_repeat_publishes_nothing(self, channel: Broadcast) -> None:
        """And returns the event that was published, even if its bucket is not the current one or is gone."""
        channel.publish("before")
        first = channel.publish({"n": [1]}, request_id="r")
        Broadcast("other").publish("x", request_id="r")  # each channel has its own requests
        old = buckets(channel)
        for payload in ({"n": [1]}, "other"):
            assert channel.publish(payload, request_id="r") == first
            next_bucket()
            channel.publish("after")
        server().delete(*old)
        assert channel.publish("other", request_id="r").id == first.id
        assert payloads(channel.fetch()) == ["after"] * 2
        assert payloads(Broadcast("other").fetch()) == ["x"]


class TestMissed:
    """A reader is told if it may have missed events. test_machine.py loses data in many more ways."""

    @pytest.mark.timing
    @pytest.mark.parametrize("idle", [True, False])
    def test_a_reader_that_was_away_too_long(self, idle: bool, settings: Settings) -> None:
        """It missed nothing if nothing was published."""
        change(settings, BROADCAST_BUCKET=0.05, BROADCAST_RETENTION=0.3)
        channel = Broadcast("news")
        cursor = channel.publish("seen").cursor
        if not idle:
            channel.publish("missed")
        until(lambda: not server().exists(*channel._keys.buckets))
        batch = channel.fetch(cursor)
        assert seen(batch) == ([], not idle)
        assert channel.fetch(batch.cursor) == Batch([], batch.cursor, missed=False)
        channel.publish("new")
        assert seen(channel.fetch(cursor)) == (["new"], not idle)

    @pytest.mark.parametrize("page_size", [2, 1000])
    def test_a_gap_is_reported_when_it_is_reached(
        self, page_size: int, channel: Broadcast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(broadcast, "PAGE_SIZE", page_size)
        cursor = channel.cursor()
        for number in range(6):
            channel.publish(number)
            if number % 2:
                next_bucket()
        server().delete(buckets(channel)[1])
        first = channel.fetch(cursor)
        assert seen(first) == ([0, 1], False)
        second = channel.fetch(first.cursor)
        assert seen(second) == ([4, 5], True)
        assert not channel.fetch(second.cursor).missed

    def test_a_lost_head_removes_the_buckets(self, channel: Broadcast) -> None:
        """Ids begin with 1 again, so the remaining events of the earlier channel must not be read as new
        ones."""
        cursor = channel.cursor()
        # a reader waits, so the publish writes to the bell
        assert channel.fetch(cursor, wait=0.01).events == []
        published(channel, *range(3))
        server().delete(channel._keys.head)
        newcomer = channel.cursor()
        assert channel.fetch(newcomer, wait=0.01).events == []
        assert channel.publish("new").id == 1
        assert payloads(channel.fetch(newcomer)) == ["new"]
        assert seen(channel.fetch(cursor)) == (["new"], True)


class TestLimits:
    def test_a_channel_is_trimmed_when_it_is_a_sixteenth_too_long(
        self, channel: Broadcast, settings: Settings
    ) -> None:
        change(settings, BROADCAST_MAX_LENGTH=32)
        for number in range(100):
            channel.publish(number)
            assert sum(server().llen(key) for key in buckets(channel)) <= 34
        assert payloads(channel.fetch()) == list(range(68, 100))

    def test_a_failed_trim_does_not_fail_the_publish(
        self, channel: Broadcast, settings: Settings, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        change(settings, BROADCAST_MAX_LENGTH=1)
        script = broadcast.Script

        def failing(name: str, *rest: Any) -> Any:
            if name == "broadcasts/trim":
                raise Unavailable("away")
            return script(name, *rest)

        monkeypatch.setattr(broadcast, "Script", failing)
        assert [event.id for event in published(channel, 1, 2, 3)] == [1, 2, 3]
        assert "Trimming channel 'news' failed; a later publish repeats it: away" in caplog.text
        assert payloads(channel.fetch()) == [3]

    def test_the_size_of_a_payload_is_limited(self, channel: Broadcast, settings: Settings) -> None:
        change(settings, BROADCAST_MAX_BYTES=10)
        published(channel, "x" * 8, "ü" * 4)
        for payload in ("x" * 9, "ü" * 5):
            with pytest.raises(LimitExceeded, match="BROADCAST_MAX_BYTES") as error:
                channel.publish(payload)
            assert error.value.limit == 10
        assert len(channel.fetch().events) == 2

    @pytest.mark.timing
    def test_each_key_expires(self, channel: Broadcast) -> None:
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(channel.fetch, channel.cursor(), wait=5)
            until(lambda: server().exists(channel._keys.waiting))
            cursor = channel.publish("x").cursor
            waiter.result()
        channel.keep("me", channel.cursor())
        found = all_keys()
        assert len(found) == 6
        assert all(server().pttl(key) > 0 for key in found)
        server().pexpire(channel._keys.head, 10_000)
        assert channel.fetch(cursor).events == []
        assert server().pttl(channel._keys.head) > broadcast.IDLE_TTL - 10_000, "reading keeps a channel"

    def test_a_bucket_is_kept_for_the_retention_after_its_end(self, channel: Broadcast) -> None:
        event = channel.publish("x")
        [bucket] = buckets(channel)
        together = server().pipeline()  # at one moment
        left, (seconds, micros) = together.pttl(bucket).time().execute()
        left += seconds * 1000 + micros / 1000 - event.published_at.timestamp() * 1000
        assert 9000 <= left <= 9100

    @pytest.mark.timing
    def test_a_key_of_the_ring_is_reused_only_after_its_expiry(self, settings: Settings) -> None:
        change(settings, BROADCAST_BUCKET=0.05, BROADCAST_RETENTION=0.3)
        channel = Broadcast("short")
        start, found, missed, looks = channel.cursor(), [], False, [server_ms()]
        ends = time.monotonic() + 0.9  # two turns of the ring
        while time.monotonic() < ends:
            channel.publish(len(found))
            batch = channel.fetch(start)
            start, missed = batch.cursor, missed or batch.missed
            found += payloads(batch)
            looks.append(server_ms())
        left = len(channel.fetch().events)
        looks.append(server_ms())
        # a reader that is away for longer misses events, and may find no channel
        in_time = max(after - before for before, after in itertools.pairwise(looks)) < 300
        assert missed is False or not in_time
        assert found == list(range(len(found))) or not in_time
        assert left > 1 or not in_time
        assert left < len(found)

    def test_there_are_at_most_a_hundred_buckets(self, settings: Settings) -> None:
        change(settings, BROADCAST_BUCKET=0.001, BROADCAST_RETENTION=1000)
        assert len(Broadcast("many")._keys.buckets) == 102


class TestClocks:
    """Wrong client clocks, and a server clock that goes back, change nothing. See also test_clocks.py."""

    @pytest.fixture(autouse=True)
    def forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(broadcast, "_offsets", {})

    @pytest.mark.parametrize("hours", [-1, 1])
    def test_a_publishers_clock(
        self, hours: int, channel: Broadcast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shifted = time.time_ns() + hours * 3_600_000_000_000
        monkeypatch.setattr(broadcast, "time_ns", lambda: shifted)
        start = channel.cursor()
        published(channel, 1, 2)
        next_bucket()
        channel.publish(3)
        batch = channel.fetch(start)
        assert payloads(batch) == [1, 2, 3]
        assert abs(batch.events[0].published_at.timestamp() * 1000 - server_ms()) < 10_000

    def test_the_server_clock_goes_back(self, channel: Broadcast) -> None:
        event = channel.publish(1)
        epoch, us = (int(part, 16) for part in event.cursor.split("-")[1::2])
        ahead = us + 60_000_000
        ring = channel._keys.buckets
        server().delete(*buckets(channel))
        server().rpush(ring[ahead // 100_000 % len(ring)], f"[1,{ahead},0,1]")
        server().set(channel._keys.head, f"1-{ahead}-{epoch}-1", px=100_000)
        second = channel.publish(2)
        assert second.published_at.timestamp() * 1_000_000 >= ahead
        assert payloads(channel.fetch()) == [1, 2]
        assert payloads(channel.fetch(second.cursor)) == []


@pytest.mark.timing
class TestWaiting:
    @pytest.fixture
    def without_polling(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(broadcast, "POLL_INTERVAL", 3600.0)

    @pytest.mark.usefixtures("without_polling")
    def test_a_publish_wakes_all_waiting_readers(self, channel: Broadcast) -> None:
        start = channel.cursor()

        def read() -> tuple[Batch, float]:
            batch = channel.fetch(start, wait=10)
            clients.close()
            return batch, time.monotonic()

        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(read) for _ in range(4)]
            until(lambda: blocked() == 4)
            began = time.monotonic()
            event = channel.publish("now")
            done = [one.result() for one in waiting]
        assert [batch.events for batch, _ in done] == [[event]] * 4
        assert max(at for _, at in done) - began < 5

    @pytest.mark.usefixtures("without_polling")
    async def test_a_publish_wakes_waiting_tasks(self, channel: Broadcast) -> None:
        start = await channel.acursor()
        readers = [asyncio.ensure_future(channel.afetch(start, wait=10)) for _ in range(3)]
        while await asyncio.to_thread(blocked) < 3:  # noqa: ASYNC110 (the server doesn't tell)
            await asyncio.sleep(0.005)
        began = time.monotonic()
        event = await channel.apublish("now")
        assert [batch.events for batch in await asyncio.gather(*readers)] == [[event]] * 3
        assert time.monotonic() - began < 5
        await clients.aclose()

    @pytest.mark.usefixtures("without_polling")
    def test_existing_events_are_returned_at_once_and_a_wait_ends_in_time(self, channel: Broadcast) -> None:
        began, event = time.monotonic(), channel.publish("x")
        assert channel.fetch(wait=10).events == [event]
        assert time.monotonic() - began < 5
        began = time.monotonic()
        assert channel.fetch(event.cursor, wait=0.1).events == []
        assert 0.1 <= time.monotonic() - began < 5

    def test_a_wait_does_not_poll(self, channel: Broadcast) -> None:
        start = channel.cursor()
        channel.fetch(start, wait=0.01)  # connections are there
        before = scripts()
        channel.fetch(start, wait=0.4)
        assert scripts() - before < 5

    def test_a_lost_hint_costs_the_interval_of_polls(
        self, channel: Broadcast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(broadcast, "POLL_INTERVAL", 0.2)
        start = channel.cursor()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(channel.fetch, start, wait=10)
            until(lambda: blocked() == 1)
            server().delete(channel._keys.waiting)
            began = time.monotonic()
            channel.publish("x")
            assert payloads(waiting.result()) == ["x"]
        assert time.monotonic() - began < 5

    @pytest.mark.usefixtures("without_polling")
    def test_an_event_just_before_the_wait_is_noticed(self, channel: Broadcast) -> None:
        """Between the read and the announcement of the wait, or between that and the wait."""
        body = steps(channel.fetch, channel.cursor(), wait=10)
        announce = body.send(reply_to(next(body)))
        channel.publish("in between")
        again = body.send(reply_to(announce))
        with pytest.raises(StopIteration) as end:
            body.send(reply_to(again))
        assert payloads(end.value.value) == ["in between"]
        body = steps(channel.fetch, channel.cursor(), wait=10)
        wait = body.send(reply_to(body.send(reply_to(next(body)))))
        channel.publish("in between")
        began = time.monotonic()
        assert reply_to(wait) is not None
        assert time.monotonic() - began < 5


NAMES = ["", "a\0b", "x" * 256, "\ud800"]
CURSORS = ["", "x", "1-2-3-4", "0-0-0", "zzzzzzzz-1-1-1", "00000000-1-1-1\n", "1" * 10_000]
#: argument → bad values, and a call with one of them
BAD: dict[str, tuple[list[Any], Callable[[Broadcast, Any], object]]] = {
    "channel": (NAMES, lambda channel, bad: Broadcast(bad)),
    "name": (NAMES, lambda channel, bad: channel.position(bad)),
    "cursor": ([*CURSORS, 5], lambda channel, bad: channel.fetch(bad)),
    "cursor ": (CURSORS, lambda channel, bad: channel.keep("me", bad)),
    "cursor  ": (CURSORS, lambda channel, bad: channel.consume(print, cursor=bad)),
    "limit": ([0, -1, 1001, True, "5", 1.5], lambda channel, bad: channel.fetch(limit=bad)),
    "wait": ([-1, float("nan"), float("inf"), "5", True], lambda channel, bad: channel.fetch(wait=bad)),
    "payload": ([{1: 2}, {"x"}, object(), float("nan"), "\ud800", b"x"], Broadcast.publish),
    "request_id": ([""], lambda channel, bad: channel.publish("x", request_id=bad)),
    "attempts": ([0], lambda channel, bad: channel.consume(print, attempts=bad)),
}


class TestBadInput:
    @pytest.mark.parametrize("argument", BAD)
    def test_it_is_refused(self, argument: str, channel: Broadcast) -> None:
        values, act = BAD[argument]
        for bad in values:
            wrong = TypeError if argument == "cursor" and bad == 5 else (ValueError, TypeError)
            with pytest.raises(wrong, match=argument.strip()):
                act(channel, bad)
        assert channel.fetch().events == []

    @pytest.mark.parametrize(("epoch", "stamp"), [("1" * 14, "1"), ("1", "1" * 14)])
    def test_a_cursor_with_a_number_that_is_not_exact_in_lua(
        self, epoch: str, stamp: str, channel: Broadcast
    ) -> None:
        own = channel.cursor().partition("-")[0]
        with pytest.raises(ValueError, match="cursor is not valid"):
            channel.fetch(f"{own}-{epoch}-1-{stamp}")

    def test_a_cursor_of_another_channel(self, channel: Broadcast) -> None:
        with pytest.raises(ValueError, match="another channel"):
            channel.fetch(Broadcast("other").cursor())

    @pytest.mark.parametrize("which", ["head", "requests", "bell", "waiting", "buckets"])
    def test_a_key_that_holds_another_type(self, which: str, channel: Broadcast) -> None:
        found = getattr(channel._keys, which)
        if which == "requests":
            channel.cursor()  # creates the channel
        for name in [found] if isinstance(found, str) else found:
            server().set(name, "x") if which == "requests" else server().hset(name, "a", "b")
        before = snapshot()
        if which == "waiting":
            assert channel.publish("x").id == 1
        else:
            with pytest.raises(ConfigurationError, match="another type"):
                channel.publish("x")
            assert snapshot() == before
