"""Schedules that are added, changed, paused and removed at run time."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from types import FunctionType
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pytest import LogCaptureFixture, MonkeyPatch
from pytest_django import Settings

from django_redis_messaging import InvalidArgument, LimitExceeded, ScheduleExists
from django_redis_messaging.core.clients import execute
from django_redis_messaging.management.commands.messaging_check import _without_poller
from django_redis_messaging.tasks import RedisTask, ScheduleInfo, Schedules, occurrences, periodic
from django_redis_messaging.tasks.compat import InvalidTask
from django_redis_messaging.tasks.occurrences import enqueue_due, occurrence_id
from django_redis_messaging.tasks.schedules import Position

from ..conftest import Call
from ..support.processes import Start
from ..support.schedules import enqueued, poll, position
from ..support.server import all_keys, server, server_ms, until
from ..support.workers import DUMMY, at_work, backend, burst, keys
from . import jobs
from .conftest import AddModule, Configure
from .test_poller import polling

#: ms
MINUTE, DAY = 60_000, 86_400_000
ECHO, NOOP = jobs.echo.module_path, jobs.noop.module_path
#: the position of the schedule that most tests use
NAME = "schedule:x"


def stored() -> dict[str, Any]:
    """The stored schedules, as in Redis."""
    return {name.decode(): json.loads(text) for name, text in server().hgetall(keys().schedules).items()}


def only() -> ScheduleInfo:
    """The only schedule."""
    [found] = Schedules().all()
    return found


def add(name: str = "x", task: RedisTask = jobs.echo, every: Any = timedelta(days=1), **options: Any) -> None:
    Schedules().add(name, task, every=every, **options)


def miss_days(days: int = 10, name: str = NAME) -> None:
    """As if no poller had run for some days."""
    _, fingerprint, *rest = server().hget(keys().periodic, name).decode().split(" ", 2)
    server().hset(keys().periodic, name, f"{server_ms() - days * DAY} {fingerprint} {rest[0]}")


def last_midnight() -> int:
    return server_ms() // DAY * DAY


def poll_twice() -> float | None:
    """The first round reads the schedules that have changed."""
    poll()
    return poll()


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """The commands that the server executes in the block, also those of scripts."""
    before, counted = server().info("commandstats"), dict[str, int]()
    yield counted
    for key, stats in server().info("commandstats").items():
        calls = stats["calls"] - before.get(key, {"calls": 0})["calls"]
        if calls and key != "cmdstat_info":
            counted[key.removeprefix("cmdstat_")] = calls


@pytest.mark.parametrize("name", ["report:acme 7%{}", "é", "polled", "changed", NOOP])
async def test_every_operation(call: Call, name: str) -> None:
    own = backend().schedules
    kwargs = {"customer": 7}
    await call(own, "add", name, jobs.echo.using(priority=5), cron="0 6 * * mon", args=[1], kwargs=kwargs)
    [found] = await call(own, "all")
    assert (found.name, found.task, found.declared, found.missed) == (name, ECHO, False, "once")
    assert (found.cron, found.every, found.tz) == ("0 6 * * mon", None, "UTC")
    assert (found.args, found.kwargs, found.queue_name, found.priority) == ([1], kwargs, "default", 5)
    assert (found.paused_at, found.enqueued, found.problem) == (None, None, None)
    [upcoming] = found.next_times()
    assert (upcoming.isoweekday(), upcoming.hour) == (1, 6)

    assert await call(own, "change", name, every=90, kwargs={}, missed="none")
    [found] = await call(own, "all")
    assert (found.cron, found.every, found.tz) == (None, timedelta(seconds=90), None)
    assert (found.args, found.kwargs, found.priority, found.missed) == ([1], {}, 5, "none")
    assert await call(own, "pause", name)
    [found] = await call(own, "all")
    assert found.paused_at is not None
    assert found.next_times() == []
    assert await call(own, "resume", name)
    [found] = await call(own, "all")
    assert found.paused_at is None
    assert await call(own, "remove", name)
    assert await call(own, "all") == []
    for operation in ("pause", "resume", "remove"):
        assert not await call(own, operation, name)
    assert not await call(own, "change", name, every=5)
    assert set(server().hgetall(keys().periodic)) == {b"changed"}


@pytest.mark.one_server
class TestStoring:
    def test_stored_form(self, settings: Settings) -> None:
        """What is stored doesn't depend on later settings."""
        settings.TIME_ZONE = "Europe/Berlin"
        Schedules().add("a", jobs.echo.using(queue_name="other"), cron="0 6 * * *", args=(1, "b"))
        add("b", every=1.5)
        common = {"task": ECHO, "missed": "once", "priority": 0, "kwargs": {}}
        assert stored() == {
            "a": {
                **common,
                "cron": "0 6 * * *",
                "tz": "Europe/Berlin",
                "queue_name": "other",
                "args": [1, "b"],
            },
            "b": {**common, "every": 1.5, "queue_name": "default", "args": []},
        }

    def test_name_that_is_taken(self) -> None:
        add(args=[1])
        add(args=[1])
        with pytest.raises(ScheduleExists, match=r"'x' exists already.*replace=True"):
            add(args=[2])
        assert only().args == [1]
        Schedules().pause("x")
        add(args=[2], replace=True)
        assert (only().args, only().paused_at is None) == ([2], False)

    def test_change_of_some_values(self) -> None:
        own = Schedules()
        own.add("x", jobs.echo, cron="0 6 * * *", tz="Europe/Berlin", args=[1])
        own.change("x", cron="0 7 * * *")
        assert (only().cron, only().tz) == ("0 7 * * *", "Europe/Berlin")
        own.change("x", tz="Asia/Tokyo")
        assert (only().cron, only().tz) == ("0 7 * * *", "Asia/Tokyo")
        own.change("x", task=jobs.echo.using(queue_name="other", priority=3))
        assert (only().queue_name, only().priority, only().args) == ("other", 3, [1])
        own.change("x", task=jobs.noop, args=())
        assert (only().task, only().queue_name) == (NOOP, "default")
        own.change("x", every=60)
        with pytest.raises(InvalidArgument, match="either cron or every"):
            own.change("x", tz="Asia/Tokyo")
        own.change("x", cron="0 8 * * *")
        assert (only().cron, only().tz) == ("0 8 * * *", "UTC")

    @pytest.mark.parametrize(
        ("options", "error", "text"),
        [
            ({"name": ""}, InvalidArgument, "name is empty"),
            ({"name": 5}, TypeError, "name must be a str"),
            ({"task": ECHO}, TypeError, "task must be a task"),
            ({"every": 0.5}, InvalidArgument, "every must be between 1 s"),
            ({"cron": "0 6 * * *"}, InvalidArgument, "either cron or every"),
            ({"every": None, "cron": "0 6 * *"}, InvalidArgument, "5 fields"),
            ({"tz": "UTC"}, InvalidArgument, "tz needs cron"),
            ({"missed": "all"}, InvalidArgument, "'once' or 'none'"),
            ({"args": "ab"}, TypeError, "args must be a list"),
            ({"kwargs": ["a"]}, TypeError, "kwargs must be a dict"),
            ({"args": [object()]}, TypeError, "object"),
            ({"task": jobs.noop, "args": [1]}, InvalidArgument, r"jobs\.noop can't be called with these"),
            ({"task": jobs.note}, InvalidArgument, "missing a required argument: 'value'"),
            ({"args": ["x" * 8192]}, LimitExceeded, r"\(bytes\): 8\d+ is over the limit of 8192"),
            ({"task": jobs.echo.using(max_attempts=2)}, InvalidArgument, "queue_name and priority only"),
        ],
    )
    def test_invalid_values_change_nothing(
        self, options: dict[str, Any], error: type[Exception], text: str
    ) -> None:
        with pytest.raises(error, match=text):
            add(**options)
        assert all_keys() == []
        add()
        before = stored()
        values = {key: value for key, value in options.items() if key != "name"}
        if not values or values.get("cron") or values.get("tz"):
            return  # nothing to change, or valid with the values that are stored
        with pytest.raises(error, match=text):
            Schedules().change("x", **values)
        assert stored() == before

    def test_task_of_another_backend(self, settings: Settings) -> None:
        settings.TASKS = {**settings.TASKS, "second": settings.TASKS["default"]}
        task = jobs.echo.using(backend="second")
        with pytest.raises(InvalidArgument, match="of the backend 'default', not of 'second'"):
            add(task=task)
        Schedules("second").add("x", task, every=5)
        assert backend().schedules.all() == []
        assert [one.backend for one in Schedules("second").all()] == ["second"]

    def test_task_that_a_poller_could_not_find(self) -> None:
        func = FunctionType(jobs.noop.func.__code__, {})
        func.__module__, func.__qualname__ = jobs.__name__, "gone"
        with pytest.raises(InvalidTask, match=r"'tests\.tasks\.jobs\.gone' can't be imported"):
            add(task=replace(jobs.noop, func=func))

    def test_declared_name_is_not_free(self) -> None:
        periodic(every=60)(jobs.noop)
        with pytest.raises(InvalidArgument, match=r"jobs\.noop is the name of a task that has @periodic"):
            add(NOOP)

    def test_backend_without_schedules(self, settings: Settings) -> None:
        settings.TASKS = {**settings.TASKS, "dummy": {"BACKEND": DUMMY}}
        with pytest.raises(InvalidArgument, match=r"TASKS\['dummy'\] is not a RedisBackend"):
            Schedules("dummy")

    def test_limited_number(self, monkeypatch: MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules[Schedules.__module__], "MAX_SCHEDULES", 2)
        add("a")
        add("b")
        with pytest.raises(LimitExceeded, match="stored schedules of a backend: 3 is over the limit of 2"):
            add("c")
        add("a", args=[1], replace=True)
        assert Schedules().change("b", args=[1])
        assert {name: one["args"] for name, one in stored().items()} == {"a": [1], "b": [1]}

    def test_concurrent_changes_keep_each_other(self) -> None:
        add(args=[1])
        changing = Schedules.change.__wrapped__(Schedules(), "x", every=60)  # type: ignore[attr-defined]
        read = execute(backend().using, next(changing))
        Schedules().change("x", args=[2])
        again = changing.send(execute(backend().using, changing.send(read)))
        with pytest.raises(StopIteration, match="True"):
            changing.send(execute(backend().using, changing.send(execute(backend().using, again))))
        assert (only().every, only().args) == (timedelta(seconds=60), [2])

    def test_repeated_removal_spares_a_new_schedule_of_this_name(self) -> None:
        add()
        removal = next(Schedules.remove.__wrapped__(Schedules(), "x"))  # type: ignore[attr-defined]
        assert execute(backend().using, removal) == 1
        add(args=[2])
        assert execute(backend().using, removal) == 1
        assert only().args == [2]


