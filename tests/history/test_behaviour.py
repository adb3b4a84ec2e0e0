"""History: what workers and pollers record, how it is read, its limits, and the memory that it takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from django_redis_messaging import Chat, DelayQueue, Expiry, InvalidArgument, Lock, Semaphore, conf
from django_redis_messaging.core.clients import execute
from django_redis_messaging.core.operations import perform
from django_redis_messaging.services.common.catalogue import MARKERS
from django_redis_messaging.services.expiries.timers import TimerEngine
from django_redis_messaging.services.history import gauges
from django_redis_messaging.services.history.ended import take_operations
from django_redis_messaging.services.history.gauges import QueueGauges, record_gauges
from django_redis_messaging.services.history.history import History, Line
from django_redis_messaging.services.history.keys import (
    RESOLUTIONS,
    HistoryKeys,
    Resolution,
    Series,
    level_of,
)
from django_redis_messaging.services.history.recording import MAX_PAIRS, PAGE, Counts, record
from django_redis_messaging.services.history.things import THINGS
from django_redis_messaging.tasks import Schedules
from django_redis_messaging.tasks import occurrences as _occurrences  # noqa: F401  (registers its gauges)
from django_redis_messaging.tasks.schedules import tasks_of

from ..conftest import Call
from ..support import permissions
from ..support.scripts import server_clock
from ..support.server import change, server, server_ms
from ..support.workers import at_work, backend, burst
from ..tasks import jobs

MAIL = Series("queue", "mail")
QUEUE = Series("queue", "default", "default")
BACKEND = Series("backend", "default", "default")
NOOP, FAIL = (Series("task", f"tests.tasks.jobs.{name}", "default") for name in ("noop", "fail"))
#: beginning of a slot at each resolution: s
BEGIN = 1_800_000_000
_requests = itertools.count()
_fields = {"ran": 3, "failed": 1, "wait:10": 1, "wait:20": 2, "run:30": 3}


def write(series: Series = MAIL, counts: Any = _fields, request: str = "", **values: int) -> int:
    """Record something; returns the server's clock."""
    request = request or f"r{next(_requests)}"
    return perform(conf.alias(), record(conf.prefix(), {series: Counts(counts, values)}, request))


def line(series: Series = MAIL, period: str = "hour") -> Line:
    [found] = History().lines([series], period)
    return found


def values(column: str, period: str = "hour", series: Series = MAIL) -> dict[int, float | None]:
    """Beginning of a point → its value: seconds since BEGIN."""
    points = line(series, period).points
    return {int(one.moment.timestamp()) - BEGIN: one.values[column] for one in points}


def store_all(series: Series, row: Callable[[Resolution, int], list[int]]) -> None:
    """Store all rows of a series that are kept, as the script does: `row` for a slot of a resolution."""
    for resolution in RESOLUTIONS:
        width = len(series.columns.names) if resolution is RESOLUTIONS[0] else series.columns.coarse
        key = HistoryKeys(conf.prefix()).slots(str(series), resolution.seconds)
        pipeline = server().pipeline(transaction=False)
        for slot in range(resolution.slots):
            pipeline.rpush(key, BEGIN + slot * resolution.seconds, *row(resolution, slot)[:width])
        pipeline.execute()


def memory() -> int:
    """Bytes that the history takes."""
    keys = server().scan_iter(f"{HistoryKeys(conf.prefix()).tag}:*")
    return sum(server().memory_usage(key, samples=0) for key in keys)


def counted() -> tuple[list[QueueGauges], int]:
    """The gauges of all queues, and how many commands reading them has sent."""
    steps = gauges.count_queues(conf.alias(), gauges.MAX_QUEUES, gauges.Snapshot(None, None, [], []))
    sent, reply = 0, None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            return end.value, sent
        sent += len(step) if isinstance(step, list) else 1
        reply = execute(conf.alias(), step)


