"""Aggregates: lines of files counted by period and key, each exactly once."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from contextlib import aclosing, closing
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

from django_redis_messaging import (
    Aggregator,
    Count,
    Counted,
    FileChannel,
    InvalidArgument,
    LeaseLost,
    LimitExceeded,
    MessagingError,
    conf,
)
from django_redis_messaging.services.aggregates import aggregator
from django_redis_messaging.services.aggregates.aggregator import AggregateKeys, Flush, Parse

from ..conftest import Call
from ..support.memory_file import Lines, counted, parse
from ..support.server import all_keys, change, server, snapshot, until

pytestmark = pytest.mark.usefixtures("closing")
#: one pair each, all different
MANY = [b"d%d k%d" % (number % 3, number) for number in range(1000)]


@pytest.fixture
def visits(messaging_alias: str) -> Aggregator:
    return Aggregator("visits")


def keys() -> AggregateKeys:
    return AggregateKeys(conf.prefix(), "visits")


def added(lines: int, malformed: int = 0) -> Counted:
    return Counted(lines=lines, malformed=malformed)


def stored(aggregate: Aggregator) -> dict[tuple[str, str], int]:
    """All counts of an aggregate. The totals are checked."""
    found = {}
    for period in aggregate.periods():
        counts = aggregate.top(period, 1000)
        assert sum(one.count for one in counts) == aggregate.total(period)
        found |= {(period, one.key): one.count for one in counts}
    return found


def failing(at: int, error: type[BaseException] = KeyboardInterrupt) -> Parse:
    """Fails at this call, like a process that is killed."""
    calls = iter(range(1, at))

    def parse_or_fail(line: bytes) -> list[tuple[str, str]]:
        if next(calls, None) is None:
            raise error
        return parse(line)

    return parse_or_fail


def not_called(line: bytes) -> None:
    raise AssertionError(f"parsed again: {line!r}")


class TestCounting:
    async def test_counts_by_period_and_key(self, call: Call) -> None:
        visits = Aggregator("visits")
        assert await call(visits, "top", "d1") == await call(visits, "periods") == []
        assert await call(visits, "total", "d1") == await call(visits, "malformed") == 0
        lines = [b"d1 de", b"d1 de", b"d1 fr", b"d2 de", b"", b"?"]
        assert await call(visits, "add_file", Lines(lines), parse) == added(6, 1)
        assert await call(visits, "top", "d1") == [Count("de", 2), Count("fr", 1)]
        assert await call(visits, "count", "d1", "de") == 2
        assert await call(visits, "count", "d1", "es") == 0
        assert await call(visits, "total", "d1") == 3
        assert await call(visits, "periods") == ["d1", "d2"]
        assert await call(visits, "malformed") == 1
        for id in (2, 3):
            assert await call(visits, "add_file", Lines(MANY, id), parse) == added(1000)
        assert visits.total("d1") == 3 + 2 * 333

    def test_a_pair_several_pairs_or_nothing(self, visits: Aggregator) -> None:
        results: list[Any] = [
            ("d", "a"), [("d", "a"), ("d", "b")], (("d", "a"), ("d", "a")), None, (), iter([("d", "c")]),
        ]  # fmt: skip
        given = iter(results)
        assert visits.add_file(Lines([b""] * len(results)), lambda line: next(given)) == added(6)
        assert stored(visits) == {("d", "a"): 4, ("d", "b"): 1, ("d", "c"): 1}
        assert visits.add_file(Lines([], 2), parse) == added(0)

    def test_parse_gets_the_lines_as_bytes_in_order(self, visits: Aggregator) -> None:
        got: list[bytes] = []
        visits.add_file(Lines([b"\xff", b"", b"x"]), got.append)
        assert (got, visits.periods()) == ([b"\xff", b"", b"x"], [])

    def test_any_text_is_a_key_and_a_name(self, visits: Aggregator) -> None:
        """Also none: unknown keys are part of the total. Aggregates are separate."""
        names = ["", "é" * 126, " ", "a:{b}%", "-1", "😀"]
        lines = Lines([b"%d" % at for at in range(len(names))])
        visits.add_file(lines, lambda line: (f"p {names[int(line)]}", names[int(line)]))
        assert stored(visits) == {(f"p {name}", name): 1 for name in names}
        other = Aggregator("vi:{si}ts")
        assert other.add_file(Lines([b"", b"", b"DE"]), lambda line: ("d", line.decode())) == added(3)
        assert other.top("d") == [Count("", 2), Count("DE", 1)]
        assert other.total("d") == 3

    def test_each_script_has_at_most_500_pairs(
        self, visits: Aggregator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes = []
        original = Aggregator._flush

        def watched(self: Aggregator, marker: str, id: int, flush: Flush) -> None:
            sizes.append(len(flush.counts))
            original(self, marker, id, flush)

        monkeypatch.setattr(Aggregator, "_flush", watched)
        hundred = b";".join(MANY[900:])
        lines = [*MANY[:399], hundred, *MANY]
        assert visits.add_file(Lines(lines), parse) == added(len(lines))
        assert max(sizes) == 499
        assert stored(visits) == counted(lines)

    def test_few_pairs_are_flushed_from_time_to_time(
        self, visits: Aggregator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A killed process has to parse a limited number of lines again."""
        monkeypatch.setattr(aggregator, "FLUSH_LINES", 3000)
        with pytest.raises(KeyboardInterrupt):
            visits.add_file(Lines([b"d a"] * 9999), failing(7500))
        assert visits.total("d") == 6000


