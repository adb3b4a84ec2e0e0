"""Interrupted attempts: what a timeout may leave half done."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import ctypes
import gc
import logging
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.cache import caches
from django.db import connections, transaction
from django.db.models.signals import ModelSignal, post_save
from django.dispatch import Signal
from pytest import CaptureFixture, LogCaptureFixture, MonkeyPatch
from pytest_django import DjangoDbBlocker, Settings

from django_redis_messaging import Mailbox
from django_redis_messaging.services.jobs import executor, threads
from django_redis_messaging.services.jobs.worker import Worker
from django_redis_messaging.tasks import task
from django_redis_messaging.tasks.compat import task_finished, task_started

from ..support import postgresql
from ..support.processes import forked
from ..support.server import until
from ..support.workers import (
    FAILED,
    PATIENCE,
    SUCCESSFUL,
    at_work,
    burst,
    counts,
    ended,
    engine,
    errors_of,
    jobs_of,
    receiving,
    state,
    worker,
)
from . import jobs

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("short_polls")]

#: the alias of the database that the tasks write to
ALIAS = "attempts"


@pytest.fixture
def database(
    request: pytest.FixtureRequest, tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """A database with one table, whose connections are kept: SQLite, or PostgreSQL."""
    if getattr(request, "param", "sqlite") == "postgresql":
        entry: dict[str, Any] = {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": request.getfixturevalue("postgresql_host"),
            "USER": postgresql.USER,
            "NAME": postgresql.USER,
            "OPTIONS": {},
        }
    else:
        entry = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(tmp_path / "attempts.sqlite3"),
            "OPTIONS": {"timeout": PATIENCE},
        }
    connections.settings[ALIAS] = connections.settings["default"] | entry | {"CONN_MAX_AGE": 60}
    with django_db_blocker.unblock():
        execute("CREATE TABLE written (number integer)")
        yield
        execute("DROP TABLE written")
        connections[ALIAS].close()
    del connections[ALIAS]
    del connections.settings[ALIAS]


def execute(statement: str, *values: int) -> None:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(statement, values)


def written() -> list[int]:
    """The numbers that other connections see."""
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT number FROM written ORDER BY number")
        return [number for (number,) in cursor.fetchall()]


@task(timeout=60)
def write_after_transactions(number: int) -> None:
    """Write a number, after some transactions, as an import has."""
    for _ in range(20):
        with transaction.atomic(using=ALIAS):
            pass
    with transaction.atomic(using=ALIAS):
        execute("INSERT INTO written VALUES (%s)", number)


@task(timeout=60)
def send_mails(number: int) -> None:
    box = Mailbox(f"reader {number}")
    for text in range(20):
        assert box.send({"text": text}).payload == {"text": text}
        assert box.unread() == text + 1


@task
def write(number: int) -> None:
    execute("INSERT INTO written VALUES (%s)", number)


@task
def write_without_commit(number: int) -> None:
    transaction.set_autocommit(False, using=ALIAS)
    execute("INSERT INTO written VALUES (%s)", number)


@task
async def async_write_without_commit(number: int) -> None:
    await sync_to_async(write_without_commit.func)(number)


@task
def leave_atomic_block(number: int) -> None:
    transaction.atomic(using=ALIAS).__enter__()
    execute("INSERT INTO written VALUES (%s)", number)


@task
def begin_behind_django() -> None:
    """Leave the state of an interrupt between BEGIN and Django's own note of it."""
    execute("BEGIN")
    raise ValueError("between BEGIN and the note")


@task(timeout=0.1)
def ignore_exceptions() -> str:
    """Go on after each exception, until the test ends the task."""
    try:
        while not jobs.go.is_set():
            with suppress(Exception):
                jobs.go.wait(0.01)
    finally:
        jobs.notes.append("finally")
    return "done"


@task(timeout=0.1)
def resist() -> str:
    """Note each interrupt, and go on until the test ends the task."""
    while not jobs.go.is_set():
        try:
            jobs.go.wait(0.01)
        except BaseException:
            jobs.notes.append(time.monotonic())
    return "done"