@pytest.fixture
def clock() -> Iterator[Callable[[float], None]]:
    """Sets the time of the server: seconds since BEGIN."""
    name = f"{conf.prefix()}:clock"

    def move(seconds: float) -> None:
        server().set(name, int((BEGIN + seconds) * 1000), px=600_000)

    move(0)
    with server_clock(f"tonumber(redis.call('GET', '{name}'))"):
        yield move


@pytest.mark.one_server
class TestSlots:
    def test_counts_add_up_and_gauges_have_their_peak(self, clock: Callable[[float], None]) -> None:
        write(ready=5)
        clock(9.9)
        write(ready=3)
        clock(10)
        write(ready=1, dead=2)
        clock(65)
        assert values("ran") == {0: 6, 10: 3}
        assert values("ready") == {0: 5, 10: 1}
        assert values("dead") == {0: 0, 10: 2}
        for period in ("day", "fortnight"):
            assert values("ran", period) == {0: 9}
            assert values("ready", period) == {0: 5}
        assert line().points[0].values["wait50"] == pytest.approx(100e-6 * 2 ** (19 / 4))

    def test_steps_without_an_entry_are_gaps(self, clock: Callable[[float], None]) -> None:
        write()
        clock(40)
        write()
        found = [value for _, value in line().column("ran")]
        assert len(found) == 360
        assert found[-5:] == [3, None, None, None, 3]
        assert found[:-5] == [None] * 355
        assert [value for _, value in line().column("delayed")][-1] == 0
        assert {value for _, value in line(period="day").column("delayed")} == {None}, "not kept for a day"

    def test_fewer_points_have_longer_steps(self, clock: Callable[[float], None]) -> None:
        for moment in (0, 10, 20, 30):
            clock(moment)
            write(ready=moment)
        [found] = History().lines([MAIL], points=120)
        assert [point.values["ran"] for point in found.points] == [9, 3]
        assert [value for _, value in found.column("ready")][-2:] == [20, 30]
        assert len(list(found.column("ran"))) == 120
        for points in (1, 7, 100, 336):
            assert len(list(History().lines([MAIL], "fortnight", points=points)[0].column("ran"))) <= points

    def test_each_resolution_ends(self, clock: Callable[[float], None]) -> None:
        for moment in range(0, 4000, 10):
            clock(moment)
            write(counts={"ran": 1})
        assert len(values("ran")) == 360
        keys = HistoryKeys(conf.prefix())
        assert server().llen(keys.slots(str(MAIL), 10)) == 360 * 13
        assert sum(filter(None, values("ran", "day").values())) == 400
        assert server().llen(keys.slots(str(MAIL), 60)) == 66 * 10
        for resolution in RESOLUTIONS:
            for key in (keys.open(str(MAIL), resolution.seconds), keys.slots(str(MAIL), resolution.seconds)):
                assert 0 < server().ttl(key) <= resolution.horizon
        assert all(server().ttl(key) > 0 for key in server().scan_iter(f"{keys.tag}:*"))

    def test_a_clock_that_was_set_back(self, clock: Callable[[float], None]) -> None:
        """By less than two slots, the open slot goes on; by more, it is discarded."""
        clock(100)
        write()
        clock(85)
        write()
        clock(101)
        assert values("ran") == {100: 6}
        clock(0)
        write()
        assert values("ran") == {0: 3}

    async def test_the_latest_minute(self, call: Call, clock: Callable[[float], None]) -> None:
        """Whether a later record has closed it or not; the one before it, but none that is older."""

        async def latest() -> list[tuple[int, float | None] | None]:
            points = await call(History(), "latest", [MAIL, NOOP], columns=["ran", "run95", "delayed"])
            assert all(one is None or one.values.keys() == {"ran", "run95"} for one in points)
            return [one and (int(one.moment.timestamp()) - BEGIN, one.values["ran"]) for one in points]

        write()
        clock(59.9)
        write(NOOP)
        assert await latest() == [None, None], "it goes on"
        clock(60)
        write(MAIL, {"ran": 5})
        assert await latest() == [(0, 3), (0, 3)], "one is closed, and one is not"
        clock(120)
        assert await latest() == [(60, 5), (0, 3)]
        clock(179.9)
        assert await latest() == [(60, 5), (0, 3)]
        clock(180)
        assert await latest() == [(60, 5), None]
        clock(240)
        assert await latest() == [None, None]

    def test_a_repeat_is_not_recorded(self) -> None:
        for request in ("one", "two", "one"):
            write(request=request)
        assert sum(one.values["ran"] or 0 for one in line().points) == 6


