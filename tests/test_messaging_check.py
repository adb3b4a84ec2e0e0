"""`manage.py messaging_check`: whether the app can work, for health probes."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings
from redis.crc import key_slot

from django_redis_messaging import DelayQueue, Expiry, conf
from django_redis_messaging.core import clients
from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.services import health
from django_redis_messaging.services.expiries.keys import TIMERS
from django_redis_messaging.services.health import PROBES, Consumer, Health, probe_key
from django_redis_messaging.services.jobs.engine import HEARTBEAT_TIMEOUT
from django_redis_messaging.services.jobs.keys import JobKeys
from django_redis_messaging.tasks.compat import BaseTaskBackend
from tests.engines import timers
from tests.processes import PATIENCE, Start, commands
from tests.services.asking import all_keys, change, server, server_ms, until
from tests.services.listening import listening
from tests.tasks import jobs
from tests.tasks.working import at_work, engine, liveness

#: a backend that is not ours: of Django, or of the backport
DUMMY = BaseTaskBackend.__module__.replace(".base", ".dummy.DummyBackend")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts it as a probe does."""
    with commands() as run:
        yield lambda *words, **more: run("messaging_check", *words, **more)


@pytest.fixture
def alone(settings: Settings) -> Iterator[EmbeddedServer]:
    """A server that only this test talks to, and may break."""
    with EmbeddedServer(append_only=True) as started:
        use(settings, started.url)
        yield started
        clients.close()


def use(settings: Settings, url: str) -> None:
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
    settings.CACHES = {**settings.CACHES, "messaging": entry}


def healthy(*words: str) -> str:
    """What it says of a healthy site."""
    out = io.StringIO()
    call_command("messaging_check", *words, stdout=out)
    return out.getvalue()


def unhealthy(*words: str) -> str:
    """What it says of one that is not."""
    out = io.StringIO()
    with pytest.raises(CommandError) as error:
        call_command("messaging_check", *words, stdout=out)
    assert error.value.returncode == 1
    if "--json" in words:
        assert json.loads(out.getvalue())["problems"]
    else:
        assert out.getvalue() == ""
    return str(error.value)


