"""Pages of the jobs of a queue, and changes of all that match a filter."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from django_redis_messaging import DelayQueue, InvalidArgument, MessagingError, conf
from django_redis_messaging.core.operations import Script, perform
from django_redis_messaging.services.jobs.engine import Engine
from django_redis_messaging.services.jobs.keys import JobKeys
from django_redis_messaging.services.jobs.listing import (
    MAX_EXCERPT,
    PLACES,
    JobFilter,
    JobPage,
    JobRow,
    Jobs,
    jobs_of,
    text_of,
)
from django_redis_messaging.services.jobs.queue import ONLY_QUEUE

from ..conftest import Call
from ..support.server import server, server_ms, until

#: jobs that one call looks at
MAX_LOOKED = 250
#: bytes of a reply
MAX_REPLY = 128 * 1024


def rows(jobs: Jobs, place: str, **options: Any) -> list[JobRow]:
    """The jobs of all pages."""
    found, cursor = list[JobRow](), None
    while True:
        page = jobs.page(place, cursor=cursor, **options)
        found, cursor = found + page.rows, page.cursor
        if cursor is None:
            return found


def ids(found: list[JobRow]) -> list[str]:
    return [row.id for row in found]


def bury(queue: DelayQueue, *job_ids: str) -> None:
    """Push jobs and have them fail, each with its id as the reason."""
    for job_id in job_ids:
        queue.push({"n": job_id}, job_id=job_id)
        [job] = queue.pop(1)
        queue.fail(job, f"reason {job.id}")


def keys(queue: str) -> Any:
    return JobKeys(conf.prefix(), "queue", queue).queue(ONLY_QUEUE)


class TestPages:
    async def test_jobs_of_each_place(self, call: Call) -> None:
        queue, jobs = DelayQueue("mail"), jobs_of("mail")
        bury(queue, "dead")
        queue.push("run", job_id="leased")
        queue.pop(1, lease=60)
        queue.push({"to": "Zoë"}, job_id="low", priority=-1)
        queue.push("high", job_id="high", priority=7)
        queue.push("later", job_id="later", delay=60)
        pages: dict[str, JobPage] = {place: await call(jobs, "page", place) for place in PLACES}
        assert {place: ids(page.rows) for place, page in pages.items()} == {
            "ready": ["high", "low"], "delayed": ["later"], "parked": [], "leased": ["leased"],
            "dead": ["dead"], "finished": [],
        }  # fmt: skip
        assert all(page.cursor is None for page in pages.values())
        low, [later] = pages["ready"].rows[1], pages["delayed"].rows
        [leased], [dead] = pages["leased"].rows, pages["dead"].rows
        assert (low.queue, low.status, low.arguments, low.size) == ("mail", "waiting", '{"to":"Zoë"}', 13)
        assert (low.priority, low.attempts, low.started_at, low.ended_at) == (-1, 0, None, None)
        assert later.due_at is not None
        assert later.due_at.timestamp() - later.pushed_at.timestamp() == pytest.approx(60, abs=0.01)
        assert leased.lease_ends_at == leased.started_at + timedelta(seconds=60)  # type: ignore[operator]
        assert (dead.reason, dead.due_at, dead.attempts) == ("reason dead", None, 1)
        assert dead.ended_at == queue.dead()[0].buried_at

    @pytest.mark.parametrize("place", ["ready", "delayed", "dead"])
    def test_pages_have_each_job_once(self, place: str) -> None:
        """Though many have the same moment, and the job at the cursor leaves meanwhile."""
        names = [f"{prefix}{number}" for number in range(40) for prefix in ("a", "Z", "é", "a%:")]
        zset, now = getattr(keys("q"), place), server_ms() - 1000
        states = JobKeys(conf.prefix(), "queue", "q").states
        for at, name in enumerate(names):
            server().zadd(zset, {name: now + at // 60})
            server().hset(states, name, f"waiting attempts=0/5 pushed={now} due={now}")
        expected = [name.decode() for name in server().zrange(zset, 0, -1, desc=place == "dead")]
        found, cursor = list[str](), None
        while True:
            page = jobs_of("q").page(place, cursor=cursor, limit=7)
            found, cursor = found + ids(page.rows), page.cursor
            if cursor is None:
                break
            server().zrem(zset, found[-1])
        assert found == expected

    def test_bounds(self) -> None:
        """Of what a call looks at, and of its reply."""
        queue, jobs = DelayQueue("q"), jobs_of("q")
        queue.push_many(["x" * 3000] * 350)
        page = jobs.page("ready", which=JobFilter(text="nothing has this"))
        assert page.rows == []
        assert page.cursor is not None
        assert len(rows(jobs, "ready", which=JobFilter(text="xxx"))) == 350
        call = jobs._engine.list_call(
            ONLY_QUEUE, "ready", ("", ""), 50, excerpt=MAX_EXCERPT, filters=("", "", "", 0, 0)
        )

        def reply() -> Any:
            return (yield call)

        _, _, found = perform(conf.alias(), reply())
        assert (
            MAX_REPLY / 2
            < sum(len(part) for job in found for part in job if isinstance(part, bytes))
            < MAX_REPLY
        )
        assert len(found) == 50
        large = "é" * 250_000
        queue.purge()
        queue.push_many([large] * 4)
        first = jobs.page("ready", which=JobFilter(text="no"))
        assert first.cursor is not None, "a call ends when it has read enough"
        [row] = jobs.page("ready", limit=1, excerpt=100).rows
        assert (row.arguments, row.size) == ('"' + "é" * 49, 500_002)

    def test_filters(self) -> None:
        queue, jobs = DelayQueue("q"), jobs_of("q")
        bury(queue, "a", "b")
        until(lambda: server_ms() > queue.dead()[0].buried_at.timestamp() * 1000)
        bury(queue, "c%", 'say "hi"')
        quoted, _, b, a = rows(jobs, "dead")
        assert quoted.ended_at is not None and b.ended_at is not None

        def found(**values: Any) -> list[str]:
            return ids(rows(jobs, "dead", which=JobFilter(**values)))

        assert found(text=r"say \"hi") == ['say "hi"']
        assert found(text='{"n":"b"}') == ["b"]
        assert found(text="%") == found(text="c%") == ["c%"]
        assert found(text="(a") == found(task="site.tasks.no") == []
        assert found(until=b.ended_at) == ([] if a.ended_at == b.ended_at else ["a"])
        assert found(since=b.ended_at + timedelta(milliseconds=1)) == ['say "hi"', "c%"]
        queue.push("x", job_id="ready")
        [ready] = jobs.page("ready").rows
        assert ready.due_at is not None
        assert jobs.page("ready", which=JobFilter(since=ready.due_at)).rows == [ready]
        assert jobs.page("ready", which=JobFilter(until=ready.due_at)).rows == []

    def test_invalid_arguments(self) -> None:
        bury(DelayQueue("q"), *"abc")
        jobs = jobs_of("q")
        cursor = jobs.page("dead", limit=1).cursor
        assert cursor is not None
        for bad in ("x", "", cursor.replace("dead", "ready"), cursor.replace(":q:", ":other:"), cursor + " ",
                    "dead:q:1:%ff", "dead:q:-1:a", "dead:q:1:" + "a" * 5000):  # fmt: skip
            with pytest.raises(InvalidArgument, match="cursor"):
                jobs.page("dead", cursor=bad)
        for options in ({"limit": 0}, {"limit": 51}, {"excerpt": 0}, {"excerpt": MAX_EXCERPT + 1},
                        {"which": JobFilter(text="x" * 1001)}):  # fmt: skip
            with pytest.raises(MessagingError, match=r"must be between|limit of 1000"):
                jobs.page("dead", **options)
        with pytest.raises(InvalidArgument, match="place must be one of ready, delayed"):
            jobs.page("groups")
        with pytest.raises(InvalidArgument, match="place must be one of dead, finished"):
            jobs.discard(["a"], place="leased")
        with pytest.raises(TypeError, match="list"):
            jobs.discard("a")
        with pytest.raises(TypeError, match="cursor must be a str"):
            jobs.page("dead", cursor=7)  # type: ignore[arg-type]


class TestChanges:
    async def test_redrive(self, call: Call) -> None:
        queue, jobs = DelayQueue("q"), jobs_of("q")
        bury(queue, *"abcd")
        assert (await call(jobs, "redrive", ["a", "a", "no"])).count == 1
        assert (await call(jobs, "redrive", JobFilter(text='"b"'), due=60)).count == 1
        [b] = jobs.page("delayed").rows
        due = b.due_at
        assert due is not None and due.timestamp() * 1000 > server_ms() + 50_000
        assert (await call(jobs, "redrive", ["c"], due=due + timedelta(hours=1))).is_complete
        assert ids(jobs.page("delayed").rows) == ["b", "c"]
        assert ids(jobs.page("ready").rows) == ["a"]
        assert queue.redrive(["d"], delay=5) == 1
        assert queue.stats().delayed == 3
        with pytest.raises(InvalidArgument, match="time zone"):
            jobs.redrive(["d"], due=due.replace(tzinfo=None))

    async def test_discard_deletes_what_is_still_dead(self, call: Call) -> None:
        queue, jobs = DelayQueue("q"), jobs_of("q")
        bury(queue, *"abc")
        queue.redrive(["a"])
        assert (await call(jobs, "discard", ["a", "b", "no"])).count == 1
        assert (await call(jobs, "discard", JobFilter())).count == 1
        assert ids(jobs.page("ready").rows) == ["a"]
        assert server().hlen(JobKeys(conf.prefix(), "queue", "q").states) == 1
        assert await call(jobs, "get", "b") is None

    async def test_cancel_and_reschedule(self, call: Call) -> None:
        queue, jobs = DelayQueue("q"), jobs_of("q")
        queue.push("x", job_id="runs")
        [job] = queue.pop(1)
        for name in "abc":
            queue.push(name, job_id=name, delay=60)
        assert (await call(jobs, "cancel", ["a", "runs"])).count == 1
        assert queue.extend(job, 60), "jobs of delay queues are not interrupted"
        assert (await call(jobs, "reschedule", ["b", "runs"])).count == 1
        assert ids(jobs.page("ready").rows) == ["b"]
        assert (await call(jobs, "reschedule", JobFilter(), 3600)).count == 1
        assert (await call(jobs, "cancel", JobFilter())).count == 1
        assert (await call(jobs, "cancel", JobFilter(), place="delayed")).count == 1
        assert queue.stats().leased == 1

    def test_changes_go_on_where_a_call_has_ended(self) -> None:
        queue, jobs = DelayQueue("q"), jobs_of("q")
        queue.push_many(list(range(500)), delay=60)
        first = jobs.reschedule(JobFilter(), 7200, most=250)
        assert (first.count, first.is_complete) == (250, False)
        rest = jobs.reschedule(JobFilter(), 7200, seconds=0, cursor=first.cursor)
        assert (rest.count, rest.is_complete) == (200, False)
        assert jobs.cancel(JobFilter(), place="delayed").count == 500
        assert queue.stats().delayed == 0


def test_a_job_with_all_that_is_known() -> None:
    queue, jobs = DelayQueue("q"), jobs_of("q")
    assert jobs.get("no") is None
    queue.push({"n": 1}, job_id="a")
    queue.fail(queue.pop(1)[0], "first")
    queue.redrive()
    queue.fail(queue.pop(1)[0], "second")
    found = jobs.get("a")
    assert found is not None
    assert (found.job.place, found.job.reason, found.job.arguments) == ("dead", "second", '{"n":1}')
    assert [(one.number, one.traceback) for one in found.attempts] == [(0, "first"), (1, "second")]
    assert found.attempts[1].ended_at == found.job.ended_at
    assert found.attempts[1].started_at == found.first_started_at is not None
    queue.push("x" * 100_000, job_id="b")
    found = jobs.get("b")
    assert found is not None
    assert (found.is_cut, len(found.job.arguments), found.job.size) == (True, 65_536, 100_002)
    assert (found.job.place, found.attempts, found.return_value) == ("ready", [], None)


def test_text_of_a_cut_string() -> None:
    """Any beginning of a JSON string gives the beginning of its text."""
    text = 'é "q" \\ \n \x01 \\n 💬'
    whole = json.dumps(text)
    for end in range(len(whole) + 1):
        assert text.startswith(text_of(whole[:end])) or text_of(whole[:end])[-1:] > "\ud7ff"
    assert text_of(whole) == text


#: stores jobs: payloads, states, logs, ready and parked
FILL = """
    local now, filler, page = tonumber(ARGV[1]), ARGV[4], {{}, {}, {}, {}, {}}
    for at = tonumber(ARGV[2]), tonumber(ARGV[3]) do
      local id = string.format('%024d', at)
      local values = {
        {id, '["site.tasks.pack","q",null,[' .. at .. ',"' .. filler .. '"],{},{}]'},
        {id, 'waiting attempts=1/5 pushed=' .. ARGV[1] .. ' due=' .. ARGV[1] .. ' fence=1764170060001234'
          .. ' token=fea3e129e51a first=' .. ARGV[1] .. ' by=web1-17-0a8554 task=site.tasks.pack'},
        {id, 'E["builtins.ValueError","' .. filler .. ' ValueError: no"]'},
        {now + math.floor(at / 1000), id},
        {0, 'lock:x ' .. string.format('%020d', at) .. ' ' .. id},
      }
      for number, pair in ipairs(values) do
        table.insert(page[number], pair[1])
        table.insert(page[number], pair[2])
      end
      if #page[1] == 500 then
        for number, key in ipairs(KEYS) do
          redis.call(number < 4 and 'HSET' or 'ZADD', key, unpack(page[number]))
          page[number] = {}
        end
      end
    end
