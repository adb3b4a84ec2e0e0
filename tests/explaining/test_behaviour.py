"""What `explain` takes, says and prints, and what workers store for it."""

from __future__ import annotations

import itertools
import json
import threading
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import CommandError
from django.utils import translation
from django.utils.translation import trans_real

from django_redis_messaging import (
    Broadcast,
    Cause,
    DelayQueue,
    Explanation,
    InvalidArgument,
    Lock,
    RateLimit,
    Thing,
    explain,
)
from django_redis_messaging.services.common.operators import Health
from django_redis_messaging.services.explaining.explanation import WORDINGS, make
from django_redis_messaging.tasks import Schedules, periodic, schedules
from django_redis_messaging.tasks import task as task_decorator
from tests.support.schedules import poll
from tests.support.server import no_server, server, until
from tests.support.terminal import output_of
from tests.support.workers import backend, burst, keys, worker

from ..tasks import jobs
from .site import Site, lock_inside

#: parameters that choose a form of a text, and durations
NUMBERS = {"attempts", "events", "files", "held", "members", "period", "seconds", "unread", "used"}


@pytest.fixture
def site(messaging_alias: str) -> Site:
    return Site()


tokens: list[Any] = []


@task_decorator(lock="nightly")
def explain_locks() -> None:
    with Lock("inner"):
        tokens.append([explain(f"lock:{name}") for name in ("nightly", "inner")])


@task_decorator
async def explain_lock_of_coroutine() -> None:
    async with Lock("inner") as lock:
        tokens.append(await lock.ainfo())


class TestWorkers:
    def test_locks_acquired_in_a_task_lead_to_it(self, site: Site) -> None:
        """Both that of the task itself and those in its code."""
        tokens.clear()
        result = explain_locks.enqueue()
        burst("default")
        for found in tokens[0]:
            assert [cause.code for cause in found.causes] == ["lock_held", "running"]
            assert found.causes[1].thing == Thing("task", result.id, "default")

    def test_locks_acquired_in_a_coroutine_name_the_task(self, site: Site) -> None:
        tokens.clear()
        result = explain_lock_of_coroutine.enqueue()
        burst("default")
        assert tokens[0].holder.endswith(f":task:default/{result.id}")
        with Lock("inner") as lock:
            assert "task" not in str(lock.info().holder)

    def test_a_worker_that_has_run_nothing_serves_its_queues(self, site: Site) -> None:
        running = worker("other")
        thread = threading.Thread(target=running.run)
        thread.start()
        try:
            until(lambda: Health().workers("default"))
            assert [cause.code for cause in explain("queue:default/other").causes] == ["nothing_ready"]
            codes = [cause.code for cause in explain("queue:default/default").causes]
            assert codes == ["no_worker", "nothing_ready"]
            assert [load.throughput for load in backend().stats()] == [0, 0]
        finally:
            running.stop()
            thread.join()