@pytest.mark.one_server
class TestOccurrences:
    def test_missed_occurrences_run_once_with_the_arguments(self, sent: list[Any]) -> None:
        add(task=jobs.echo.using(queue_name="other", priority=7), args=[1], kwargs={"a": "b"})
        miss_days()
        poll_twice()
        poll()
        [result] = sent
        midnight = last_midnight()
        assert enqueued() == [result.id] == [occurrence_id(NAME, midnight)]
        assert position(NAME) == Position(midnight, midnight)
        burst()
        result.refresh()
        assert result.return_value == [[1], {"a": "b"}]
        assert (result.task.queue_name, result.task.priority) == ("other", 7)
        assert only().enqueued.timestamp() * 1000 == midnight  # type: ignore[union-attr]

    def test_missed_occurrences_are_left_out(self, monkeypatch: MonkeyPatch) -> None:
        monkeypatch.setattr(occurrences, "MISSED_AFTER", 1)
        add(missed="none")
        miss_days()
        poll_twice()
        assert enqueued() == []
        assert position(NAME).handled == last_midnight()

    def test_new_schedule_begins_when_it_is_added(self) -> None:
        """Not when a poller sees it."""
        add()
        added = position(NAME).handled
        assert server_ms() - MINUTE < added <= server_ms()
        poll_twice()
        assert position(NAME).handled == added
        assert enqueued() == []

    def test_several_pollers_enqueue_an_occurrence_once(self, sent: list[Any]) -> None:
        add()
        miss_days()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: poll(), range(40)))
        assert [result.id for result in sent] == enqueued() == [occurrence_id(NAME, last_midnight())]

    def test_ids_differ_from_those_of_a_declared_task_of_this_name(self) -> None:
        """Newer code may declare a task whose name a schedule has already."""
        add(NOOP, jobs.noop)
        periodic(every=timedelta(days=1))(jobs.noop)
        poll_twice()
        for name in (NOOP, f"schedule:{NOOP}"):
            miss_days(name=name)
        poll()
        assert len(enqueued()) == 2
        assert Schedules().pause(NOOP)
        assert all(one.paused_at for one in Schedules().all())

    @pytest.mark.parametrize("operation", ["change", "pause", "remove"])
    def test_late_poller_enqueues_nothing_by_old_values(self, operation: str) -> None:
        add(args=[1])
        miss_days()
        poll()
        late = enqueue_due(backend(), [])
        push = late.send(execute(backend().using, next(late)))
        assert getattr(Schedules(), operation)("x", **({"args": [2]} if operation == "change" else {}))
        assert execute(backend().using, push) == 0
        assert enqueued() == []
        poll_twice()
        assert len(enqueued()) == (1 if operation == "change" else 0), "it is enqueued with the new arguments"

    def test_changed_times_apply_from_the_change_on(self) -> None:
        add()
        miss_days()
        Schedules().change("x", every=timedelta(hours=12))
        poll_twice()
        assert enqueued() == []

    def test_resumed_schedule_makes_up_for_nothing(self) -> None:
        add()
        poll_twice()
        Schedules().pause("x")
        miss_days()
        assert poll() == occurrences.CHANGE_INTERVAL
        Schedules().resume("x")
        assert position(NAME).handled > server_ms() - MINUTE
        poll()
        assert enqueued() == []
        miss_days()
        poll()
        assert len(enqueued()) == 1

    @pytest.mark.parametrize("is_known", [True, False])
    def test_declared_task_can_be_paused(self, is_known: bool) -> None:
        """Whether or not a poller has seen it before."""
        periodic(every=timedelta(days=1))(jobs.noop)
        if is_known:
            poll()
        assert Schedules().pause(NOOP)
        paused = position(NOOP).paused
        assert Schedules().pause(NOOP)
        assert position(NOOP).paused == paused > server_ms() - MINUTE
        poll()
        miss_days(name=NOOP)
        poll()
        assert enqueued() == []
        assert only().declared
        assert only().paused_at is not None
        assert not Schedules().change(NOOP, every=60)
        assert not Schedules().remove(NOOP)
        assert Schedules().resume(NOOP)
        miss_days(name=NOOP)
        poll()
        assert len(enqueued()) == 1

    def test_declared_task_of_other_code_can_be_paused(self, monkeypatch: MonkeyPatch) -> None:
        """This process has not imported its module, but a poller has."""
        periodic(every=timedelta(days=1))(jobs.noop)
        poll()
        monkeypatch.setattr(sys.modules[Schedules.__module__], "_registered", {})
        assert Schedules().pause(NOOP)
        assert position(NOOP).paused
        for name in ("polled", "changed", "nowhere"):
            assert not Schedules().pause(name)

    def test_unknown_task_is_reported_and_kept(
        self, add_module: AddModule, caplog: LogCaptureFixture
    ) -> None:
        """A poller with older code leaves its occurrences to those with newer code."""
        add()
        values = {**stored()["x"], "task": "tests.tasks.jobs.new"}
        server().hset(keys().schedules, "x", json.dumps(values))
        miss_days()
        add("other")
        for _ in range(3):
            poll()
        warnings = [record.message for record in caplog.records if "schedule x" in record.message]
        assert len(warnings) == 1
        assert "doesn't enqueue the schedule x" in warnings[0]
        assert "'tests.tasks.jobs.new' can't be imported" in warnings[0]
        _, unknown = Schedules().all()
        assert "can't be imported" in str(unknown.problem)
        assert (unknown.task, unknown.every, unknown.next_times()) == (values["task"], timedelta(days=1), [])
        assert enqueued() == []
        server().hset(keys().schedules, "x", json.dumps({**values, "task": ECHO}))
        occurrences._stored.clear()  # newer code
        poll_twice()
        assert len(enqueued()) == 0, "another fingerprint: somebody wrote the record past the app"

    def test_backend_without_schedules_stores_nothing(self) -> None:
        with counting() as commands:
            assert poll() == occurrences.MAX_INTERVAL
        assert commands == {"evalsha": 1, "time": 1, "hmget": 1}
        assert not server().exists(keys().periodic)

    def test_changes_are_noticed_after_the_clock_was_set_back(self) -> None:
        ahead = server_ms() + DAY
        server().hset(keys().periodic, "changed", ahead)
        add()
        poll()
        assert int(server().hget(keys().periodic, "changed")) == ahead + 1
        add("y")
        assert int(server().hget(keys().periodic, "changed")) == ahead + 2

    def test_unreadable_record_stops_no_other(self, caplog: LogCaptureFixture) -> None:
        server().hset(keys().schedules, "bad", "{")
        add()
        miss_days()
        poll_twice()
        assert len(enqueued()) == 1
        assert "doesn't enqueue the schedule bad" in caplog.text
        assert Schedules().all()[0].problem

    def test_idle_look_is_one_command_for_any_number_of_schedules(self) -> None:
        for number in range(5):
            add(str(number))
        Schedules().pause("4")
        miss_days(name="schedule:4")
        periodic(every=timedelta(days=1))(jobs.noop)
        poll_twice()
        with counting() as commands:
            poll()
        assert commands == {"evalsha": 1, "time": 1, "hmget": 1}


