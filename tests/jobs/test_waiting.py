"""Jobs that wait for what they need: locks, permits, rates, pauses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from pytest_django import Settings

from django_redis_messaging import DelayQueue, LimitExceeded, conf
from django_redis_messaging.services.jobs import engine as engine_module
from django_redis_messaging.services.jobs.engine import Engine, Lease, Outcome, Push
from django_redis_messaging.services.jobs.keys import JobKeys
from tests.support.engines import Performed

from ..conftest import Call
from ..support.server import change, server, server_ms, until

LEASE = 60_000
DAY = 86_400_000
Fill = Callable[[], None]


class TaskEngine(Engine):
    """As the engine of tasks."""

    counts_lost = True


def engine() -> Any:
    return Performed(TaskEngine(conf.prefix(), "tasks", "w", max_results=1000, result_ttl=DAY), conf.alias())


def keys() -> JobKeys:
    return JobKeys(conf.prefix(), "tasks", "w")


def push(*ids: str, needs: str = "", task: str = "t", queue: str = "q", priority: int = 0) -> None:
    more = f"task={task}" + (f" needs={needs}" if needs else "")
    engine().push(queue, "", [Push(one, '["x"]', 0, priority, 3, "", more) for one in ids])


def claim(*queues: str, count: int = 100, lease: int = LEASE) -> dict[str, Lease]:
    """Claim jobs; their leases."""
    claimed = engine().claim(list(queues or ("q",)), count, lease)
    return {job.lease.id: job.lease for job in claimed.jobs}


def end(lease: Lease, outcome: Outcome = Outcome.DONE, ms: int = 0) -> None:
    assert engine().settle(lease.settlement(outcome, ms))


def state(job_id: str) -> Any:
    return engine().get(job_id).state


def parked(queue: str = "q") -> int:
    return int(engine().stats(queue)[5])


def held() -> list[str]:
    return [member.decode() for member in server().zrange(keys().held, 0, -1)]


def bell(queue: str = "q") -> int:
    return int(server().exists(keys().queue(queue).bell))


def assert_clean() -> None:
    """Nothing that belongs to waiting is left."""
    own = keys()
    left = [own.held, own.tokens, *(own.queue(name).parked for name in ("q", "r"))]
    assert server().exists(*left) == 0
    assert server().zcard(own.queue("q").delayed) == 0


class TestParked:
    def test_jobs_of_a_lock_run_one_at_a_time_in_their_order(self) -> None:
        push("a", "b", "c", needs="lock:order%3A7")
        push("free")
        found = claim()
        assert list(found) == ["a", "free"]
        assert engine().stats("q") == [0, 0, 2, 0, -1, 2]
        waiting = state("b")
        assert (waiting.status, waiting.attempts, waiting.blocked) == ("waiting", 0, "lock:order%3A7")
        assert held() == ["lock:order%3A7 a"]
        assert claim() == {}
        for job_id, following in (("a", "b"), ("b", "c")):
            end(found[job_id])
            found |= claim()
            assert list(found)[-1] == following
            assert (state(following).blocked, state(following).attempts) == ("", 1)
        end(found["c"])
        end(found["free"])
        assert_clean()

    def test_as_many_hold_a_permit_as_it_says(self) -> None:
        push("a", "b", "c", "d", needs="permit:exports/3")
        assert list(claim(count=2)) == ["a", "b"]
        assert list(claim()) == ["c"]
        assert (parked(), len(held())) == (1, 3)

    def test_priority_and_order_are_kept(self) -> None:
        push("running", needs="lock:x")
        running = claim()["running"]
        push("low", needs="lock:x", priority=-1)
        push("first", "second", needs="lock:x")
        push("high", needs="lock:x", priority=1)
        assert claim() == {}
        for expected in ("high", "first", "second", "low"):
            end(running)
            push(f"later than {expected}", needs="lock:x", priority=-2)
            [running] = claim().values()
            assert running.id == expected

    def test_one_claim_settles_and_leases_the_next(self) -> None:
        push("a", "b", needs="lock:x")
        settlement = claim()["a"].settlement(Outcome.DONE)
        claimed = engine().claim(["q"], 1, LEASE, settlements=[settlement])
        assert [job.lease.id for job in claimed.jobs] == ["b"]
        assert bell() == 0, "no other worker is woken in vain"

    @pytest.mark.parametrize("outcome", list(Outcome))
    def test_every_end_of_a_lease_frees_what_it_held(self, outcome: Outcome) -> None:
        push("a", "b", needs="lock:x,permit:y/1")
        running = claim()["a"]
        server().delete(keys().queue("q").bell)
        end(running, outcome, DAY)
        assert bell() == 1, "a waiting worker is woken"
        assert list(claim()) == ["b"]
        assert held() == ["lock:x b", "permit:y b"]

    def test_expired_lease_frees_it(self) -> None:
        push("a", "b", needs="permit:x/1")
        claim(lease=1)
        until(lambda: list(claim()) == ["b"])
        assert (held(), parked()) == (["permit:x b"], 1)

    def test_jobs_that_are_popped_without_a_lease_hold_nothing(self) -> None:
        push("a", "b", needs="lock:x")
        assert list(claim(lease=0)) == ["a", "b"]
        assert_clean()

    def test_a_claim_parks_a_limited_number_of_jobs(self) -> None:
        push(*map(str, range(250)), needs="lock:x")
        push("other")
        claimed = engine().claim(["q"], 2, LEASE)
        assert [job.lease.id for job in claimed.jobs] == ["0"]
        assert (claimed.due_in, parked(), bell()) == (0.0, 200, 1)
        assert (list(claim(count=1)), parked()) == (["other"], 249)

    def test_any_number_of_parked_jobs_hides_no_other(self) -> None:
        push("0", needs="lock:x")
        claim()
        push(*map(str, range(1, 451)), needs="lock:x")
        push("other")
        claims = [engine().claim(["q"], 1, LEASE) for _ in range(3)]
        assert [claimed.due_in for claimed in claims[:2]] == [0, 0], "it goes on at once"
        assert [one.lease.id for one in claims[2].jobs] == ["other"]

    def test_parked_jobs_count_as_waiting(self, settings: Settings) -> None:
        change(settings, JOB_MAX_WAITING=3)
        push("a", "b", "c", needs="lock:x")
        claim()
        push("d")
        with pytest.raises(LimitExceeded, match="jobs waiting in a queue: 4 is over the limit of 3"):
            push("e")

    def test_unique_job_stays_unique_while_it_is_parked(self) -> None:
        push("a", needs="lock:x")
        claim()
        for job_id in ("b", "c"):
            job = Push(job_id, '["x"]', 0, 0, 3, "u", "task=t needs=lock:x")
            assert engine().push("q", "", [job])[1] == ["b"]
            claim()
        assert parked() == 1

    def test_names_are_not_confused(self) -> None:
        """One that begins with another, and names with characters that are special."""
        push("a", needs="lock:x")
        push("b", needs="lock:x%21")
        push("c", needs="lock:xx")
        push("d", needs="permit:x/1")
        push("e", needs="permit:x%2F1/1")
        assert len(claim()) == 5
        push("f", needs="lock:xx")
        claim()
        end(claim_of("b"))
        assert parked() == 1


def claim_of(job_id: str) -> Lease:
    """The lease in force of a job."""
    found = state(job_id)
    return Lease("q", job_id, found.fence, found.token)


class TestSeveralNeeds:
    def test_all_are_taken_or_none(self) -> None:
        push("y", needs="lock:y")
        running = claim()["y"]
        push("xy", needs="lock:x,lock:y")
        push("x", needs="lock:x")
        assert list(claim()) == ["x"]
        assert state("xy").blocked == "lock:x" or state("xy").blocked == "lock:y"
        end(running)
        assert claim() == {}
        end(claim_of("x"))
        assert list(claim()) == ["xy"]
        assert held() == ["lock:x xy", "lock:y xy"]

    def test_job_that_has_to_wait_for_something_else_lets_the_next_one_pass(self) -> None:
        push("x", needs="lock:x")
        push("y", needs="lock:y")
        claim()
        push("xy", "xy2", needs="lock:x,lock:y")
        push("x2", needs="lock:x")
        claim()
        assert parked() == 3
        end(claim_of("x"))
        assert list(claim()) == ["x2"]
        assert (state("xy").blocked, state("xy2").blocked) == ("lock:y", "lock:y")
        end(claim_of("y"))
        end(claim_of("x2"))
        assert list(claim()) == ["xy"]


class TestTakenOut:
    """Jobs that are parked, or were promoted, and don't run."""

    @pytest.fixture(autouse=True)
    def wait_for_a_lock(self) -> None:
        push("a", "b", "c", needs="lock:x")
        claim()

    def promote_first(self) -> None:
        end(claim_of("a"), Outcome.DEAD)
        assert engine().stats("q")[0] == 1

    def test_parked_job_is_cancelled(self) -> None:
        assert engine().cancel("q", "b") == "q"
        assert (engine().get("b"), parked()) == (None, 1)
        self.promote_first()
        assert list(claim()) == ["c"]

    def test_parked_job_is_found_in_another_queue(self) -> None:
        own = TaskEngine(conf.prefix(), "tasks", "w")
        own.queue_of = lambda payload: "q"  # type: ignore[method-assign]
        assert Performed(own, conf.alias()).cancel("r", "b") == "q"

    def test_cancelling_a_promoted_job_promotes_the_next(self) -> None:
        self.promote_first()
        server().delete(keys().queue("q").bell)
        assert engine().cancel("q", "b") == "q"
        assert bell() == 1
        assert list(claim()) == ["c"]

    def test_rescheduling_a_promoted_job_promotes_the_next(self) -> None:
        self.promote_first()
        assert engine().reschedule("q", "b", DAY) == "q"
        assert state("b").blocked == ""
        assert list(claim()) == ["c"]

    def test_rescheduled_job_is_no_longer_parked(self) -> None:
        assert engine().reschedule("q", "b", DAY) == "q"
        assert engine().stats("q")[:2] == [0, 1]
        self.promote_first()
        assert engine().reschedule("q", "b", 0) == "q"
        assert list(claim()) == ["c"]

    def test_purge_deletes_them_and_frees_what_was_held(self) -> None:
        push("elsewhere", needs="lock:x", queue="r")
        claim("r")
        assert parked("r") == 1
        assert engine().purge("q") == 3
        assert list(claim("r")) == ["elsewhere"]
        assert held() == ["lock:x elsewhere"]
        assert engine().purge("r") == 1
        assert_clean()

    def test_redriven_job_waits_again(self) -> None:
        self.promote_first()
        claim()
        assert engine().redrive("q", None) == 1
        assert (claim(), parked()) == ({}, 2)

    def test_queue_with_parked_jobs_is_not_empty(self) -> None:
        end(claim_of("a"))
        push("r", needs="lock:x", queue="r")
        claim("r")
        push("b2", needs="lock:x", queue="s")
        claim("s")
        assert not engine().is_empty("s")


