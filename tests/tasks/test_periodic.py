"""Periodic tasks: schedules, and occurrences that are enqueued once."""

from __future__ import annotations

import importlib
import io
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FunctionType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.checks import ERROR, WARNING
from django.core.management import CommandError, call_command
from pytest import LogCaptureFixture, MonkeyPatch
from pytest_django import Settings

from django_redis_messaging import ConfigurationError, InvalidArgument, Unavailable, conf
from django_redis_messaging.core.clients import execute
from django_redis_messaging.core.operations import Steps
from django_redis_messaging.management import loops
from django_redis_messaging.services.jobs.poller import AliasPoller
from django_redis_messaging.tasks import RedisTask, occurrences, periodic
from django_redis_messaging.tasks.occurrences import enqueue_due, occurrence_id
from django_redis_messaging.tasks.schedules import Position, tasks_of
from django_redis_messaging.tasks.timing import Cron, Every
from tests.site.test_checks import found

from ..support.processes import Start
from ..support.schedules import enqueued, poll, position
from ..support.server import change, server, server_ms, until
from ..support.workers import DUMMY, at_work, backend, burst, counts, engine, keys
from . import jobs
from .conftest import Configure
from .test_poller import Clock, polling

pytestmark = pytest.mark.one_server

#: the module, whose name in the package is that of the function
module = sys.modules[periodic.__module__]
#: ms
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
BERLIN, LORD_HOWE = ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe")
NOOP = jobs.noop.module_path


def ms(text: str, zone: ZoneInfo = BERLIN) -> int:
    """A local time as ms."""
    return int(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1000)


def times(schedule: Cron | Every, since: str, until: str, zone: ZoneInfo = BERLIN) -> list[str]:
    """The occurrences after a local time and until another one: hour, minute and offset from UTC."""
    found, after = [], schedule.next(ms(since, zone))
    while after is not None and after <= ms(until, zone):
        found.append(f"{datetime.fromtimestamp(after / 1000, zone):%H:%M%z}".removesuffix("00"))
        after = schedule.next(after)
    return found


class TestClockChanges:
    @pytest.mark.parametrize(
        ("schedule", "spring", "autumn"),
        [
            (Cron("30 2 * * *", "Europe/Berlin"), "03:00+02", "02:30+02"),
            (Cron("0 3 * * *", "Europe/Berlin"), "03:00+02", "03:00+01"),
            (
                Cron("15 1-3 * * *", "Europe/Berlin"),
                "01:15+01 03:00+02 03:15+02",
                "01:15+02 02:15+02 03:15+01",
            ),
            *(
                (each_hour, "01:00+01 03:00+02 04:00+02", "01:00+02 02:00+02 02:00+01 03:00+01 04:00+01")
                for each_hour in (Cron("0 * * * *", "Europe/Berlin"), Every(timedelta(hours=1)))
            ),
            (
                Cron("*/40 1-2 * * *", "Europe/Berlin"),
                "01:00+01 01:40+01",
                "01:00+02 01:40+02 02:00+02 02:40+02 02:00+01 02:40+01",
            ),
        ],
    )
    def test_change_by_an_hour(self, schedule: Cron | Every, spring: str, autumn: str) -> None:
        """In spring the hour from 02:00 is skipped, in autumn it is repeated. Intervals count all hours."""
        assert times(schedule, "2026-03-29T00:59", "2026-03-29T04:00") == spring.split()
        assert times(schedule, "2026-10-25T00:59", "2026-10-25T04:00") == autumn.split()

    @pytest.mark.parametrize(
        ("cron", "autumn", "spring"),
        [
            ("15 */2 * * *", "00:15+11 02:15+1030 04:15+1030", "00:15+1030 04:15+11"),
            ("*/20 1 * * *", "01:00+11 01:20+11 01:40+11 01:40+1030", "01:00+1030 01:20+1030 01:40+1030"),
            ("*/20 2 * * *", "02:00+1030 02:20+1030 02:40+1030", "02:40+11"),
        ],
    )
    def test_change_by_half_an_hour(self, cron: str, autumn: str, spring: str) -> None:
        """At 02:00, the clocks of Lord Howe Island are set back to 01:30, or forward to 02:30."""
        schedule = Cron(cron, LORD_HOWE.key)
        for day, expected in (("2026-04-05", autumn), ("2026-10-04", spring)):
            assert times(schedule, f"{day}T00:00", f"{day}T05:00", LORD_HOWE) == expected.split()

    def test_interval_of_a_day(self) -> None:
        found = times(Every(DAY / 1000), "2026-03-28T00:00", "2026-03-30T12:00")
        assert found == ["01:00+01", "01:00+01", "02:00+02"]

    @pytest.mark.parametrize(
        "cron",
        ["30 2 * * *", "15 1-3 * * *", "*/40 1-2 * * *", "0,30 2,3 * * *", "15 */2 * * *", "*/10 2 * * *"],
    )
    @pytest.mark.parametrize(
        ("local", "day"),
        [
            (BERLIN, "2026-03-29"),
            (BERLIN, "2026-10-25"),
            (LORD_HOWE, "2026-04-05"),
            (LORD_HOWE, "2026-10-04"),
        ],
    )
    def test_all_pollers_agree_wherever_they_begin(self, cron: str, local: ZoneInfo, day: str) -> None:
        schedule = Cron(cron, local.key)
        first, last, every = ms(f"{day}T00:00", local), ms(f"{day}T06:00", local), [0]
        while (following := schedule.next(every[-1] or first)) and following <= last:
            every.append(following)
        for moment in range(first, last, 7 * MINUTE):
            after = [one for one in every if one > moment]
            assert not after or schedule.next(moment) == after[0]
            before = [one for one in every if first < one <= moment]
            assert schedule.latest(first, moment) == (before[-1] if before else None)

    def test_far_occurrence_after_many_clock_changes(self) -> None:
        schedule = Cron("*/30 * 29 2 *", "Europe/Berlin")
        assert schedule.next(ms("2096-03-01T00:00")) == ms("2104-02-29T00:00")


