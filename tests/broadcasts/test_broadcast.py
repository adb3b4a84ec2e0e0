"""Broadcasts: publishing, reading in order, and the reporting of losses."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
    MessagingError,
    OutcomeUnknown,
    Unavailable,
)
from django_redis_messaging.core import clients
from django_redis_messaging.services.broadcasts import broadcast
from django_redis_messaging.services.broadcasts import broadcast as base
from django_redis_messaging.services.broadcasts.broadcast import BroadcastKeys
from django_redis_messaging.services.common import consuming

from ..support.server import all_keys, change, server, server_ms, snapshot, until


@pytest.fixture(autouse=True)
def small(messaging_alias: str, settings: Settings) -> None:
    """Buckets of 0.1 s with a long retention."""
    change(settings, BROADCAST_BUCKET=0.1, BROADCAST_RETENTION=9)


@pytest.fixture
def channel(small: None) -> Broadcast:
    return Broadcast("news")


def payloads(batch: Batch) -> list[Any]:
    return [event.payload for event in batch.events]


def published(channel: Broadcast, *items: Any) -> list[Event]:
    return [channel.publish(item) for item in items]


def keys_of(channel: Broadcast) -> BroadcastKeys:
    return channel._keys


def buckets(channel: Broadcast) -> list[str]:
    """The buckets that exist."""
    return [key for key in all_keys() if key in set(keys_of(channel).buckets)]


def next_bucket() -> None:
    """Wait until another bucket has begun."""
    now = server_ms() // 100
    until(lambda: server_ms() // 100 > now)


def lose(channel: Broadcast, count: int = 1) -> None:
    """Let the oldest buckets expire."""
    oldest = sorted(buckets(channel), key=lambda key: server().lindex(key, 0).split(b",")[1])
    server().delete(*oldest[:count])


class TestEvents:
    def test_all_readers_get_the_events_in_order(self, channel: Broadcast) -> None:
        start = channel.cursor()
        events = published(channel, "a", {"b": [1, None]}, "ü")
        assert [event.id for event in events] == [1, 2, 3]
        for reader in (Broadcast("news"), Broadcast("news")):
            batch = reader.fetch(start)
            assert batch.events == events
            assert payloads(batch) == ["a", {"b": [1, None]}, "ü"]
            assert not batch.missed

    def test_equal_payloads_are_two_events(self, channel: Broadcast) -> None:
        published(channel, "same", "same")
        assert payloads(channel.fetch()) == ["same", "same"]

    def test_each_event_is_read_once(self, channel: Broadcast) -> None:
        cursor = channel.cursor()
        for number in range(5):
            channel.publish(number)
            batch = channel.fetch(cursor)
            assert payloads(batch) == [number]
            cursor = batch.cursor
            assert channel.fetch(cursor) == Batch([], cursor, missed=False)

    def test_reading_across_buckets(self, channel: Broadcast) -> None:
        cursor, seen = channel.cursor(), []
        for number in range(7):
            channel.publish(number)
            if number % 3 == 2:
                batch = channel.fetch(cursor)
                cursor, seen = batch.cursor, seen + payloads(batch)
                assert not batch.missed
            next_bucket()
        assert seen + payloads(channel.fetch(cursor)) == list(range(7))
        assert len(buckets(channel)) == 7

    def test_without_a_cursor_all_kept_events_are_read(self, channel: Broadcast) -> None:
        published(channel, 1, 2)
        assert payloads(channel.fetch()) == [1, 2]
        next_bucket()
        channel.publish(3)
        lose(channel)
        assert channel.fetch() == Batch([channel.fetch().events[0]], channel.cursor(), missed=False)
        assert payloads(channel.fetch()) == [3]

    def test_a_new_cursor_is_after_the_newest_event(self, channel: Broadcast) -> None:
        channel.publish("before")
        cursor = channel.cursor()
        channel.publish("after")
        assert payloads(channel.fetch(cursor)) == ["after"]

    def test_the_cursor_of_an_event_is_after_it(self, channel: Broadcast) -> None:
        first, second = published(channel, 1, 2)
        assert payloads(channel.fetch(first.cursor)) == [2]
        assert channel.fetch(second.cursor).events == []
        assert [event.cursor for event in channel.fetch().events] == [first.cursor, second.cursor]

    def test_times_are_server_times(self, channel: Broadcast) -> None:
        before = server_ms()
        event = channel.publish(1)
        assert before <= event.published_at.timestamp() * 1000 <= server_ms() + 1
        assert event.published_at.utcoffset() == timedelta(0)
        assert channel.fetch().events == [event]

    def test_a_limit_makes_pages(self, channel: Broadcast) -> None:
        published(channel, *range(7))
        cursor, seen = None, []
        while found := channel.fetch(cursor, limit=3):
            if not found.events:
                break
            seen.append(payloads(found))
            cursor = found.cursor
        assert seen == [[0, 1, 2], [3, 4, 5], [6]]

    def test_more_events_than_one_call_reads(
        self, channel: Broadcast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(base, "PAGE_SIZE", 60)
        for number in range(250):
            channel.publish(number)
        first = channel.fetch(limit=200)
        assert payloads(first) == list(range(200))
        assert payloads(channel.fetch(first.cursor, limit=200)) == list(range(200, 250))
        assert payloads(channel.fetch(first.cursor, limit=50)) == list(range(200, 250))

    def test_large_events_make_a_batch_shorter(self, channel: Broadcast) -> None:
        for number in range(120):
            channel.publish([number, "x" * 60_000])
        seen: list[int] = []
        cursor, batches = None, 0
        while events := (batch := channel.fetch(cursor)).events:
            assert not batch.missed
            seen += [event.payload[0] for event in events]
            cursor, batches = batch.cursor, batches + 1
        assert seen == list(range(120))
        assert batches >= 2

    def test_channels_are_independent(self, channel: Broadcast) -> None:
        other = Broadcast("other")
        published(channel, 1)
        published(other, 2)
        assert payloads(channel.fetch()) == [1]
        assert payloads(other.fetch()) == [2]

    def test_many_publishers_at_once(self, channel: Broadcast) -> None:
        start = channel.cursor()

        def publish(who: int) -> None:
            for number in range(40):
                channel.publish([who, number])
            clients.close()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(publish, range(4)))
        events = channel.fetch(start).events
        assert [event.id for event in events] == list(range(1, 161))
        for who in range(4):
            assert [event.payload[1] for event in events if event.payload[0] == who] == list(range(40))

    async def test_the_async_versions_do_the_same(self, channel: Broadcast) -> None:
        start = await channel.acursor()
        event = await channel.apublish("x")
        assert (await channel.afetch(start)).events == [event]
        await channel.akeep("me", event.cursor)
        assert await channel.aposition("me") == event.cursor
        await clients.aclose()


class TestRequests:
    def test_a_repeat_publishes_nothing(self, channel: Broadcast) -> None:
        first = channel.publish("x", request_id="r")
        channel.publish("y")
        next_bucket()
        assert channel.publish("x", request_id="r") == first
        assert payloads(channel.fetch()) == ["x", "y"]

    def test_a_repeat_with_another_payload_gets_the_published_event(self, channel: Broadcast) -> None:
        channel.publish("before")
        first = channel.publish({"n": [1]}, request_id="r")
        for _ in range(3):  # also if its bucket is not the current one
            assert channel.publish("other", request_id="r") == first
            next_bucket()
            channel.publish("after")
        lose(channel, 1)
        assert channel.publish("other", request_id="r").id == first.id
        assert payloads(channel.fetch()) == ["after"] * 3

    def test_another_channel_has_its_own_requests(self, channel: Broadcast) -> None:
        channel.publish("x", request_id="r")
        Broadcast("other").publish("x", request_id="r")
        assert payloads(Broadcast("other").fetch()) == ["x"]


@pytest.mark.timing
class TestMissed:
    def test_a_reader_that_was_away_too_long_missed_events(
        self, channel: Broadcast, settings: Settings
    ) -> None:
        change(settings, BROADCAST_BUCKET=0.1, BROADCAST_RETENTION=0.6)
        channel = Broadcast("news")
        cursor = channel.publish("seen").cursor
        channel.publish("missed")
        until(lambda: not buckets(channel))
        batch = channel.fetch(cursor)
        assert (batch.events, batch.missed) == ([], True)
        assert channel.fetch(batch.cursor) == Batch([], batch.cursor, missed=False)
        channel.publish("new")
        batch = channel.fetch(cursor)
        assert (payloads(batch), batch.missed) == (["new"], True)

    def test_a_reader_of_an_idle_channel_missed_nothing(self, channel: Broadcast, settings: Settings) -> None:
        change(settings, BROADCAST_BUCKET=0.1, BROADCAST_RETENTION=0.6)
        channel = Broadcast("news")
        cursor = channel.publish("seen").cursor
        until(lambda: not buckets(channel))
        assert channel.fetch(cursor) == Batch([], cursor, missed=False)
        channel.publish("new")
        batch = channel.fetch(cursor)
        assert (payloads(batch), batch.missed) == (["new"], False)

    def test_a_batch_begins_with_the_oldest_event_left(self, channel: Broadcast) -> None:
        cursor = channel.cursor()
        for number in range(3):
            channel.publish(number)
            next_bucket()
        lose(channel, 2)
        batch = channel.fetch(cursor)
        assert (payloads(batch), batch.missed) == ([2], True)
        assert not channel.fetch(batch.cursor).missed

    def test_a_gap_is_reported_when_it_is_reached(self, channel: Broadcast) -> None:
        cursor = channel.cursor()
        for number in range(3):
            channel.publish(number)
            next_bucket()
        ordered = sorted(buckets(channel), key=lambda key: server().lindex(key, 0).split(b",")[1])
        server().delete(ordered[1])
        first = channel.fetch(cursor)
        assert (payloads(first), first.missed) == ([0], False)
        second = channel.fetch(first.cursor)
        assert (payloads(second), second.missed) == ([2], True)

    def test_a_page_that_begins_with_a_gap_is_left_to_the_next_fetch(
        self, channel: Broadcast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(base, "PAGE_SIZE", 2)
        cursor = channel.cursor()
        for number in range(6):
            channel.publish(number)
            if number % 2:
                next_bucket()
        ordered = sorted(buckets(channel), key=lambda key: server().lindex(key, 0).split(b",")[1])
        server().delete(ordered[1])
        first = channel.fetch(cursor, limit=6)
        assert (payloads(first), first.missed) == ([0, 1], False)
        second = channel.fetch(first.cursor, limit=6)
        assert (payloads(second), second.missed) == ([4, 5], True)

    def test_a_deleted_channel(self, channel: Broadcast) -> None:
        cursor = channel.publish("x").cursor
        server().delete(*all_keys())
        batch = channel.fetch(cursor)
        assert (batch.events, batch.missed) == ([], True)
        channel.publish("y")
        batch = channel.fetch(batch.cursor)
        assert (payloads(batch), batch.missed) == (["y"], False)

    def test_a_recreated_channel(self, channel: Broadcast) -> None:
        cursor = channel.publish("x").cursor
        server().delete(*all_keys())
        published(channel, "y", "z")
        batch = channel.fetch(cursor)
        assert (payloads(batch), batch.missed) == (["y", "z"], True)

    def test_an_empty_channel_that_was_lost_and_recreated(self, channel: Broadcast) -> None:
        cursor = channel.cursor()
        channel.publish("lost")
        server().delete(*all_keys())
        channel.publish("new")
        assert channel.fetch(cursor).missed

    def test_an_idle_channel_that_was_lost(self, channel: Broadcast) -> None:
        cursor = channel.cursor()
        server().delete(*all_keys())
        assert channel.fetch(cursor).missed


@contextmanager
def rolled_back() -> Iterator[None]:
    """Undo all changes of the block at its end: restore all keys."""
    before = snapshot()
    yield
    server().delete(*all_keys())
    for key, dump in before.items():
        server().restore(key, 0, dump)


class TestRolledBack:
    """A restarted server or a promoted replica has lost the latest events."""

    def test_a_reader_ahead_of_the_channel_missed_events(self, channel: Broadcast) -> None:
        channel.publish(1)
        with rolled_back():
            cursor = channel.publish("lost").cursor
        batch = channel.fetch(cursor)
        assert (payloads(batch), batch.missed) == ([1], True)

    @pytest.mark.parametrize("others", [1, 2, 5])
    def test_a_reader_of_ids_that_were_reused_missed_events(self, others: int, channel: Broadcast) -> None:
        channel.publish(1)
        with rolled_back():
            cursor = published(channel, "lost", "lost too")[1].cursor
        published(channel, *range(2, 2 + others))
        batch = channel.fetch(cursor)
        assert batch.missed
        assert payloads(batch) == list(range(1, 2 + others))

    def test_when_the_event_of_the_cursor_has_expired_since(self, channel: Broadcast) -> None:
        channel.publish(1)
        with rolled_back():
            cursor = channel.publish("lost").cursor
        channel.publish(2)
        next_bucket()
        channel.publish(3)
        lose(channel)
        assert channel.fetch(cursor).missed

    def test_a_loss_that_one_reader_detects_is_reported_to_all(self, channel: Broadcast) -> None:
        behind = channel.publish(1).cursor
        with rolled_back():
            ahead = channel.publish("lost").cursor
        channel.publish(2)
        assert channel.fetch(ahead).missed
        batch = channel.fetch(behind)
        assert (payloads(batch), batch.missed) == ([1, 2], True)

    def test_a_loss_is_reported_once(self, channel: Broadcast) -> None:
        channel.publish(1)
        with rolled_back():
            ahead = channel.publish("lost").cursor
        batch = channel.fetch(ahead)
        channel.publish(2)
        batch = channel.fetch(batch.cursor)
        assert (payloads(batch), batch.missed) == ([2], False)

    def test_a_reader_that_was_behind_continues(self, channel: Broadcast) -> None:
        cursor = channel.publish(1).cursor
        with rolled_back():
            channel.publish("lost")
        channel.publish(2)
        batch = channel.fetch(cursor)
        assert (payloads(batch), batch.missed) == ([2], False)


@pytest.mark.timing
class TestLimits:
    def test_the_oldest_events_in_excess_of_the_length_are_removed(
        self, channel: Broadcast, settings: Settings
    ) -> None:
        change(settings, BROADCAST_MAX_LENGTH=3)
        cursor = channel.cursor()
        for number in range(10):
            channel.publish(number)
            if number % 4 == 3:
                next_bucket()
        batch = channel.fetch(cursor)
        assert (payloads(batch), batch.missed) == ([7, 8, 9], True)
        assert sum(server().llen(key) for key in buckets(channel)) == 3
        assert payloads(channel.fetch()) == [7, 8, 9]

    def test_the_length_limits_reads(self, channel: Broadcast, settings: Settings) -> None:
        cursor = published(channel, *range(10))[4].cursor
        change(settings, BROADCAST_MAX_LENGTH=3)
        batch = channel.fetch(cursor)
        assert (payloads(batch), batch.missed) == ([7, 8, 9], True)

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
        script = base.Script

        def failing(name: str, *rest: Any) -> Any:
            if name == "broadcasts/trim":
                raise Unavailable("away")
            return script(name, *rest)

        monkeypatch.setattr(broadcast, "Script", failing)
        assert [event.id for event in published(channel, 1, 2, 3)] == [1, 2, 3]
        assert "Trimming channel 'news' failed; a later publish repeats it: away" in caplog.text
        assert payloads(channel.fetch()) == [3]
        monkeypatch.undo()

    def test_the_size_of_a_payload_is_limited(self, channel: Broadcast, settings: Settings) -> None:
        change(settings, BROADCAST_MAX_BYTES=10)
        channel.publish("x" * 8)
        channel.publish("ü" * 4)
        for payload in ("x" * 9, "ü" * 5):
            with pytest.raises(LimitExceeded, match="BROADCAST_MAX_BYTES") as error:
                channel.publish(payload)
            assert error.value.limit == 10
        assert len(channel.fetch().events) == 2

    def test_each_key_expires(self, channel: Broadcast) -> None:
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(channel.fetch, channel.cursor(), wait=5)
            until(lambda: server().exists(keys_of(channel).waiting))
            channel.publish("x")
            waiter.result()
        channel.keep("me", channel.cursor())
        found = all_keys()
        assert len(found) == 6
        assert all(server().pttl(key) > 0 for key in found)

    def test_a_bucket_is_kept_for_the_retention_after_its_end(self, channel: Broadcast) -> None:
        event = channel.publish("x")
        [bucket] = buckets(channel)
        together = server().pipeline()  # at one moment
        left, (seconds, micros) = together.pttl(bucket).time().execute()
        left += seconds * 1000 + micros / 1000 - event.published_at.timestamp() * 1000
        assert 9000 <= left <= 9100

    def test_a_key_of_the_ring_is_reused_only_after_its_expiry(self, settings: Settings) -> None:
        change(settings, BROADCAST_BUCKET=0.1, BROADCAST_RETENTION=0.6)
        channel = Broadcast("short")
        start, seen, missed, looks = channel.cursor(), [], False, [server_ms()]
        ends = time.monotonic() + 1.8  # two turns of the ring
        while time.monotonic() < ends:
            channel.publish(len(seen))
            batch = channel.fetch(start)
            start, missed = batch.cursor, missed or batch.missed
            seen += payloads(batch)
            looks.append(server_ms())
        left = len(channel.fetch().events)
        looks.append(server_ms())
        # a reader that is away for longer misses events, and may find no channel
        in_time = max(after - before for before, after in itertools.pairwise(looks)) < 600
        assert missed is False or not in_time
        assert seen == list(range(len(seen))) or not in_time
        assert left > 1 or not in_time
        assert left < len(seen)

    def test_there_are_at_most_a_hundred_buckets(self, settings: Settings) -> None:
        change(settings, BROADCAST_BUCKET=0.001, BROADCAST_RETENTION=1000)
        assert len(keys_of(Broadcast("many")).buckets) == 102

    def test_reading_keeps_a_channel(self, channel: Broadcast) -> None:
        cursor = channel.publish("x").cursor
        head = keys_of(channel).head
        server().pexpire(head, 10_000)
        assert channel.fetch(cursor).events == []
        assert server().pttl(head) > base.IDLE_TTL - 10_000

    def test_a_lost_head_removes_the_buckets(self, channel: Broadcast) -> None:
        """Ids begin with 1 again, so the remaining events of the earlier channel must not be read as new
        ones."""
        cursor = channel.cursor()
        assert (
            channel.fetch(cursor, wait=0.01).events == []
        )  # a reader waits, so the publish writes to the bell
        for payload in range(3):
            channel.publish(payload)
        server().delete(keys_of(channel).head)
        newcomer = channel.cursor()
        assert channel.fetch(newcomer, wait=0.01).events == []
        assert channel.publish("new").id == 1
        assert [event.payload for event in channel.fetch(newcomer).events] == ["new"]
        old = channel.fetch(cursor)
        assert old.missed
        assert [event.payload for event in old.events] == ["new"]

    def test_keeping_a_position_is_not_retried_at_once(
        self, consume: Consume, channel: Broadcast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each attempt may last until the deadline, which delays the events of the batch."""
        seen: list[int] = []
        tried: list[int] = []
        monkeypatch.setattr(broadcast, "KEEP_INTERVAL", 3600)
        monkeypatch.setattr(broadcast, "monotonic", lambda: time.monotonic() + (3600 if seen else 0))
        channel.keep("me", channel.cursor())
        published(channel, *range(4))

        def fail(*_: object) -> None:
            tried.append(len(seen))
            raise Unavailable("away")

        async def afail(*_: object) -> None:
            fail()

        monkeypatch.setattr(channel, "keep", fail)
        monkeypatch.setattr(channel, "akeep", afail)
        stop = Stopping(lambda: len(seen) == 4)
        consume(channel, lambda event: seen.append(event.payload), name="me", stop=stop)
        assert tried == [1, 4]