class TestSeveralQueues:
    def test_a_queue_without_workers_holds_up_no_other(self) -> None:
        push("running", needs="lock:x")
        running = claim()["running"]
        push("q", needs="lock:x", queue="q")
        push("r1", "r2", needs="lock:x", queue="r")
        claim("q", "r")
        end(running)
        for expected in ("r1", "r2"):
            found = claim("r")
            assert list(found) == [expected]
            end(found[expected])
        assert list(claim("q")) == ["q"]

    def test_a_permit_is_shared(self) -> None:
        push("q1", "q2", needs="permit:x/2", queue="q")
        push("r1", "r2", needs="permit:x/2", queue="r")
        assert list(claim("r", "q", count=3)) == ["r1", "r2"]
        assert parked("q") == 2


class TestLimits:
    def test_set_limit_is_in_force_until_it_is_removed(self) -> None:
        push(*map(str, range(9)), needs="permit:x%3A/2")
        assert len(claim()) == 2
        engine().set_limit("x:", 8)
        assert bell() == 1
        assert len(claim(count=2)) == 2
        assert len(claim()) == 4, "more than are promoted at once"
        engine().set_limit("x:", 1)
        for job_id in map(str, range(7)):
            end(claim_of(job_id))
            assert claim() == {}
        engine().set_limit("x:", None)
        assert len(claim()) == 1
        assert server().exists(keys().limits) == 0

    def test_zero_stops_them(self) -> None:
        engine().set_limit("x", 0)
        push("a", needs="permit:x/2")
        assert claim() == {}
        engine().set_limit("x", None)
        assert list(claim()) == ["a"]


