"""The checks for django-health-check."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from django_redis_messaging import DelayQueue, Expiry
from django_redis_messaging.services.jobs.engine import HEARTBEAT_TIMEOUT
from django_redis_messaging.tasks import periodic

from ..support.schedules import poll
from ..support.server import all_keys, server, until
from ..support.workers import at_work, backend
from . import jobs

pytestmark = [pytest.mark.one_server, pytest.mark.versions]

REDIS, CONSUMING = "Redis(alias=None)", "Consuming(max_age=0.0)"


def results(client: Client) -> dict[str, str]:
    """What the checks report; the status is 200 if all is well."""
    response = client.get("/health/?format=json")
    found: dict[str, str] = response.json()
    assert response.status_code == (200 if set(found.values()) == {"OK"} else 500)
    return found


def consuming(client: Client) -> str:
    found = results(client)
    assert found[REDIS] == "OK"
    return found[CONSUMING].removeprefix("Unavailable: ")


def test_an_idle_site_is_healthy(client: Client) -> None:
    assert results(client) == {REDIS: "OK", CONSUMING: "OK"}


def test_tasks_without_a_worker(client: Client) -> None:
    jobs.current.enqueue()
    text = "No worker takes the tasks of 'default': jobs have been ready for more than 0 s (queues: 1)."
    until(lambda: consuming(client) == text)
    backend().pause("default")
    assert consuming(client) == "OK"
    backend().resume("default")
    with at_work("default"):
        until(lambda: consuming(client) == "OK")


def test_timers_and_delay_queues_without_consumers(client: Client) -> None:
    """Their names, which may be about users, are left out."""
    Expiry("secret").start("17", 0.001)
    queue: DelayQueue[Any] = DelayQueue("secret")
    queue.push("x")
    queue.push("y")
    until(lambda: "No listener fires timers" in consuming(client))
    until(lambda: "No client pops from delay queues" in consuming(client))
    assert "secret" not in consuming(client)
    queue.pop(1)  # of two
    assert "delay queues" not in consuming(client)


def test_periodic_tasks_without_a_poller(client: Client) -> None:
    periodic(every=timedelta(hours=1))(jobs.current)
    assert consuming(client) == "No poller has enqueued the periodic tasks of 'default' yet."
    assert backend().engine.keys.periodic not in all_keys()  # it only reads
    poll()
    assert consuming(client) == "OK"
    server().hincrby(backend().engine.keys.periodic, "polled", -HEARTBEAT_TIMEOUT - 60_000)
    assert consuming(client).startswith("No poller has enqueued the periodic tasks of 'default' for 18")


def test_redis_is_away(client: Client, away: None) -> None:
    found = results(client)
    assert found[REDIS] == "Unavailable: Redis can't be used (Unavailable)."
    assert found[CONSUMING] == "Unavailable: Redis can't be read (Unavailable)."