@task(timeout=0.1)
async def async_resist() -> str:
    while not jobs.go.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            jobs.notes.append(time.monotonic())
    return "done"


@task(timeout=0.1)
def raise_another() -> None:
    try:
        jobs.sleep.func(20)
    except BaseException:
        raise LookupError("the connection is in use") from None


@task(timeout=0.1)
def run_task_group() -> None:
    """Be interrupted in a coroutine of a group: the group raises a group of exceptions."""

    async def work() -> None:
        jobs.sleep.func(20)

    async def work_in_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(work())

    asyncio.run(work_in_group())


@task
def count_queries() -> int:
    execute("SELECT 1")
    return len(connections[ALIAS].queries)


@task
def note_thread() -> None:
    thread = threading.current_thread()
    jobs.notes.append((thread.name, thread.native_id))


@contextmanager
def interrupting(runner: Worker, seconds: float) -> Iterator[None]:
    """Interrupt most calls of a worker in this block, each at a random moment of its first `seconds`."""
    chance, stop = random.Random(7), threading.Event()

    def interrupt() -> None:
        seen: Any = None
        while not stop.wait(0.0002):
            for job in jobs_of(runner):
                if job is not seen and job.started is not None:
                    seen = job
                    if chance.random() < 0.7:
                        stop.wait(chance.random() * seconds)
                        job.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def few_objects(monkeypatch: MonkeyPatch) -> Iterator[None]:
    """Hide the objects of the tests from the search for locks, which would take 50 ms each time."""
    # a connection that was interrupted while it was opened warns when it is deleted
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.collect()


@pytest.fixture
def unlocked_coverage() -> Iterator[None]:
    """An interrupt at the moment when coverage holds its lock would stop all threads for ever."""
    module = sys.modules.get("coverage.collector")
    collectors = module.Collector._collectors if module else []
    for collector in collectors:
        collector.data_lock = None
    yield
    for collector in collectors:
        collector.data_lock = threading.Lock()


