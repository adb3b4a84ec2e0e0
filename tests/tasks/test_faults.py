"""Tasks whose workers and server are killed, stopped or replaced, and whose replies are lost: no task is
lost, and each is recorded once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from django.db import transaction
from pytest import CaptureFixture, LogCaptureFixture, MonkeyPatch
from pytest_django import Settings

from django_redis_messaging import (
    ConfigurationError,
    Lock,
    MessagingError,
    OutcomeUnknown,
    Unavailable,
    conf,
)
from django_redis_messaging.core import clients, commands
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.jobs import worker as jobs_worker
from django_redis_messaging.services.jobs.claims import LostClaims, Outage
from django_redis_messaging.services.jobs.engine import JobRecord, Lease, Outcome
from django_redis_messaging.tasks import await_for_result, wait_for_result
from django_redis_messaging.tasks.backend import prepare_follow_up
from django_redis_messaging.tasks.compat import Task, TaskResult, task_enqueued

from ..support.faults import GENEROUS, SHARE, Connect, unavailable
from ..support.processes import forked
from ..support.proxy import LossyProxy
from ..support.pytest_hooks import LONG
from ..support.sentinels import Pair
from ..support.server import change, server, server_ms, until
from ..support.worker_processes import POINTS, worker_pool
from ..support.workers import (
    FAILED,
    SUCCESSFUL,
    assert_released,
    at_work,
    backend,
    burst,
    count_waiting,
    counts,
    ended,
    engine,
    errors_of,
    jobs_of,
    keys,
    liveness,
    receiving,
    recording_signals,
    running,
    sent_in,
    state,
    stored_keys,
    worker,
)
from . import jobs
from .conftest import Configure
from .test_follow_ups import waiters

pytestmark = pytest.mark.one_server

#: number of jobs; workers killed, half by the test and half by tasks; minimum of distinct kills, since two
#: kills may hit the same worker
SIZE, KILLS, MIN_KILLS = (20_000, 72, 60) if LONG else (300, 6, 3)
#: seconds that a test may take
PATIENCE = 600.0 if LONG else 60.0
#: seconds: the shortest lease that the command allows; and one that doesn't end during a test
LEASE, LONG_LEASE = 1.0, 1000.0
QUEUES = ["default", "other"]
#: command-line options of workers
TWO_LANES = ["--concurrency", "2", "--lease", f"{LEASE:g}", "--verbosity", "0"]
ONE_LANE = ["--concurrency", "1", *TWO_LANES[2:]]


def plan() -> list[tuple[Task, object]]:
    """The tasks to enqueue in order. Some kill their worker."""
    chance = random.Random(1)
    calls: list[tuple[Task, object]] = [
        (chance.choice([jobs.echo, jobs.aecho]).using(queue_name=chance.choice(QUEUES)), number)
        for number in range(SIZE)
    ]
    deadly = KILLS // 2
    for number in range(deadly):
        calls[(number + 1) * SIZE // (deadly + 1)] = (jobs.crash, POINTS[number % len(POINTS)])
    return calls


def planned_kills() -> list[tuple[float, str]]:
    """The kills: after which share of the jobs, and whether a worker or the server."""
    half = KILLS // 2
    workers = [((at + 1) / (half + 1), "worker") for at in range(half)]
    return sorted([*workers, (0.3, "server"), (0.7, "server")])


def enqueue_all() -> list[TaskResult]:
    """Enqueue all tasks; the results of the acknowledged ones."""
    results = []
    for task, argument in plan():
        with suppress(MessagingError):  # the task may or may not be stored then
            results.append(task.enqueue(argument))
    return results


def count_recorded(record: JobRecord | None) -> int:
    """Number of recorded return values; -1 if the task is lost."""
    if record is None or record.state.status != "succeeded":
        return -1
    return sum(line.startswith(b"R") for line in record.log.split(b"\n"))


def pids(marker: Path) -> list[int]:
    """Process IDs of the attempts that have begun."""
    return [int(line) for line in marker.read_text(encoding="ascii").split()] if marker.exists() else []


@pytest.mark.promise
class TestKilledWorkers:
    @pytest.fixture(autouse=True)
    def many_attempts(self, configure: Configure) -> None:
        """Allow more attempts than there are kills, so that no task is dead-lettered."""
        configure(MAX_ATTEMPTS=3 * KILLS)

    def test_no_task_is_lost_and_each_is_recorded_once(
        self, fragile: EmbeddedServer, connect: Connect, tmp_path: Path, capsys: CaptureFixture[str]
    ) -> None:
        stage = connect(fragile)
        chance, began = random.Random(2), time.monotonic()
        with worker_pool(stage, tmp_path, 3, *TWO_LANES) as workers, ThreadPoolExecutor(1) as pool:

            def reached(share: float) -> bool:
                workers.replace()
                return int(client.zcard(keys().finished)) >= share * SIZE

            def all_done() -> bool:
                workers.replace()
                return enqueuing.done() and not any(sum(counts(one)[:3]) for one in QUEUES)

            enqueuing = pool.submit(enqueue_all)
            for share, victim in planned_kills():
                with fragile.client() as client:
                    until(lambda: reached(share), PATIENCE)  # noqa: B023
                if victim == "server":
                    fragile.kill()
                    fragile.start()
                else:
                    workers.kill_one(chance)
            until(all_done, PATIENCE)
            seconds = time.monotonic() - began
            results = enqueuing.result()
            records = [engine().get(result.id) for result in results]
            times = [count_recorded(record) for record in records]
            assert workers.drain() == [0, 0, 0]
        if LONG:
            with capsys.disabled():
                sys.stdout.write(
                    f"\n{len(results)} jobs in {seconds:.0f} s, {workers.killed} workers and 2 servers "
                    f"killed: lost {times.count(-1)}, recorded twice {sum(one > 1 for one in times)}, "
                    f"started again {sum(one is not None and one.state.attempts > 1 for one in records)}\n"
                )
        assert set(times) == {1}
        assert len(results) >= 0.95 * SIZE
        assert workers.killed >= MIN_KILLS

    def test_task_of_a_dead_worker_restarts_within_a_second_of_its_lease(
        self, lasting: EmbeddedServer, connect: Connect, tmp_path: Path
    ) -> None:
        """Wherever its worker was killed. Each success has one follow-up, which has one, too."""
        then = jobs.echo.using(then=jobs.echo)
        with worker_pool(connect(lasting), tmp_path, len(POINTS) + 1, *ONE_LANE):
            results = [jobs.crash.using(then=then).enqueue(point) for point in POINTS]
            for result in results:
                pid = wait_for_result(result, PATIENCE).return_value
                second = wait_for_result(backend().get_result(result.then_id), PATIENCE)
                third = wait_for_result(backend().get_result(second.then_id), PATIENCE)
                assert (second.return_value, third.return_value) == ([[pid], {}], [[[[pid], {}]], {}])
        for result in results:
            first, other = result.worker_ids
            assert first != other
            assert errors_of(result) == ["LeaseLost"]
            assert LEASE * 1000 <= state(result).last - state(result).first <= (LEASE + 1) * 1000
        assert server().zcard(keys().finished) == 3 * len(results)

    def test_long_tasks_of_dead_workers_restart(
        self, lasting: EmbeddedServer, connect: Connect, tmp_path: Path
    ) -> None:
        """One with a lock when that is free again, too."""
        marker, locked_marker = tmp_path / "begun", tmp_path / "begun with a lock"
        with worker_pool(connect(lasting), tmp_path, 3, *ONE_LANE) as workers:
            result = jobs.pid_after.enqueue(str(marker), 2.5)
            locked = jobs.sleep_in_first_attempt.using(concurrency=1).enqueue(str(locked_marker), 60.0)
            until(lambda: pids(marker) and pids(locked_marker))
            until(lambda: server_ms() > state(locked).first + 1.5 * LEASE * 1000)
            assert state(result).attempts == state(locked).attempts == 1
            killed = server_ms()
            first = [*pids(marker), *pids(locked_marker)]
            for pid in first:
                os.kill(pid, signal.SIGKILL)
            assert ended(result).return_value not in first
            assert state(result).last <= killed + (LEASE + 1) * 1000
            assert ended(locked).return_value not in first
            assert len(pids(marker)) == len(pids(locked_marker)) == 2
            assert not Lock("order:7").locked()
            until(workers.replace)

    def test_worker_stopped_beyond_its_lease_is_refused(
        self, lasting: EmbeddedServer, connect: Connect, tmp_path: Path
    ) -> None:
        marker = tmp_path / "began"
        with worker_pool(connect(lasting), tmp_path, 2, *ONE_LANE) as workers:
            result = jobs.pid_after.enqueue(str(marker), 0.3)
            until(lambda: pids(marker))
            [first] = pids(marker)
            os.kill(first, signal.SIGSTOP)
            [second] = {worker.pid for worker in workers.workers} - {first}
            assert ended(result).return_value == second
            os.kill(first, signal.SIGCONT)
            until(lambda: "its lease was lost; refused" in workers.log.read_text())
            assert ended(result).return_value == second
            assert count_recorded(engine().get(result.id)) == 1
            assert pids(marker) == [first, second]
            # both workers continue
            assert {ended(jobs.pid_after.enqueue(str(marker), 0.1)).return_value for _ in range(2)}
            assert workers.drain() == [0, 0]


@pytest.mark.timing
@pytest.mark.parametrize(("max_lost", "shared"), [(2, 1), (3, 2)])
def test_task_that_kills_its_worker_takes_others_with_it_twice_at_most(
    max_lost: int, shared: int, settings: Settings, tmp_path: Path
) -> None:
    """Never so often that they are dead: once, if JOB_MAX_LOST is 2."""
    change(settings, JOB_MAX_LOST=max_lost)
    marker = tmp_path / "begun"
    marker.touch()
    others = [jobs.pid_after.enqueue(str(marker), 0.3) for _ in range(3)]
    killer = jobs.kill_worker_after.using(max_attempts=10).enqueue(str(marker), 3)
    for kills in range(max_lost):
        with forked(lambda: burst(concurrency=4, lease=0.6).done == 4) as ended_well:
            assert not ended_well()
        until(lambda: counts()[2] == 0)
        if kills + 1 < shared:  # let it kill this worker when the others run again
            marker.write_text("")
    burst(concurrency=4)
    assert [ended(one).status for one in (*others, killer)] == [SUCCESSFUL] * 3 + [FAILED]
    assert [len(one.errors) for one in (*others, killer)] == [*[shared] * 3, max_lost]


@pytest.mark.promise
class TestLostClaims:
    """A worker whose claims lose their replies: the jobs that they have leased come back, uncounted."""

    @pytest.fixture
    def lossy(self, lasting: EmbeddedServer, connect: Connect) -> Iterator[LossyProxy]:
        """A proxy that loses replies to claims on demand."""
        with lossy_proxy(lasting, connect, "jobs/claim") as proxy:
            yield proxy

    @pytest.mark.parametrize("ends", [True, False])
    def test_task_with_a_single_attempt_runs_once(
        self, ends: bool, lossy: LossyProxy, caplog: LogCaptureFixture
    ) -> None:
        """It was claimed, but never started: its attempt is not charged."""
        result = jobs.note.using(max_attempts=1).enqueue("once")
        lossy.lose_next()
        if ends:
            burst(lease=LONG_LEASE)
        else:
            with at_work(lease=LONG_LEASE):
                ended(result)
        result.refresh()
        assert (lossy.lost, jobs.notes) == (1, ["once"])
        assert (result.status, result.attempts, result.errors) == (SUCCESSFUL, 1, [])
        assert "jobs that it had leased were released: 1." in caplog.text

    def test_settlement_sent_with_the_claim_is_not_reported_as_refused(
        self, lossy: LossyProxy, caplog: LogCaptureFixture
    ) -> None:
        results = [jobs.note.enqueue(number) for number in range(3)]
        lossy.lose_one_after(1)
        burst(lease=LONG_LEASE)
        assert lossy.lost == 1
        assert [ended(one).status for one in results] == [SUCCESSFUL] * 3
        assert (sorted(jobs.notes), [one.attempts for one in results]) == ([0, 1, 2], [1, 1, 1])
        assert "refused" not in caplog.text

    def test_worker_that_stops_releases_them(self, lossy: LossyProxy) -> None:
        result = jobs.note.using(max_attempts=1).enqueue("once")
        runner = worker(lease=LONG_LEASE)

        lossy.lose_next(then=runner.stop)
        runner.run()
        assert lossy.lost == 1
        assert_released(result)

    @pytest.mark.timing
    def test_a_stop_does_not_wait_for_an_outage(self, lossy: LossyProxy, lasting: EmbeddedServer) -> None:
        """The server freezes while an idle worker claims: so the worker tries to release its jobs, too."""
        runner = worker(lease=LONG_LEASE)
        stopped: list[float] = []

        with ExitStack() as stack:

            def freeze_and_stop() -> None:
                stack.enter_context(unavailable(lasting))
                runner.stop()
                stopped.append(time.monotonic())

            lossy.lose_next(hang_up=False, then=freeze_and_stop)
            runner.run()
            seconds = time.monotonic() - stopped[0]
        assert seconds < 11  # 8 s on an idle machine

    @pytest.mark.timing
    @pytest.mark.parametrize("server_returns", [True, False])
    def test_worker_that_stops_in_an_outage_releases_them(
        self,
        server_returns: bool,
        lossy: LossyProxy,
        lasting: EmbeddedServer,
        monkeypatch: MonkeyPatch,
        caplog: LogCaptureFixture,
    ) -> None:
        """If the server replies again in time."""
        monkeypatch.setattr(jobs_worker, "IDLE_DEADLINE", 0.2)
        monkeypatch.setattr(jobs_worker, "RELEASE_DEADLINE", 10.0 if server_returns else 0.2)
        result = jobs.note.using(max_attempts=1).enqueue("once")
        runner = worker(lease=LONG_LEASE)
        thaw = threading.Timer(2 * jobs_worker.LAST_DEADLINE, lasting.thaw)
        with ExitStack() as stack:

            def freeze_and_stop() -> None:
                stack.enter_context(unavailable(lasting))
                runner.stop()
                if server_returns:
                    thaw.start()

            lossy.lose_next(hang_up=False, then=freeze_and_stop)
            runner.run()
        assert lossy.lost == 1
        assert ("Releasing the jobs of lost claims failed" in caplog.text) == (not server_returns)
        if server_returns:
            assert_released(result)

    def test_claim_that_is_executed_late_is_released(self, lossy: LossyProxy) -> None:
        """Its request was on its way while the next ones were answered."""
        result = jobs.noop.using(max_attempts=1).enqueue()
        claims = LostClaims(backend().engine, conf.alias(), ["default"], 0.3)
        claims.add("late")
        claims.release()
        engine().claim(["default"], 1, round(LONG_LEASE * 1000), worker="w", token="late")
        assert state(result).status == "running"

        def is_forgotten() -> bool:
            claims.release()
            return not claims

        until(is_forgotten)
        assert_released(result)

    def test_no_attempt_is_charged_when_many_replies_are_lost(self, lossy: LossyProxy) -> None:
        results = [jobs.note.using(max_attempts=1).enqueue(number) for number in range(60)]
        lossy.lose_some(SHARE)
        with at_work(concurrency=3, lease=LONG_LEASE):
            for one in results:
                ended(one)
            lossy.lose_next(0)
        assert lossy.lost > 3
        assert {(one.status, one.attempts) for one in results} == {(SUCCESSFUL, 1)}
        assert sorted(jobs.notes) == list(range(60))


@contextmanager
def lossy_proxy(lasting: EmbeddedServer, connect: Connect, script: str) -> Iterator[LossyProxy]:
    """A proxy that loses replies to one script on demand."""
    connect(lasting)
    jobs.double.enqueue(1)
    burst()  # the server has the scripts now
    jobs.notes.clear()
    with LossyProxy(lasting.socket, asking=commands.load(script).sha.encode()) as proxy:
        connect(proxy, COMMAND_DEADLINE=GENEROUS)
        yield proxy


@pytest.mark.promise
class TestFollowUps:
    """Each success enqueues one."""

    def test_lost_replies(self, lossy: LossyProxy) -> None:
        """Each lease is settled once, and a repeat gets the answer that was lost."""
        lossy.lose_next(0)
        size, then = 50, jobs.note.using(queue_name="other")
        results = [jobs.echo.using(then=then).enqueue(number) for number in range(size)]
        leased = engine().claim(["default"], size, 1_000_000).jobs
        lossy.lose_some(SHARE)
        for result, one in zip(results, leased, strict=True):
            follow_up = prepare_follow_up(backend(), result, "value")
            settlement = one.lease.settlement(Outcome.DONE, 60_000, 'R"value"')
            assert engine().settle_and_push(settlement, follow_up)
        assert lossy.lost > size * SHARE / 2
        lossy.lose_next(0)
        assert counts("other") == [size, 0, 0, 0]
        assert {backend().get_result(one.id).status for one in results} == {SUCCESSFUL}

    @pytest.mark.parametrize(("script", "earlier"), [("jobs/settle", 0), ("jobs/claim", 1)])
    def test_worker_sends_the_signal_once(
        self, script: str, earlier: int, lasting: EmbeddedServer, connect: Connect
    ) -> None:
        """Also if it settles twice: the reply to the settlement is lost, or that to the next claim."""
        sent: list[str] = []
        with lossy_proxy(lasting, connect, script) as lossy:
            result = jobs.double.enqueue(4)
            with receiving(task_enqueued, lambda task_result, **_: sent.append(task_result.id)):
                lossy.lose_one_after(earlier)
                burst()
            assert lossy.lost == 1
            assert sent == [result.then_id]

    def test_full_memory(self, fill: Callable[[], None]) -> None:
        """Workers go on: a task ends together with the push of its follow-up, and a client can wait for
        that."""
        result = jobs.double.enqueue(4)
        [leased] = engine().claim(["default"], 1, 1_000_000).jobs
        fill()
        with pytest.raises(Unavailable):
            jobs.note.enqueue(1)
        with pytest.raises(TimeoutError):
            wait_for_result(result, 0.01)
        settlement = leased.lease.settlement(Outcome.DONE, 60_000, "R8")
        assert engine().settle_and_push(settlement, prepare_follow_up(backend(), result, 8))
        assert wait_for_result(result).return_value == 8
        with pytest.raises(TimeoutError):
            wait_for_result(backend().get_result(result.then_id), 0.01)


@pytest.mark.timing
class TestWorkerWithoutRedis:
    @pytest.mark.parametrize("server_is", ["stopped", "frozen"])
    def test_burst_fails(self, server_is: str, own_server: EmbeddedServer, settings: Settings) -> None:
        """After COMMAND_DEADLINE, however it fails. Whoever started it waits for its end."""
        change(settings, COMMAND_DEADLINE=0.3)
        runner = worker(burst=True, concurrency=2)
        with unavailable(own_server, server_is), running(runner.run, runner.stop) as thread:
            thread.join(PATIENCE / 4)
            assert not thread.is_alive()
        assert runner.failed

    def test_timeouts_do_not_wait_for_it(self, own_server: EmbeddedServer) -> None:
        tasks = jobs.note_timeout.using(timeout=0.5), jobs.async_note_timeout.using(timeout=0.5)
        with at_work(concurrency=2, lease=1.0) as runner:
            for task in tasks:
                task.enqueue(20)
            # not just leased: the reply to a claim may be lost with the server
            until(lambda: [job.started is not None for job in jobs_of(runner)] == [True, True])
            with unavailable(own_server):  # heartbeats wait
                until(lambda: len(jobs.notes) == 2)
        assert max(jobs.notes) < 3

    def test_running_tasks_are_released_within_one_deadline(
        self, own_server: EmbeddedServer, settings: Settings, caplog: LogCaptureFixture
    ) -> None:
        change(settings, COMMAND_DEADLINE=0.5)
        for _ in range(8):
            jobs.wait.enqueue()
        with at_work(concurrency=8) as runner:
            until(lambda: len(jobs.notes) == 8)
            own_server.freeze()
            runner.stop()
            runner.stop()
            began = time.monotonic()
        seconds = time.monotonic() - began
        own_server.thaw()
        assert seconds < 3
        [record] = [one for one in caplog.records if "delivered again" in one.getMessage()]
        assert record.getMessage().partition(": Redis")[0].count(", ") == 7

    def test_idle_worker_stops_quickly(self, own_server: EmbeddedServer) -> None:
        with at_work(concurrency=4) as runner:
            until(lambda: liveness(runner))
            own_server.freeze()
            began = time.monotonic()
        seconds = time.monotonic() - began
        own_server.thaw()
        assert seconds < 9  # IDLE_DEADLINE; RELEASE_DEADLINE, if a claim was on its way; a busy machine

    def test_refused_lane_backs_off_while_stopping(
        self, own_server: EmbeddedServer, caplog: LogCaptureFixture
    ) -> None:
        result = jobs.wait.enqueue()
        with at_work(concurrency=2, drain=0.6) as runner, own_server.client() as client:
            until(lambda: jobs.notes)
            client.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval", "-bzpopmin")
            runner.stop()
            until(lambda: runner._stopping)
            jobs.go.set()
            until(lambda: "delivered again" in caplog.text)
            client.execute_command("ACL", "SETUSER", "default", "+@all")
        warnings = [one for one in caplog.records if one.name == jobs_worker.__name__]
        assert 2 <= len(warnings) < 20, [one.getMessage() for one in warnings]
        assert state(result).status == "running"

    def test_worker_continues_after_an_outage(
        self, own_server: EmbeddedServer, settings: Settings, caplog: LogCaptureFixture
    ) -> None:
        """A task that ends meanwhile is settled afterwards."""
        change(settings, COMMAND_DEADLINE=0.5)
        with at_work(concurrency=2, lease=6.0) as runner:
            result = jobs.wait.enqueue()
            until(lambda: jobs.notes and liveness(runner))
            own_server.kill()
            jobs.go.set()
            until(lambda: caplog.text.count("Claiming jobs failed, retrying") > 2)
            own_server.start()
            consumed = server_ms()
            assert ended(result).return_value == "went"
            jobs.note.enqueue("after")
            until(lambda: jobs.notes == ["waits", "after"])
            until(lambda: liveness(runner) and liveness(runner)[1] >= consumed)
        assert result.attempts == 1

    def test_settlement_that_may_have_been_applied_is_repeated_as_such(self) -> None:
        settlement, outage = Lease("default", "id", 1, "token").settlement(Outcome.DONE), Outage()
        for error in (Unavailable(), OutcomeUnknown()):
            outage.add(error, [settlement])
            assert (settlement.lease in outage.sent) == isinstance(error, OutcomeUnknown)

    @pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown, ConfigurationError])
    def test_outage_is_long_after_the_deadline_or_if_no_retry_helps(
        self, error: type[MessagingError]
    ) -> None:
        """However short the deadline of the call was."""
        seconds = conf.current().COMMAND_DEADLINE
        for began, is_over in ((time.monotonic(), False), (time.monotonic() - seconds, True)):
            outage = Outage(began)
            outage.add(error(), [])
            assert outage.is_long == (is_over or error is ConfigurationError)


@pytest.mark.timing
class TestClientsWithoutRedis:
    async def test_enqueue_raises_and_nothing_is_partially_written(
        self, own_server: EmbeddedServer, settings: Settings
    ) -> None:
        change(settings, COMMAND_DEADLINE=0.2)
        before = await asyncio.to_thread(jobs.noop.enqueue)
        # data sent on an open connection may already have arrived: only a new connection fails before sending
        clients.close()
        own_server.stop()
        with recording_signals() as signals:
            with pytest.raises(Unavailable):
                await jobs.noop.aenqueue()
            with pytest.raises(Unavailable):
                await jobs.unique_echo.aenqueue_many([([1], {})] * 3)
            with pytest.raises(Unavailable):
                await asyncio.to_thread(jobs.unique_echo.enqueue, 1)
            with pytest.raises(Unavailable):
                await asyncio.to_thread(before.refresh)
        assert signals == []
        own_server.start()
        assert await asyncio.to_thread(count_waiting) == 1
        assert stored_keys() == {":jobs", ":states", ":queue:default:ready", ":queue:default:bell"}
        await clients.aclose()

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("server_is", ["stopped", "frozen", "frozen, others between"])
    def test_a_commit_waits_once_and_loses_nothing_else(
        self,
        server_is: str,
        own_server: EmbeddedServer,
        settings: Settings,
        monkeypatch: MonkeyPatch,
        caplog: LogCaptureFixture,
    ) -> None:
        change(settings, COMMAND_DEADLINE=60)
        monkeypatch.setattr("django_redis_messaging.tasks.commits.COMMIT_DEADLINE", 0.5)
        count_waiting()  # opens a connection
        committed: list[int] = []
        with unavailable(own_server, server_is):
            with transaction.atomic():
                results = []
                for number in range(100):
                    results.append(jobs.noop.enqueue_on_commit().enqueue())
                    if number == 99 or "between" in server_is:
                        transaction.on_commit(partial(committed.append, number))
                began = time.monotonic()
            assert time.monotonic() - began < 1.5, "a commit waits for one deadline, and a short one"
            began = time.monotonic()
            with transaction.atomic():
                jobs.noop.enqueue_on_commit().enqueue()
            assert time.monotonic() - began < 1.0, "after a failure, it waits for a short deadline"
        assert committed == (list(range(100)) if "between" in server_is else [99])
        assert {result.enqueued_at for result in results} == {None}
        if server_is == "stopped":
            logged = caplog.records[0].getMessage()
            # "may not": the kernel still accepts a request for a server that was just killed
            outcomes = ("were not enqueued", "may not have been enqueued")
            assert any(f"100 calls of tests.tasks.jobs.noop {outcome}" in logged for outcome in outcomes)
            assert all(result.id in logged for result in results[:90])
            assert count_waiting() == 0

    @pytest.mark.promise
    def test_wait_survives_a_restart_of_the_server(self, own_server: EmbeddedServer) -> None:
        result = jobs.echo.enqueue()
        with waiters(result) as [future]:
            own_server.kill()
            own_server.start()
            burst()
            assert future.result(PATIENCE).status == SUCCESSFUL

    def test_waiting_sends_a_command_a_second(self, own_server: EmbeddedServer) -> None:
        results = [jobs.echo.enqueue() for _ in range(3)]
        with waiters(*results) as futures, own_server.client() as client:
            commands, seconds = sent_in(client, 1)
            burst()
            assert [one.result(PATIENCE).status for one in futures] == [SUCCESSFUL] * 3
        assert commands / len(results) <= 1.5 * seconds

    async def test_any_number_of_clients_wait(self, own_server: EmbeddedServer, settings: Settings) -> None:
        """More than there are connections: those that get none listen later, and send nothing meanwhile."""
        entry = settings.CACHES["messaging"]
        options = {"OPTIONS": {"CONNECTION_POOL_KWARGS": {"max_connections": 8}}}
        settings.CACHES = {**settings.CACHES, "messaging": {**entry, **options}}
        result = jobs.echo.enqueue()
        copies = [backend().get_result(result.id) for _ in range(40)]
        waits = [asyncio.ensure_future(await_for_result(one, PATIENCE)) for one in copies]
        with own_server.client() as client:
            await asyncio.to_thread(until, lambda: client.info("clients")["blocked_clients"] >= 6)
            commands, seconds = await asyncio.to_thread(sent_in, client, 1)
        await asyncio.to_thread(burst)
        assert {one.status for one in await asyncio.gather(*waits)} == {SUCCESSFUL}
        assert commands / len(waits) <= 1.5 * seconds
        await clients.aclose()


@pytest.mark.timing
def test_pushes_and_the_worker_find_the_new_primary_after_a_failover(
    lead_to: Callable[[str], None], tmp_path: Path
) -> None:
    """Behind one address, a symbolic link: the old primary lives on as a replica and refuses writes."""
    link = tmp_path / "redis.sock"
    with Pair() as pair:
        link.symlink_to(pair.servers[0].socket)
        lead_to(f"unix://{link}?db=0")
        with at_work(concurrency=1, lease=1.0):
            running = jobs.wait.enqueue()
            until(lambda: jobs.notes == ["waits"])
            # no connection waits, so none is closed by the old primary: each stays open, and is refused
            link.unlink()
            link.symlink_to(pair.servers[1].socket)
            pair.swap()
            queued = jobs.note.enqueue("after")
            assert pair.clients[0].info("errorstats")["errorstat_READONLY"]["count"] >= 1
            jobs.go.set()
            assert ended(running).return_value == "went"
            assert ended(queued).is_finished
        # the results are on the new primary, and the heartbeat was removed there
        assert pair.clients[1].zcard(keys().finished) == 2
        assert pair.clients[1].exists(keys().workers) == 0
        assert counts() == [0, 0, 0, 0]
        clients.close()
        for server in pair.servers:
            server.kill()  # a graceful stop of a primary waits for its replica