class TestClocks:
    """Wrong client clocks, and a server clock that goes back, change nothing."""

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
        [bucket] = buckets(channel)
        number = ahead // 1000 // 100
        count = len(keys_of(channel).buckets)
        server().delete(bucket)
        server().rpush(keys_of(channel).buckets[number % count], f"[1,{ahead},0,1]")
        server().set(keys_of(channel).head, f"1-{ahead}-{epoch}-1", px=100_000)
        second = channel.publish(2)
        assert second.published_at.timestamp() * 1_000_000 >= ahead
        assert payloads(channel.fetch()) == [1, 2]
        assert payloads(channel.fetch(second.cursor)) == []


@pytest.fixture
def without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting readers don't poll."""
    monkeypatch.setattr(base, "POLL_INTERVAL", 3600.0)


@pytest.mark.timing
class TestWaiting:
    @pytest.mark.usefixtures("without_polling")
    def test_a_publish_wakes_all_waiting_readers(self, channel: Broadcast) -> None:
        start = channel.cursor()
        took: list[float] = []

        def read() -> Batch:
            batch = channel.fetch(start, wait=10)
            took.append(time.monotonic() - began)
            clients.close()
            return batch

        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(read) for _ in range(4)]
            until(lambda: blocked() == 4)
            began = time.monotonic()
            event = channel.publish("now")
            assert [one.result().events for one in waiting] == [[event]] * 4
        assert max(took) < 5

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

    def test_existing_events_are_returned_at_once(self, channel: Broadcast) -> None:
        channel.publish("x")
        began = time.monotonic()
        assert payloads(channel.fetch(wait=10)) == ["x"]
        assert time.monotonic() - began < 5

    @pytest.mark.usefixtures("without_polling")
    def test_a_wait_ends_in_time(self, channel: Broadcast) -> None:
        began = time.monotonic()
        assert channel.fetch(channel.cursor(), wait=0.1).events == []
        assert 0.1 <= time.monotonic() - began < 5

    def test_a_wait_does_not_poll(self, channel: Broadcast) -> None:
        start = channel.cursor()
        channel.fetch(start, wait=0.01)  # connections are there
        before = server().info("stats")["total_commands_processed"]
        channel.fetch(start, wait=0.9)
        # a script and each of its commands are counted
        assert server().info("stats")["total_commands_processed"] - before < 20

    def test_a_lost_hint_costs_a_second(self, channel: Broadcast) -> None:
        start = channel.cursor()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(channel.fetch, start, wait=10)
            until(lambda: blocked() == 1)
            server().delete(keys_of(channel).waiting)
            began = time.monotonic()
            channel.publish("x")
            assert payloads(waiting.result()) == ["x"]
        assert time.monotonic() - began < 5

    def test_an_event_between_the_read_and_the_wait_is_noticed(self, channel: Broadcast) -> None:
        from ..support.server import reply_to, steps

        body = steps(channel.fetch, channel.cursor(), wait=10)
        look = next(body)
        announce = body.send(reply_to(look))
        channel.publish("in between")
        again = body.send(reply_to(announce))
        with pytest.raises(StopIteration) as end:
            body.send(reply_to(again))
        assert payloads(end.value.value) == ["in between"]

    @pytest.mark.usefixtures("without_polling")
    def test_an_event_before_the_wait_blocks_is_noticed(self, channel: Broadcast) -> None:
        from ..support.server import reply_to, steps

        body = steps(channel.fetch, channel.cursor(), wait=10)
        announce = body.send(reply_to(next(body)))
        wait = body.send(reply_to(announce))
        channel.publish("in between")
        began = time.monotonic()
        assert reply_to(wait) is not None
        assert time.monotonic() - began < 5