class TestParameters:
    def test_what_is_known_of_a_job_in_line(self, site: Site) -> None:
        site.beat("w1", ended=0)
        numbers = itertools.count(1000, 1000)
        until(lambda: site.beat("w1", running=2, ended=next(numbers)) is None and throughput() > 0)
        for name in ("a", "b"):
            site.push(name)
        [cause] = explain("b").causes
        params = cause.params
        assert (params["jobs"], params["workers"], params["running"]) == (1, 1, 2)
        assert params["seconds"] == pytest.approx(1 / throughput(), abs=0.1)

    def test_a_held_lock(self, site: Site) -> None:
        with Lock("nightly", timeout=60) as lock:
            [cause] = explain(lock).causes
            info = lock.info()
        params = dict(cause.params)
        left = (params.pop("lease_until") - info.read_at).total_seconds()
        assert 50 < left <= 60
        assert params == {
            "holder": info.holder,
            "since": info.acquired_at,
            "waiting": 0,
            "waiters": (),
        }

    def test_a_periodic_task_of_the_code(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(schedules, "_registered", {})
        periodic(every=3600)(jobs.noop)
        poll()
        name = jobs.noop.module_path
        [cause] = explain(Thing("periodic", name, "default")).causes
        [one] = [one for one in Schedules().all() if one.name == name]
        assert (cause.code, cause.params) == ("not_due", {"until": one.next_times()[0]})
        server().hset(keys().periodic, name, "1 other 0")  # a changed schedule applies from now on
        assert [cause.code for cause in explain(Thing("periodic", name, "default")).causes] == ["not_due"]
        server().hset(keys().periodic, "polled", 1_000)
        [silent, _] = explain(Thing("periodic", name, "default")).causes
        assert silent.params == {"since": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}

    def test_a_rate_limit(self, site: Site) -> None:
        limit = site.declare("login", "2/h")
        limit.take("ann")
        [cause] = explain("rate:login/ann").causes
        assert cause.params == {"left": 1, "count": 2, "period": 3600}
        before, decision = server().time()[0], limit.take("ann")
        [cause] = explain("rate:login/ann").causes
        wait = limit.peek("ann").retry_after
        ends = before + wait
        assert decision.remaining == 0
        assert ends - 1 <= cause.params["until"].timestamp() <= ends + 30
        assert RateLimit("webhook", "5/h").take("shop").allowed
        [cause] = explain("rate:webhook/shop").causes
        assert cause.params == {"used": 1}

    def test_consumers_that_are_behind(self, site: Site) -> None:
        channel = Broadcast("prices")
        channel.keep("begun", channel.cursor())
        events = [channel.publish(number) for number in range(3)]
        channel.keep("late", events[0].cursor)
        first, second = explain(channel).causes
        assert first.params == {"consumer": "begun", "events": 3, "kept": 3, "since": None}
        since = events[0].published_at
        assert second.params == {"consumer": "late", "events": 2, "kept": 2, "since": since}

    def test_json(self, site: Site) -> None:
        site.engine.pause("the provider\nis down", "ann", queue="default")
        site.beat()
        found = explain("queue:default/default").to_json()
        cause = found["causes"][0]
        since = cause["params"].pop("since")
        assert datetime.fromisoformat(since).tzinfo is not None
        assert cause["params"] == {"by": "ann", "reason": "the provider\nis down"}
        assert (cause["code"], cause["thing"]) == ("queue_paused", "queue:default/default")
        assert cause["ends"] == "Until the queue is resumed."
        assert "the provider\\nis down" in cause["text"], "control characters are escaped"
        assert found["text"].startswith("Queue:default/default has been paused by ann since ")
        assert json.loads(json.dumps(found)) == found


def throughput() -> float:
    return backend().stats()[0].throughput


@pytest.mark.one_server
class TestTexts:
    def test_they_are_in_the_active_language(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An explanation is made in one language and read in another one."""
        found = Explanation((make("no_worker", Thing("queue", "q")), make("lock_free", Thing("lock", "x"))))
        before = found.text
        catalogue = trans_real.translation("de")._catalog._catalogs[0]
        monkeypatch.setitem(catalogue, "no live worker serves %(thing)s", "kein Worker bedient %(thing)s")
        monkeypatch.setitem(catalogue, "Until a worker that serves this queue is started.", "Jetzt.")
        with translation.override("de"):
            assert found.text.startswith("Kein Worker bedient queue:q; ")
            assert (found.causes[0].ends, found.causes[1].ends) == ("Jetzt.", "")
        assert found.text == before == "No live worker serves queue:q; lock:x is free."

    def test_plurals(self) -> None:
        one, two = (make("mail_unread", Thing("mailbox", "ann"), unread=count) for count in (1, 2))
        assert one.text == "1 mail of mailbox:ann is unread; never fetched"
        assert two.text == "2 mails of mailbox:ann are unread; never fetched"
        with translation.override("de"):
            assert one.text.startswith("1 Mail von mailbox:ann "), "not: Mails"

    @pytest.mark.parametrize("code", WORDINGS)
    def test_hostile_values_are_shown_escaped(self, code: str) -> None:
        names = defaultdict[str, int](lambda: 7)
        for one in WORDINGS[code]:
            _used = one.text % names, str(one.ends) % names
        hostile: dict[str, Any] = dict.fromkeys(names.keys() - {"thing"}, "%(x)s %s\x1b[31m")
        hostile |= dict.fromkeys(names.keys() & NUMBERS, 7)
        cause = make(code, Thing("lock", "\x1b%s"), **hostile)
        assert "\x1b" not in cause.text + cause.ends


class TestBadInput:
    @pytest.mark.parametrize(
        "thing",
        [
            "", "a\0b", "x" * 256, "\ud800", "lock:", "lock:a%7Db/c", "timer:17", "task:elsewhere/1", "job:1",
            "queue:elsewhere/q", "permit:x", "server:x", "directory:x", "periodic:x", "periodic:elsewhere/x",
            "lock:%00", "chat:" + "x" * 300, "worker:w1", "worker:elsewhere/w1", "rate:a", "latch:a/b",
            "files:", "task:default/",
            Thing("task", "1"), Thing("lock", "x", "y}z"), Thing("nothing", "x"), Thing("job", "x", "\0"),
        ],
    )  # fmt: skip
    def test_it_is_refused_before_anything_is_sent(self, thing: Any) -> None:
        with no_server(), pytest.raises(InvalidArgument):
            explain(thing)

    def test_other_objects(self) -> None:
        with pytest.raises(InvalidArgument, match="A RateLimit can't be explained"):
            explain(RateLimit("x", "5/m"))
        for value in (None, 7, b"lock:x", object()):
            with pytest.raises(TypeError, match="thing must be"):
                explain(value)

    @pytest.mark.parametrize("name", ["a b", "{x}", "a%3Ab", "*", "[", "site:2:{lock:y}", "ä/…", "<b>"])
    def test_any_name_is_found(self, site: Site, name: str) -> None:
        queue = DelayQueue(name)
        queue.push("x", job_id=name)
        lock_inside(name, name)
        site.push(name)
        site.beat()
        assert [cause.code for cause in explain(Thing("job", name, name)).causes] == ["next"]
        assert explain(str(Thing("lock", name))).causes[1].thing == Thing("task", name, "default")

    def test_payloads_of_another_format(self, site: Site) -> None:
        site.push("a")
        server().hset(site.engine.engine.keys.jobs, "a", b'{"\xff')
        site.beat()
        assert [cause.code for cause in explain("a").causes] == ["next"]


class TestCommand:
    def test_it_prints_a_line_for_each_cause(self, site: Site) -> None:
        site.run("a", "lock:nightly")
        site.beat()
        site.push("b", "lock:nightly")
        lines = output_of("messaging_explain", "b")[0].splitlines()
        assert lines[0] == "lock_held: lock:nightly is held by task:default/a"
        assert lines[1] == "    Until the holder ends, and releases it."
        assert lines[2].startswith("running: task:default/a has been running on w1 since ")

    def test_json(self, site: Site) -> None:
        found = json.loads(output_of("messaging_explain", "0abc", "--json")[0])
        assert found["causes"][0]["code"] == "unknown"
        assert found == explain("0abc").to_json()

    def test_errors(self) -> None:
        with pytest.raises(CommandError, match="names nothing"):
            output_of("messaging_explain", "lock:")


def test_causes_are_compared_by_value() -> None:
    assert make("next", Thing("task", "a"), workers=1) == Cause("next", Thing("task", "a"), {"workers": 1})