@pytest.mark.one_server
@pytest.mark.timing
@pytest.mark.usefixtures("short_polls")
def test_running_pollers_notice_changes() -> None:
    with polling(3):
        add(every=1, args=[1])
        until(lambda: len(enqueued()) >= 2)
        assert Schedules().pause("x")
        count, ends = len(enqueued()), server_ms() + 2500
        until(lambda: server_ms() > ends)
        assert len(enqueued()) == count
        assert Schedules().change("x", args=[2])
        assert Schedules().resume("x")
        until(lambda: len(enqueued()) > count)
        assert Schedules().remove("x")
        count, ends = len(enqueued()), server_ms() + 2500
        until(lambda: server_ms() > ends)
        assert len(enqueued()) == count
    results = sorted(map(backend().get_result, enqueued()), key=lambda one: one.task.run_after)
    assert [one.id for one in results] == [
        occurrence_id(NAME, int(one.task.run_after.timestamp()) * 1000) for one in results
    ]
    assert (results[0].args, results[-1].args) == ([1], [2])


@pytest.mark.one_server
@pytest.mark.long
@pytest.mark.promise
@pytest.mark.timing
def test_killed_pollers_lose_and_repeat_nothing(start: Start, configure: Configure) -> None:
    """While one of three pollers is alive at any time, and other schedules change, each occurrence runs
    once."""
    configure(RESULT_TTL=0)
    add(task=jobs.note_occurrence, every=1)
    with at_work():
        pollers = [start("run_poller") for _ in range(3)]
        until(lambda: len(jobs.notes) >= 3)
        for number in range(20):
            pollers[number % 2].kill()
            pollers[number % 2] = start("run_poller")
            add(f"other {number}", every=1, args=[number])
            count = len(jobs.notes)
            until(lambda count=count: len(jobs.notes) > count)
    began, ended = min(jobs.notes), max(jobs.notes)
    assert len(jobs.notes) == len(set(jobs.notes)) == (ended - began).total_seconds() + 1 >= 20