"""


@pytest.mark.timing
@pytest.mark.one_server
def test_the_script_is_short_with_100_000_jobs() -> None:
    """At each place, from the start and from within, and with filters that match nothing."""
    total, now = 100_000, server_ms() - 3_600_000
    records = JobKeys(conf.prefix(), "queue", "q")
    own = records.queue(ONLY_QUEUE)
    where = [records.jobs, records.states, records.outcomes, own.ready, own.parked]
    for start in range(0, total, 5000):
        server().eval(FILL, len(where), *where, now, start, start + 4999, "x" * 300)
    for zset in (own.delayed, own.leased, own.dead):
        server().zunionstore(zset, [own.ready])
    server().zunionstore(records.finished, {own.ready: 2})  # they don't expire
    engine, random_at = Engine(conf.prefix(), "queue", "q"), random.Random(7)
    no_filter = ("", "", "", 0, 0)
    no_task, no_text = ("site.tasks.no", "", "", 0, 0), ("", "no text has this", "", 0, 0)
    no_time = ("", "", "", now - 10_000, now - 9_000)
    slowest = 0
    with durations() as measure:
        for place in PLACES:
            at = random_at.randrange(total)
            member = f"lock:x {at:020} {at:024}" if place == "parked" else f"{at:024}"
            score = 0 if place == "parked" else now + at // 1000
            position = str(score * 2 if place == "finished" else score), member
            for begin, filters in product((("", ""), position), (no_filter, no_task, no_text, no_time)):
                call = engine.list_call(ONLY_QUEUE, place, begin, 50, excerpt=MAX_EXCERPT, filters=filters)
                found, microseconds = measure(call)
                assert len(found) == (50 if filters == no_filter else 0), (place, filters)
                slowest = max(slowest, microseconds)
    assert 0 < slowest < 5000
    assert jobs_of("q").page("ready").rows[0].id == f"{0:024}"


@contextmanager
def durations() -> Iterator[Callable[[Script], tuple[list[Any], int]]]:
    """A function that returns the jobs in the reply to a script, and the time that it took: µs, the least of
    some runs: the machine may be busy."""
    before = server().config_get("slowlog-log-slower-than")["slowlog-log-slower-than"]

    def measure(call: Script) -> tuple[list[Any], int]:
        best = 10**9
        for _ in range(20):
            server().slowlog_reset()
            _, _, found = perform(conf.alias(), _reply(call))
            logged = [
                one["duration"] for one in server().slowlog_get(20) if b"EVAL" in one["command"].upper()
            ]
            best = min(best, *logged)
            if best < 5000:
                break
        return found, best

    server().config_set("slowlog-log-slower-than", 0)
    try:
        yield measure
    finally:
        server().config_set("slowlog-log-slower-than", before)


def _reply(call: Any) -> Any:
    return (yield call)
