"""The metrics for Prometheus, and the dashboard that shows them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import Settings

from django_redis_messaging import Chat, DelayQueue, Expiry, conf, live, observe, surveys, unobserve
from django_redis_messaging.core.operations import observed_steps
from django_redis_messaging.metrics import observe_operation

from ..support.processes import ROOT
from ..support.server import change, until
from ..support.workers import at_work, backend
from . import jobs
from .conftest import TOKEN

Labels = dict[str, str]
DASHBOARD = ROOT / "docs" / "grafana.json"
HOSTILE = 'a"b\\c{d="e"}'


class Scrape:
    """The samples of a response."""

    def __init__(self, client: Client, **options: Any) -> None:
        response = client.get("/metrics/", **options)
        assert response.status_code == 200
        self.content_type = response.headers["Content-Type"]
        self.text = response.content.decode()
        self.samples = [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        ]

    def value(self, name: str, **labels: str) -> float:
        [found] = [
            value for other, own, value in self.samples if other == name and labels.items() <= own.items()
        ]
        return found

    @property
    def labels(self) -> dict[str, set[str]]:
        """Metric → the names of its labels."""
        return {name: set(labels) for name, labels, _ in self.samples}


@pytest.fixture
def counting() -> Iterator[None]:
    """Operations are counted."""
    observe(observe_operation)
    yield
    unobserve(observe_operation)


def test_queues_workers_and_servers(client: Client, messaging_alias: str) -> None:
    DelayQueue(HOSTILE).push("now")
    DelayQueue(HOSTILE).push("later", delay=600)
    Expiry("order").start("17", 600)
    for _ in range(3):
        jobs.current.enqueue()
    backend().pause("other", "for a test")
    found = Scrape(client)
    delay, tasks = {"kind": "delay", "queue": HOSTILE}, {"kind": "tasks", "backend": "default"}
    assert found.value("messaging_queue_ready", **delay) == 1
    assert found.value("messaging_queue_delayed", **delay) == 1
    assert found.value("messaging_queue_delayed", kind="timers", queue="order") == 1
    assert found.value("messaging_queue_ready", **tasks, queue="default") == 3
    assert found.value("messaging_queue_oldest_age_seconds", **tasks, queue="default") >= 0
    assert [found.value("messaging_queue_paused", **tasks, queue=name) for name in backend().queue_names] == [
        0,
        1,
    ]
    for name in ("messaging_up", "messaging_queues_truncated"):
        assert found.value(name, alias=messaging_alias) == (name == "messaging_up")
    assert 0 < found.value("messaging_round_trip_seconds", alias=messaging_alias) < 60
    assert found.value("messaging_workers", backend="default") == 0
    memory = [value for name, _, value in found.samples if name == "messaging_server_memory_used_bytes"]
    assert memory and min(memory) > 100_000
    with at_work("default"):
        until(lambda: Scrape(client).value("messaging_workers", backend="default") == 1)


@pytest.mark.one_server
async def test_live_streams_of_the_process(client: Client, closing: None) -> None:
    before = Scrape(client).value("messaging_live_streams")
    async with aclosing(live.events("ann")) as stream:
        await anext(stream)
        assert Scrape(client).value("messaging_live_streams") == before + 1
    assert Scrape(client).value("messaging_live_streams") == before


@pytest.mark.one_server
def test_a_scrape_is_bounded(client: Client, monkeypatch: pytest.MonkeyPatch, messaging_alias: str) -> None:
    for number in range(5):
        DelayQueue(f"q{number}").push("x")
    monkeypatch.setattr(surveys, "MAX_QUEUES", 4)
    monkeypatch.setattr(surveys, "PAGE", 2)
    trips: list[int] = []

    def count(operation: str, seconds: float, outcome: str) -> None:
        trips.append(len(observed_steps()))

    observe(count)
    found = Scrape(client)
    unobserve(count)
    assert sum(name == "messaging_queue_ready" for name, _, _ in found.samples) == 4
    assert found.value("messaging_queues_truncated", alias=messaging_alias) == 1
    assert trips == [1, 1, 1]  # what there is, and two pages of queues; then INFO, by the client itself


@pytest.mark.one_server
def test_a_server_that_is_away(client: Client, away: None) -> None:
    found = Scrape(client)
    assert found.value("messaging_up", alias="gone") == 0
    assert [name for name in found.labels if name.startswith(("messaging_queue", "messaging_server"))] == []


@pytest.mark.one_server
class TestAccess:
    @pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic " + TOKEN, "Bearer töken", TOKEN])
    def test_a_wrong_token_is_refused(self, header: str, client: Client) -> None:
        response = Client(headers={"Authorization": header} if header else None).get("/metrics/")
        assert (response.status_code, response.content) == (401, b"")
        assert response.headers["WWW-Authenticate"] == "Bearer"

    @pytest.mark.parametrize("token", [None, ""])
    def test_without_a_token_there_is_no_page(
        self, token: str | None, client: Client, settings: Settings
    ) -> None:
        change(settings, METRICS_TOKEN=token)
        for header in ("", "Bearer", "Bearer ", "Bearer None"):
            assert client.get("/metrics/", headers={"Authorization": header}).status_code == 404

    def test_methods_and_formats(self, client: Client, settings: Settings) -> None:
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
        assert client.post("/metrics/").status_code == 405
        assert client.head("/metrics/").status_code == 200
        assert "no-store" in client.get("/metrics/").headers["Cache-Control"]
        assert Scrape(client).content_type.startswith("text/plain")
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        response = client.get("/metrics/", headers=accept)
        assert response.content.endswith(b"# EOF\n")


@pytest.mark.one_server
class TestOperations:
    def test_nothing_is_counted_by_default(self, client: Client) -> None:
        def counts() -> list[object]:
            return [sample for sample in Scrape(client).samples if sample[0] == "messaging_operations_total"]

        before = counts()
        Chat.create("ann", ["bob"], "Hi")
        assert conf.current().OBSERVE is None
        assert counts() == before

    def test_counts_and_durations(self, client: Client, settings: Settings) -> None:
        change(settings, OBSERVE="django_redis_messaging.metrics.observe_operation")
        name, labels = "messaging_operations_total", {"operation": "Chat.create", "outcome": "ok"}
        before = sum(value for other, own, value in Scrape(client).samples if (other, own) == (name, labels))
        Chat.create("ann", ["bob"], "Hi")
        found = Scrape(client)
        assert found.value(name, **labels) == before + 1
        assert found.value("messaging_operation_duration_seconds_count", operation="Chat.create") > 0

    def test_several_processes(self, tmp_path: Path) -> None:
        """Those of all processes that share the directory, without other metrics of the site."""
        program = """
