"""The lease engine of tasks and timers: attempts whose worker was lost, results, unique keys, sweeps."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import LimitExceeded, conf
from django_redis_messaging.services.jobs import engine as engine_module
from django_redis_messaging.services.jobs.engine import (
    Engine,
    Extended,
    JobRecord,
    LeasedJob,
    Outcome,
    Push,
    State,
    parse_state,
)
from django_redis_messaging.services.jobs.keys import JobKeys
from tests.support.engines import Performed

from ..support.server import change, reply_to, server, server_ms, until

LEASE = 60_000
DAY = 86_400_000
#: bytes above which only the newest lines of a log are kept
MAX_LOG_BYTES = 65536


class TaskEngine(Engine):
    """As the engine of tasks."""

    counts_lost = True


def engine(*, max_results: int = 1000, result_ttl: int = DAY) -> Any:
    made = TaskEngine(conf.prefix(), "tasks", "lost", max_results=max_results, result_ttl=result_ttl)
    return Performed(made, conf.alias())


def keys() -> JobKeys:
    return JobKeys(conf.prefix(), "tasks", "lost")


def push(
    job_id: str,
    *,
    max_attempts: int = 3,
    unique: str = "",
    queue: str = "q",
    queues: Any = None,
    max_aliases: int = 0,
) -> str:
    """Push a job; the id of the job in force."""
    job = Push(job_id, '["x"]', 0, 0, max_attempts, unique)
    _, [in_force] = (queues or engine()).push(queue, "", [job], max_aliases=max_aliases)
    return str(in_force)


def claim(queue: str = "q", lease: int = LEASE, **options: Any) -> LeasedJob:
    """Claim a job as worker w."""
    [job] = engine().claim([queue], 1, lease, worker="w", **options).jobs
    return job  # type: ignore[no-any-return]


def settle(outcome: Outcome, ms: int = 0, line: str = "", *, queue: str = "q") -> LeasedJob:
    """Claim a job and settle its lease."""
    leased = claim(queue)
    assert engine().settle(leased.lease.settlement(outcome, ms, line))
    return leased


def is_empty() -> bool:
    """Whether a claim gets nothing."""
    return not engine().claim(["q"], 1, LEASE).jobs


def lose(times: int = 1) -> None:
    """Start the job, and let its lease expire, as often as given."""
    while times:
        for leased in engine().claim(["q"], 1, 20, worker="w").jobs:
            assert leased.state.status == "running"
            times -= 1
            until(lambda: stats()[2] == 0)


def stats(queue: str = "q") -> list[int]:
    """Ready, delayed, leased and dead."""
    found: list[int] = engine().stats(queue)
    return found[:4]


def stored(job_id: str) -> str:
    """The state of a job as it is stored."""
    return str(server().hget(keys().states, job_id).decode())


def record(job_id: str) -> JobRecord:
    found: JobRecord = engine().get(job_id)
    return found


def end(job_id: str, outcome: Outcome = Outcome.DONE, ttl: int = DAY, queues: Any = None) -> None:
    """Push a job, claim it and settle its lease."""
    queues = queues or engine()
    push(job_id, queues=queues)
    [leased] = queues.claim(["q"], 1, LEASE).jobs
    assert queues.settle(leased.lease.settlement(outcome, ttl, "Rtrue"))


class TestLost:
    def test_lost_attempts_are_not_failures(self) -> None:
        push("a", max_attempts=2)
        lose(2)
        for attempts in (3, 4):
            leased = claim()
            state = leased.state
            assert (state.attempts, state.lost, state.failures) == (attempts, 2, attempts - 2)
            assert state.apart == (attempts == 3)  # it has failed then without ending its process
            assert engine().settle(leased.lease.settlement(Outcome.RETRY, 0, "E1"))
        assert record("a").state.status == "dead"
        assert record("a").log == b"L1\nL2\nE1\nE1"

    @pytest.mark.parametrize(("max_lost", "apart"), [(5, "00111"), (3, "001"), (2, "01")])
    def test_job_runs_apart_from_its_second_loss_on_and_is_dead_after_the_last(
        self, settings: Settings, max_lost: int, apart: str
    ) -> None:
        """From its first loss, if the second would be its last: no other job must make it dead."""
        change(settings, JOB_MAX_LOST=max_lost)
        push("a", max_attempts=100)
        for expected in apart:
            until(lambda: stats() == [1, 0, 0, 0])
            assert claim(lease=20).state.apart == (expected == "1")
        until(lambda: stats() == [0, 0, 0, 1])
        assert is_empty()
        assert (record("a").state.status, record("a").state.lost) == ("dead", max_lost)

    def test_job_with_a_single_attempt_is_started_once_until_it_is_redriven(self) -> None:
        push("a", max_attempts=1)
        lose()
        assert stats()[3] == 1
        assert is_empty()
        assert record("a").state.status == "dead"
        assert engine().redrive("q", None) == 1
        state = record("a").state
        assert (state.attempts, state.lost, state.workers, state.first, state.last) == (0, 0, [], 0, 0)
        assert record("a").log == b"L1"

    def test_released_job_has_not_started(self) -> None:
        push("a")
        settle(Outcome.RELEASE)
        state = record("a").state
        assert (state.status, state.attempts, state.first, state.last) == ("waiting", 0, 0, 0)
        first = settle(Outcome.RETRY)
        settle(Outcome.RELEASE)
        state = record("a").state
        assert (state.status, state.attempts, state.first) == ("waiting", 1, first.state.first)
        lose(2)
        settle(Outcome.RELEASE)
        assert (record("a").state.status, record("a").state.attempts) == ("waiting", 3)

    def test_jobs_of_a_claim_whose_reply_was_lost_are_released_uncounted(self) -> None:
        for number in range(3):
            push(f"{number}", max_attempts=1)
        push("other", queue="other", max_attempts=1)
        engine().claim(["q", "other"], 2, LEASE, worker="w", token="lost")
        kept = claim()
        engine().claim(["other"], 1, LEASE, worker="w", token="lost-too")
        assert engine().return_claims(["q", "other"], ["lost", "lost-too", "never sent"]) == 3
        assert engine().return_claims(["q", "other"], ["lost", "lost-too", "never sent"]) == 0
        assert [stats(queue)[:3] for queue in ("q", "other")] == [[2, 0, 1], [1, 0, 0]]
        for one in ("0", "1", "other"):
            state = record(one).state
            assert (state.status, state.attempts, state.lost, state.workers) == ("waiting", 0, 0, [])
            assert (state.first, state.last, record(one).log) == (0, 0, b"")
        assert engine().settle(kept.lease.settlement(Outcome.DONE))

    def test_job_of_a_claim_whose_reply_was_lost_keeps_its_attempts(self) -> None:
        push("a")
        lose(2)
        claim(token="lost")
        assert engine().return_claims(["q"], ["lost"]) == 1
        assert (record("a").state.attempts, record("a").state.lost) == (2, 2)

    def test_redrive_of_all_leaves_none_out(self) -> None:
        """Another client removes the last job of a page, which had to stay dead, before the next page."""
        names = [f"{number:03}" for number in range(250)]
        engine().push("q", "", [Push(name, '["x"]', 0, 0, 3) for name in names[:200]])
        engine().push("q", "", [Push(name, '["x"]', 0, 0, 3) for name in names[200:]])
        for leased in engine().claim(["q"], 250, LEASE).jobs:
            engine().settle(leased.lease.settlement(Outcome.DEAD))
        server().zadd(keys().queue("q").dead, dict.fromkeys(names, server_ms()))
        server().hset(keys().uniques, "key", push("holder", unique="key"))
        state = server().hget(keys().states, "000").decode()
        server().hset(keys().states, "000", state + " unique=key")
        body = TaskEngine(conf.prefix(), "tasks", "lost").redrive("q", None)
        first = reply_to(next(body))
        assert first[0] == 199
        assert engine().cancel("q", "000", dead=True)
        second = reply_to(body.send(first))
        assert (second[0], stats()[3]) == (50, 0)

    def test_queue_with_expired_dead_jobs_is_not_empty(self, settings: Settings) -> None:
        assert engine().is_empty("q")
        end("a", Outcome.DEAD)
        change(settings, JOB_DEAD_TTL=0.001)
        until(lambda: stats()[3] == 0)
        assert not engine().is_empty("q")


class TestStoredState:
    """What redis-cli shows of a job."""

    def test_each_stage_can_be_read(self) -> None:
        push("a")
        pushed = record("a").state.pushed
        assert stored("a") == f"waiting attempts=0/3 pushed={pushed} due={pushed}"
        first = claim()
        lease, began = first.lease, first.state.first
        assert stored("a") == (
            f"running attempts=1/3 pushed={pushed} due={pushed} fence={lease.fence} token={lease.token} "
            f"first={began} by=w"
        )
        until(lambda: server_ms() > began)
        engine().settle(lease.settlement(Outcome.RETRY, DAY))
        due = record("a").state.moment
        assert due > began + DAY
        assert stored("a") == (
            f"waiting attempts=1/3 pushed={pushed} due={due} fence={lease.fence} first={began} by=w"
        )
        engine().reschedule("q", "a", 0)
        second = settle(Outcome.DONE, DAY, "R1")
        assert stored("a") == (
            f"succeeded attempts=2/3 pushed={pushed} ended={record('a').state.moment} "
            f'fence={second.lease.fence} first={began} last={second.state.last} by=w,w\n["x"]\nR1'
        )

    @pytest.mark.parametrize("unique", ["", "k", " fence=1 unique=2 due=3", "= awaited=1"])
    @pytest.mark.parametrize("priority", [-100, 0, 7])
    def test_all_fields_are_read_again(self, priority: int, unique: str) -> None:
        """By the scripts and by Python, whatever the unique key is."""
        engine().push("q", "", [Push("a", '["x"]', 0, priority, 5, unique, "task=t group=g")])
        lose(2)
        engine().await_end("a")
        lease, _, state = claim()
        assert state == record("a").state
        assert state._replace(pushed=0, moment=0, first=0, last=0) == State(
            "running", priority, 3, 2, 5, lease.fence, lease.token, 0, 0, 0, 0, ["w", "w", "w"],
            True, False, True, "", " task=t group=g", unique,
        )  # fmt: skip
        assert (state.field("task"), state.field("group"), state.field("k")) == ("t", "g", "")
        assert state.first <= state.last
        assert engine().settle(lease.settlement(Outcome.RETRY))
        again = record("a").state
        assert again == state._replace(status="waiting", moment=again.moment, token="-", apart=False)
        engine().cancel("q", "a", ttl=DAY)
        ended = record("a").state
        assert ended == again._replace(status="cancelled", moment=ended.moment, awaited=False)

    def test_another_format_is_reported(self) -> None:
        with pytest.raises(ValueError, match="another format: b'w 0 0 0 5'"):
            parse_state(b"w 0 0 0 5")


class TestCancelled:
    def test_a_dead_job_that_is_redriven_is_not_cancelled(self) -> None:
        push("a")
        lease = claim().lease
        assert engine().cancel("q", "a", ttl=DAY, running=True) == "q"
        assert engine().extend([lease], DAY) == [Extended.CANCEL]
        assert engine().settle(lease.settlement(Outcome.DEAD))
        assert engine().redrive("q", ["a"]) == 1
        assert engine().extend([claim().lease], DAY) == [Extended.IN_FORCE]


class TestResults:
    def test_one_field_holds_a_result_with_the_log_of_earlier_attempts(self) -> None:
        push("a")
        settle(Outcome.RETRY, 0, "E1")
        settle(Outcome.DONE, DAY, "Rtrue")
        found, jobs = record("a"), keys()
        assert (found.payload, found.state.status, found.log) == (b'["x"]', "succeeded", b"E1\nRtrue")
        assert [server().hlen(key) for key in (jobs.jobs, jobs.states, jobs.outcomes)] == [0, 1, 0]

    def test_long_log_keeps_its_newest_lines(self) -> None:
        push("a")
        written = []
        for size in [10] * 40 + [9990] * 20:
            written.append(f"R{len(written):0{size}}")
            settle(Outcome.RELEASE, 0, written[-1])
        log = record("a").log.decode()
        kept = log.split("\n")
        assert len(log) <= MAX_LOG_BYTES + len(written[-1]) + 1
        assert len(kept) >= MAX_LOG_BYTES // len(written[-1])
        assert kept == written[-len(kept) :]

    def test_cap_removes_those_that_expire_first(self) -> None:
        for number, ttl in enumerate([5 * DAY, DAY, 3 * DAY, 4 * DAY]):
            end(str(number), ttl=ttl, queues=engine(max_results=3))
        assert [engine().get(str(number)) is not None for number in range(4)] == [True, False, True, True]

    def test_cap_lowered_later_is_reached(self) -> None:
        for number in range(8):
            end(str(number))
        for number in range(6):
            end(f"later {number}", queues=engine(max_results=2))
        assert server().zcard(keys().finished) == server().hlen(keys().states) == 2

    def test_results_with_a_short_ttl_are_not_removed_first(self) -> None:
        queues = engine(max_results=3)
        for number in range(6):
            end(f"day {number}", ttl=DAY, queues=queues)
            end(f"hour {number}", ttl=3_600_000, queues=queues)
        assert [one for one in range(6) if engine().get(f"hour {one}")] == [3, 4, 5]

    def test_result_of_a_dead_job_outlives_its_place_among_the_dead(self, settings: Settings) -> None:
        change(settings, JOB_MAX_DEAD=1)
        end("a", Outcome.DEAD)
        end("b", Outcome.DEAD)
        assert stats()[3] == 1
        assert [record(one).state.status for one in "ab"] == ["dead", "dead"]
        assert not engine().cancel("q", "b", ttl=LEASE, line="C")  # it has a result
        assert record("b").state.status == "dead"
        assert engine().redrive("q", ["a"]) == 0
        assert [one.id for one in engine().dead("q", 10)] == ["b"]
        # a job that replaces it does not expire with that result
        engine().push("q", "request", [Push("a", '["y"]', 0, 0, 3)])
        assert server().zscore(keys().finished, "a") is None
        assert (record("a").state.status, record("a").payload) == ("waiting", b'["y"]')

    def test_sweep_removes_what_has_expired(self, settings: Settings) -> None:
        change(settings, JOB_DEAD_TTL=0.01)
        for number in range(20):
            end(f"d{number}", Outcome.DEAD, queues=engine(result_ttl=1))
            end(f"s{number}", ttl=10, queues=engine(result_ttl=1))
        until(lambda: engine(result_ttl=1).sweep(["q"]) is None and not server().hlen(keys().states))
        assert not server().zcard(keys().finished)
        assert not server().zcard(keys().queue("q").dead)


class TestLongScripts:
    """One script moves a limited number of jobs, however many queues it serves."""

    @pytest.mark.parametrize(("delay", "moved"), [(0.001, 500), (None, 100)])
    def test_sweep(self, delay: float | None, moved: int) -> None:
        queues = [f"q{number}" for number in range(20)]
        for queue in queues:
            jobs = [Push(f"{queue} {n}", '["x"]', 0 if delay is None else 1, 0, 3) for n in range(60)]
            engine().push(queue, "", jobs)
        if delay is None:
            while engine().claim(queues, 100, LEASE).jobs:
                pass
        zsets = [getattr(keys().queue(one), "delayed" if delay else "leased") for one in queues]
        for zset in zsets:
            server().zadd(zset, dict.fromkeys(server().zrange(zset, 0, -1), 1))
        moment = server_ms()
        until(lambda: server_ms() > moment + 5)

        def left() -> int:
            return sum(map(server().zcard, zsets))

        assert left() == 1200
        for sweeps in range(1, 1200 // moved + 1):
            due_in = engine().sweep(queues)
            assert left() == 1200 - sweeps * moved
            assert due_in == 0 or left() == 0
        while left():
            engine().sweep(queues)

    def test_many_results_are_removed_in_pages(self) -> None:
        for number in range(150):
            end(f"{number}")
        server().zadd(keys().finished, {f"{number}": 1 for number in range(150)})
        assert engine().sweep(["q"]) == 0
        assert server().zcard(keys().finished) == server().hlen(keys().states) == 50
        assert engine().sweep(["q"]) is None
        assert not server().exists(keys().states)

    def test_removal_of_results_and_dead_jobs(self) -> None:
        for number in range(60):
            end(f"done {number}")
            end(f"dead {number}", Outcome.DEAD)
        zsets = keys().finished, keys().queue("q").dead
        server().zadd(zsets[1], dict.fromkeys(server().zrange(zsets[1], 0, -1), 1))
        before = [server().zcard(zset) for zset in zsets]
        engine(max_results=before[0] - 60).sweep(["q"])
        assert [old - server().zcard(zset) for old, zset in zip(before, zsets, strict=True)] == [60, 40]


class TestUniqueKeys:
    def enqueue_late(self, job_id: str) -> str:
        """Push with a unique key in use, under an id that was given out before."""
        return push(job_id, unique="key", max_aliases=50)

    def test_cost_of_a_duplicate_does_not_grow(self) -> None:
        push("winner", unique="key")
        sizes = []
        for number in range(60):
            before = sum(map(len, server().hvals(keys().aliases)))
            assert self.enqueue_late(f"{number:030}") == self.enqueue_late(f"{number:030}") == "winner"
            sizes.append(sum(map(len, server().hvals(keys().aliases))) - before)
        assert max(sizes[1:50]) - min(sizes[1:50]) <= 1
        assert set(sizes[50:]) == {0}  # the cap
        assert record(f"{49:030}").id == "winner"
        assert engine().get(f"{50:030}") is None

    def test_repeat_of_a_duplicate_stays_one(self) -> None:
        """Its reply was lost, and the job that has the key ended before the repeat."""
        push("winner", unique="key")
        assert self.enqueue_late("a") == "winner"
        settle(Outcome.DONE, DAY)
        assert self.enqueue_late("a") == "winner"
        assert stats()[0] == 0

    def test_redrive_finds_an_id_that_stands_for_the_job(self) -> None:
        push("winner", unique="key")
        self.enqueue_late("late")
        settle(Outcome.DEAD)
        assert engine().redrive("q", ["late"]) == 1

    def test_duplicate_needs_no_place_in_a_full_queue(self, settings: Settings) -> None:
        change(settings, JOB_MAX_WAITING=1)
        assert push("winner", unique="key") == push("b", unique="key") == "winner"
        with pytest.raises(LimitExceeded):
            push("c", unique="other")

    @pytest.mark.parametrize("ending", ["done", "cancel", "purge"])
    def test_deletion_of_the_winner_deletes_its_aliases(self, ending: str) -> None:
        push("winner", unique="key")
        self.enqueue_late("a")
        self.enqueue_late("b")
        if ending == "done":
            settle(Outcome.DONE)
        else:
            assert engine().cancel("q", "b") if ending == "cancel" else engine().purge("q") == 1
        assert not server().exists(keys().aliases)

    @pytest.mark.parametrize("operation", ["purge", "redrive", "cancel"])
    def test_dead_job_leaves_its_former_key_to_the_job_that_has_it_now(self, operation: str) -> None:
        push("dead", unique="key")
        settle(Outcome.DEAD)
        assert push("holder", queue="two", unique="key") == "holder"
        if operation == "purge":
            assert engine().purge("q") == 1
        elif operation == "redrive":
            assert engine().redrive("q", None) == engine().redrive("q", ["dead"]) == 0
        else:
            assert engine().cancel("q", "dead", dead=True)
        assert push("third", unique="key") == "holder"


@pytest.mark.timing
def test_silent_workers_are_removed_by_the_heartbeats_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def beat(worker: str) -> set[bytes]:
        engine().beat(worker, consumed=True, started=0, running=0, done=0, ended={})
        return set(server().hkeys(keys().workers))

    monkeypatch.setattr(engine_module, "HEARTBEAT_TIMEOUT", 200)
    began = server_ms()
    beat("silent")
    assert beat("other") == {b"silent", b"other"} or server_ms() > began + 150
    until(lambda: beat("other") == {b"other"})
    assert server_ms() >= began + 200


class TestRepeatedPushes:
    """A push whose reply was lost is repeated unchanged, without a request ID: the job IDs are new."""

    def push(self, *ids: str, unique: str = "") -> tuple[int, list[str]]:
        pushed = [Push(job_id, '["x"]', 0, 0, 1, unique) for job_id in ids]
        reply: tuple[int, list[str]] = engine().push("q", "", pushed)
        return reply

    def settle(self, outcome: Outcome) -> None:
        assert engine().settle(claim().lease.settlement(outcome, 3_600_000))

    def test_repeat_adds_nothing_and_returns_the_first_reply(self, settings: Settings) -> None:
        change(settings, JOB_MAX_WAITING=2)  # the queue is full
        first = self.push("a", "b")
        until(lambda: server_ms() > first[0])
        assert self.push("a", "b") == first
        assert engine().stats("q")[0] == 2

    @pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.DEAD])
    def test_repeat_after_completion_adds_nothing(self, outcome: Outcome) -> None:
        self.push("a")
        self.settle(outcome)
        self.push("a")
        assert engine().stats("q")[0] == 0

    def test_repeat_returns_the_same_unique_winner(self) -> None:
        for job_id in ("a", "a", "b", "b"):
            assert self.push(job_id, unique="k")[1] == ["a"]
        assert not server().exists(keys().aliases)
        self.settle(Outcome.DONE)
        assert self.push("c", unique="k")[1] == ["c"]
        assert self.push("a", unique="k")[1] == ["a"], "its own result, although the key has another owner"
        assert engine().get("a").state.status == "succeeded"