@pytest.mark.promise
@pytest.mark.timing
@pytest.mark.usefixtures("few_objects", "unlocked_coverage")
@pytest.mark.parametrize(
    "interrupts", [100, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
def test_interrupted_attempts_take_no_rows_of_others_with_them(
    database: None, interrupts: int, caplog: LogCaptureFixture
) -> None:
    # captured tracebacks would keep half-open connections
    caplog.set_level(logging.CRITICAL, "django.tasks")
    interrupted = successful = number = 0
    lost: list[int] = []
    while interrupted < interrupts:
        results = {}
        for _ in range(min(interrupts, 500)):
            results[number] = write_after_transactions.enqueue(number)
            number += 1
        with at_work(concurrency=2) as runner, interrupting(runner, 0.004):
            for result in results.values():
                ended(result)
        assert not runner.failed
        rows = set(written())
        for one, result in results.items():
            interrupted += any("TaskTimeout" in error.exception_class_path for error in result.errors)
            successful += result.status == SUCCESSFUL
            if result.status == SUCCESSFUL and one not in rows:
                lost.append(one)
    assert lost == []
    assert successful > 0


@pytest.mark.promise
@pytest.mark.timing
@pytest.mark.usefixtures("few_objects", "unlocked_coverage")
def test_interrupted_messaging_calls_leave_no_connection_in_use(
    settings: Settings, caplog: LogCaptureFixture
) -> None:
    """With connections that stay in use, or that hold the reply of an interrupted call, later calls fail."""
    caplog.set_level(logging.CRITICAL, "django.tasks")
    entry = settings.CACHES["messaging"]
    options = {**entry.get("OPTIONS", {}), "CONNECTION_POOL_KWARGS": {"max_connections": 8}}
    settings.CACHES = {**settings.CACHES, "messaging": {**entry, "OPTIONS": options}}
    results = [send_mails.enqueue(number) for number in range(80)]
    with at_work(concurrency=2) as runner, interrupting(runner, 0.004):
        statuses = Counter(ended(result).status for result in results)
    assert statuses[FAILED] > 10
    assert {error for result in results for error in errors_of(result)} == {"TaskTimeout"}
    assert not runner.failed
    after = send_mails.enqueue(1000)
    burst()
    assert ended(after).status == SUCCESSFUL


class TestSwallowed:
    def test_except_exception_does_not_catch_the_interrupt(self) -> None:
        result = ignore_exceptions.enqueue()
        burst()
        assert errors_of(result) == ["TaskTimeout"]
        [error] = result.errors
        assert "took longer than 0.1 s" in error.traceback
        assert "ignore_exceptions" in error.traceback  # where it was interrupted
        assert jobs.notes == ["finally"]

    @pytest.mark.parametrize(
        ("raising", "cause"),
        [(raise_another, "the connection is in use"), (run_task_group, "AttemptInterrupted")],
    )
    def test_what_is_raised_because_of_the_interrupt_is_a_timeout(self, raising: Any, cause: str) -> None:
        result = raising.enqueue()
        burst()
        assert errors_of(result) == ["TaskTimeout"]
        assert cause in result.errors[0].traceback

    @pytest.mark.timing
    @pytest.mark.parametrize("resisting", [resist, async_resist])
    def test_who_resists_is_interrupted_at_intervals_and_keeps_the_lease(
        self, resisting: Any, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
    ) -> None:
        for module in (threads, executor):
            monkeypatch.setattr(module, "INTERRUPT_INTERVAL", 0.4)
        result = resisting.enqueue()
        with at_work(lease=0.6):
            until(lambda: len(jobs.notes) == 3)
            assert engine().claim(["default"], 1, 60_000, worker="other").jobs == []
            jobs.go.set()
            assert ended(result).status == SUCCESSFUL
        pauses = [after - before for before, after in zip(jobs.notes, jobs.notes[1:], strict=False)]
        assert min(pauses) > 0.36
        assert "still runs 0." in caplog.text and "interrupted 2 times" in caplog.text
        assert state(result).attempts == 1


@task
def wait_until_interrupted() -> str:
    jobs.notes.append("began")
    try:
        jobs.sleep.func(60)
    finally:
        jobs.notes.append("finally")
    return "slept"


@task
async def async_wait_until_interrupted() -> str:
    jobs.notes.append("began")
    try:
        await asyncio.sleep(60)
    finally:
        jobs.notes.append("finally")
    return "slept"


@task
def return_though_cancelled() -> str:
    try:
        wait_until_interrupted.func()
    except BaseException:
        return "returned"
    return "slept"


class TestCancelled:
    """A running task is interrupted as by its timeout."""

    @pytest.mark.parametrize("task", [wait_until_interrupted, async_wait_until_interrupted])
    def test_it_ends_with_a_result_that_says_so(self, task: Any, caplog: LogCaptureFixture) -> None:
        finished: list[Any] = []
        result = task.using(max_attempts=5).enqueue()
        with (
            receiving(task_finished, lambda task_result, **_: finished.append(task_result)),
            at_work(lease=0.6) as runner,
        ):
            until(lambda: jobs.notes)
            assert result.cancel()
            assert errors_of(result) == ["TaskCancelled"]
            after = ended(jobs.noop.enqueue())
        assert "while it ran" in result.errors[0].traceback
        assert (result.status, result.attempts, after.status) == (FAILED, 1, SUCCESSFUL)
        assert jobs.notes == ["began", "finally"]
        assert (state(result).status, runner.done, counts()) == ("cancelled", 2, [0, 0, 0, 0])
        assert [one.errors[0].exception_class.__name__ for one in finished[:1]] == ["TaskCancelled"]
        assert not result.cancel()

    def test_one_that_ends_nevertheless_keeps_its_result(self) -> None:
        result = return_though_cancelled.enqueue()
        with at_work(lease=0.6):
            until(lambda: jobs.notes)
            assert result.cancel()
            assert ended(result).return_value == "returned"

    def test_without_its_worker_it_ends_when_it_would_be_requeued(self) -> None:
        result = jobs.noop.enqueue()
        assert engine().claim(["default"], 1, 1).jobs
        assert result.cancel()
        burst()
        assert errors_of(result) == ["LeaseLost", "TaskCancelled"]
        assert jobs.notes == []


class TestLane:
    def test_an_interrupted_thread_is_not_used_again(self) -> None:
        note_thread.enqueue()
        interrupted = jobs.sleep.using(timeout=0.1).enqueue(20)
        note_thread.enqueue()
        runner = burst()
        first, second = jobs.notes
        assert first[0] == second[0] == "lane 0"
        assert first[1] != second[1]
        assert ended(interrupted).status == FAILED
        assert (runner.failed, runner.done) == (False, 3)

    def test_a_drain_waits_until_the_interrupted_attempt_is_settled(self) -> None:
        result = jobs.sleep.using(timeout=0.2).enqueue(20)
        with at_work() as runner:
            until(lambda: any(job.started is not None for job in jobs_of(runner)))
            runner.stop()
            until(lambda: state(result).status == "dead")
        assert (state(result).status, runner.done) == ("dead", 1)

    def test_no_interrupt_is_raised_after_the_call(self) -> None:
        """The other thread is about to interrupt when the call ends."""
        for _ in range(300):
            call = threads.InterruptibleCall()
            ending = threading.Event()

            def interrupt(call: Any = call, ending: Any = ending) -> None:
                ending.wait()
                call.interrupt()

            thread = threading.Thread(target=interrupt)
            thread.start()
            value, error = call.run(lambda ending=ending: ending.set() or 7)
            for _ in range(100):
                len([])  # an interrupt would be raised here
            thread.join()
            assert value == 7 or isinstance(error, threads.AttemptInterrupted)


@pytest.mark.usefixtures("database")
class TestTransactions:
    @pytest.mark.parametrize("leave", [write_without_commit, async_write_without_commit, leave_atomic_block])
    def test_attempt_that_leaves_one_open_fails(self, leave: Any) -> None:
        result, after = leave.enqueue(1), write.enqueue(2)
        burst()
        assert errors_of(result) == ["TransactionManagementError"]
        assert "left a transaction open in database 'attempts'" in result.errors[0].traceback
        assert ended(after).status == SUCCESSFUL
        assert written() == [2]

    def test_no_attempt_begins_in_one_that_was_left(self) -> None:
        begin_behind_django.enqueue()
        result = write.enqueue(2)
        burst()
        assert ended(result).status == SUCCESSFUL
        assert written() == [2]

    def test_without_autocommit_none_is_assumed(self, monkeypatch: MonkeyPatch) -> None:
        """For a driver that can't be asked."""
        connection = connections[ALIAS]
        monkeypatch.setattr(connection, "vendor", "other")
        connection.ensure_connection()
        for autocommit, left_open in [(False, []), (True, [ALIAS])]:
            connection.set_autocommit(False)
            monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", autocommit)
            assert threads.discard_open_transactions() == left_open

    def test_queries_are_recorded_for_each_attempt(self, settings: Settings) -> None:
        settings.DEBUG = True
        results = [count_queries.enqueue() for _ in range(2)]
        burst()
        assert [ended(result).return_value for result in results] == [1, 1]

    def test_connections_are_closed_at_the_driver(self) -> None:
        connection = connections[ALIAS]
        connection.ensure_connection()
        driver = connection.connection
        with transaction.atomic(using=ALIAS):
            execute("INSERT INTO written VALUES (1)")
            threads.discard_connection(connection)
            with pytest.raises(connection.Database.ProgrammingError):
                driver.execute("SELECT 1")
            assert connections[ALIAS] is not connection
            assert written() == []


@pytest.mark.django_db
def test_the_transaction_of_a_test_case_is_left_alone() -> None:
    connection = connections["default"]
    threads.prepare_connections()
    assert threads.discard_open_transactions() == []
    assert connections["default"] is connection and connection.in_atomic_block


own_lock, own_queue = threading.RLock(), queue.Queue[int]()


@task(timeout=0.1)
def keep_lock(kind: str) -> None:
    if kind == "log":
        handler = logging.StreamHandler()
        logging.getLogger().addHandler(handler)
        handler.acquire()
    else:
        {"own": own_lock, "queue": own_queue.mutex}[kind].acquire()
    jobs.sleep.func(20)


@task(timeout=0.1)
def keep_garbage() -> None:
    """Hold a lock that nobody else can reach."""
    lock: Any = threading.RLock()
    cycle: list[Any] = [lock]
    cycle.append(cycle)
    lock.acquire()
    jobs.sleep.func(20)


class TestSearch:
    def test_held_locks_of_any_thread_are_found(self, monkeypatch: MonkeyPatch) -> None:
        """Of a condition, signals, a local-memory cache and thread pools."""
        monkeypatch.setattr(threads, "LOCK_TIMEOUT", 0.1)
        condition = threading.Condition(threading.Lock())
        locks = (
            condition._lock,
            task_started.lock,
            post_save.lock,
            caches["default"]._lock,
            concurrent.futures.thread._global_shutdown_lock,
        )
        for lock in locks:
            with lock:
                assert threads.find_held_locks() == [lock]
        assert threads.find_held_locks() == []

    @pytest.mark.parametrize("kind", [threading.Condition, Signal, ModelSignal])
    def test_objects_that_are_being_made_are_left_out(self, kind: Any, caplog: LogCaptureFixture) -> None:
        half_built = kind.__new__(kind)
        assert threads.find_held_locks() == []
        assert caplog.text == ""
        del half_built

    def test_no_error_of_the_search_ends_the_worker(
        self, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
    ) -> None:
        class Odd(Signal):
            @property
            def lock(self) -> None:
                raise SystemExit(1)

            @lock.setter
            def lock(self, value: object) -> None: ...

        odd = Odd()
        assert threads.find_held_locks() == []
        assert "Searching for locks that an interrupted call has left held failed." in caplog.text
        del odd

    @pytest.mark.timing
    def test_a_lock_is_not_taken_for_held_while_c_code_keeps_the_gil(self, monkeypatch: MonkeyPatch) -> None:
        monkeypatch.setattr(threads, "LOCK_TIMEOUT", 0.2)
        held, searched = threading.Event(), threading.Event()
        waiting, becomes_free = queue.Queue[int](), threads._becomes_free

        def hold() -> None:
            with waiting.mutex:
                held.set()
                searched.wait()  # then it needs the GIL to release the lock

        def keep_gil() -> None:
            searched.wait()
            ctypes.PyDLL(None).usleep(400_000)

        def search(*args: Any) -> bool:
            searched.set()
            return becomes_free(*args)

        monkeypatch.setattr(threads, "_becomes_free", search)
        others = [threading.Thread(target=target) for target in (keep_gil, hold)]
        for thread in others:
            thread.start()
        held.wait()
        assert threads.find_held_locks() == []
        assert searched.is_set()
        for thread in others:
            thread.join()


@pytest.mark.timing
class TestLocks:
    """A lock that an interrupted thread still holds would block other threads forever."""

    @pytest.mark.parametrize("kind", ["log", "own", "queue"])
    def test_the_process_ends_with_an_error(self, kind: str, capfd: CaptureFixture[str]) -> None:
        other, result = jobs.pid_after.enqueue("/dev/null", 60), keep_lock.enqueue(kind)
        began = time.monotonic()
        with forked(lambda: worker(concurrency=2, lease=60).run() or True) as ended_well:
            assert not ended_well()
        assert time.monotonic() - began < 10
        assert "left locks held" in capfd.readouterr().err
        assert state(result).status == "dead"
        assert state(other).status == "waiting"  # released for other workers

    def test_garbage_does_not_end_it(self, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture) -> None:
        caplog.set_level(logging.CRITICAL, "django.tasks")  # a captured traceback would keep the lock
        ends: list[Any] = []
        monkeypatch.setattr(executor, "end_process", lambda *args: ends.append(args))
        result, after = keep_garbage.enqueue(), jobs.noop.enqueue()
        burst()
        assert (ends, ended(result).status, ended(after).status) == ([], FAILED, SUCCESSFUL)
