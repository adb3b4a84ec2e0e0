"""The lease engine of tasks and timers: attempts whose worker was lost, results, unique keys, request ids."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import LimitExceeded, conf
from django_redis_messaging.services.jobs import DelayQueue
from django_redis_messaging.services.jobs import engine as pages
from django_redis_messaging.services.jobs import queue as base
from django_redis_messaging.services.jobs.engine import Engine, JobRecord, Lease, LeasedJob, Outcome, Push
from django_redis_messaging.services.jobs.keys import REQUEST_SHARDS, JobKeys
from tests.support.engines import Performed

from ..support.server import all_keys, change, reply_to, server, server_ms, until

LEASE = 60_000
DAY = 86_400_000


class TaskEngine(Engine):
    """As the engine of tasks."""

    counts_lost = True


def engine(*, max_results: int = 1000, result_ttl: int = DAY) -> Any:
    made = TaskEngine(conf.prefix(), "tasks", "lost", max_results=max_results, result_ttl=result_ttl)
    return Performed(made, conf.alias())


def keys() -> JobKeys:
    return JobKeys(conf.prefix(), "tasks", "lost")


def push(job_id: str, *, max_attempts: int = 3, unique: str = "", queues: Any = None) -> str:
    _, [in_force] = (queues or engine()).push("q", "", [Push(job_id, '["x"]', 0, 0, max_attempts, unique)])
    return str(in_force)


def claim(lease: int = LEASE, **options: Any) -> LeasedJob | None:
    """Claim one job as worker w."""
    found: Sequence[LeasedJob] = engine().claim(["q"], 1, lease, worker="w", **options).jobs
    return found[0] if found else None


def lose(times: int = 1) -> None:
    """Start the job, and let its lease expire, as often as given."""
    while times:
        leased = claim(lease=20)
        if leased is None:
            continue
        if leased.state.status == "r" or engine().start_lone(leased.lease, "w") is not None:
            times -= 1
        until(lambda: engine().stats("q")[2] == 0)


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
            assert leased is not None
            assert (leased.state.status, leased.state.attempts, leased.state.workers[2:]) == (
                ("h", 2, []) if attempts == 3 else ("h", 3, ["w"])
            )
            state = engine().start_lone(leased.lease, "w")
            assert (state.status, state.attempts, state.lost, state.failures) == (
                "r", attempts, 2, attempts - 2,
            )  # fmt: skip
            assert engine().start_lone(leased.lease, "w") == state
            assert engine().settle(leased.lease.settlement(Outcome.RETRY, 0, "E1"))
        assert record("a").state.status == "d"
        assert record("a").log == b"L1\nL2\nE1\nE1"

    @pytest.mark.parametrize(("max_lost", "statuses"), [(5, "rrhhh"), (3, "rrh"), (2, "rh")])
    def test_job_is_lone_from_its_second_loss_on(
        self, settings: Settings, max_lost: int, statuses: str
    ) -> None:
        """Or from its first, if the second would be its last: no other job must make it dead."""
        change(settings, JOB_MAX_LOST=max_lost)
        push("a")
        for status in statuses:
            until(lambda: engine().stats("q")[0] == 1)
            leased = claim(lease=20)
            assert leased is not None
            assert leased.state.status == status
            engine().start_lone(leased.lease, "w")
        until(lambda: engine().stats("q")[3] == 1)

    def test_job_is_dead_when_too_many_workers_were_lost(self, settings: Settings) -> None:
        change(settings, JOB_MAX_LOST=3)
        push("a", max_attempts=100)
        lose(2)
        assert engine().stats("q")[:4] == [1, 0, 0, 0]
        lose()
        assert engine().stats("q")[:4] == [0, 0, 0, 1]
        assert claim() is None
        assert (record("a").state.status, record("a").state.lost) == ("d", 3)

    def test_job_with_a_single_attempt_is_started_once(self) -> None:
        push("a", max_attempts=1)
        lose()
        assert engine().stats("q")[3] == 1
        assert claim() is None
        assert record("a").state.status == "d"

    def test_lone_job_whose_lease_expires_is_not_charged(self, settings: Settings) -> None:
        change(settings, JOB_MAX_LOST=2)
        push("a")
        lose()
        stale: list[Lease] = []
        for _ in range(3):
            leased = claim(lease=10)
            assert leased is not None
            stale.append(leased.lease)
            until(lambda: engine().stats("q")[0] == 1)
        leased = claim()
        assert leased is not None
        assert (leased.state.attempts, leased.state.lost) == (1, 1)
        assert [engine().start_lone(lease, "w") for lease in stale] == [None] * 3
        assert record("a").log == b"L1"

    def test_released_while_lone(self) -> None:
        push("a")
        lose(2)
        leased = claim()
        assert leased is not None
        assert engine().settle(leased.lease.settlement(Outcome.RELEASE))
        assert (record("a").state.status, record("a").state.attempts) == ("w", 2)

    def test_jobs_of_a_claim_whose_reply_was_lost_are_released_uncounted(self) -> None:
        for number in range(3):
            push(f"{number}", max_attempts=1)
        engine().push("other", "", [Push("other", '["x"]', 0, 0, 1)])
        engine().claim(["q", "other"], 2, LEASE, worker="w", token="lost")
        kept = claim()
        engine().claim(["other"], 1, LEASE, worker="w", token="lost-too")
        assert kept is not None
        assert engine().return_claims(["q", "other"], ["lost", "lost-too", "never sent"]) == 3
        assert engine().return_claims(["q", "other"], ["lost", "lost-too", "never sent"]) == 0
        assert [engine().stats(queue)[:3] for queue in ("q", "other")] == [[2, 0, 1], [1, 0, 0]]
        for one in ("0", "1", "other"):
            state = record(one).state
            assert (state.status, state.attempts, state.lost, state.workers) == ("w", 0, 0, [])
            assert (state.first, state.last, record(one).log) == (0, 0, b"")
        assert engine().settle(kept.lease.settlement(Outcome.DONE))

    def test_lone_job_of_a_claim_whose_reply_was_lost_keeps_its_attempts(self) -> None:
        push("a")
        lose(2)
        engine().claim(["q"], 1, LEASE, worker="w", token="lost")
        assert engine().return_claims(["q"], ["lost"]) == 1
        assert (record("a").state.attempts, record("a").state.lost) == (2, 2)

    def test_redrive_starts_anew(self) -> None:
        push("a", max_attempts=1)
        lose()
        assert claim() is None
        assert engine().redrive("q", None) == 1
        state = record("a").state
        assert (state.attempts, state.lost, state.workers, state.first, state.last) == (0, 0, [], 0, 0)
        assert record("a").log == b"L1"

    def test_redrive_finds_an_id_that_stands_for_the_job(self) -> None:
        push("winner", unique="key", max_attempts=1)
        engine().push("q", "", [Push("late", '["x"]', 0, 0, 3, "key")], max_aliases=1)
        lose()
        assert claim() is None
        assert engine().redrive("q", ["late"]) == 1

    def test_redrive_of_all_leaves_none_out(self) -> None:
        """Another client removes the last job of a page, which had to stay dead, before the next page."""
        for number in range(250):
            end(f"{number:03}", Outcome.DEAD)
        server().zadd(keys().queue("q").dead, {f"{number:03}": server_ms() for number in range(250)})
        server().hset(keys().uniques, "key", push("holder", unique="key"))
        state = server().hget(keys().states, "000").decode()
        server().hset(keys().states, "000", state + "key")
        body = TaskEngine(conf.prefix(), "tasks", "lost").redrive("q", None)
        first = reply_to(next(body))
        assert first[0] == 199
        assert engine().cancel("q", "000", dead=True)
        second = reply_to(body.send(first))
        assert (second[0], engine().stats("q")[3]) == (50, 0)

    def test_queue_with_expired_dead_jobs_is_not_empty(self, settings: Settings) -> None:
        assert engine().is_empty("q")
        end("a", Outcome.DEAD)
        change(settings, JOB_DEAD_TTL=0.001)
        until(lambda: engine().stats("q")[3] == 0)
        assert not engine().is_empty("q")

    def test_expired_leases_of_a_delay_queue_are_attempts(self) -> None:
        queue = DelayQueue("plain", max_attempts=2)
        queue.push("x")
        for attempt in (1, 2):
            [job] = queue.pop(lease=0.001, wait=30)
            assert job.attempts == attempt
        until(lambda: queue.pop() == [] and queue.stats().dead == 1)


class TestResults:
    def test_one_field_holds_a_result(self) -> None:
        end("a")
        found = record("a")
        assert (found.payload, found.state.status, found.log) == (b'["x"]', "s", b"Rtrue")
        jobs = keys()
        assert [server().hlen(key) for key in (jobs.jobs, jobs.states, jobs.outcomes)] == [0, 1, 0]

    def test_the_log_of_earlier_attempts_becomes_part_of_the_result(self) -> None:
        push("a")
        for outcome, line in ((Outcome.RETRY, "E1"), (Outcome.DONE, "Rtrue")):
            leased = claim()
            assert leased is not None
            engine().settle(leased.lease.settlement(outcome, DAY if line == "Rtrue" else 0, line))
        assert record("a").log == b"E1\nRtrue"
        assert not server().exists(keys().outcomes)

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

    def test_result_of_a_dead_job_outlives_its_place_among_the_dead(self, settings: Settings) -> None:
        change(settings, JOB_MAX_DEAD=1)
        end("a", Outcome.DEAD)
        end("b", Outcome.DEAD)
        assert engine().stats("q")[3] == 1
        assert [record(one).state.status for one in "ab"] == ["d", "d"]
        assert engine().redrive("q", ["a"]) == 0
        assert [one.id for one in engine().dead("q", 10)] == ["b"]

    def test_job_that_replaces_a_dead_one_does_not_expire_with_its_result(self, settings: Settings) -> None:
        change(settings, JOB_MAX_DEAD=1)
        end("a", Outcome.DEAD)
        end("b", Outcome.DEAD)  # the result of the former is kept now
        engine().push("q", "request", [Push("a", '["y"]', 0, 0, 3)])
        assert server().zscore(keys().finished, "a") is None
        assert (record("a").state.status, record("a").payload) == ("w", b'["y"]')

    def test_sweep_removes_what_has_expired(self, settings: Settings) -> None:
        change(settings, JOB_DEAD_TTL=0.01)
        for number in range(20):
            end(f"d{number}", Outcome.DEAD, queues=engine(result_ttl=1))
            end(f"s{number}", ttl=10, queues=engine(result_ttl=1))
        until(lambda: engine(result_ttl=1).sweep(["q"]) is None and not server().hlen(keys().states))
        assert not server().zcard(keys().finished)
        assert not server().zcard(keys().queue("q").dead)

    def test_results_with_a_short_ttl_are_not_removed_first(self) -> None:
        queues = engine(max_results=3)
        for number in range(6):
            end(f"day {number}", ttl=DAY, queues=queues)
            end(f"hour {number}", ttl=3_600_000, queues=queues)
        assert [one for one in range(6) if engine().get(f"hour {one}")] == [3, 4, 5]


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


class TestUnique:
    def enqueue_late(self, job_id: str) -> str:
        """Push with a unique key in use, under an id that was given out before."""
        job = Push(job_id, '["x"]', 0, 0, 3, "key")
        _, [in_force] = engine().push("q", "", [job], max_aliases=50)
        return str(in_force)

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
        leased = claim()
        assert leased is not None
        assert engine().settle(leased.lease.settlement(Outcome.DONE, DAY))
        assert self.enqueue_late("a") == "winner"
        assert engine().stats("q")[0] == 0

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
            leased = claim()
            assert leased is not None
            assert engine().settle(leased.lease.settlement(Outcome.DONE))
        else:
            assert engine().cancel("q", "b") if ending == "cancel" else engine().purge("q") == 1
        assert not server().exists(keys().aliases)


class TestOrder:
    """Jobs that are due come before those pushed later, though nobody looked in between."""

    @pytest.fixture
    def queue(self) -> DelayQueue:
        queue = DelayQueue("order")
        queue.push("delayed", delay=0.01)
        moment = server_ms()
        until(lambda: server_ms() > moment + 60)
        queue.push("new")
        return queue

    def test_pop(self, queue: DelayQueue) -> None:
        assert [job.data for job in queue.pop()] == ["delayed", "new"]

    def test_min_age(self, queue: DelayQueue) -> None:
        assert [job.data for job in queue.pop(min_age=0.04)] == ["delayed"]

    @pytest.mark.parametrize("verb", ["retry", "release", "reschedule", "redrive", "expire"])
    def test_jobs_that_become_ready_again_are_behind_them(self, verb: str) -> None:
        queue = DelayQueue("again")
        queue.push("again", job_id="x", delay=3600 if verb == "reschedule" else 0)
        found = queue.pop(lease=0.05 if verb == "expire" else 60)
        if verb == "redrive":
            assert queue.fail(found[0], "broken")
        queue.push("delayed", delay=0.01)
        moment = server_ms()
        until(lambda: server_ms() > moment + 60)
        match verb:
            case "reschedule":
                assert queue.reschedule("x", 0)
            case "redrive":
                assert queue.redrive() == 1
            case "retry" | "release":
                assert getattr(queue, verb)(found[0])
        assert [job.data for job in queue.pop()] == ["delayed", "again"]


class TestRequests:
    def test_ids_are_spread_over_hashes_that_expire_one_after_the_other(self) -> None:
        queue = DelayQueue("requests")
        for number in range(300):
            queue.push(number, request_id=f"r{number}")
        found = [key for key in all_keys() if ":requests:" in key]
        assert len(found) > 30
        assert max(map(server().hlen, found)) < 20
        assert len({server().pttl(key) // 1000 for key in found}) > 30

    def test_a_hash_expires_before_its_next_turn(self) -> None:
        """Not in the first ms of that turn, in which Redis keeps it: it would take new ids with it."""
        queue = DelayQueue("requests")
        for number in range(50):
            queue.push(number, request_id=f"r{number}")
        window = conf.current().REQUEST_WINDOW * 1000
        for key in (key for key in all_keys() if ":requests:" in key):
            offset = int(key.split(":")[-2]) * window // REQUEST_SHARDS
            assert (server().pexpiretime(key) + offset) % window == window - 2

    def test_each_is_remembered_for_a_window(self, settings: Settings) -> None:
        change(settings, REQUEST_WINDOW=1)
        queue = DelayQueue("requests")
        began = server_ms()
        requests = [f"r{number}" for number in range(100)]
        ids = [queue.push("x", request_id=one) for one in requests]
        assert len(queue.pop(500, lease=None)) == 100  # an id is free again once its job has ended
        until(lambda: server_ms() > began + 500)
        again = [queue.push("x", request_id=one) for one in requests]
        in_time = server_ms() < began + 1000
        assert again == ids and (queue.stats().ready == 0 or not in_time)
        until(lambda: not [key for key in all_keys() if ":requests:" in key])


def count_calls(name: str, call: Callable[[], object]) -> int:
    """How many commands of this name the server executes during the call."""

    def calls() -> int:
        return int(server().info("commandstats").get(f"cmdstat_{name}", {"calls": 0})["calls"])

    before = calls()
    call()
    return calls() - before


def test_large_payloads_are_pushed_in_pages() -> None:
    queue = DelayQueue("large")
    queue.cancel(queue.push("registers the queue"))
    items = ["x" * 400_000] * 5
    assert [len(page) for page in pages.pages(items, str)] == [2, 2, 1]
    assert count_calls("evalsha", lambda: queue.push_many(items, request_id="r")) == 3
    queue.push_many(items, request_id="r")
    assert queue.stats().ready == 5


def test_a_cut_connection_does_not_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "POLL_INTERVAL", 30.0)
    queue = DelayQueue("cut")
    found: list[Any] = []
    consumer = threading.Thread(target=lambda: found.extend(queue.pop(wait=30)))
    consumer.start()

    def blocked() -> list[str]:
        return [
            one["id"] for one in server().client_list() if one["cmd"] == "bzpopmin" and "b" in one["flags"]
        ]

    until(blocked)
    for client in blocked():
        server().client_kill_filter(_id=client)
    queue.push("x")
    consumer.join(30)
    assert [job.data for job in found] == ["x"]
