"""The overview: tiles, what is wrong, servers, and what a look at it costs."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.core.checks import Warning
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from django_redis_messaging import DelayQueue, Expiry, Lock, conf
from django_redis_messaging.checks.servers import ServerInfo
from django_redis_messaging.console import problems, state
from django_redis_messaging.console.problems import find_troubles
from django_redis_messaging.console.state import Attendance, SlowCall, State
from django_redis_messaging.core.operations import perform
from django_redis_messaging.services.common.catalogue import MARKERS, Catalogue, Counts
from django_redis_messaging.services.history.gauges import (
    QueueGauges,
    read_servers,
    record_gauges,
    store_snapshot,
)
from django_redis_messaging.services.history.history import History
from django_redis_messaging.services.history.keys import HistoryKeys, Series
from django_redis_messaging.services.history.recording import Counts as Recorded
from django_redis_messaging.services.history.recording import record
from django_redis_messaging.services.history.things import THINGS
from django_redis_messaging.services.jobs.engine import Paused
from django_redis_messaging.services.jobs.heartbeats import Heartbeat

from ..support.aliases import entry
from ..support.console import page
from ..support.console_world import add_slots
from ..support.round_trips import round_trips
from ..support.server import change, server
from ..tasks import jobs

NOW = datetime.now(UTC)
BACKEND = Series("backend", "default", "default")
THERE = Attendance({}, {}, {"default": 1.0}, {"default": 1}, [])
FINE = State([], [], 5, THERE, {}, [], Counts(dict.fromkeys(MARKERS, 0), True))
ALIVE = Heartbeat.parse(b"web1-17-a", b"99000 99000 0 2 0", 100_000)
LOST = Heartbeat.parse(b"web1-18-b", b"40000 40000 0 1 0", 100_000)


def wrong(**more: Any) -> State:
    """What is fine, apart from this."""
    return replace(FINE, **more)


def queue(name: str = "emails", where: str = "default", **more: Any) -> QueueGauges:
    numbers = {"ready": 0, "delayed": 0, "leased": 0, "dead": 0, "parked": 0, "oldest_age": None, **more}
    kind = more.pop("kind", "queue")
    numbers.pop("kind", None)
    return QueueGauges(Series(kind, name, where), **numbers, throughput=0.0)


def attendance(**more: Any) -> Attendance:
    return replace(THERE, **more)


def paused(name: str) -> Paused:
    return Paused(queue=name, task="", reason="", by="", since=NOW)


def tiles(boss: Client) -> dict[str, str]:
    """The tiles of the overview by their titles."""
    found = page(boss, "overview").split('<li class="drm-tile">')[1:]
    return {one.partition("</a>")[0].rpartition(">")[2]: one.partition("</li>")[0] for one in found}


def with_info(**info: str) -> State:
    return wrong(servers={("messaging", ""): info})


OLD = {"ready": 3, "oldest_age": 61.0}
#: what is wrong: the state, and a part of the sentence with a part of the remedy
WRONG = {
    "no worker": (wrong(queues=[queue(**OLD)]), "emails has been ready", "run_worker"),
    "busy workers": (
        wrong(queues=[queue(**OLD)], attendance=attendance(workers={"default": [ALIVE]})),
        "emails has been ready for 1 min 1 s", "start more",
    ),
    "delay queue": (wrong(queues=[queue(where="", **OLD)]), "has been ready", "consumers"),
    "timers": (
        wrong(queues=[queue("order", "", kind="timers", **OLD)]),
        "no listener is running", "run_listener",
    ),
    "no listener": (
        wrong(queues=[queue("order", "", kind="timers", delayed=1)]),
        "no listener is running", "run_listener",
    ),
    "no poller": (
        wrong(attendance=attendance(silences={"default": 130.0})),
        "No poller has been running for 2 min 10 s", "run_poller",
    ),
    "never a poller": (wrong(age=None), "No poller has been running.", "run_poller"),
    "not for all": (
        wrong(attendance=attendance(silences={"default": 1.0, "other": None}, periodic={"other": 1})),
        "No poller has looked at all periodic tasks.", "run_poller",
    ),
    "missed events": (
        wrong(flags=[Warning("A handler misses events.", hint="Run the listener with --configure.")]),
        "misses events", "--configure",
    ),
    "old snapshot": (wrong(age=300), "No poller has been running for 5 min", "run_poller"),
    "lost worker": (
        wrong(attendance=attendance(workers={"default": [ALIVE, LOST]})),
        "web1-18-b has not been heard of for 1 min", "killed",
    ),
    "dead": (wrong(queues=[queue(dead=2)]), "2 jobs of emails have failed", "retry"),
    "memory": (with_info(used_memory="91", maxmemory="100"), "uses 91 % of its memory", "maxmemory"),
    "evicted lately": (
        replace(with_info(evicted_keys="7"), evicted={("messaging", ""): 1}),
        "The server messaging has evicted 1 key in the last hour.", "noeviction",
    ),
    "evicted at some time": (
        with_info(evicted_keys="7"), "has evicted 7 keys since it was started.", "noeviction",
    ),
    "disk": (with_info(aof_last_write_status="err"), "could not store its data", "disk"),
    "slow": (
        wrong(slow=[SlowCall(NOW - timedelta(minutes=5), 12_300)]),
        "longer than 5 ms within the last hour: 12 ms", "SLOWLOG",
    ),
    "history": (wrong(refused=3), "maximum number of series", "HISTORY_MAX_SERIES"),
    "unreadable": (wrong(errors=["No route\x1b to host"]), "No route\\x1b to host", "Check"),
}  # fmt: skip


class TestTroubles:
    @pytest.mark.one_server
    @pytest.mark.parametrize("name", WRONG)
    def test_what_is_wrong_is_a_sentence_with_a_remedy(self, name: str) -> None:
        found, part, remedy = WRONG[name]
        [trouble] = find_troubles(found)
        assert part in trouble.text and remedy in trouble.remedy

    @pytest.mark.one_server
    def test_nothing_is_wrong(self, settings: Settings) -> None:
        there = attendance(workers={"default": [ALIVE]}, paused={"default": [paused("reports")]})
        info = {"used_memory": "89", "maxmemory": "100", "evicted_keys": "7"}
        calm = wrong(
            queues=[queue(ready=5, oldest_age=59.0), queue("reports", **OLD)],
            attendance=there,
            servers={("messaging", ""): info},
            evicted={("messaging", ""): 0},
            slow=[SlowCall(NOW - timedelta(hours=2), 9000)],
        )
        assert find_troubles(calm) == []
        change(settings, CHAT_MAX_LENGTH=-1)
        assert "CHAT_MAX_LENGTH" in find_troubles(calm)[0].text

    @pytest.mark.one_server
    def test_the_worst_comes_first(self) -> None:
        both = wrong(queues=[queue(dead=1), queue("stock", **OLD)])
        assert [one.tone for one in find_troubles(both)] == ["bad", "warn"]


class TestPage:
    def test_tiles_and_servers(self, boss: Client) -> None:
        jobs.noop.enqueue()
        DelayQueue("mail").push("x")
        Expiry("order").start("17", 60)
        Lock("nightly").acquire(blocking=False)
        shown = page(boss, "overview")
        for title in ("Tasks", "Delay queues", "Workers", "Timers", "Schedule", "Locks"):
            assert f">{title}</a></h2>" in shown, title
        assert "No poller has been running." in shown and "redis_version" not in shown
        assert server().info("server")["redis_version"].partition(".")[0] in shown

    @pytest.mark.one_server
    def test_tiles_of_things_and_processes_show_the_last_hour(self, boss: Client) -> None:
        Lock("nightly").acquire(blocking=False)
        keys = HistoryKeys(conf.prefix())
        for series, before, now in ((THINGS, 10, 30), (BACKEND, 4, 2)):
            ten_minutes = [[dict.fromkeys(series.columns.names, number)] * 60 for number in (before, now)]
            add_slots(keys, series, [slot for part in ten_minutes for slot in part])
        shown = tiles(boss)
        fewer = ("latest 2, highest 4", "↓")
        expected = {"Locks": ("latest 30, highest 30", "↑"), "Workers": fewer, "Schedule": fewer}
        for title, (numbers, arrow) in expected.items():
            assert numbers in shown[title] and arrow in shown[title], title
        for series, charts in ((THINGS, 4), (BACKEND, 3)):
            assert f"series={quote(str(series), safe='')}" in page(boss, "history", kind=series.kind)
            assert page(boss, "history", series=series).count("drm-chart-title") == charts

    @pytest.mark.one_server
    def test_a_page_is_no_poller(self, boss: Client, messaging_alias: str) -> None:
        """Without a poller, the page counts the queues itself, which must not look as if there were one."""
        shown = [boss.get(reverse("admin:messaging_overview")).content.decode() for _ in range(2)]
        assert all("No poller has been running" in one for one in shown)
        perform(messaging_alias, record_gauges(messaging_alias, conf.prefix()))
        History().refresh()
        assert state.read_state().age < problems.MAX_READY

    @pytest.mark.one_server
    def test_evicted_keys_are_counted_in_the_history(self, messaging_alias: str) -> None:
        evicting: dict[str, ServerInfo] = {"": {"evicted_keys": "9"}}
        [recorded] = read_servers(messaging_alias)
        keys, slots = HistoryKeys(conf.prefix()), [{"evicted": one} for one in (5, 7, 7, 2)]
        add_slots(keys, recorded.series, slots)  # restarted before the last slot
        assert state.count_evicted(messaging_alias, evicting, [recorded]) == {}  # of less than an hour
        add_slots(keys, recorded.series, [{"evicted": 5}] * 340)
        assert state.count_evicted(messaging_alias, evicting, [recorded]) == {"": 4 + 7}
        assert state.count_evicted(messaging_alias, {"": {"evicted_keys": "0"}}, [recorded]) == {}

    @pytest.mark.one_server
    def test_tasks_at_other_servers(self, boss: Client, settings: Settings) -> None:
        """Their history is read where it is recorded; if one can't be reached, the others are shown."""
        tasks, here = settings.TASKS["default"], settings.CACHES[conf.alias()]["LOCATION"]
        others = {"second": entry(here.replace("db=0", "db=1")), "gone": entry("redis://127.0.0.1:1/0")}
        settings.CACHES = {**settings.CACHES, **others}
        entries = {name: {**tasks, "OPTIONS": {**tasks["OPTIONS"], "USING": name}} for name in others}
        settings.TASKS = {"default": tasks, "second": entries["second"]}
        series = Series("queue", "emails", "second")
        perform("second", record(conf.prefix(), {series: Recorded({"ran": 5}, {})}, "r"))
        listed = boss.get(reverse("admin:messaging_history")).content.decode()
        assert "<bdi>emails</bdi>" in listed
        query = {"series": str(series)}
        assert "latest 5" in boss.get(reverse("admin:messaging_history"), query).content.decode()
        settings.TASKS = {"default": tasks, **entries}
        shown = boss.get(reverse("admin:messaging_overview"))
        assert shown.status_code == 200 and "Redis was not available" in shown.content.decode()

    @pytest.mark.one_server
    def test_a_recent_snapshot_is_read_and_an_old_one_made_anew(self, messaging_alias: str) -> None:
        DelayQueue("mail").push("x")
        perform(messaging_alias, store_snapshot(conf.prefix(), [queue("mail", "", ready=7)]))
        assert [one.ready for one in state.read_snapshot(messaging_alias).queues] == [7]
        key = f"{conf.prefix()}:2:{{history}}:now"
        server().hset(key, "at", round((time.time() - 60) * 1000))
        assert {one.series.name: one.ready for one in state.read_snapshot(messaging_alias).queues}[
            "mail"
        ] == 1

    @pytest.mark.one_server
    def test_a_look_costs_little(self, boss: Client, messaging_alias: str) -> None:
        """With 200 queues, of which 20 have been busy for an hour, and many things."""
        prefix, names = conf.prefix(), [f"queue {number}" for number in range(200)]
        gauges = [queue(name, "", ready=5, oldest_age=3.0) for name in sorted(names)]
        perform(messaging_alias, store_snapshot(prefix, gauges))
        keys, numbers = HistoryKeys(prefix), {"ran": 5_000, **dict.fromkeys(THINGS.columns.names, 10_000)}
        for series in (*(one.series for one in gauges[:20]), BACKEND, THINGS):
            slot = {name: numbers.get(name, 5) for name in series.columns.names}
            add_slots(keys, series, [slot] * 360)
        pipeline = server().pipeline()
        for number in range(3000):
            pipeline.set(f"{prefix}:2:{{lock:order {number}}}:fence", "1")
        pipeline.execute()
        url = reverse("admin:messaging_overview")
        boss.get(url)  # connects, loads scripts
        before = server().info("all")
        trips = round_trips(lambda: boss.get(url, HTTP_MESSAGING_FRAGMENT="1"))
        after = server().info("all")
        sent = after["total_net_output_bytes"] - before["total_net_output_bytes"]
        calls = sum(
            after[name]["calls"] - before.get(name, {"calls": 0})["calls"]
            for name in after
            if name.startswith("cmdstat_") and name != "cmdstat_info"
        )
        # a page is fetched every ten seconds
        assert trips <= 12 and sent <= 256 * 1024 and calls < 100