@pytest.mark.worlds
class TestReading:
    async def test_series_and_periods(self, call: Call) -> None:
        history = History()
        assert [one.points for one in await call(history, "lines", [MAIL, QUEUE])] == [[], []]
        write()
        write(NOOP)
        assert await call(history, "series") == [MAIL, NOOP]
        assert await call(history, "series", "task") == [NOOP]
        assert await call(history, "lines", []) == []
        for period in ("hour", "day", "fortnight"):
            found = await call(history, "lines", [NOOP, MAIL, QUEUE], period)
            assert [len(one.points) for one in found] == [1, 1, 0]
            assert found[0].points[0].values["ran"] == 3
            assert len(list(found[0].column("ran"))) <= 360

    async def test_wrong_arguments(self, call: Call) -> None:
        with pytest.raises(InvalidArgument, match="period must be one of hour, day, fortnight, not 'year'"):
            await call(History(), "lines", [MAIL], "year")
        with pytest.raises(InvalidArgument, match="at most 20, not 21"):
            await call(History(), "lines", [MAIL] * 21)
        with pytest.raises(InvalidArgument, match="at most 50, not 51"):
            await call(History(), "latest", [MAIL] * 51)
        assert await call(History(), "latest", []) == []
        for points in (0, 361):
            with pytest.raises(InvalidArgument, match=f"points must be between 1 and 360, not {points}"):
                await call(History(), "lines", [MAIL], points=points)

    async def test_a_snapshot(self, call: Call) -> None:
        history = History()
        assert (await call(history, "now")).age is None
        DelayQueue("a:b/{c}").push("job")
        DelayQueue("mail").push("job", delay=60)
        Expiry("order").start("17", 60)
        snapshot = await call(history, "refresh")
        assert 0 <= snapshot.age < 60
        found = {one.series: one for one in snapshot.queues}
        assert found.keys() >= {Series("queue", "a:b/{c}"), MAIL, Series("timers", "order"), QUEUE}
        assert (found[MAIL].ready, found[MAIL].delayed) == (0, 1)
        assert found[Series("queue", "a:b/{c}")].oldest_age is not None
        assert (await call(history, "now")).queues == snapshot.queues


class TestWorkers:
    @pytest.mark.worlds
    def test_attempts_are_counted_with_their_latencies(self) -> None:
        for _ in range(3):
            jobs.noop.enqueue()
        jobs.fail.enqueue()
        burst()
        [queue, noop, failing] = History().lines([QUEUE, NOOP, FAIL])
        assert sum(point.values["ran"] or 0 for point in queue.points) == 4
        assert sum(point.values["failed"] or 0 for point in queue.points) == 1
        assert sum(point.values["ran"] or 0 for point in noop.points) == 3
        assert sum(point.values["failed"] or 0 for point in noop.points) == 0
        assert [point.values["failed"] for point in failing.points] == [1]
        latest = queue.points[-1].values
        assert 0 < (latest["run50"] or 0) <= (latest["run95"] or 0) < 60
        assert 0 < (latest["wait50"] or 0) <= (latest["wait95"] or 0) < 600

    def test_operations_of_tasks_are_counted(self) -> None:
        """Once, though two workers of the process record them."""
        jobs.note_and_enqueue.enqueue("a", "other")
        with at_work("other"):
            burst("default")
        [line] = History().lines(History().series("operation"))
        assert line.series.name == "RedisBackend.push"
        assert sum(point.values["ran"] or 0 for point in line.points) == 1
        assert 0 < (line.points[0].values["run50"] or 0) < 60
        jobs.noop.enqueue()  # after them, operations are not timed any more
        assert take_operations() == []

    def test_nothing_is_recorded_where_it_is_switched_off(self, settings: Any) -> None:
        change(settings, HISTORY_MAX_SERIES=0)
        jobs.noop.enqueue()
        burst()
        assert History().series() == []
        assert list(gauges.gauges(conf.alias())) == []