class TestSchedules:
    def test_occurrence_belongs_to_the_interval_that_it_ends(self) -> None:
        for schedule in (Every(60), Cron("* * * * *", "UTC")):
            assert schedule.next(MINUTE) == 2 * MINUTE
            assert schedule.next(2 * MINUTE - 1) == 2 * MINUTE
            assert schedule.latest(MINUTE, 2 * MINUTE) == 2 * MINUTE
            assert schedule.latest(MINUTE, 2 * MINUTE - 1) is None

    @pytest.mark.parametrize("years", [0.001, 0.01, 0.1, 1, 20])
    def test_latest_occurrence_of_a_long_time(self, years: float) -> None:
        until = ms("2026-06-15T12:34", BERLIN)
        since = until - int(years * 366 * DAY)
        for cron, latest in (
            ("*/5 * * * *", "2026-06-15T12:30"),
            ("0 7 * * *", "2026-06-15T07:00"),
            ("0 0 1 * *", "2026-06-01T00:00"),
            ("0 0 1 1 *", "2026-01-01T00:00"),
            ("0 0 29 2 *", "2024-02-29T00:00"),
        ):
            expected = ms(latest) if ms(latest) > since else None
            assert Cron(cron, "Europe/Berlin").latest(since, until) == expected

    def test_default_time_zone_is_that_of_the_site(self, settings: Settings) -> None:
        schedule = Cron("0 3 * * *")
        settings.TIME_ZONE = "Europe/Berlin"
        assert schedule.next(ms("2026-06-15T00:00")) == ms("2026-06-15T03:00")
        settings.TIME_ZONE = "Asia/Tokyo"
        tokyo = ZoneInfo("Asia/Tokyo")
        assert schedule.next(ms("2026-06-15T00:00", tokyo)) == ms("2026-06-15T03:00", tokyo)