import prometheus_client
from django_redis_messaging.metrics.observing import OperationsCollector, observe_operation
prometheus_client.Counter("of_the_site", "x").inc()
observe_operation("Chat.send", 0.25, "ok")
for metric in OperationsCollector().collect():
    for sample in metric.samples:
        print(sample.name, sample.labels.get("le", ""), sample.value)
"""
        environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
        command = [sys.executable, "-c", program]
        outputs = [
            subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
            for _ in range(2)
        ]
        assert "messaging_operations_total  1.0" in outputs[0]
        assert "messaging_operations_total  2.0" in outputs[1]
        assert "messaging_operation_duration_seconds_sum  0.5" in outputs[1]
        assert "of_the_site" not in outputs[1]


def queries(value: Any) -> Iterator[str]:
    """The queries of a dashboard."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key in ("expr", "definition") and isinstance(one, str):
                yield one
            else:
                yield from queries(one)
    elif isinstance(value, list):
        for one in value:
            yield from queries(one)


def used(query: str) -> tuple[set[str], set[str]]:
    """The metrics of a query, and the labels by which it selects and groups."""
    groups = re.findall(r"\b(?:by|without)\s*\(([^)]*)\)", query)
    selected = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)
    shown = re.findall(r"label_values\(\w+, (\w+)\)", query)
    labels = {name.strip() for group in groups for name in group.split(",")} | set(selected) | set(shown)
    return set(re.findall(r"\bmessaging_\w+", query)), labels - {""}


@pytest.mark.one_server
def test_dashboard_uses_metrics_that_exist(client: Client, counting: None) -> None:
    Chat.create("ann", ["bob"], "Hi")
    known = Scrape(client).labels
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    found = list(queries(dashboard))
    assert len(found) > 12
    for query in found:
        names, labels = used(query)
        assert names and names <= known.keys(), query
        for name in names:
            assert labels <= known[name], query
    legends = re.findall(r'"legendFormat": "([^"]*)"', DASHBOARD.read_text(encoding="utf-8"))
    shown = {label for legend in legends for label in re.findall(r"{{(\w+)}}", legend)}
    assert shown <= {label for labels in known.values() for label in labels}
    unused = {name for name in known if not any(name in query for query in found)}
    assert {name for name in unused if not name.endswith(("_created", "_sum", "_count"))} == set()


@pytest.mark.one_server
def test_checker_finds_metrics_and_labels() -> None:
    query = 'sum by (le, a) (rate(messaging_x_bucket{b=~"$b"}[5m])) / messaging_y'
    assert used(query) == ({"messaging_x_bucket", "messaging_y"}, {"le", "a", "b"})
    assert list(queries({"panels": [{"targets": [{"expr": "up"}]}]})) == ["up"]