@pytest.mark.one_server
class TestPoller:
    @pytest.fixture(autouse=True)
    def no_other_gauges(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gauges, "_next", {})

    def poll(self, monkeypatch: pytest.MonkeyPatch) -> float:
        """As another poller."""
        monkeypatch.setattr(gauges, "_next", {})
        return perform(conf.alias(), record_gauges(conf.alias(), conf.prefix()))

    def test_gauges_of_queues_and_of_the_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        DelayQueue("mail").push("job")
        assert self.poll(monkeypatch) == 10
        snapshot = History().now()
        assert self.poll(monkeypatch) <= 10
        assert History().now().moment == snapshot.moment, "another poller has done it"
        assert [one.series for one in snapshot.queues if not one.is_idle] == [MAIL]
        [one] = snapshot.servers
        assert one.memory > 100_000
        assert one.clients > 0
        assert one.round_trip > 0
        assert list(values("ready").values()) == [1]
        assert [point.values["memory"] for point in line(one.series).points] == [one.memory]
        assert [series.name for series in History().series("queue")] == ["mail"], "idle ones have none"

    def test_things_and_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of the workers, those that take tasks."""
        for number in range(3):
            Lock(f"lock {number}").acquire(blocking=False)
        Semaphore("printer", 2).acquire()
        Chat.create("ann", ["bob"], "Hi")
        Schedules().add("report", jobs.echo, every=3600)
        engines = {"worker": backend().engine, "listener": TimerEngine(conf.prefix())}
        for name, engine in engines.items():
            for running in (2, 0):
                beat = partial(engine.beat, f"{name} {running}", started=1, done=0, ended={})
                perform(conf.alias(), beat(consumed=running > 0, running=running))
        self.poll(monkeypatch)
        [things, processes] = [one.points[-1].values for one in History().lines([THINGS, BACKEND])]
        assert {kind: number for kind, number in things.items() if number} == {
            "lock": 3, "semaphore": 1, "chat": 1, "listeners": 1
        }  # fmt: skip
        assert processes == {"workers": 1, "running": 2, "periodic": 1 + len(tasks_of("default"))}
        assert set(things) == {"listeners", *MARKERS}

    def test_what_may_not_be_counted_is_left_out(
        self, monkeypatch: pytest.MonkeyPatch, messaging_alias: str, own_prefix: str
    ) -> None:
        """Without the permission for SCAN; all else is recorded."""
        DelayQueue("mail").push("job")
        with permissions.limited(messaging_alias, own_prefix):
            self.poll(monkeypatch)
        assert History().series() == [BACKEND, MAIL]

    def test_200_queues_take_a_command_a_second(self, settings: Any) -> None:
        """They are in one slot. Delay queues, which have slots of their own, take a command each."""
        names = [f"q{number}" for number in range(200)]
        settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": names}}
        jobs.noop.using(queue_name="q150").enqueue()
        found, sent = counted()
        assert [one.series.name for one in found if not one.is_idle] == ["q150"]
        assert sent <= gauges.INTERVAL
        for number in range(5):
            DelayQueue(f"mail-{number}").push("job")
        assert counted()[1] == sent + 5

    def test_the_rate_at_which_jobs_are_added(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the queue has grown by, and what ended meanwhile."""
        none = QueueGauges(MAIL, 0, 0, 0, 0, 0, None, 0.0)
        more = none._replace(ready=10, delayed=20, leased=5, parked=5, dead=99, throughput=2.0)
        assert more.since(none, 10.0).added == 6.0
        assert none._replace(throughput=1.5).since(more, 10.0).added == 0
        assert more.since(None, 10.0) == more.since(none, 0.5) == more.since(none, math.inf) == more
        self.poll(monkeypatch)
        DelayQueue("mail").push_many(["job"] * 30)
        key = HistoryKeys(conf.prefix()).now
        server().hset(key, mapping={"at": server_ms() - 20_000, "polled": server_ms() - 20_000})
        server().hset(key, str(MAIL), none.text)
        self.poll(monkeypatch)
        [found] = [one for one in History().now().queues if one.series == MAIL]
        assert 1.0 < found.added <= 1.5

    def test_the_end_of_a_backlog_is_recorded_once(
        self, monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None]
    ) -> None:
        DelayQueue("mail").push("job")
        self.poll(monkeypatch)
        DelayQueue("mail").purge()
        for moment in (20, 40, 60):
            clock(moment)  # a poller compares the snapshot with the real time: it is from the future
            self.poll(monkeypatch)
        assert values("ready") == {0: 1, 20: 0}