class TestDecorator:
    def test_task_stays_as_it_is(self) -> None:
        assert periodic(every=60)(jobs.noop) is jobs.noop
        assert [one.name for one in tasks_of("default")] == ["tests.tasks.jobs.noop"]

    @pytest.mark.parametrize(
        ("options", "error", "text"),
        [
            ({}, InvalidArgument, "either cron or every"),
            ({"cron": "* * * * *", "every": 60}, InvalidArgument, "either cron or every"),
            ({"cron": "* * * *"}, InvalidArgument, "5 fields"),
            ({"cron": "0 * * * * *"}, InvalidArgument, "5 fields"),
            ({"cron": "61 * * * *"}, InvalidArgument, "61.*Bad minute"),
            ({"cron": "0 0 31 2 *"}, InvalidArgument, "Bad day-of-month"),
            ({"cron": "* * */20 * 1L"}, InvalidArgument, "never occurs"),
            ({"cron": 5}, TypeError, "cron must be a str"),
            ({"cron": "0 3 * * *", "tz": "Europe/Nowhere"}, InvalidArgument, "time zone.*Nowhere"),
            ({"cron": "0 3 * * *", "tz": "../etc/passwd"}, InvalidArgument, "time zone"),
            ({"cron": "0 3 * * *", "tz": BERLIN}, TypeError, "tz must be the name"),
            ({"every": 60, "tz": "Europe/Berlin"}, InvalidArgument, "tz needs cron"),
            ({"every": 0.5}, InvalidArgument, "every must be between 1 s"),
            ({"every": "60"}, TypeError, "every must be seconds"),
            ({"every": 60, "missed": "all"}, InvalidArgument, "'once' or 'none'"),
        ],
    )
    def test_invalid_schedule(self, options: dict[str, Any], error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=text):
            periodic(**options)

    def test_invalid_task(self) -> None:
        with pytest.raises(TypeError, match="above @task"):
            periodic(every=60)(jobs.noop.func)
        with pytest.raises(InvalidArgument, match=r"jobs\.note has parameters without defaults.*'value'"):
            periodic(every=60)(jobs.note)
        periodic(every=60)(jobs.note_attempt)
        with pytest.raises(InvalidArgument, match="has a schedule already"):
            periodic(every=60)(jobs.note_attempt)
        with pytest.raises(InvalidArgument, match="has a schedule already"):
            periodic(every=5)(jobs.note_attempt.using(priority=5))

    def test_reloaded_module_replaces_its_schedules(self) -> None:
        periodic(every=60)(jobs.noop)
        func = FunctionType(jobs.noop.func.__code__, jobs.noop.func.__globals__)
        func.__module__, func.__qualname__ = jobs.noop.func.__module__, jobs.noop.func.__qualname__
        periodic(every=5)(replace(jobs.noop, func=func))
        assert [str(one.schedule) for one in tasks_of("default")] == ["every 0:00:05"]

    def test_cron_without_the_package(self, monkeypatch: MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "cronsim", None)
        periodic(every=60)(jobs.noop)
        with pytest.raises(ConfigurationError, match=r"pip install 'django-redis-messaging\[periodic\]'"):
            periodic(cron="* * * * *")


def enqueue_at(now: int) -> int:
    """Do a round as if the server's clock showed this moment; returns when an occurrence was enqueued."""
    round_ = enqueue_due(backend(), tasks_of("default"))
    _, changed, moments = execute(backend().using, next(round_))
    pushed: int = execute(backend().using, round_.send([now, changed, moments]))
    return pushed


def handle_until(moment: int) -> None:
    """As if pollers had handled all occurrences up to a moment, but none after it."""
    for one in tasks_of("default"):
        server().hset(keys().periodic, one.name, f"{moment} {one.fingerprint} 0")


def handled() -> int:
    """Up to which moment the occurrences of the only periodic task are handled: ms."""
    return position(tasks_of("default")[0].name).handled


def missed_for_days(task: RedisTask = jobs.noop, **options: Any) -> None:
    """A daily task whose last ten occurrences no poller has handled."""
    periodic(every=timedelta(days=1), **options)(task)
    handle_until(server_ms() - 10 * DAY)


def last_midnight() -> int:
    return server_ms() // DAY * DAY