def blocked() -> int:
    return int(server().info("clients")["blocked_clients"])


class TestBadInput:
    @pytest.mark.parametrize("name", ["", "a\0b", "x" * 256, "\ud800"])
    def test_names(self, name: str) -> None:
        with pytest.raises(ValueError, match="channel"):
            Broadcast(name)
        with pytest.raises(ValueError, match="name"):
            Broadcast("x").position(name)

    @pytest.mark.parametrize(
        "cursor", ["", "x", "1-2-3-4", "0-0-0", "zzzzzzzz-1-1-1", "00000000-1-1-1\n", "1" * 10_000]
    )
    def test_an_invalid_cursor(self, cursor: str, channel: Broadcast) -> None:
        for call in (channel.fetch, lambda given: channel.keep("me", given)):
            with pytest.raises(ValueError, match="cursor"):
                call(cursor)  # type: ignore[operator]
        with pytest.raises(ValueError, match="cursor"):
            channel.consume(print, cursor=cursor)

    @pytest.mark.parametrize(("epoch", "stamp"), [("1" * 14, "1"), ("1", "1" * 14)])
    def test_a_cursor_with_a_number_that_is_not_exact_in_lua(
        self, epoch: str, stamp: str, channel: Broadcast
    ) -> None:
        own = channel.cursor().partition("-")[0]
        with pytest.raises(ValueError, match="cursor is not valid"):
            channel.fetch(f"{own}-{epoch}-1-{stamp}")

    def test_a_cursor_of_another_type(self, channel: Broadcast) -> None:
        with pytest.raises(TypeError, match="cursor must be a str or None, not int"):
            channel.fetch(5)  # type: ignore[arg-type]

    def test_a_cursor_of_another_channel(self, channel: Broadcast) -> None:
        cursor = Broadcast("other").cursor()
        with pytest.raises(ValueError, match="another channel"):
            channel.fetch(cursor)

    @pytest.mark.parametrize("limit", [0, -1, 1001, True, "5", 1.5])
    def test_limits(self, limit: Any, channel: Broadcast) -> None:
        with pytest.raises((ValueError, TypeError), match="limit"):
            channel.fetch(limit=limit)

    @pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), "5", True])
    def test_waits(self, wait: Any, channel: Broadcast) -> None:
        with pytest.raises((ValueError, TypeError), match="wait"):
            channel.fetch(wait=wait)

    @pytest.mark.parametrize("payload", [{1: 2}, {"x"}, object(), float("nan"), "\ud800", b"x"])
    def test_payloads(self, payload: Any, channel: Broadcast) -> None:
        with pytest.raises((ValueError, TypeError), match="payload"):
            channel.publish(payload)
        assert channel.fetch().events == []

    def test_request_ids_and_attempts(self, channel: Broadcast) -> None:
        with pytest.raises(ValueError, match="request_id"):
            channel.publish("x", request_id="")
        with pytest.raises(ValueError, match="attempts"):
            channel.consume(print, attempts=0)

    @pytest.mark.parametrize("which", ["head", "requests", "bell", "waiting", "bucket"])
    def test_a_key_that_holds_another_type(self, which: str, channel: Broadcast) -> None:
        found = keys_of(channel)
        names = {
            "head": [found.head],
            "requests": found.requests,
            "bell": [found.bell],
            "waiting": [],
            "bucket": found.buckets,
        }[which]
        for name in names:
            server().hset(name, "a", "b") if which != "requests" else server().set(name, "x")
        if which == "requests":
            channel.cursor()  # creates the channel
        before = snapshot()
        if which == "waiting":
            assert channel.publish("x").id == 1
        else:
            with pytest.raises(ConfigurationError, match="another type"):
                channel.publish("x")
            assert snapshot() == before