class TestLimits:
    def test_series_above_the_limit_are_refused(self, settings: Any) -> None:
        change(settings, HISTORY_MAX_SERIES=2)
        for name in ("a", "b", "c", "c", "a"):
            write(Series("queue", name))
        assert [one.name for one in History().series()] == ["a", "b"]
        assert History().refused() == 2
        assert line(Series("queue", "c")).points == []
        [point] = line(Series("queue", "b")).points
        assert point.values["ran"] == 3

    @pytest.mark.one_server
    def test_fifty_busy_queues_take_less_than_5_mb(self, clock: Callable[[float], None]) -> None:
        """Full series of two queues, in proportion. Rows are stored as the script stores them."""

        def row(resolution: Resolution, slot: int) -> list[int]:
            ran = resolution.seconds * (7 + slot % 13)
            return [ran, ran // 10, 30, 50, 40, 62, 977 + slot, 120, 95, 150, 12, 3]

        for number in range(2):
            series = Series("queue", f"quarterly-reports-{number}", "default")
            store_all(series, row)
            write(series, {"ran": 1000, "failed": 9, **{f"wait:{n}": n for n in range(20, 60)}}, ready=977)
        assert memory() / 2 * 50 < 5_000_000

    @pytest.mark.one_server
    def test_things_and_a_backend_take_less_than_200_kb(self, clock: Callable[[float], None]) -> None:
        """Full series, of a site with many things."""
        for series in (THINGS, BACKEND):
            store_all(series, lambda _resolution, slot: [1000 + slot % 900] * 10)
            write(series, {}, **dict.fromkeys(series.columns.names, 1000))
        assert memory() < 200_000

    def test_a_page_of_series_is_recorded_quickly(self) -> None:
        """Measured inside the server, where a script holds up others."""
        levels = [f"{name}:{n}" for name in ("wait", "run") for n in range(30)]
        counts = {"ran": 9, "failed": 1, **dict.fromkeys(levels[: MAX_PAIRS // PAGE - 5], 1)}
        page = {
            Series("queue", f"q{n}"): Counts(counts, {"ready": 4, "dead": 1, "oldest": 3})
            for n in range(PAGE)
        }
        durations = []
        for number in range(5):
            server().config_resetstat()
            perform(conf.alias(), record(conf.prefix(), page, f"page {number}"))
            durations.append(server().info("commandstats")["cmdstat_evalsha"]["usec"])
        assert min(durations) < 5000


def test_levels_are_those_of_the_documents() -> None:
    assert [level_of(seconds) for seconds in (0.00011, 0.001, 0.0011, 3600)] == [2, 15, 15, 102]