class TestOccurrences:
    def test_first_registration_enqueues_no_past_occurrence(self) -> None:
        periodic(every=timedelta(days=10_000))(jobs.noop)
        assert poll() == occurrences.MAX_INTERVAL
        poll()
        assert enqueued() == []

    @pytest.mark.parametrize("use_tz", [True, False])
    def test_missed_occurrences_run_once(self, use_tz: bool, settings: Settings, sent: list[Any]) -> None:
        settings.USE_TZ = use_tz
        missed_for_days()
        midnight = last_midnight()
        poll()
        occurrences._began.clear()  # the poller was restarted
        poll()
        [result] = sent
        assert enqueued() == [result.id] == [occurrence_id(NOOP, midnight)]
        assert position(NOOP) == Position(midnight, midnight)
        for one in (result, backend().get_result(result.id)):
            assert (one.task.run_after.tzinfo is not None) == use_tz
            assert one.task.run_after.replace(tzinfo=UTC).timestamp() * 1000 == midnight
        assert result.enqueued_at is not None

    @pytest.mark.parametrize(("missed_after", "count"), [(1, 0), (2 * DAY, 1)])
    def test_missed_occurrences_are_left_out(
        self, missed_after: int, count: int, monkeypatch: MonkeyPatch
    ) -> None:
        """A delay that is shorter than MISSED_AFTER is normal."""
        monkeypatch.setattr(occurrences, "MISSED_AFTER", missed_after)
        missed_for_days(missed="none")
        poll()
        monkeypatch.setattr(occurrences, "MISSED_AFTER", 2 * DAY)
        poll()
        assert len(enqueued()) == count

    def test_several_pollers_enqueue_an_occurrence_once(self, sent: list[Any]) -> None:
        periodic(every=timedelta(days=1))(jobs.noop)
        handle_until(server_ms() - DAY)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: poll(), range(40)))
        assert [result.id for result in sent] == enqueued()
        assert enqueued() == [occurrence_id(NOOP, last_midnight())]

    def test_late_poller_enqueues_nothing(self) -> None:
        """It read what is due, and was suspended for days, while the task ran and its result expired."""
        missed_for_days()
        late = enqueue_due(backend(), tasks_of("default"))
        now, *looked = execute(backend().using, next(late))
        push = late.send([now - 2 * DAY, *looked])
        poll()
        burst()
        server().delete(keys().states, keys().jobs, keys().finished)
        assert execute(backend().using, push) == 0
        poll()
        assert enqueued() == []

    def test_waiting_occurrence_is_not_enqueued_twice(self) -> None:
        """Not even if someone deletes what Redis knows about the task."""
        missed_for_days()
        late = enqueue_due(backend(), tasks_of("default"))
        push = late.send(execute(backend().using, next(late)))
        poll()
        server().delete(keys().periodic)
        assert execute(backend().using, push) == 0
        assert server().zcard(keys().queue("default").ready) == 1

    def test_clock_that_was_ahead_stops_no_task_for_long(self) -> None:
        """A small difference repeats nothing, as after a failover to a server whose clock is a bit behind."""
        periodic(every=timedelta(days=1))(jobs.noop)
        for ahead in (MINUTE, 30 * MINUTE, DAY):
            handle_until(server_ms() + ahead)
            poll()
            assert handled() <= server_ms()
        handle_until(moment := server_ms() + 9000)
        poll()
        assert handled() == moment

    def test_occurrences_that_were_enqueued_while_the_clock_was_ahead_are_enqueued_again(self) -> None:
        """Otherwise, a frequent task would not run until all those are over."""
        periodic(every=60)(jobs.note_attempt)
        first = (server_ms() // MINUTE + 30) * MINUTE
        for early in (first, first + MINUTE):
            assert enqueue_at(early)
            burst()
        poll()
        assert handled() <= server_ms()
        assert enqueue_at(first)
        assert counts() == [1, 0, 0, 0]
        poll()
        assert not enqueue_at(first), "it waits"
        burst()
        moments = (first, first + MINUTE, first)
        assert jobs.notes == [occurrence_id(jobs.note_attempt.module_path, one) for one in moments]
        assert server().zcard(keys().finished) == server().hlen(keys().states) == 2

    @pytest.mark.parametrize("queue", ["default", "other"])
    def test_one_that_is_dead_in_another_queue_is_not(self, queue: str, monkeypatch: MonkeyPatch) -> None:
        """The new job would be among the dead jobs of the queue that the task had before."""
        periodic(every=60)(jobs.fail.using(queue_name="other"))
        first = (server_ms() // MINUTE + 30) * MINUTE
        for early in (first, first + MINUTE):
            assert enqueue_at(early)
            burst()
        poll()
        monkeypatch.setattr(module, "_registered", {})
        periodic(every=60)(jobs.fail.using(queue_name=queue))
        assert bool(enqueue_at(first)) == (queue == "other")
        assert len(engine().dead("other", 10)) == (1 if queue == "other" else 2)
        assert counts() == [0, 0, 0, 0]

    def test_last_occurrence_is_not_repeated_when_the_clock_is_set_back(self) -> None:
        """A task that runs once a day must not run twice."""
        periodic(every=timedelta(days=1))(jobs.noop.using(result_ttl=0))
        midnight = (server_ms() // DAY + 1) * DAY
        assert enqueue_at(midnight)
        burst()
        poll()
        assert not enqueue_at(midnight)
        poll()
        assert enqueue_at(midnight + DAY)

    def test_poller_that_began_before_the_clock_was_set_back_does_not_stop_a_changed_schedule(
        self, monkeypatch: MonkeyPatch
    ) -> None:
        periodic(cron="0 0 * * *", tz="Europe/Berlin")(jobs.noop)
        monkeypatch.setitem(occurrences._began, keys().periodic, server_ms() + 2 * HOUR)
        for _ in range(2):  # an old poller runs beside it, and stores its own schedule again
            server().hset(keys().periodic, NOOP, f"{server_ms() - 10 * DAY} 00000000 0")
            poll()
            assert handled() <= server_ms()
        began = occurrences._began[keys().periodic]
        assert handled() == began, "the later round doesn't leave out what was due since the first one"

    @pytest.mark.parametrize(("began", "count"), [(0, 0), (20 * DAY, 1)])
    def test_changed_schedule_applies_from_the_deployment_on(
        self, began: int, count: int, monkeypatch: MonkeyPatch
    ) -> None:
        """The new poller begins now; or it began long ago, and an old poller has run beside it since."""
        periodic(cron="0 0 * * *", tz="Europe/Berlin")(jobs.noop)
        handle_until(server_ms() - 10 * DAY)
        monkeypatch.setattr(module, "_registered", {})
        periodic(cron="0 0 * * *", tz="Asia/Tokyo")(jobs.noop)
        if began:
            monkeypatch.setitem(occurrences._began, keys().periodic, server_ms() - began)
        poll()
        poll()
        assert len(enqueued()) == count

    def test_unique_task_is_left_out_while_the_last_occurrence_waits(self) -> None:
        unique = jobs.noop.using(unique=True)
        missed_for_days(unique)
        unique.enqueue()
        poll()
        burst()
        poll()
        assert len(enqueued()) == 1

    def test_full_queue_delays_an_occurrence(self, settings: Settings, caplog: LogCaptureFixture) -> None:
        change(settings, JOB_MAX_WAITING=1)
        jobs.noop.enqueue()
        missed_for_days(jobs.noop)
        missed_for_days(jobs.note_attempt.using(queue_name="other"))
        poll()
        assert f"Enqueueing the periodic task {NOOP} failed" in caplog.text
        assert len(enqueued()) == 2
        burst()
        server().delete(keys().states)
        poll()
        assert len(enqueued()) == 1

    def test_failing_task_does_not_stop_the_others(self, caplog: LogCaptureFixture) -> None:
        missed_for_days(jobs.noop.using(unique=jobs.raise_unavailable))
        missed_for_days(jobs.note_attempt)
        poll()
        assert f"Enqueueing the periodic task {NOOP} failed" in caplog.text
        assert len(enqueued()) == 1

    @pytest.mark.usefixtures("any_queue")
    def test_queue_that_is_not_listed_is_registered(self) -> None:
        missed_for_days(jobs.noop.using(queue_name="nightly"))
        poll()
        assert backend().serving() == ["nightly"]

    def test_failing_server_is_asked_again_soon(self, caplog: LogCaptureFixture) -> None:
        round_ = enqueue_due(backend(), [])
        next(round_)
        with pytest.raises(StopIteration) as caught:
            round_.throw(Unavailable("no reply"))
        assert caught.value.value == occurrences.RETRY_INTERVAL
        assert "periodic tasks of the backend 'default' failed, retrying in 2.0 s: no reply" in caplog.text


def test_poller_leaves_out_no_second_of_a_long_time(monkeypatch: MonkeyPatch) -> None:
    """Rounds take 3 ms, so rounds once a second would leave out one second in 333."""
    schedule = Every(1)
    poller = AliasPoller(conf.alias(), [occurrences.enqueue_periodic_tasks], lambda: clock.now > 1700.5)
    clock = Clock(poller, monkeypatch)
    found: list[int | None] = []

    def enqueue(*_: object) -> Steps[float | None]:
        began = int(clock.now * 1000)
        found.append(schedule.latest(found[-1] or 0 if found else 0, began))
        clock.now += 0.003
        return (schedule.next(began) - began) / 1000
        yield

    periodic(every=1)(jobs.noop)
    monkeypatch.setattr(occurrences, "enqueue_due", enqueue)
    poller.run()
    assert [one for one in found if one] == list(range(1_000_000, 1_700_001, 1000))
    assert len(found) < 1000


@pytest.mark.timing
@pytest.mark.usefixtures("short_polls")
def test_pollers_enqueue_each_occurrence_in_time() -> None:
    periodic(every=1)(jobs.noop)
    with polling(3):
        until(lambda: server().hexists(keys().periodic, NOOP))
        began = server_ms()
        until(lambda: len(enqueued()) == 2)
        assert server_ms() - began < 10_000
    pushed = sorted(engine().get(id_).state.pushed for id_ in enqueued())
    assert sorted(occurrence_id(NOOP, at // 1000 * 1000) for at in pushed) == enqueued()


def add_app(path: Path, name: str, tasks: str) -> None:
    (path / name).mkdir()
    (path / name / "__init__.py").touch()
    (path / name / "tasks.py").write_text(tasks)


NOTING = """
from django_redis_messaging.tasks import periodic
from tests.tasks.jobs import note_occurrence

periodic(every=1)(note_occurrence)
"""


@pytest.mark.long
@pytest.mark.promise
def test_killed_pollers_lose_and_repeat_nothing(tmp_path: Path, start: Start, configure: Configure) -> None:
    """While one of three pollers is alive at any time, each occurrence runs once; no result is kept."""
    configure(RESULT_TTL=0)
    add_app(tmp_path, "seconds", NOTING)
    with at_work():
        pollers = [start("run_poller", apps="seconds", path=tmp_path) for _ in range(3)]
        until(lambda: len(jobs.notes) >= 3)
        for number in range(30):
            pollers[number % 2].kill()
            pollers[number % 2] = start("run_poller", apps="seconds", path=tmp_path)
            count = len(jobs.notes)
            until(lambda count=count: len(jobs.notes) > count)
    began, ended = min(jobs.notes), max(jobs.notes)
    assert len(jobs.notes) == len(set(jobs.notes)) == (ended - began).total_seconds() + 1 >= 30


TASKS = """
from datetime import timedelta
from django_redis_messaging.tasks import periodic, task

@periodic(cron="30 2 * * *", tz="Europe/Berlin")
@task
def nightly(): ...

@periodic(every=timedelta(minutes=10), missed="none")
@task(queue_name="other")
def often(): ...
"""


@pytest.fixture
def app(tmp_path: Path, settings: Settings, monkeypatch: MonkeyPatch) -> Iterator[str]:
    """An installed app with periodic tasks."""
    add_app(tmp_path, "timetable", TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "timetable"]
    yield "timetable.tasks"
    for name in ("timetable.tasks", "timetable"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def listed(*options: str) -> str:
    out = io.StringIO()
    call_command("periodic_tasks", *options, stdout=out)
    return out.getvalue()


class TestCheck:
    def test_valid_tasks_are_found_by_the_poller(self, app: str) -> None:
        assert found() == []
        loops.poller()
        assert [one.name for one in tasks_of("default")] == [f"{app}.nightly", f"{app}.often"]

    def test_task_of_another_backend_is_listed_with_its_problem(self, settings: Settings) -> None:
        settings.TASKS = {**settings.TASKS, "dummy": {"BACKEND": DUMMY}}
        periodic(every=60)(jobs.noop.using(backend="dummy"))
        assert tasks_of("default") == []
        [message] = found()
        assert (message.id, message.level) == ("messaging.W013", WARNING)
        assert message.msg.startswith(f"The periodic task {NOOP} is never enqueued: its backend 'dummy'")
        [row] = json.loads(listed("--json"))
        assert (row["next"], row["enqueued"], row["backend"]) == ([], None, "dummy")
        assert row["problem"] == "never enqueued: its backend 'dummy' is not a RedisBackend"
        assert listed().endswith(f"{NOOP}: {row['problem']}\n")

    @pytest.mark.parametrize("command", ["run_poller", "run_messaging", "periodic_tasks"])
    def test_invalid_schedule_is_an_error_of_the_check_and_of_commands(
        self, command: str, app: str, tmp_path: Path
    ) -> None:
        (tmp_path / "timetable" / "tasks.py").write_text(TASKS.replace("30 2", "61 2"))
        [message] = found()
        assert (message.id, message.level) == ("messaging.E010", ERROR)
        assert "Bad minute" in message.msg
        with pytest.raises(CommandError, match="Bad minute"):
            call_command(command)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestCommand:
    def test_without_tasks(self) -> None:
        assert "No schedules found" in listed()
        assert json.loads(listed("--json")) == []
        with pytest.raises(CommandError, match="--count must be between 1 and 100"):
            listed("--count", "0")

    def test_json(self, app: str) -> None:
        nightly, often = json.loads(listed("--json", "--count", "3"))
        upcoming = [datetime.fromisoformat(one) for one in nightly.pop("next")]
        assert {(one.astimezone(BERLIN).hour, one.minute) for one in upcoming} <= {(2, 30), (3, 0)}
        assert timedelta(hours=22) < upcoming[1] - upcoming[0] < timedelta(hours=26)
        assert nightly == {
            "name": f"{app}.nightly", "task": f"{app}.nightly", "declared": True, "schedule": "30 2 * * *",
            "time_zone": "Europe/Berlin", "args": [], "kwargs": {}, "missed": "once", "backend": "default",
            "queue": "default", "priority": 0, "paused": None, "enqueued": None, "problem": None,
        }  # fmt: skip
        assert len(often["next"]) == 3
        assert (often["schedule"], often["time_zone"]) == ("every 0:10:00", "UTC")
        assert (often["missed"], often["queue"]) == ("none", "other")
        assert not server().exists(keys().periodic)

    def test_table(self, app: str, settings: Settings) -> None:
        """Columns are left out if all of their values are the default."""
        settings.TIME_ZONE = "Europe/Berlin"
        loops.poller()
        handle_until(server_ms() - DAY)
        poll()
        head, nightly, often = listed().splitlines()
        assert head.split() == ["task", "schedule", "missed", "queue", "next", "enqueued"]
        latest = tasks_of("default")[0].schedule.latest(server_ms() - DAY, server_ms())
        local = datetime.fromtimestamp((latest or 0) / 1000, BERLIN)
        year = "" if local.year == datetime.now(BERLIN).year else f" {local.year}"
        assert f"{app}.nightly  30 2 * * *     once    default  " in nightly
        assert nightly.endswith(f"  {local:%d %b}{year} {local:%H:%M}")
        assert f"{app}.often    every 0:10:00  none    other    " in often

    def test_narrow_terminal(self, app: str, monkeypatch: MonkeyPatch) -> None:
        """A task is a block of lines if the table would be wider than the terminal."""
        monkeypatch.setattr(io, "StringIO", Terminal)
        monkeypatch.setenv("COLUMNS", "300")
        assert len(listed().splitlines()) == 3
        monkeypatch.setenv("COLUMNS", "60")
        blocks = [part.splitlines() for part in listed().split("\n\n")]
        nightly, often = (dict(line.split(maxsplit=1) for line in block) for block in blocks)
        assert nightly["task"] == f"{app}.nightly"
        assert (often["queue"], often["missed"], often["enqueued"]) == ("other", "none", "-")