@pytest.mark.timing
class TestServer:
    def test_one_line_and_nothing_stays(self, alone: EmbeddedServer) -> None:
        assert healthy().count("\n") == 1
        assert healthy().startswith("Healthy: Redis wrote and answered in ")
        assert len(all_keys()) == PROBES
        assert all(0 < server().pttl(key) <= health.PROBE_TTL for key in all_keys())

    def test_quiet(self) -> None:
        assert healthy("--verbosity", "0") == ""

    def test_as_json(self) -> None:
        found = json.loads(healthy("--json"))
        assert found["healthy"] is True
        assert 0 < found["ms"] < PATIENCE * 1000
        assert found["problems"] == []
        assert found["queues"] is None

    def test_as_a_process(self, start: Start, alone: EmbeddedServer) -> None:
        process = start("--consuming")
        out, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (0, "")
        assert out.endswith(
            " ms, 0 workers and 0 listeners take jobs, the oldest ready job has waited 0.0 s.\n"
        )
        alone.stop()
        process = start("--timeout", "0.3")
        out, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (1, "")
        assert errors.startswith("CommandError: Unhealthy: Redis was not available")
        assert errors.endswith("Start it, or correct LOCATION; then repeat the check.\n")
        assert errors.count("\n") == 1

    def test_a_server_that_does_not_answer_in_time(self, alone: EmbeddedServer) -> None:
        healthy()
        server().execute_command("CLIENT", "PAUSE", "3000", "ALL")
        assert "Redis did not reply within 0." in unhealthy("--timeout", "0.3")

    def test_a_server_without_memory(self, alone: EmbeddedServer) -> None:
        healthy()
        server().config_set("maxmemory", "1")
        server().config_set("maxmemory-policy", "noeviction")
        assert unhealthy() == (
            "Unhealthy: Redis is out of memory (maxmemory): nothing was written. Reading, acknowledging and "
            "deleting still work. Raise maxmemory or remove data."
        )

    def test_a_server_that_only_reads(self, alone: EmbeddedServer) -> None:
        server().execute_command("REPLICAOF", "127.0.0.1", "1")
        said = unhealthy("--timeout", "0.3", "--json")
        assert "Redis was not available" in said
        assert "You can't write against a read only replica" in said

    def test_what_the_deploy_check_calls_an_error_is_one(self, alone: EmbeddedServer) -> None:
        server().config_set("maxmemory-policy", "allkeys-lru")
        said = unhealthy()
        assert "evicts any key when its memory is full (allkeys-lru)" in said
        assert said.endswith(
            "Set its maxmemory-policy to noeviction, or use a separate server for messaging."
        )

    def test_what_it_warns_of_is_not(self, alone: EmbeddedServer) -> None:
        server().config_set("maxmemory-policy", "volatile-lru")
        assert healthy()

    def test_settings_that_can_not_work_are_said_before_anything_is_asked(self, settings: Settings) -> None:
        change(settings, ALIAS="nowhere")
        assert "CACHES has no entry 'nowhere'" in unhealthy()
        settings.REDIS_MESSAGING = {"COMMAND_DEADLINE": "ten"}
        assert "['COMMAND_DEADLINE'] must be a number" in unhealthy()

    @pytest.mark.parametrize(
        ("entry", "text"),
        [
            ({}, "CACHES['broken'] can't be used: Missing connections string."),
            ({"LOCATION": "http://here"}, "CACHES['broken'] can't be used: Redis URL must specify"),
            ({"LOCATION": "redis://here:1", "OPTIONS": {"CLIENT_CLASS": "no.Where"}}, "No module named 'no'"),
        ],
    )
    def test_an_entry_that_the_driver_can_not_use_is_said_too(
        self, entry: dict[str, Any], text: str, settings: Settings
    ) -> None:
        backend = {"BACKEND": "django_redis.cache.RedisCache"}
        settings.CACHES = {**settings.CACHES, "broken": {**backend, **entry}}
        change(settings, ALIAS="broken")
        assert text in unhealthy("--json")

    @pytest.mark.usefixtures("cluster_server")
    def test_each_primary_of_a_cluster_is_asked(self, settings: Settings) -> None:
        change(settings, ALIAS="cluster")
        assert healthy("--consuming")
        slots = [key_slot(probe_key(conf.prefix(), number).encode()) for number in range(PROBES)]
        for primaries in (3, 4, 5, 6):
            assert {slot * primaries // 16384 for slot in slots} == set(range(primaries))

    @pytest.mark.parametrize(
        "words",
        [
            ["--timeout", "0"],
            ["--timeout", "nan"],
            ["--timeout", "inf"],
            ["--max-age", "-1"],
            ["--max-age", "nan"],
        ],
    )
    def test_bad_options(self, words: list[str]) -> None:
        with pytest.raises(CommandError, match="--timeout must be more than 0 seconds, --max-age at least 0"):
            call_command("messaging_check", *words)


class TestConsuming:
    def test_what_waits_is_looked_at_only_when_asked(self) -> None:
        jobs.noop.enqueue()
        late()
        assert "tasks default/default" in unhealthy("--consuming", "--max-age", "0")
        assert healthy()
        assert healthy("--consuming")

    def test_tasks_that_nobody_takes(self) -> None:
        jobs.noop.using(queue_name="other").enqueue()
        late()
        said = unhealthy("--consuming", "--max-age", "0.01")
        assert said.startswith("Unhealthy: A job of tasks default/other has been ready for 0 s. ")
        assert said.endswith("No worker is running: start run_worker.")

    def test_tasks_that_wait_for_a_worker_who_is_busy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jobs, "go", threading.Event())
        with at_work() as worker:
            until(lambda: liveness(worker))
            jobs.wait.enqueue()
            until(lambda: engine().stats("default")[2] == 1)
            jobs.noop.enqueue()
            late()
            try:
                found = json.loads(healthy("--consuming", "--max-age", "0.01", "--json"))
            finally:
                jobs.go.set()
        assert found["workers"] == 1
        [row] = [row for row in found["queues"] if row["queue"] == "tasks default/default"]
        assert row["ready"] == 1

    def test_a_worker_that_is_silent_is_none(self) -> None:
        told_of_itself(
            "w",
            beat=-HEARTBEAT_TIMEOUT - 1000,
            consumed=-HEARTBEAT_TIMEOUT - 1000,
            started=-HEARTBEAT_TIMEOUT - 9000,
        )
        jobs.noop.enqueue()
        late()
        assert "No worker is running" in unhealthy("--consuming", "--max-age", "0.01")

    def test_nor_is_one_that_lives_and_does_not_take_jobs(self) -> None:
        """Such as after a connection was lost and never made again."""
        told_of_itself("w", beat=-1000, consumed=-60_000, started=-90_000)
        jobs.noop.enqueue()
        late()
        assert "No worker is running" in unhealthy("--consuming", "--max-age", "0.01")
        told_of_itself("w", beat=-1000, consumed=-60_000, started=-90_000, running=1)
        assert "1 workers" in healthy("--consuming", "--max-age", "0.01")
        told_of_itself("w", beat=-1000, consumed=-60_000, started=-1000)
        assert "1 workers" in healthy("--consuming", "--max-age", "0.01")

    def test_timers_that_nobody_listens_for(self) -> None:
        Expiry("order").start("17", 0.001)
        late()
        said = unhealthy("--consuming", "--max-age", "0.01")
        assert said.startswith("Unhealthy: A job of timers order has been ready for 0 s.")
        assert said.endswith("No listener is running: start run_listener.")

    def test_a_listener_that_lives(self) -> None:
        with listening({"other": print}):
            until(lambda: server().exists(JobKeys(conf.prefix(), *TIMERS).workers))
            Expiry("order").start("17", 0.001)
            late()
            assert "1 listeners" in healthy("--consuming", "--max-age", "0.01")

    def test_a_delay_queue_that_nobody_pops_from(self) -> None:
        queue = DelayQueue("mail")
        queue.push_many(["one", "two"])
        late()
        assert unhealthy("--consuming", "--max-age", "0.01").endswith(
            "No client pops from it: start its consumers."
        )
        queue.pop(1)
        late()
        assert healthy("--consuming", "--max-age", "0.01")

    def test_all_that_is_wrong_is_said(self) -> None:
        DelayQueue("mail").push("one")
        jobs.noop.enqueue()
        late()
        assert unhealthy("--consuming", "--max-age", "0.01", "--json").count("Unhealthy: ") == 2

    def test_a_site_without_tasks(self, settings: Settings) -> None:
        settings.TASKS = {"default": {"BACKEND": DUMMY}}
        assert json.loads(healthy("--consuming", "--json"))["queues"] == []

    def test_tasks_whose_backend_is_none(self, settings: Settings) -> None:
        settings.TASKS = {"default": {"BACKEND": "nowhere.Backend"}}
        assert "Could not find backend 'nowhere.Backend'" in unhealthy("--consuming", "--json")

    def test_a_server_that_is_lost_meanwhile(
        self, monkeypatch: pytest.MonkeyPatch, alone: EmbeddedServer
    ) -> None:
        original = Health.listeners

        def lost(self: Health) -> Any:
            alone.stop()
            return original(self)

        monkeypatch.setattr(Health, "listeners", lost)
        assert "Redis" in unhealthy("--consuming", "--timeout", "0.3")


def late() -> None:
    """What is ready now has been so for a while."""
    begins = server_ms()
    until(lambda: server_ms() > begins + 20)


def told_of_itself(worker: str, *, beat: int, consumed: int, started: int, running: int = 0) -> None:
    """As a worker did, so many ms from now."""
    now = server_ms()
    line = f"{now + beat} {now + consumed} {now + started} {running} 7"
    server().hset(JobKeys(conf.prefix(), "tasks", "default").workers, worker, line)


def test_awaiting(own_prefix: str) -> None:
    async def ask() -> list[list[Consumer]]:
        await Health().aprobe()
        found = [await Health().aworkers("default"), await Health().alisteners()]
        await clients.aclose()
        return found

    engine().beat("w", consumed=True, started=0, running=2, done=3)
    timers().beat("l", consumed=False, started=1, running=0, done=0)
    [[worker], [listener]] = asyncio.run(ask())
    assert (worker.id, worker.running, worker.alive) == ("w", 2, True)
    assert (listener.id, listener.alive) == ("l", False)