Consume = Callable[..., None]


class Stopping:
    """Is set once a condition is true; raises if a test hangs."""

    def __init__(self, holds: Callable[[], object]) -> None:
        self._holds = holds
        self._ends = time.monotonic() + 60

    def is_set(self) -> bool:
        if time.monotonic() > self._ends:
            raise TimeoutError("it did not happen in time")
        return bool(self._holds())


@pytest.fixture(params=["blocking", "awaiting", "awaiting a coroutine function"])
def consume(request: pytest.FixtureRequest) -> Consume:
    """Either version of consume; the async one also with coroutine functions."""

    def do(channel: Broadcast, handler: Callable[..., Any], **options: Any) -> None:
        if request.param == "blocking":
            channel.consume(handler, **options)
            return

        def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
            async def called(*args: Any) -> None:
                await asyncio.sleep(0)
                function(*args)

            return called

        async def run() -> None:
            if request.param == "awaiting":
                await channel.aconsume(handler, **options)
            else:
                if "on_missed" in options:
                    options["on_missed"] = awaited(options["on_missed"])
                await channel.aconsume(awaited(handler), **options)
            await clients.aclose()

        asyncio.run(run())

    return do


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pauses short."""
    monkeypatch.setattr(consuming, "FIRST_PAUSE", 0.01)


class TestConsume:
    def test_each_event_in_its_order(self, consume: Consume, channel: Broadcast) -> None:
        start = channel.cursor()
        published(channel, *range(5))
        seen: list[int] = []
        stop = Stopping(lambda: len(seen) == 5)
        consume(channel, lambda event: seen.append(event.payload), cursor=start, stop=stop)
        assert seen == list(range(5))

    def test_without_a_position_it_begins_with_the_next_event(self, channel: Broadcast) -> None:
        channel.publish("before")
        seen: list[Any] = []
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            loop = pool.submit(channel.consume, seen.append, stop=stop)
            until(lambda: server().exists(keys_of(channel).waiting))
            event = channel.publish("after")
            until(lambda: seen)
            stop.set()
            loop.result()
        assert seen == [event]

    def test_a_named_consumer_continues_at_its_position(self, consume: Consume, channel: Broadcast) -> None:
        channel.keep("me", channel.cursor())
        published(channel, 1, 2, 3)
        seen: list[int] = []

        def run(many: int) -> None:
            consume(
                channel, lambda event: seen.append(event.payload), name="me",
                stop=Stopping(lambda: len(seen) >= many),
            )  # fmt: skip

        run(3)
        published(channel, 4)
        run(4)
        assert seen == [1, 2, 3, 4]
        assert channel.fetch(channel.position("me")).events == []

    def test_the_position_of_a_new_name_is_kept_at_once(self, consume: Consume, channel: Broadcast) -> None:
        published(channel, 1)
        consume(channel, print, name="me", stop=Stopping(lambda: channel.position("me")))
        assert channel.position("me") == channel.cursor()

    def test_a_stopped_consumer_gets_no_event_twice(self, consume: Consume, channel: Broadcast) -> None:
        channel.keep("me", channel.cursor())
        published(channel, *range(5))
        seen: list[int] = []
        for many in (2, 5):
            stop = Stopping(lambda many=many: len(seen) >= many)  # type: ignore[misc]
            consume(channel, lambda event: seen.append(event.payload), name="me", stop=stop)
        assert seen == [0, 1, 2, 3, 4]

    def test_after_a_crash_a_batch_is_handled_again(self, consume: Consume, channel: Broadcast) -> None:
        channel.keep("me", channel.cursor())
        published(channel, 1, 2, 3)
        seen: list[int] = []

        def crash(event: Event) -> None:
            seen.append(event.payload)
            if len(seen) == 2:
                raise SystemExit

        with pytest.raises(SystemExit):
            consume(channel, crash, name="me")
        consume(channel, crash, name="me", stop=Stopping(lambda: len(seen) == 5))
        assert seen == [1, 2, 1, 2, 3]

    def test_the_position_within_a_long_batch_is_kept(
        self, consume: Consume, channel: Broadcast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(broadcast, "KEEP_INTERVAL", 0)
        channel.keep("me", channel.cursor())
        events = published(channel, 1, 2, 3)
        kept: list[str | None] = []

        def crash(event: Event) -> None:
            kept.append(channel.position("me"))
            if event.id == 3:
                raise SystemExit

        with pytest.raises(SystemExit):
            consume(channel, crash, name="me")
        assert kept[1:] == [events[0].cursor, events[1].cursor]

    def test_a_handler_that_raises_is_retried(
        self, consume: Consume, channel: Broadcast, caplog: pytest.LogCaptureFixture
    ) -> None:
        start = channel.cursor()
        published(channel, "secret", "fine")
        tried: list[str] = []

        def handler(event: Event) -> None:
            tried.append(event.payload)
            if len(tried) == 1:
                raise RuntimeError("not yet")

        consume(channel, handler, cursor=start, stop=Stopping(lambda: len(tried) == 3))
        assert tried == ["secret", "secret", "fine"]
        [record] = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert record.getMessage() == (
            "Handling event 1 of channel 'news' failed, attempt 1 of 3: retrying in 0.0 s."
        )

    def test_an_event_whose_handler_always_raises_is_skipped(
        self, consume: Consume, channel: Broadcast, caplog: pytest.LogCaptureFixture
    ) -> None:
        start = channel.cursor()
        published(channel, "bad", "fine")
        tried: list[str] = []

        def handler(event: Event) -> None:
            tried.append(event.payload)
            if event.payload == "bad":
                raise RuntimeError

        stop = Stopping(lambda: "fine" in tried)
        consume(channel, handler, cursor=start, attempts=2, stop=stop)
        assert tried == ["bad", "bad", "fine"]
        assert "attempt 2 of 2: giving up." in caplog.text

    def test_it_can_be_stopped_between_two_attempts(self, consume: Consume, channel: Broadcast) -> None:
        channel.keep("me", channel.cursor())
        published(channel, "bad", "other")
        tried: list[str] = []

        def handler(event: Event) -> None:
            tried.append(event.payload)
            raise RuntimeError

        consume(channel, handler, name="me", attempts=1000, stop=Stopping(lambda: tried))
        assert tried == ["bad"]
        assert payloads(channel.fetch(channel.position("me"))) == ["bad", "other"]

    def test_on_missed_is_called_before_the_events(self, consume: Consume, channel: Broadcast) -> None:
        cursor = channel.publish(1).cursor
        server().delete(*all_keys())
        channel.publish(2)
        told: list[Any] = []

        def missed() -> None:
            told.append("missed")
            if len(told) == 1:
                raise RuntimeError  # it is retried, too

        stop = Stopping(lambda: 2 in told)
        consume(channel, lambda event: told.append(event.payload), cursor=cursor, on_missed=missed, stop=stop)
        assert told == ["missed", "missed", 2]

    def test_a_loss_without_on_missed_is_logged(
        self, consume: Consume, channel: Broadcast, caplog: pytest.LogCaptureFixture
    ) -> None:
        cursor = channel.publish(1).cursor
        server().delete(*all_keys())
        channel.publish(2)
        seen: list[Any] = []
        consume(channel, seen.append, cursor=cursor, stop=Stopping(lambda: seen))
        assert "Events of channel 'news' may be missing." in caplog.text

    @pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown, MessagingError])
    def test_it_continues_after_an_outage(
        self, error: type[MessagingError], consume: Consume, channel: Broadcast,
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        channel.keep("me", channel.cursor())
        published(channel, 1)
        monkeypatch.setattr(broadcast, "KEEP_INTERVAL", 0)
        script, failures, seen = broadcast.Script, ["broadcasts/fetch", "broadcasts/keep"], []

        def failing(name: str, *rest: Any) -> Any:
            if name in failures:
                failures.remove(name)
                raise error("away")
            return script(name, *rest)

        monkeypatch.setattr(base, "Script", failing)
        consume(channel, lambda event: seen.append(event.payload), name="me", stop=Stopping(lambda: seen))
        assert seen == [1]
        assert failures == []
        retries = re.findall(r"Consuming channel 'news' failed, retrying in \d\.\d s: away", caplog.text)
        assert len(retries) == 1
        assert caplog.text.count("Keeping the position in channel 'news' failed, retrying later: away") == 1
        assert channel.position("me") == channel.cursor()
