"""The pages of schedules and timers, and changes of them. test_access.py has who may use them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from django_redis_messaging import Expiry, handlers, on_expiry
from django_redis_messaging.console import schedule
from django_redis_messaging.console.access import Console
from django_redis_messaging.core.operations import perform
from django_redis_messaging.services.audit import AuditTrail
from django_redis_messaging.services.common.things import Thing
from django_redis_messaging.tasks import Schedules, occurrences, schedules
from django_redis_messaging.tasks.occurrences import enqueue_due
from django_redis_messaging.tasks.schedules import periodic

from ..support.console import HOSTILE, SHOWN, change, confirm, page, post, url
from ..support.round_trips import round_trips
from ..support.server import change as set_up
from ..support.server import snapshot
from ..support.workers import backend
from ..tasks import jobs
from ..web.conftest import client_of

DECLARED = Thing("periodic", "tests.tasks.jobs.noop", "default")
STORED = Thing("periodic", "report", "default")


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that the code declares as periodic."""
    monkeypatch.setattr(schedules, "_registered", {})
    monkeypatch.setattr(occurrences, "_began", {})
    monkeypatch.setattr(occurrences, "_stored", {})
    periodic(every=3600)(jobs.noop)


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The namespace `order` has a handler."""
    monkeypatch.setattr(handlers, "timers", {})
    on_expiry("order")(print)
    yield


class Reader(Console):
    """Sees all, and reads and changes nothing."""

    def may_view(self, user: Any) -> bool:
        return True

    def may_read(self, user: Any, thing: Thing) -> bool:
        return False

    def may_act(self, user: Any, action: str, thing: Thing) -> bool:
        return False


@pytest.fixture
def reader(settings: Settings) -> Client:
    set_up(settings, CONSOLE=f"{__name__}.Reader")
    return client_of(User.objects.create(username="reader", is_staff=True))


def add(name: str = "report", **options: Any) -> None:
    Schedules().add(name, jobs.echo, **{"every": 60, "args": [1], **options})


def ready() -> int:
    return sum(load.ready for load in backend().stats())


@pytest.mark.usefixtures("declared")
class TestSchedule:
    def test_declared_and_stored_schedules(self, boss: Client) -> None:
        add(HOSTILE, kwargs={"password": "hunter2", "to": HOSTILE})
        text = page(boss, "schedule")
        assert SHOWN in text and "<script>alert" not in text
        assert "tests.tasks.jobs.noop" in text and "every 1 h" in text and "every 1 min" in text
        assert text.count("Run now<") == 2 and text.count("Remove<") == 1
        detail = page(boss, "periodic", Thing("periodic", HOSTILE, "default"))
        assert "hunter2" not in detail and "<script>alert" not in detail and "an entry in Redis" in detail
        assert "\u202e" not in text + detail and "tests.tasks.jobs.echo" in detail

    def test_whether_a_poller_runs(self, boss: Client) -> None:
        before = snapshot()
        assert "No poller" in page(boss, "schedule") and snapshot() == before  # it only reads
        detail = page(boss, "periodic", DECLARED)
        assert "No poller has looked at periodic task tests.tasks.jobs.noop yet" in detail
        assert "Until a poller is started." in detail and snapshot() == before
        perform(backend().using, enqueue_due(backend(), schedules.tasks_of("default")))
        assert "No poller" not in page(boss, "schedule")

    def test_run_pause_resume_and_remove(self, boss: Client) -> None:
        add()
        for thing in (STORED, DECLARED):
            assert "Run this periodic task now?" in post(boss, "run_periodic", thing).content.decode()
        assert not ready()
        change(boss, "run_periodic", STORED)
        change(boss, "run_periodic", DECLARED)
        assert ready() == 2
        [entry, *_] = AuditTrail().entries()
        assert (entry.action, entry.thing) == ("run_periodic", str(DECLARED))
        assert backend().get_result(entry.detail.removeprefix("task:")).task == jobs.noop
        change(boss, "pause_periodic", STORED)
        text = page(boss, "schedule")
        assert "Paused" in text and "Resume<" in text
        change(boss, "resume_periodic", STORED)
        assert all(one.paused_at is None for one in Schedules().all())
        assert post(boss, "remove_periodic", DECLARED).status_code == 409
        assert confirm(boss, "remove_periodic", DECLARED).status_code == 409
        change(boss, "remove_periodic", STORED)
        for action in ("run_periodic", "pause_periodic", "resume_periodic", "remove_periodic"):
            assert confirm(boss, action, STORED).status_code == 404
            assert post(boss, action, STORED).status_code == 404
        assert ready() == 2 and len(AuditTrail().entries()) == 5

    def test_a_repeat_enqueues_nothing(self, boss: Client) -> None:
        Schedules().add("report", jobs.noop, every=60)
        asked = post(boss, "run_periodic", STORED).content.decode()
        found = re.search(r'name="request" value="(\w+)"', asked)
        assert found is not None
        for _ in range(2):
            change(boss, "run_periodic", STORED, request=found[1])
        change(boss, "run_periodic", STORED)
        assert len(AuditTrail().entries()) == 2
        assert sum(load.ready for load in backend().stats()) == 2

    def test_a_schedule_that_cannot_be_enqueued(self, boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        add()
        monkeypatch.delattr(jobs, "echo")
        text = page(boss, "schedule")
        assert "Can&#x27;t be enqueued" in text and text.count("Run now<") == 1
        assert confirm(boss, "run_periodic", STORED).status_code == 409
        assert "echo" in page(boss, "periodic", STORED)

    def test_who_may_neither_read_nor_act(self, reader: Client) -> None:
        add(args=["secret"])
        text = page(reader, "schedule") + page(reader, "periodic", STORED)
        assert "secret" not in text and "Run now" not in text
        assert confirm(reader, "run_periodic", STORED).status_code == 403 and not ready()

    def test_guessed_names(self, boss: Client) -> None:
        for thing in ("periodic:default/x", "periodic:nowhere/x"):
            assert boss.get(url("periodic", thing=thing)).status_code == 404
            assert boss.post(url("pause_periodic"), {"thing": thing, "confirmed": "1"}).status_code == 404
        assert boss.get(url("periodic", thing="queue:default/x")).status_code == 400
        assert confirm(boss, "pause_periodic", STORED, DECLARED).status_code == 400


@pytest.mark.usefixtures("handled")
class TestTimers:
    def test_namespaces(self, boss: Client) -> None:
        Expiry("order").start("17", 60)
        Expiry(HOSTILE).start(HOSTILE, 0.001, {"to": HOSTILE})
        text = page(boss, "timers")
        rows = dict(re.findall(r'<tr>\s*<th scope="row">.*?<bdi>(.*?)</bdi>(.*?)</tr>', text, re.DOTALL))
        assert "No handler" not in rows["order"] and "builtins.print" in rows["order"]
        assert "No handler" in rows[SHOWN] and "<script>alert" not in text
        assert "timers are not started" in text
        assert SHOWN in page(boss, "timers", namespace=HOSTILE, place="ready")

    def test_the_next_ones_page_by_cursor(self, boss: Client) -> None:
        for number in range(55):
            Expiry("order").start(f"no {number}", 1000 + number, {"token": "hunter2", "total": number})
        first = page(boss, "timers", namespace="order")
        more = re.findall(r'<a href="([^"]*cursor=[^"]*)"', first)[0].replace("&amp;", "&")
        second = boss.get(more).content.decode()
        assert [text.count('<th scope="row">') for text in (first, second)] == [50, 5]
        assert "<bdi>no 0</bdi>" in first and "<bdi>no 54</bdi>" in second
        assert "hunter2" not in first and "&quot;total&quot;: 0" in first
        cursor = {"cursor": "delayed:order:1:x"}
        for query in (
            {"namespace": "order", "cursor": "x"}, {"namespace": "order", "place": "x"}, {"namespace": ""},
            {"namespace": "order", "place": "ready", **cursor}, {"namespace": "other", **cursor},
        ):  # fmt: skip
            assert boss.get(url("timers", **query)).status_code == 400, query

    def test_fire_and_cancel(self, boss: Client) -> None:
        orders = Expiry("order")
        orders.start("17", 60)
        orders.start("18", 60)
        fired, cancelled = (Thing("timer", name, "order") for name in ("17", "18"))
        assert "Fire this timer now?" in post(boss, "fire", fired).content.decode()
        assert (orders.remaining("17") or 0) > 50
        change(boss, "fire", fired)
        assert orders.remaining("17") == 0
        change(boss, "cancel_timer", cancelled)
        assert orders.remaining("18") is None
        for action in ("fire", "cancel_timer"):
            for data in ({}, {"confirmed": "1"}):
                assert post(boss, action, cancelled, **data).status_code == 404
        assert [entry.action for entry in AuditTrail().entries()] == ["cancel_timer", "fire"]

    def test_a_timer_that_was_started_again_is_another_one(self, boss: Client) -> None:
        orders, thing = Expiry("order"), Thing("timer", "17", "order")
        orders.start("17", 60)
        [shown] = re.findall(r'name="id" value="(\w+)"', page(boss, "timer", thing))[:1]
        orders.start("17", 600)
        for action in ("fire", "cancel_timer"):
            for data in ({}, {"confirmed": "1"}):
                assert post(boss, action, thing, id=shown, **data).status_code == 404
        assert (orders.remaining("17") or 0) > 500

    def test_the_id_of_another_timer_is_refused(self, boss: Client) -> None:
        """CONSOLE and the audit trail are given the name, so that must be the one of the timer."""
        orders, mine, other = Expiry("order"), Thing("timer", "17", "order"), Thing("timer", "18", "order")
        orders.start("17", 600)
        orders.start("18", 600)
        [shown] = re.findall(r'name="id" value="(\w+)"', page(boss, "timer", other))[:1]
        for action in ("fire", "cancel_timer"):
            assert confirm(boss, action, mine, id=shown).status_code == 404
        assert (orders.remaining("18") or 0) > 500 and not AuditTrail().entries()

    def test_one_timer(self, boss: Client) -> None:
        Expiry("order").start(HOSTILE, 60, {"password": "hunter2", "to": HOSTILE})
        text = page(boss, "timer", Thing("timer", HOSTILE, "order"))
        assert SHOWN in text and "hunter2" not in text and "<script>alert" not in text
        assert "builtins.print" in text and "is not due until" in text
        for thing in ("timer:order/x", "timer:x"):
            assert boss.get(url("timer", thing=thing)).status_code in (400, 404)

    def test_who_may_neither_read_nor_act(self, reader: Client) -> None:
        Expiry("order").start("17", 60, "secret")
        thing = Thing("timer", "17", "order")
        text = page(reader, "timer", thing) + page(reader, "timers", namespace="order")
        assert "secret" not in text and "Fire now" not in text
        assert confirm(reader, "fire", thing).status_code == 403


@pytest.mark.one_server
@pytest.mark.usefixtures("declared", "handled")
def test_round_trips_do_not_grow(boss: Client) -> None:
    for number in range(schedule.PAGE + 5):
        Expiry(f"order-{number}").start("17", 60)
        add(f"report-{number}")
    page(boss, "timers")
    for path in (url("timers"), url("timers", namespace="order-1"), url("schedule")):
        assert 0 < round_trips(partial(boss.get, path)) <= 12