class TestMalformedLines:
    @pytest.mark.parametrize(
        "pair", [("", "k"), ("p" * 256, "k"), ("p", "k" * 256), ("p\0", "k"), ("p", "\0"), ("p", "\ud800")]
    )
    def test_an_invalid_name_is_malformed(self, visits: Aggregator, pair: tuple[str, str]) -> None:
        results = iter([("p", "k"), pair, [("p", "not counted"), pair], ("p", "k")])
        assert visits.add_file(Lines([b""] * 4), lambda line: next(results)) == added(4, 2)
        assert stored(visits) == {("p", "k"): 2}

    def test_more_than_a_hundred_pairs_are_malformed(self, visits: Aggregator) -> None:
        lines = [b";".join(MANY[:100]), b";".join(MANY[:101])]
        assert visits.add_file(Lines(lines), parse) == added(2, 1)
        assert stored(visits) == counted(lines[:1])

    def test_an_endless_or_failing_iterable_is_malformed(self, visits: Aggregator) -> None:
        def failing(line: bytes) -> Any:
            yield "d", "not counted"
            raise ValueError

        assert visits.add_file(Lines([b""]), lambda line: iter(lambda: ("d", "k"), None)) == added(1, 1)
        assert visits.add_file(Lines([b""], 2), failing) == added(1, 1)
        assert visits.add_file(Lines([b"d \xff"], 3), parse) == added(1, 1)
        assert visits.periods() == []

    @pytest.mark.parametrize("result", ["ab", ("d", 1), [("d", "k", 1)], 7, ("d", "k", "x"), [["d", "k"]]])
    def test_another_type_is_an_error(self, visits: Aggregator, result: Any) -> None:
        results = iter([("d", "k"), result])
        with pytest.raises(TypeError) as raised:
            visits.add_file(Lines([b"", b""]), lambda line: next(results))
        assert raised.value.__notes__ == ["Raised for line 2 of the file."]
        assert all_keys() == []