@pytest.mark.one_server
def test_check_reports_a_stored_schedule_without_a_poller() -> None:
    """Two minutes after it was stored, if none has ever looked."""
    add()
    before = server().hgetall(keys().periodic)
    assert list(_without_poller()) == []
    assert server().hgetall(keys().periodic) == before
    text = "No poller has enqueued the periodic tasks of 'default', such as x, for 600 s: start run_poller."
    position = before[NAME.encode()].split(b" ", 1)[1].decode()
    server().hset(keys().periodic, NAME, f"{server_ms() - 10 * MINUTE} {position}")
    assert list(_without_poller()) == [text]
    poll()
    poll()
    assert list(_without_poller()) == []
    server().hset(keys().periodic, "polled", server_ms() - 10 * MINUTE)
    assert list(_without_poller()) == [text]
    Schedules().pause("x")
    assert list(_without_poller()) == []


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("periodic_tasks", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.one_server
class TestCommand:
    def test_every_action(self) -> None:
        values = ["--args", '[1, "a"]', "--kwargs", '{"b": 2}', "--priority", "5", "--missed", "none"]
        times = ["--cron", "0 6 * * *", "--tz", "Asia/Tokyo"]
        assert run("add", "x", "--task", ECHO, *times, *values) == "Added x.\n"
        [row] = json.loads(run("--json"))
        assert datetime.fromisoformat(row.pop("next")[0]).hour == 6
        assert row == {
            "name": "x", "task": ECHO, "declared": False, "schedule": "0 6 * * *", "time_zone": "Asia/Tokyo",
            "args": [1, "a"], "kwargs": {"b": 2}, "missed": "none", "backend": "default", "queue": "default",
            "priority": 5, "paused": None, "enqueued": None, "problem": None,
        }  # fmt: skip
        assert run("change", "x", "--every", "90", "--queue", "other") == "Changed x.\n"
        assert (only().every, only().queue_name, only().priority) == (timedelta(seconds=90), "other", 5)
        assert run("change", "x", "--task", NOOP, "--args", "[]", "--kwargs", "{}") == "Changed x.\n"
        assert (only().task, only().queue_name, only().every) == (NOOP, "default", timedelta(seconds=90))
        assert run("pause", "x") == "Paused x.\n"
        assert json.loads(run("list", "--json"))[0]["paused"]
        assert run("resume", "x") == "Resumed x.\n"
        assert json.loads(run("list", "--json"))[0]["paused"] is None
        assert run("remove", "x") == "Removed x.\n"
        assert json.loads(run("list", "--json")) == []

    def test_table(self) -> None:
        """The name is shown if it is not that of the task."""
        add(args=[1])
        add("y", jobs.noop)
        Schedules().pause("y")
        head, first, second = run().splitlines()
        assert head.split() == ["name", "task", "schedule", "args", "paused", "next", "enqueued"]
        assert first.split()[:3] == ["x", ECHO, "every"]
        assert second.split()[:2] == ["y", NOOP]
        assert second.endswith("  -             -")
        assert ("[1]" in first, "[1]" in second) == (True, False)

    def test_unknown_task_is_listed_with_its_problem(self) -> None:
        add()
        server().hset(keys().schedules, "x", json.dumps({**stored()["x"], "task": "gone.task"}))
        text = run()
        assert "x: The task 'gone.task' is in no module of an installed app" in text
        assert "gone.task  every 1 day" in text
        assert run("pause", "x") == "Paused x.\n"
        assert run("remove", "x") == "Removed x.\n"

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ("list x", "list takes no name"),
            ("pause", "pause needs the name of a schedule: periodic_tasks pause NAME"),
            ("pause y", "There is no schedule y."),
            ("change y --every 5", "There is no schedule y."),
            ("change y --queue other", "There is no schedule y."),
            (f"change {NOOP} --every 5", rf"{NOOP} is declared by @periodic: change it in the code"),
            (f"remove {NOOP}", rf"{NOOP} is declared by @periodic: remove it in the code"),
            ("pause x --every 5", "--every can't be used with pause: only with add and change"),
            ("list --args []", "--args can't be used with list"),
            ("pause x --replace", "--replace can't be used with pause: only with add"),
            ("add y --every 5", "add needs --task"),
            ("change x", "change needs a value to change, such as --cron"),
            (f"add y --task {ECHO}", "either cron or every"),
            (f"add y --task {ECHO} --every 0.1", "every must be between 1 s"),
            (
                f"add y --task {ECHO} --every 5 --args 7",
                r"--args must be a JSON list, such as '\[7, \"a\"\]'",
            ),
            (f"add y --task {ECHO} --every 5 --kwargs []", "--kwargs must be a JSON object"),
            (f"add y --task {ECHO} --every 5 --kwargs {{", "--kwargs must be a JSON object"),
            (f"add x --task {ECHO} --every 5", "'x' exists already"),
            (f"add y --task {ECHO} --every 5 --queue nowhere", "nowhere"),
            (f"add y --task {ECHO} --every 5 --priority 500", "[Pp]riority"),
            ("add y --task gone.task --every 5", "'gone.task' is in no module of an installed app"),
            ("add y --task tests.tasks.jobs.no_task --every 5", "is not a task"),
            (f"add y --task {ECHO} --every 5 --backend nowhere", "TASKS has no entry 'nowhere'"),
        ],
    )
    def test_bad_values(self, arguments: str, text: str) -> None:
        periodic(every=60)(jobs.noop)
        add()
        before = stored()
        with pytest.raises(CommandError, match=text):
            run(*arguments.split())
        assert stored() == before
