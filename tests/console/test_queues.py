"""The pages of queues, jobs and workers, and changes of them. test_access.py has who may use them."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from html import unescape
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from django_redis_messaging import DelayQueue, Lock, Unavailable, conf
from django_redis_messaging.console import contents, queues
from django_redis_messaging.console.access import Console
from django_redis_messaging.console.contents import Contents, parse
from django_redis_messaging.core.operations import perform
from django_redis_messaging.services.audit import AuditTrail
from django_redis_messaging.services.common.things import Thing
from django_redis_messaging.services.history.gauges import QueueGauges, store_snapshot
from django_redis_messaging.services.history.keys import HistoryKeys, Series
from django_redis_messaging.services.history.recording import Counts, record
from django_redis_messaging.services.jobs import engine
from django_redis_messaging.services.jobs.listing import Jobs
from django_redis_messaging.tasks.compat import TaskResult

from ..support.console import HOSTILE, SHOWN, change, confirm, page, post, url
from ..support.round_trips import round_trips
from ..support.scripts import server_clock
from ..support.server import change as set_up
from ..support.server import server, server_ms, until
from ..support.workers import at_work, backend, burst, later
from ..tasks import jobs
from ..web.conftest import client_of

QUEUE, SERIES = Thing("queue", "default", "default"), Series("queue", "default", "default")


@pytest.fixture(autouse=True)
def waiting_tasks_end() -> Iterator[None]:
    jobs.go.clear()
    jobs.notes.clear()
    yield
    jobs.go.set()


class Reader(Console):
    """Sees all, reads nothing, and retries nothing but tasks of one id."""

    def may_view(self, user: Any) -> bool:
        return bool(user.username == "reader")

    def may_read(self, user: Any, thing: Thing) -> bool:
        return False

    def may_act(self, user: Any, action: str, thing: Thing) -> bool:
        return action == "discard"


@pytest.fixture
def reader(settings: Settings) -> Client:
    set_up(settings, CONSOLE=f"{__name__}.Reader")
    return client_of(User.objects.create(username="reader", is_staff=True))


def task(result: TaskResult) -> Thing:
    return Thing("task", result.id, "default")


def queue_thing(name: str) -> Thing:
    return Thing("queue", name)


def dead(*texts: str) -> list[TaskResult]:
    """Tasks that have failed for good, with these messages."""
    found: list[TaskResult] = [jobs.fail.using(max_attempts=1).enqueue(text) for text in texts]
    burst()
    return found


def state(result: TaskResult) -> str:
    result.refresh()
    return str(result.status)


def lines() -> int:
    return len(AuditTrail().entries())


def cells(boss: Client, queue: str) -> dict[str, str]:
    """The rates and latencies in the row of a queue, by column, without those that are empty."""
    table = page(boss, "queues").partition('id="drm-table-2"')[0]
    [row] = [one for one in table.split("<tr>") if f"<bdi>{queue}</bdi>" in one]
    found = dict(re.findall(r'data-label="([^"]*)"[^>]*>(?:<bdi>(.*?)</bdi>)?\s*</td>', row))
    return {name: text.replace("\xa0", " ") for name, text in found.items() if text and "/" in name}


def buttons(text: str) -> list[str]:
    """The labels of the buttons of a page, without what they are about."""
    found = re.findall(r'<button type="submit"[^>]*>([^<]+)', text)
    return [unescape(one) for one in found if one not in ("Log out", "Search", "Filter")]


class TestQueues:
    def test_all_queues_with_their_numbers(self, boss: Client) -> None:
        dead("no")
        jobs.noop.enqueue()
        jobs.noop.using(run_after=later()).enqueue()
        DelayQueue(HOSTILE).push("x")
        text = page(boss, "queues").partition('id="drm-table-2"')[0]
        rows = dict(re.findall(r'<tr>\s*<th scope="row">.*?<bdi>(.*?)</bdi>(.*?)</tr>', text, re.DOTALL))
        numbers = {name: re.findall(r"<bdi>(\d+)</bdi></a>", row)[:3] for name, row in rows.items()}
        assert numbers["default"] == ["1", "1", "1"]  # ready, delayed, dead
        assert numbers[SHOWN] == ["1"] and not numbers["other"]
        assert "<script>alert" not in text and "delay queue" in rows[SHOWN]

    @pytest.mark.one_server
    def test_rates_and_latencies_are_of_now(self, boss: Client) -> None:
        """Those of the latest minute that has ended, and of a recent snapshot; no others."""
        counts = {"ran": 20, "wait:10": 19, "wait:54": 1, "run:30": 10, "run:70": 10}
        gauges = QueueGauges(SERIES, 0, 0, 0, 0, 0, None, throughput=0.0, added=2.13)
        perform(conf.alias(), store_snapshot(conf.prefix(), [gauges]))
        minute = server_ms() // 60_000 * 60_000
        with server_clock(minute):
            perform(conf.alias(), record(conf.prefix(), {SERIES: Counts(counts, {})}, "r"))
        rates = {"In / out per second": "2.1 / 0"}
        latencies = {"Wait p50 / p95": "476 µs / 476 µs", "Run p50 / p95": "15 ms / 16 s"}
        for ms, expected in ((59_999, rates), (60_000, rates | latencies), (180_000, rates)):
            with server_clock(minute + ms):
                assert cells(boss, "default") == expected
                assert cells(boss, "other") == {}
        server().hset(HistoryKeys(conf.prefix()).now, "at", server_ms() - 60_000)
        assert "In / out per second" not in cells(boss, "default")

    def test_many_queues_are_counted_by_the_page(self, boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(queues, "PAGE", 3)
        for number in range(4):
            DelayQueue(f"mail-{number}").push("x")
        first, second = page(boss, "queues"), page(boss, "queues", page="2")
        assert "mail-0" in first and "mail-1" not in first and 'href="?page=2"' not in first
        assert url("queues", page="2") in first
        assert "mail-1" in second and "mail-0" not in second and url("queues", page="3") not in second
        for bad in ("0", "-1", "x", "²", "9" * 9):
            assert boss.get(url("queues", page=bad)).status_code == 400

    @pytest.mark.one_server
    def test_round_trips_do_not_grow_with_the_queues(self, boss: Client) -> None:
        for number in range(queues.PAGE + 5):
            DelayQueue(f"mail-{number}").push("x")
        page(boss, "queues")
        for path in (url("queues"), url("queue", thing=str(QUEUE)), url("workers")):
            assert 0 < round_trips(partial(boss.get, path)) <= 12

    def test_a_paused_queue_says_by_whom_and_why(self, boss: Client) -> None:
        asked = post(boss, "pause", QUEUE).content.decode()
        assert "Pause this queue?" in asked and 'name="reason"' in asked and not backend().paused()
        assert "The queue is paused." in change(boss, "pause", QUEUE, reason=HOSTILE)
        [paused] = backend().paused()
        assert (paused.queue, paused.by, paused.reason) == ("default", "boss", HOSTILE.strip())
        for text in (page(boss, "queues"), page(boss, "queue", QUEUE)):
            assert SHOWN in text and "by boss" in text and "Resume" in buttons(text)
        assert "The queue is resumed." in change(boss, "resume", QUEUE)
        late = confirm(boss, "resume", QUEUE)
        assert late.status_code == 409 and not backend().paused() and lines() == 2
        assert confirm(boss, "pause", QUEUE, reason="x" * 2000).status_code == 413

    def test_a_delay_queue_is_paused_and_purged(self, boss: Client) -> None:
        queue, thing = DelayQueue("mail"), Thing("queue", "mail")
        queue.push_many([1, 2])
        change(boss, "pause", thing, reason="down")
        assert queue.paused() and not queue.pop()
        asked = post(boss, "purge", thing).content.decode()
        assert "Delete all jobs of this queue?" in asked and queue.stats().ready == 2
        assert "Jobs deleted: 2.<" in change(boss, "purge", thing)
        assert confirm(boss, "purge", thing).status_code == 409
        assert AuditTrail().entries()[0].number == 2

    def test_a_long_queue_is_purged_by_and_by(self, boss: Client, settings: Settings) -> None:
        queue = DelayQueue("mail")
        queue.push_many(list(range(250)))
        clock = mock.Mock(wraps=time, monotonic=mock.Mock(side_effect=itertools.count(0, 100)))
        with mock.patch.object(engine, "time", clock):
            text = change(boss, "purge", Thing("queue", "mail"))
        assert "Jobs deleted: 200. There are more" in text and queue.stats().ready == 50

    def test_things_that_are_no_queues(self, boss: Client) -> None:
        for thing, status in (
            ("queue:nowhere/emails", 404), ("lock:a", 400), ("queue:", 400), ("queue:default/", 400),
            ("queue:default/a/b", 400), ("queue:%00", 400), ("worker:x", 400), ("", 400),
        ):  # fmt: skip
            assert boss.get(url("queue", thing=thing)).status_code == status, thing
            assert boss.post(url("pause"), {"thing": thing, "confirmed": "1"}).status_code == status, thing
        assert confirm(boss, "pause", QUEUE, Thing("queue", "mail")).status_code == 400
        assert not backend().paused() and not lines()


class TestPlaces:
    def test_jobs_by_place(self, boss: Client) -> None:
        [failed] = dead("it broke")
        parked = [jobs.locked_note.enqueue(7), jobs.locked_note.enqueue(7)]
        ready, delayed = jobs.echo.enqueue(17, to=HOSTILE), jobs.noop.using(run_after=later()).enqueue()
        found = {place: page(boss, "queue", QUEUE, place=place) for place in queues.COLUMNS}
        assert ready.id in found["ready"]
        assert delayed.id in found["delayed"] and delayed.id not in found["ready"]
        assert failed.id in found["dead"] and "ValueError: it broke" in found["dead"]
        assert "There are no jobs here." in found["leased"] and "<script>alert" not in found["ready"]
        assert all(one.id in found["ready"] for one in parked)
        assert "<bdi>17, to=&quot;&lt;script" in found["ready"]
        assert boss.get(url("queue", thing=str(QUEUE), place="nowhere")).status_code == 400

    def test_filters_and_cursors(self, boss: Client) -> None:
        wanted = [jobs.echo.enqueue(f"customer {number}") for number in range(60)]
        jobs.noop.enqueue()
        first = page(boss, "queue", QUEUE, task="tests.tasks.jobs.echo", text="customer")
        more = unescape(re.findall(r'<a href="([^"]*cursor=[^"]*)"', first)[0])
        second = boss.get(more).content.decode()
        shown = [{one.id for one in wanted if f"{one.id}</bdi>" in text} for text in (first, second)]
        assert list(map(len, shown)) == [50, 10] and not shown[0] & shown[1]
        assert "jobs.noop" not in first + second and "Next page" in first and "Next page" not in second
        for query in ({"text": "customer 17"}, {"text": " customer 17 "}):
            assert page(boss, "queue", QUEUE, **query).count('<th scope="row">') == 1
        assert "No jobs match here." in page(boss, "queue", QUEUE, since=later().isoformat())
        for query in (
            {"cursor": "x"},
            {"cursor": "dead:default:1:a"},
            {"since": "soon"},
            {"task": "x" * 2000},
        ):
            answer = boss.get(url("queue", thing=str(QUEUE), **query))
            assert answer.status_code in (400, 413), query
        cursor = re.search(r"cursor=([^&]+)", more)
        assert (
            cursor
            and boss.get(url("queue", thing="queue:default/other") + f"&{cursor[0]}").status_code == 400
        )

    def test_secrets_are_masked_in_whole_and_in_cut_arguments(self, boss: Client) -> None:
        long = "y" * 500
        one = jobs.echo.enqueue({"deep": [{"password": "hunter1"}]}, long, api_key="hunter2", to="ann")
        cut = jobs.echo.enqueue(api_key="hunter3" + long)
        text = page(boss, "queue", QUEUE) + page(boss, "task", task(one)) + page(boss, "task", task(cut))
        assert "hunter" not in text and "••••••" in text and "ann" in page(boss, "task", task(one))

    def test_the_position_of_an_argument_names_it(
        self, boss: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(contents, "parameters_of", lambda task: ["customer", "token"])
        result = jobs.echo.enqueue(7, "hunter2")
        assert "hunter2" not in page(boss, "queue", QUEUE) + page(boss, "task", task(result))

    def test_who_may_not_read_sees_no_contents(self, reader: Client) -> None:
        [failed] = dead("secret message")
        one = jobs.echo.using(tags=("secret tag",)).enqueue("secret argument")
        for text in (
            page(reader, "queue", QUEUE), page(reader, "queue", QUEUE, place="dead"),
            page(reader, "task", task(one)), page(reader, "task", task(failed)),
        ):  # fmt: skip
            assert "secret" not in text and 'name="text"' not in text
        assert "ValueError" in page(reader, "task", task(failed))
        assert reader.get(url("queue", thing=str(QUEUE), text="secret")).status_code == 403
        data = {"place": "dead", "text": "secret", "confirmed": "1"}
        assert post(reader, "discard", QUEUE, **data).status_code == 403
        assert failed.id in page(reader, "queue", QUEUE, place="dead")

    def test_who_may_not_act_has_no_buttons(self, reader: Client) -> None:
        [failed] = dead("no")
        assert buttons(page(reader, "task", task(failed))) == ["Discard"]
        assert buttons(page(reader, "queues")) == []
        for action in ("retry", "redrive", "cancel", "pause", "purge"):
            thing = QUEUE if action in ("pause", "purge") else task(failed)
            assert confirm(reader, action, thing).status_code == 403
        assert state(failed) == "FAILED" and not backend().paused()


class TestJob:
    def test_all_that_is_known(self, boss: Client) -> None:
        call = jobs.retry_lookups.using(
            max_attempts=1, tags=("customer:7",), then=jobs.note, priority=5
        ).enqueue("KeyError")
        burst()
        text = page(boss, "task", task(call))
        for shown in (
            "tests.tasks.jobs.retry_lookups", call.id, "Dead", "1 of 1", "customer:7", "KeyError",
            "raise_by_name", "<details><summary>Traceback", "tests.tasks.jobs.note", "&quot;KeyError&quot;",
        ):  # fmt: skip
            assert shown in text, shown
        assert buttons(text) == ["Retry", "Retry later", "Discard"]
        assert "Ended" in text and call.worker_ids == [] and "Worker" in text

    def test_a_result(self, boss: Client) -> None:
        result = jobs.echo.enqueue(1, password="hunter2")
        burst()
        text = page(boss, "task", task(result))
        assert "Succeeded" in text and "Result" in text and "hunter2" not in text
        assert buttons(text) == ["Discard"]

    def test_a_job_of_a_delay_queue(self, boss: Client) -> None:
        queue = DelayQueue(HOSTILE)
        job_id = queue.push({"to": HOSTILE, "secret": "hunter2"}, delay=60)
        thing = Thing("job", job_id, HOSTILE)
        text = page(boss, "job", thing)
        assert "<script>alert" not in text and "hunter2" not in text and "Delayed" in text
        assert "\u202e" not in text + page(boss, "queue", queue_thing(HOSTILE), place="delayed")
        assert buttons(text) == ["Run now", "Reschedule", "Set priority", "Cancel jobs"]
        assert "1 job is due now." in change(boss, "run_now", thing)
        assert queue.stats().ready == 1
        assert "1 job was cancelled." in change(boss, "cancel", thing)
        assert queue.stats().ready == 0

    def test_why_it_waits(self, boss: Client) -> None:
        result = jobs.locked_note.enqueue(7)
        backend().pause("default", "deploy", by="ann")
        text = page(boss, "task", task(result))
        why = text.partition('id="drm-why"')[2].partition("</section>")[0]
        assert "has been paused by ann" in why and url("queue", thing=str(QUEUE)) in why
        assert "Until the queue is resumed." in why
        backend().resume("default")
        with Lock("order:7"):
            burst()
            text = page(boss, "task", task(result))
        why = text.partition('id="drm-why"')[2].partition("</section>")[0]
        assert "order:7" in why
        [failed] = dead("no")
        assert 'id="drm-why"' not in page(boss, "task", task(failed))

    def test_guessed_ids(self, boss: Client) -> None:
        jobs.noop.enqueue()
        for kind, thing in (
            ("task", "task:default/0123"), ("task", "task:nowhere/0123"), ("job", "job:mail/0123"),
            ("worker", "worker:nowhere/0123"),
        ):  # fmt: skip
            assert boss.get(url(kind, thing=thing)).status_code == 404, thing
        for action in ("retry", "cancel", "run_now", "discard"):
            for thing in ("task:default/0123", "job:mail/0123", "job:mail/*"):
                for data in ({}, {"confirmed": "1"}):
                    answer = boss.post(url(action), {"thing": thing, **data})
                    assert answer.status_code in (404, 409), (action, thing, data)
        assert backend().stats()[0].ready == 1 and not lines()

    def test_stored_text_that_is_no_json(self, boss: Client) -> None:
        result = jobs.echo.enqueue(1)
        server().hset(backend().engine.keys.jobs, result.id, b"\xff<script>alert(1)</script>")
        for text in (page(boss, "queue", QUEUE), page(boss, "task", task(result))):
            assert "<script>alert" not in text


class TestChanges:
    def test_dead_jobs_are_retried(self, boss: Client) -> None:
        one, two, three = dead("a", "b", "c")
        asked = post(boss, "retry", task(one), task(two)).content.decode()
        assert "2 are selected" in asked and state(one) == "FAILED"
        assert "2 jobs were enqueued again." in change(boss, "retry", task(one), task(two))
        assert [state(result) for result in (one, two, three)] == ["READY", "READY", "FAILED"]
        # one has left its state meanwhile, and a repeat finds nothing
        text = change(boss, "retry", task(one), task(three))
        assert "1 job was enqueued again." in text and "1 had left its state meanwhile" in text
        again = confirm(boss, "retry", task(one), task(three))
        assert again.status_code == 409 and "Nothing was changed." in again.content.decode()
        entries = AuditTrail().entries()
        assert [(entry.action, entry.number) for entry in entries] == [("retry", 1), ("retry", 2)]

    def test_dead_jobs_get_a_new_due_time(self, boss: Client) -> None:
        [one] = dead("a")
        assert 'type="datetime-local"' in post(boss, "redrive", task(one)).content.decode()
        for due in ("", "soon", "2026-99-99T00:00"):
            assert confirm(boss, "redrive", task(one), due=due).status_code == 400
        tomorrow = timezone.localtime() + timedelta(days=1)
        change(boss, "redrive", task(one), due=f"{tomorrow:%Y-%m-%dT%H:%M}")
        [load] = [load for load in backend().stats() if load.queue == "default"]
        assert (load.dead, load.delayed) == (0, 1)

    def test_all_that_match(self, boss: Client) -> None:
        one, two, other = dead("customer 1", "customer 2", "another")
        text = page(boss, "queue", QUEUE, place="dead", text="customer")
        form = re.search(r'action="[^"]*/retry/">(.*?)</form>', text, re.DOTALL)
        assert form
        data = dict(re.findall(r'name="(thing|place|text|until)" value="([^"]*)"', form[1]))
        asked = boss.post(
            url("retry"), {key: unescape(value) for key, value in data.items()}
        ).content.decode()
        assert "Jobs, at most" in asked and "<bdi>customer</bdi>" in asked and "<bdi>3</bdi>" in asked
        del data["thing"]
        assert "2 jobs were enqueued again." in change(boss, "retry", QUEUE, **data)
        assert [state(result) for result in (one, two, other)] == ["READY", "READY", "FAILED"]
        burst()
        # they have ended after the page was made: a repeat leaves them
        again = confirm(boss, "retry", QUEUE, **data)
        assert again.status_code == 409 and state(one) == "FAILED"
        assert "2 jobs were discarded." in change(boss, "discard", QUEUE, place="dead", text="customer")
        [entry, *_] = AuditTrail().entries()
        assert (entry.thing, entry.number, entry.detail) == (str(QUEUE), 2, "place=dead text=customer")

    def test_a_site_without_time_zones(self, boss: Client, settings: Settings) -> None:
        settings.USE_TZ = False
        DelayQueue("mail").push("x")
        thing = Thing("queue", "mail")
        assert "datetime-local" in post(boss, "reschedule", thing, place="ready").content.decode()
        change(boss, "reschedule", thing, place="ready", due="2036-01-01T12:00")
        assert "2036" in page(boss, "queue", thing, place="delayed")
        for place in ("dead", "finished"):
            assert page(boss, "queue", QUEUE, place=place)

    def test_a_change_that_fails_in_the_middle_is_recorded(self, boss: Client) -> None:
        things = [Thing("job", DelayQueue(name).push("x"), name) for name in ("mail", "sms")]
        cancel, calls = Jobs.cancel, itertools.count()

        def fail_at_second(*args: Any, **options: Any) -> Any:
            if next(calls):
                raise Unavailable("The server has gone.")
            return cancel(*args, **options)

        with mock.patch.object(Jobs, "cancel", fail_at_second):
            assert confirm(boss, "cancel", *things).status_code == 503
        [entry] = AuditTrail().entries()
        assert (entry.action, entry.number, entry.detail) == ("cancel", 1, "The server has gone.")

    def test_a_reason_is_one_line_in_the_log(self, boss: Client, caplog: pytest.LogCaptureFixture) -> None:
        DelayQueue("mail").push("x")
        change(boss, "pause", Thing("queue", "mail"), reason="moving\nERROR \x1b[31m")
        [record] = [one for one in caplog.records if one.name == "django_redis_messaging.console.base"]
        assert record.getMessage().endswith(r"moving\nERROR \x1b[31m")

    def test_where_a_filter_applies(self, boss: Client) -> None:
        """To a place of jobs that the change is about, and to one queue only."""
        dead("a")
        jobs.noop.enqueue()
        for action, place in (("retry", "ready"), ("discard", "ready"), ("cancel", "dead"), ("run_now", "x")):
            assert confirm(boss, action, QUEUE, place=place).status_code == 400
        other = Thing("queue", "other", "default")
        assert confirm(boss, "cancel", QUEUE, other, place="ready").status_code == 400
        assert confirm(boss, "cancel", Thing("queue", "mail"), place="leased").status_code == 400
        assert confirm(boss, "set_priority", QUEUE, priority="1").status_code == 400
        assert "1 job was cancelled." in change(boss, "cancel", QUEUE, place="ready")
        [load] = [load for load in backend().stats() if load.queue == "default"]
        assert (load.ready, load.dead) == (0, 1)

    def test_ready_jobs_are_rescheduled_and_ranked(self, boss: Client) -> None:
        result = jobs.noop.enqueue()
        change(boss, "set_priority", task(result), priority="7")
        assert "<dd><bdi>7</bdi>" in page(boss, "task", task(result))
        for priority in ("", "101", "1.5", "x"):
            assert confirm(boss, "set_priority", task(result), priority=priority).status_code == 400
        change(boss, "reschedule", task(result), due="2099-01-01T00:00")
        assert "Delayed" in page(boss, "task", task(result))
        change(boss, "run_now", task(result))
        assert burst() and state(result) == "SUCCESSFUL"
        assert post(boss, "run_now", task(result)).status_code == 409

    def test_a_running_task_is_shown_with_its_worker_and_cancelled(self, boss: Client) -> None:
        result = jobs.wait_forever.enqueue()
        with at_work():
            until(lambda: "waits" in jobs.notes)
            until(lambda: "wait_forever" in page(boss, "workers"))
            [worker] = backend().workers()
            backend().set_concurrency("exports <b>", 3)
            text = page(boss, "workers")
            assert "exports &lt;b&gt;" in text and "<bdi>3</bdi>" in text
            assert worker.id in text and result.id in text and f"<bdi>{worker.host}</bdi>" in text
            assert result.id in page(boss, "worker", Thing("worker", worker.id, "default"))
            text = page(boss, "task", task(result))
            assert worker.id in text and "has been running on" in text
            assert worker.queues == ("default", "other") and worker.id in page(boss, "queue", QUEUE)
            assert "1 job was cancelled." in change(boss, "cancel", task(result))
            until(lambda: state(result) == "FAILED")
        assert confirm(boss, "cancel", task(result)).status_code == 409

    def test_another_prefix_is_not_reached(self, boss: Client, settings: Settings) -> None:
        [one] = dead("a")
        own = conf.prefix()
        set_up(settings, PREFIX=f"{own}:other")
        assert boss.get(url("task", thing=str(task(one)))).status_code == 404
        assert confirm(boss, "retry", task(one)).status_code == 409
        set_up(settings, PREFIX=own)
        assert state(one) == "FAILED"


class TestContents:
    @pytest.mark.parametrize(
        ("text", "left"),
        [
            ("[", [[]]), ("", []), ('1, "a', [1, "a…"]), ("1, 2", [1, 2]), ("[1, 2", [[1]]),
            ('{"a": 1, "b', [{"a": 1}]), ('{"a": {"b": [1, ', [{"a": {"b": [1]}}]), ("7, -", [7]),
            ('{"a": "x\\u00', [{"a": "x…"}]), ('{"a": "x\\', [{"a": "x…"}]), ('{"a":', [{}]),
            ('[1], {"t', [[1], {}]), ("]", []), ("[}", None), ("x", []),
        ],
    )  # fmt: skip
    def test_cut_json(self, text: str, left: Any) -> None:
        if left is None:
            with pytest.raises(ValueError):
                parse(text)
        else:
            assert parse(text) == left

    def test_each_beginning_is_readable_and_masked(self) -> None:
        text = '["a\\"b", {"x": [1, {"token": "hunter2"}], "y": null}], {"password": ["hunter2"], "z": "é"}'
        for end in range(len(text) + 1):
            shown = Contents(Console(), text[:end], task="tests.tasks.jobs.echo")
            assert not shown.is_unreadable and "hunter" not in shown.line + repr(shown.texts), text[:end]

    def test_deep_and_long_values(self) -> None:
        deep = Contents(Console(), "[" * 100_000)
        assert deep.is_unreadable and deep.line
        assert len(Contents(Console(), f'"{"x" * 50_000}"').texts[0][1]) == contents.MAX_TEXT