class TestExactlyOnce:
    async def test_a_counted_file_is_not_read_again(self, call: Call) -> None:
        visits, again = Aggregator("visits"), Lines(MANY)
        await call(visits, "add_file", Lines(MANY), parse)
        before = snapshot()
        assert await call(visits, "add_file", again, not_called) == added(0)
        assert again.read == 0
        assert snapshot() == before

    @pytest.mark.parametrize("at", [1, 400, 401, 850])
    async def test_a_killed_process_is_continued(self, call: Call, at: int) -> None:
        visits, lines = Aggregator("visits"), [*MANY, *MANY]
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                await call(visits, "add_file", Lines(lines), failing(at))
        flushed = sum(stored(visits).values())
        assert flushed == 2 * ((at - 1) // 400 * 400)
        rest: list[bytes] = []

        def listed(line: bytes) -> Any:
            rest.append(line)
            return parse(line)

        assert await call(visits, "add_file", Lines(lines), listed) == added(2000 - flushed)
        assert rest == lines[flushed:], "lines that were counted are not parsed"
        assert stored(visits) == counted(lines)

    def test_an_older_or_empty_file_adds_nothing(self, visits: Aggregator) -> None:
        """A consumer gets a file only after it has acked those before."""
        visits.add_file(Lines([], 7), parse)
        for id in (6, 7):
            assert visits.add_file(Lines(MANY, id), not_called) == added(0)

    def test_each_consumer_of_each_channel_counts(self, visits: Aggregator) -> None:
        for channel, consumer in [("a", "b"), ("a", "c"), ("b", "b"), ("a b", "c")]:
            visits.add_file(Lines(MANY[:1], channel=channel, consumer=consumer), parse)
        assert visits.total("d0") == 4

    def test_a_repeated_script_changes_nothing(self, visits: Aggregator) -> None:
        """As after a lost reply. A repeat by another process keeps the end of the file."""
        lines = [*MANY[:10], b"?"]
        for is_last in (False, True, False):
            for _ in range(3):
                send(visits, 5, flush_of(lines, 0, 11, is_last=is_last))
        assert visits._counted_lines("m", 5) is None
        for _ in range(3):
            send(visits, 6, flush_of([], 0, 0, is_last=True))
        assert visits.malformed() == 1
        assert stored(visits) == counted(lines)

    def test_a_process_that_was_overtaken_is_refused(self, visits: Aggregator) -> None:
        def overtaken(line: bytes) -> Any:
            if line == MANY[500]:
                visits.add_file(Lines(MANY), parse)
            return parse(line)

        with pytest.raises(LeaseLost, match=r"Lines 401 to 800 .* 'visits': another"):
            visits.add_file(Lines(MANY), overtaken)
        assert stored(visits) == counted(MANY)

    def test_other_ranges_of_the_same_lines_are_refused(self, visits: Aggregator) -> None:
        send(visits, 5, flush_of(MANY[:10], 0, 10))
        before = snapshot()
        for start, end in [(0, 9), (0, 11), (5, 11), (9, 11), (11, 12), (9, 9), (0, 0)]:
            with pytest.raises(LeaseLost):
                send(visits, 5, flush_of(MANY[start:end], start, end, is_last=start == end))
        with pytest.raises(LeaseLost):
            send(visits, 4, flush_of(MANY[:10], 0, 10))
        assert snapshot() == before
        send(visits, 6, flush_of(MANY[:10], 0, 10, is_last=True))
        with pytest.raises(LeaseLost):
            send(visits, 6, flush_of(MANY[10:20], 10, 20))

    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_files_of_a_channel(self, kind: str, messaging_alias: str, tmp_path: Path) -> None:
        """The first file is delivered again: its consumer ends in the middle; then its ack is lost."""
        visits, channel = Aggregator("visits"), FileChannel("logs")
        for number in range(3):
            with gzip.open(tmp_path / f"{number}.gz", "wb") as log:
                log.write(b"\n".join([*MANY, b"?", *MANY]))
        channel.publish(tmp_path, consumers=["c"])
        with pytest.raises(KeyboardInterrupt):
            visits.add_file(next(channel.consume("c")), failing(700))
        assert visits.add_file(next(channel.consume("c")), parse) == added(1601, 1)
        outcomes: list[Counted] = []
        if kind == "sync":
            with closing(channel.consume("c")) as files:
                for file in islice(files, 3):
                    outcomes.append(visits.add_file(file, parse))
                    file.ack()
        else:
            async with aclosing(channel.aconsume("c")) as afiles:
                async for file in afiles:
                    outcomes.append(await visits.aadd_file(file, parse))
                    await file.aack()
                    if len(outcomes) == 3:
                        break
        assert outcomes == [added(0), added(2001, 1), added(2001, 1)]
        assert stored(visits) == {pair: 6 * count for pair, count in counted(MANY).items()}
        assert visits.malformed() == 3


def flush_of(lines: list[bytes], start: int, end: int, *, is_last: bool = False) -> Any:
    counts, malformed = dict(counted(lines)), lines.count(b"?")
    return Flush(start=start, end=end, counts=counts, malformed=malformed, is_last=is_last)


def send(aggregate: Aggregator, id: int, flush: Any) -> None:
    aggregate._flush("m", id, flush)


class TestLimits:
    def test_the_counts_of_further_keys_are_added_to_one(self, visits: Aggregator, settings: Any) -> None:
        change(settings, AGGREGATE_MAX_KEYS=5)
        visits.add_file(Lines([b"d k%d" % number for number in range(4)]), parse)
        visits.add_file(Lines([b"d k%d" % number for number in range(8)], 2), parse)
        visits.add_file(Lines([b"d k%d" % number for number in range(8)], 3), parse)
        visits.add_file(Lines([b"d k0"], 4), parse)
        found = stored(visits)
        assert found.pop(("d", "k0")) == 4
        assert found.pop(("d", "")) == 6
        assert sorted(found.values()) == [2, 3, 3, 3]
        assert visits.total("d") == 21
        visits.add_file(Lines([b"other k%d" % number for number in range(5)], 5), parse)
        assert len(visits.top("other")) == 5, "it is the limit of each period"

    async def test_too_many_periods_are_refused(self, call: Call, settings: Any) -> None:
        change(settings, AGGREGATE_MAX_PERIODS=3)
        visits = Aggregator("visits")
        await call(visits, "add_file", Lines(MANY), parse)
        before = snapshot()
        lines = Lines([b"d1 a", b"new a", b"newer a"], 2)
        with pytest.raises(LimitExceeded, match="periods of the aggregate 'visits': 5 is over") as raised:
            await call(visits, "add_file", lines, parse)
        assert (raised.value.setting, raised.value.limit) == ("AGGREGATE_MAX_PERIODS", 3)
        assert snapshot() == before
        change(settings, AGGREGATE_MAX_PERIODS=5)
        assert await call(visits, "add_file", lines, parse) == added(3)

    def test_expired_periods_do_not_count(self, visits: Aggregator, settings: Any) -> None:
        change(settings, AGGREGATE_MAX_PERIODS=1000)
        lines = [b"p%d k" % number for number in range(1000)]
        short = Aggregator("visits", ttl=0.001)
        short.add_file(Lines(lines), parse)
        until(lambda: server().exists(keys().period("p999")) == 0)
        for id in range(2, 4):
            visits.add_file(Lines([line.upper() for line in lines], id), parse)
        assert len(visits.periods()) == server().zcard(keys().periods) == 1000

    def test_too_many_consumers_are_refused(
        self, visits: Aggregator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(aggregator, "MAX_MARKERS", 2)
        for consumer in ("a", "b"):
            visits.add_file(Lines([b"d k"], consumer=consumer), parse)
        with pytest.raises(LimitExceeded, match="markers of the aggregate 'visits': 3 is over"):
            visits.add_file(Lines([b"d k"], consumer="c"), parse)
        visits.add_file(Lines([b"d k"], 2, consumer="b"), parse)
        assert visits.total("d") == 3


class TestExpiry:
    def test_periods_expire_after_their_last_change(self, visits: Aggregator) -> None:
        short = Aggregator("visits", ttl=timedelta(milliseconds=20))
        visits.add_file(Lines([b"long a", b"b a"]), parse)
        short.add_file(Lines([b"a a", b"b a", b"c a"], 2), parse)
        until(lambda: visits.periods() == ["long"])
        assert (visits.total("b"), visits.total("long")) == (0, 1)
        assert visits.periods(limit=1) == ["long"]
        assert server().zcard(keys().periods) == 4
        server().pexpire(keys().period("long"), 10_000)
        visits.add_file(Lines([b"b a", b"long a"], 3), parse)
        assert server().pttl(keys().period("long")) == pytest.approx(400 * 86_400_000, abs=60_000)
        assert visits.periods() == ["b", "long"]
        assert visits.total("b") == 1
        assert server().zcard(keys().periods) == 2, "expired periods are removed from the register"
        assert (server().zcard(keys().expiries), server().hlen(keys().markers)) == (3, 1)

    def test_every_key_expires(self, visits: Aggregator, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(aggregator, "MARKER_TTL", 1)
        Aggregator("visits", ttl=0.02).add_file(Lines([*MANY[:300], b"?"]), parse)
        until(lambda: all_keys() == [])

    def test_a_marker_outlives_the_periods(self, visits: Aggregator) -> None:
        """Otherwise a file that is delivered again would be counted again in a period that others keep."""
        short = Aggregator("visits", ttl=0.001)
        short.add_file(Lines(MANY), parse)
        until(lambda: not visits.periods())
        visits.add_file(Lines(MANY, consumer="other"), parse)
        assert visits.add_file(Lines(MANY), not_called) == added(0)

    def test_unused_markers_are_removed(self, visits: Aggregator, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(aggregator, "MARKER_TTL", 1)
        Aggregator("visits", ttl=0.001).add_file(Lines([b"d a"], consumer="gone"), parse)
        monkeypatch.setattr(aggregator, "MARKER_TTL", 100_000)
        until(lambda: visits.periods() == [])
        visits.add_file(Lines(MANY), parse)
        assert server().hkeys(keys().markers) == [b"logs\0c"]


class TestReading:
    def test_highest_first_and_equal_ones_by_key(self, visits: Aggregator) -> None:
        numbers = {"b": 2, "é": 2, "a": 2, "z": 3, "": 2, "c": 1, "Z": 2}
        visits.add_file(
            Lines([key.encode() for key, number in numbers.items() for _ in range(number)]),
            lambda line: ("d", line.decode()),
        )
        expected = ["z", "", "Z", "a", "b", "é", "c"]
        assert [one.key for one in visits.top("d")] == expected
        for n in range(1, 9):
            assert [one.key for one in visits.top("d", n)] == expected[:n]
        visits.add_file(Lines([b"e a"], 2), parse)
        assert visits.top("e", 1) == [Count("a", 1)], "not hidden by the total"

    async def test_pages_of_periods(self, call: Call) -> None:
        visits = Aggregator("visits")
        names = sorted(f"p{number}_é" for number in range(25))
        lines = [f"{name} k".encode() for name in names]
        await call(visits, "add_file", Lines(reversed(lines)), parse)
        pages, after = [], None
        while page := await call(visits, "periods", after=after, limit=10):
            pages.append(page)
            after = page[-1]
        assert [len(page) for page in pages] == [10, 10, 5]
        assert [name for page in pages for name in page] == names

    def test_large_counts_are_exact(self, visits: Aggregator) -> None:
        server().zadd(keys().period("d"), {"a": -(2**53 - 2), "\0": -(2**53 - 2)})
        visits.add_file(Lines([b"d a"]), parse)
        assert visits.total("d") == visits.count("d", "a") == visits.top("d")[0].count == 2**53 - 1


class TestDelete:
    async def test_everything_is_deleted(self, call: Call) -> None:
        visits, other = Aggregator("visits"), Aggregator("other")
        lines = [b"?", *(b"p%d k" % number for number in range(1200))]
        await call(visits, "add_file", Lines(lines), parse)
        await call(other, "add_file", Lines(MANY), parse)
        await call(visits, "delete")
        assert [key for key in all_keys() if "visits" in key] == []
        assert other.total("d0") == 334
        assert await call(visits, "add_file", Lines(lines), parse) == added(1201, 1)

    def test_a_file_that_was_begun_is_not_continued(self, visits: Aggregator) -> None:
        def deleting(line: bytes) -> Any:
            if line == MANY[500]:
                visits.delete()
            return parse(line)

        with pytest.raises(LeaseLost):
            visits.add_file(Lines(MANY), deleting)
        assert all_keys() == []
        visits.add_file(Lines(MANY), parse)
        assert stored(visits) == counted(MANY)


BAD: list[tuple[Callable[[Aggregator], object], type[Exception], str]] = [
    (lambda visits: Aggregator(""), InvalidArgument, "name is empty"),
    (lambda visits: Aggregator("a", ttl=0), InvalidArgument, "ttl must be between 0.001 s"),
    (lambda visits: Aggregator("a", ttl="1"), TypeError, "ttl must be seconds"),  # type: ignore[arg-type]
    (lambda visits: visits.top("d", 0), InvalidArgument, "n must be between 1 and 1000"),
    (lambda visits: visits.top("d", 1001), InvalidArgument, "n must be between 1 and 1000"),
    (lambda visits: visits.top(""), InvalidArgument, "period is empty"),
    (lambda visits: visits.count("d", "\0"), InvalidArgument, "key has a NUL"),
    (lambda visits: visits.periods(limit=1001), InvalidArgument, "limit must be between"),
    (lambda visits: visits.periods(after=""), InvalidArgument, "after is empty"),
    (lambda visits: visits.add_file(Lines([]), 7), TypeError, "parse must be callable"),  # type: ignore[arg-type]
    (lambda visits: visits.add_file(Lines([], 0), parse), InvalidArgument, "file.id must be"),
    (lambda visits: visits.add_file(Lines([], 2**53 + 1), parse), InvalidArgument, "file.id must"),
    (lambda visits: visits.add_file(Lines([], channel=""), parse), InvalidArgument, "file.channel"),
    (lambda visits: visits.add_file(Lines([], consumer="a\0"), parse), ValueError, "file.consumer"),
]


class TestInput:
    @pytest.mark.parametrize(("wrong", "error", "problem"), BAD)
    def test_bad_input_is_rejected(
        self, wrong: Callable[[Aggregator], object], error: type[Exception], problem: str, visits: Aggregator
    ) -> None:
        with pytest.raises(error, match=problem):
            wrong(visits)
        assert all_keys() == []

    def test_a_key_of_another_type_changes_nothing(self, visits: Aggregator) -> None:
        visits.add_file(Lines([b"d a", b"?"]), parse)
        for key in [*keys().all, keys().period("d")]:
            saved, kind = server().dump(key), server().type(key)
            server().delete(key)
            server().rpush(key, "x")
            before = snapshot()
            with pytest.raises((MessagingError, ResponseError)):
                visits.add_file(Lines([b"d a", b"e a", b"?"], 2), parse)
            assert snapshot() == before, key
            server().restore(key, 0, saved, replace=True)
            assert server().type(key) == kind
        assert repr(visits) == "Aggregator('visits')"