class TestCatalogue:
    def test_things_are_counted_and_found(self) -> None:
        for number in range(3):
            Lock(f"lock {number}").acquire(blocking=False)
        Lock("mail").acquire(blocking=False)
        DelayQueue("mail").push("x")
        assert [str(one) for one in Catalogue().find("mail")] == ["lock:mail", "queue:mail"]
        assert Catalogue().find("nothing") == []

    @pytest.mark.one_server
    def test_a_count_says_whether_it_is_complete(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(30):
            Lock(f"lock {number}").acquire(blocking=False)
        found = Catalogue().count()
        assert found.by_kind["lock"] == 30 and found.is_complete
        pipeline = server().pipeline()
        for number in range(3000):
            pipeline.set(f"{conf.prefix()}:2:{{other:{number}}}:x", "")
        pipeline.execute()
        assert not Catalogue().count().is_complete


def test_a_bar_of_the_history_has_the_failed_runs_once(boss: Client) -> None:
    counts = Recorded({"ran": 7, "failed": 2, "run:9": 7}, {})
    perform(conf.alias(), record(conf.prefix(), {Series("task", "a.b", "default"): counts}, "first"))
    shown = page(boss, "history", series="task:default/a.b").partition("<tbody>")[2].partition("</tbody>")[0]
    assert re.findall(r">(\d+)</td>", shown) == ["5", "2"]