class TestRates:
    def rate(self, count: int, seconds: int) -> str:
        return f"rate:r/{count}/{seconds * 1000}"

    def token(self) -> None:
        """Let the time pass until the next token."""
        own = keys()
        [(name, full)] = server().zrange(own.rates, 0, -1, withscores=True)
        count, period = map(int, name.decode().split("/")[1:])
        server().zadd(own.rates, {name: full - period * 1000 / count})
        server().zadd(own.tokens, {name: server_ms()}, xx=True)
        server().zadd(own.queue("q").delayed, {"\0tokens": server_ms()}, xx=True)

    def test_as_many_start_as_there_are_tokens(self) -> None:
        push(*map(str, range(6)), needs=self.rate(3, 3600))
        claimed = engine().claim(["q"], 100, DAY)
        assert [job.lease.id for job in claimed.jobs] == ["0", "1", "2"]
        assert 1199 < claimed.due_in < 1200.1
        assert engine().stats("q") == [0, 0, 3, 0, -1, 3]
        assert claim() == {}
        self.token()
        assert engine().stats("q")[1] == 0
        assert list(claim()) == ["3"]
        assert claim() == {}
        for expected in ("4", "5"):
            self.token()
            assert list(claim()) == [expected]
        assert_clean()

    def test_tokens_are_not_returned(self) -> None:
        push("a", "b", needs=self.rate(1, 3600))
        end(claim()["a"], Outcome.RELEASE, DAY)
        assert claim() == {}

    def test_several_rates_limit_together(self) -> None:
        push(*map(str, range(5)), needs="rate:r/2/1000,rate:r/3/3600000")
        assert len(claim()) == 2
        [blocked] = {state(job_id).blocked for job_id in "234"}
        assert blocked == "rate:r/2/1000"
        until(lambda: list(claim()) == ["2"])
        assert state("3").blocked in ("rate:r/3/3600000", "rate:r/2/1000")

    @pytest.mark.timing
    def test_tokens_come_evenly(self) -> None:
        push(*map(str, range(30)), needs="rate:r/10/1000")
        began, started = server_ms(), len(claim())
        assert started == 10
        while started < 30:
            claimed = engine().claim(["q"], 100, LEASE)
            started += len(claimed.jobs)
            elapsed = server_ms() - began
            assert started <= 10 + elapsed / 100 + 1
            assert started >= 9 + elapsed // 100 - 1 or started == 30
            assert claimed.due_in is not None
            assert claimed.due_in <= 0.102 or started == 30  # ms are rounded up
            engine().wait(["q"], claimed.due_in)
        assert_clean()

    def test_any_queue_of_the_slot_promotes(self) -> None:
        """Also one whose own jobs wait for another rate."""
        push("a", "b", needs=self.rate(1, 3600))
        claim()
        push("r1", "r2", needs="rate:other/1/1", queue="r")
        claim("r")
        self.token_of_q()
        until(lambda: engine().claim(["r"], 0, 0) and engine().stats("q")[0] == 1)
        assert bell("q") == 1

    def test_a_token_that_another_queue_has_taken(self) -> None:
        """This queue then awaits the next one, without a promoted job."""
        push("a", "b", needs=self.rate(1, 3600))
        claim()
        self.token()
        push("r1", "r2", needs=self.rate(1, 3600), queue="r")
        assert list(claim("r")) == ["r1"]
        assert claim() == {}
        self.token()
        assert list(claim()) == ["b"]

    def token_of_q(self) -> None:
        server().zadd(keys().tokens, {self.rate(1, 3600): server_ms()}, xx=True)

    def test_clock_that_was_set_back(self) -> None:
        push("a", "b", needs=self.rate(2, 3600))
        [_, _] = claim(lease=DAY)
        push("c", needs=self.rate(2, 3600))
        server().zadd(keys().rates, {self.rate(2, 3600): (server_ms() + DAY) * 1000})
        claimed = engine().claim(["q"], 1, LEASE)
        assert not claimed.jobs
        assert 1799 < claimed.due_in < 1800.1, "as if all tokens had been taken just now"

    def test_rates_of_the_past_are_deleted(self) -> None:
        for number in range(20):
            push(f"job {number}", needs=f"rate:{number}/1/1")
            until(lambda: claim())
        assert server().zcard(keys().rates) <= 10

    def test_cancelled_jobs_leave_no_marker(self) -> None:
        push("a", "b", needs=self.rate(1, 3600))
        claim()
        engine().cancel("q", "b")
        self.token()
        assert claim() == {}
        end(claim_of("a"))
        assert_clean()


class TestPaused:
    def test_nothing_of_a_paused_queue_is_leased(self) -> None:
        push("a")
        running = claim()["a"]
        push("b")
        push("r", queue="r")
        assert engine().pause("deploy of\nv2", "ann", queue="q") is True
        assert engine().pause("another reason", "bob", queue="q") is False
        assert list(claim("q", "r")) == ["r"]
        end(running, Outcome.RETRY)
        assert engine().stats("q")[:3] == [2, 0, 0]
        [paused] = engine().paused()
        assert (paused.queue, paused.task, paused.reason, paused.by) == ("q", "", "another reason", "bob")
        server().delete(keys().queue("q").bell)
        assert engine().resume(queue="q") is True
        assert (bell(), engine().resume(queue="q"), engine().paused()) == (1, False, [])
        assert list(claim()) == ["b", "a"]

    def test_a_task_is_resumed_in_any_number_of_queues(self) -> None:
        queues = [f"q{number}" for number in range(120)]
        for queue in queues:
            push(queue, queue=queue)
        engine().pause("", "", task="t")
        for queue in queues:
            assert claim(queue) == {}
        assert engine().resume(task="t") is True
        assert [parked(queue) for queue in queues] == [0] * 120

    def test_sweep_of_a_paused_queue(self) -> None:
        push("a")
        claim(lease=1)
        engine().pause("", "", queue="q")
        until(lambda: claim() == {} and server().zcard(keys().queue("q").leased) == 0)
        assert engine().stats("q")[0] == 1

    def test_jobs_of_a_paused_task_are_parked(self) -> None:
        engine().pause("", "", task="shop.pay")
        push("a", "b", task="shop.pay")
        push("c", task="shop.pack")
        assert list(claim()) == ["c"]
        assert (state("a").blocked, parked()) == ("pause:shop.pay", 2)
        assert engine().resume(task="shop.pay") is True
        assert list(claim()) == ["a", "b"]

    def test_all_jobs_of_a_task_resume(self) -> None:
        engine().pause("", "", task="t")
        push(*map(str, range(300)), needs="permit:x/1000")
        claim()
        claim()
        assert parked() == 300
        engine().resume(task="t")
        found: list[str] = []
        while some := claim(count=16):
            found += some
        assert found == list(map(str, range(300)))

    def test_what_jobs_need_is_free_while_their_task_is_paused(self) -> None:
        push("a", "b", needs="lock:x")
        push("c", needs="lock:x", task="other")
        running = claim()["a"]
        engine().pause("", "", task="t")
        end(running)
        assert list(claim()) == ["c"]
        engine().resume(task="t")
        end(claim_of("c"))
        assert list(claim()) == ["b"]

    def test_number_is_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_module, "MAX_PAUSED", 2)
        assert engine().pause("", "", queue="q") and engine().pause("", "", task="t")
        with pytest.raises(LimitExceeded, match="paused queues and tasks: 3 is over the limit of 2"):
            engine().pause("", "", queue="r")
        assert engine().pause("more", "", queue="q") is False

    async def test_delay_queue(self, call: Call) -> None:
        queue = DelayQueue("mail é:")
        queue.push("hello")
        assert await call(queue, "paused") is None
        assert await call(queue, "pause", "the provider is down", by="ann") is True
        assert queue.pop() == []
        paused = await call(queue, "paused")
        assert (paused.queue, paused.reason, paused.by) == ("mail é:", "the provider is down", "ann")
        assert abs(paused.since.timestamp() * 1000 - server_ms()) < 60_000
        assert await call(queue, "resume") is True
        assert [job.data for job in queue.pop()] == ["hello"]

    @pytest.mark.parametrize("texts", [("x" * 1001, ""), ("", "x" * 1001)])
    def test_long_texts_are_rejected(self, texts: tuple[str, str]) -> None:
        with pytest.raises(LimitExceeded, match="1001 is over the limit of 1000"):
            DelayQueue("mail").pause(*texts)


@pytest.mark.one_server
class TestFullMemory:
    def test_leases_end_and_jobs_are_parked_promoted_and_leased(self, fill: Fill, raw: redis.Redis) -> None:
        push("a", "b", "c", "d", needs="lock:x,rate:r/100/1000")
        running = claim()["a"]
        fill()
        end(running)
        assert list(claim()) == ["b"]
        assert engine().cancel("q", "c") == "q"
        end(claim_of("b"))
        assert engine().resume(task="t") is False
        assert list(claim()) == ["d"]
        end(claim_of("d"), Outcome.RELEASE, DAY)
        raw.config_set("maxmemory", 0)
        assert held() == []
