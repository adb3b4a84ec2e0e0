"""`manage.py messaging_check`: whether the app can work, for health probes."""

from __future__ import annotations

import asyncio
import io
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.test import override_settings
from django.utils import timezone
from pytest_django import Settings
from redis.crc import key_slot

from django_redis_messaging import DelayQueue, Expiry, conf
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.management import loops
from django_redis_messaging.services.common import operators
from django_redis_messaging.services.common.operators import PROBES, Health, probe_key
from django_redis_messaging.services.expiries.timers import TIMERS
from django_redis_messaging.services.jobs.engine import HEARTBEAT_TIMEOUT
from django_redis_messaging.services.jobs.heartbeats import Heartbeat
from django_redis_messaging.services.jobs.keys import JobKeys
from django_redis_messaging.tasks import periodic
from django_redis_messaging.tasks.schedules import periodic_tasks
from tests.support.engines import timers
from tests.support.listeners import listening
from tests.support.processes import PATIENCE, commands
from tests.support.server import all_keys, change, server, server_ms, until
from tests.support.workers import DUMMY, at_work, engine, keys, liveness
from tests.tasks import jobs


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A server used only by this test, which may break it."""
    with EmbeddedServer(append_only=True) as started, messaging_at(LOCATION=started.url):
        yield started
        clients.close()


@contextmanager
def messaging_at(**entry: Any) -> Iterator[None]:
    """Use this entry of CACHES in the block."""
    entry = {"BACKEND": "django_redis.cache.RedisCache", **entry}
    with override_settings(CACHES={**settings.CACHES, "messaging": entry}):
        yield


def healthy(*arguments: str) -> str:
    """The output of the command for a healthy site."""
    out = io.StringIO()
    call_command("messaging_check", *arguments, stdout=out)
    return out.getvalue()


def unhealthy(*arguments: str, code: int = 1) -> str:
    """The error of the command for an unhealthy site, with this exit code."""
    out = io.StringIO()
    with pytest.raises(CommandError) as error:
        call_command("messaging_check", *arguments, stdout=out)
    assert error.value.returncode == code
    if "--json" in arguments:
        report = json.loads(out.getvalue())
        assert report["problems"]
        assert (report["healthy"], report["code"]) == (False, code)
    else:
        assert out.getvalue() == ""
    return str(error.value)


@pytest.mark.timing
class TestServer:
    def test_output(self, own_server: EmbeddedServer) -> None:
        assert healthy().count("\n") == 1
        assert healthy().startswith("Healthy: Redis wrote and answered in ")
        assert healthy("--verbosity", "0") == ""
        found = json.loads(healthy("--json"))
        assert 0 < found.pop("ms") < PATIENCE * 1000
        assert (found["healthy"], found["problems"], found["queues"]) == (True, [], None)
        assert len(all_keys()) == PROBES
        assert all(0 < server().pttl(key) <= operators.PROBE_TTL for key in all_keys())

    def test_command_in_a_process(self, own_server: EmbeddedServer) -> None:
        out = healthy("--consuming")
        assert out.endswith(
            " ms, 0 workers and 0 listeners take jobs, the oldest ready job has waited 0.0 s.\n"
        )
        own_server.stop()
        with commands() as start:  # as a probe does
            process = start("messaging_check", "--timeout", "0.3")
            out, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (1, "")
        assert errors.startswith("CommandError: Unhealthy: Redis was not available")
        assert errors.endswith("or correct its LOCATION. Then repeat the check.\n")
        assert errors.count("LOCATION") == 1
        assert errors.count("\n") == 1

    def test_server_that_does_not_answer_in_time(self, own_server: EmbeddedServer) -> None:
        healthy()
        own_server.freeze()
        assert "Redis did not reply within 0." in unhealthy("--timeout", "0.3")
        own_server.thaw()

    def test_server_out_of_memory_or_read_only(self, own_server: EmbeddedServer) -> None:
        healthy()
        server().config_set("maxmemory-policy", "noeviction")
        server().config_set("maxmemory", "1")
        assert unhealthy() == (
            "Unhealthy: Redis is out of memory (maxmemory): nothing was written. Reading, acknowledging and "
            "deleting still work. Raise maxmemory or remove data."
        )
        server().execute_command("REPLICAOF", "127.0.0.1", "1")
        error = unhealthy("--timeout", "0.3", "--json")
        assert "Redis was not available" in error
        assert "You can't write against a read only replica" in error

    def test_errors_but_no_warnings_of_the_deploy_check_are_errors(self, own_server: EmbeddedServer) -> None:
        server().config_set("maxmemory-policy", "volatile-lru")
        assert healthy()
        server().config_set("maxmemory-policy", "allkeys-lru")
        error = unhealthy()
        assert "evicts any key when its memory is full (allkeys-lru)" in error
        assert error.endswith(
            "Set its maxmemory-policy to noeviction, or use a separate server for messaging."
        )

    def test_invalid_settings_are_reported_before_connecting(self) -> None:
        for messaging, text in (
            ({"ALIAS": "nowhere"}, "CACHES has no entry 'nowhere'"),
            ({"COMMAND_DEADLINE": "ten"}, "['COMMAND_DEADLINE'] must be a number"),
        ):
            with override_settings(REDIS_MESSAGING=messaging):
                assert text in unhealthy()

    @pytest.mark.parametrize(
        ("entry", "text"),
        [
            ({}, "CACHES['messaging'] can't be used: Missing connections string."),
            ({"LOCATION": "http://here"}, "CACHES['messaging'] can't be used: Redis URL must specify"),
            ({"LOCATION": "redis://here:1", "OPTIONS": {"CLIENT_CLASS": "no.Where"}}, "No module named 'no'"),
        ],
    )
    def test_invalid_cache_entries_are_reported(self, entry: dict[str, Any], text: str) -> None:
        with messaging_at(**entry):
            assert text in unhealthy("--json")

    @pytest.mark.usefixtures("cluster_server")
    def test_each_primary_of_a_cluster_is_probed(self, settings: Settings) -> None:
        change(settings, ALIAS="cluster")
        assert healthy("--consuming")
        slots = [key_slot(probe_key(conf.prefix(), number).encode()) for number in range(PROBES)]
        for primaries in (3, 4, 5, 6):
            assert {slot * primaries // 16384 for slot in slots} == set(range(primaries))

    def test_invalid_options(self) -> None:
        for option in ("--timeout=0", "--timeout=nan", "--timeout=inf", "--max-age=-1", "--max-age=nan"):
            with pytest.raises(
                CommandError, match="--timeout must be more than 0 seconds, --max-age at least 0"
            ):
                call_command("messaging_check", option)


#: a job that is ready counts as waiting at once
SOON = ("--consuming", "--max-age", "0.01")


class TestConsuming:
    def test_tasks_without_a_worker(self) -> None:
        """They are checked only with --consuming."""
        jobs.noop.using(queue_name="other").enqueue()
        wait_a_while()
        assert "tasks default/other" in unhealthy("--consuming", "--max-age", "0", code=3)
        error = unhealthy(*SOON, code=3)
        assert re.match(r"Unhealthy: A job of tasks default/other has been ready for \d s\. ", error)
        assert error.endswith("No worker is running: start run_worker.")
        assert healthy()
        assert unhealthy("--consuming", code=3) == (
            "Unhealthy: 1 job of tasks default/other waits. No worker is running: start run_worker."
        )

    def test_work_for_later_needs_a_worker_and_a_listener(self) -> None:
        """Also before it is due, and when it is overdue without a poller that makes it ready."""
        jobs.noop.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
        jobs.noop.using(run_after=timezone.now() + timedelta(seconds=0.001)).enqueue()
        Expiry("order").start("17", 3600)
        wait_a_while()
        error = unhealthy("--consuming", "--json", code=3)
        assert "1 job of timers order waits. No listener is running: start run_listener." in error
        assert "2 jobs of tasks default/default wait. No worker is running: start run_worker." in error
        write_heartbeat("w", beat=0, consumed=0, started=-1000)
        assert error.count("Unhealthy") == 2
        assert unhealthy("--consuming", code=4).count("Unhealthy") == 1
        timers().beat("l", consumed=True, started=0, running=0, done=0, ended={})
        assert healthy("--consuming")

    def test_tasks_waiting_for_a_busy_worker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jobs, "go", threading.Event())
        with at_work() as worker:
            until(lambda: liveness(worker))
            jobs.wait.enqueue()
            until(lambda: engine().stats("default")[2] == 1)
            jobs.noop.enqueue()
            wait_a_while()
            try:
                found = json.loads(healthy(*SOON, "--json"))
            finally:
                jobs.go.set()
        assert found["workers"] == 1
        [row] = [row for row in found["queues"] if row["queue"] == "tasks default/default"]
        assert row["ready"] == 1

    def test_silent_worker_and_one_that_does_not_poll_do_not_count(self) -> None:
        """Such as one whose connection was lost and not restored."""
        jobs.noop.enqueue()
        wait_a_while()
        silent = -HEARTBEAT_TIMEOUT - 1000
        write_heartbeat("w", beat=silent, consumed=silent, started=silent - 8000)
        assert "No worker is running" in unhealthy(*SOON, code=3)
        write_heartbeat("w", beat=-1000, consumed=-60_000, started=-90_000)
        assert "No worker is running" in unhealthy(*SOON, code=3)
        write_heartbeat("w", beat=-1000, consumed=-60_000, started=-90_000, running=1)
        assert "1 workers" in healthy(*SOON)
        write_heartbeat("w", beat=-1000, consumed=-60_000, started=-1000)
        assert "1 workers" in healthy(*SOON)

    def test_timers_without_a_listener(self) -> None:
        Expiry("order").start("17", 0.001)
        wait_a_while()
        error = unhealthy(*SOON, code=4)
        assert re.match(r"Unhealthy: A job of timers order has been ready for \d s\. ", error)
        assert error.endswith("No listener is running: start run_listener.")
        with listening({"other": print}):
            until(lambda: server().exists(JobKeys(conf.prefix(), *TIMERS).workers))
            assert "1 listeners" in healthy(*SOON)

    def test_delay_queue_without_consumers(self) -> None:
        queue = DelayQueue("mail")
        queue.push_many(["one", "two"])
        wait_a_while()
        assert unhealthy(*SOON, code=6).endswith("No client pops from it: start its consumers.")
        queue.pop(1)
        wait_a_while()
        assert healthy(*SOON)

    def test_periodic_tasks_without_a_poller(self) -> None:
        periodic(every=86_400)(jobs.noop)
        one, key = periodic_tasks()[0].name, keys().periodic
        error = unhealthy("--consuming", code=5)
        assert error == (
            f"Unhealthy: No poller has enqueued the periodic tasks of 'default', such as {one}, yet: start "
            "run_poller."
        )
        for silent in (0, HEARTBEAT_TIMEOUT + 1000, -3_600_000):  # the last: before the clock was set back
            if silent:
                server().hset(key, "polled", server_ms() - silent)
                error = unhealthy("--consuming", code=5)
                assert re.search(r", for \d+ s: start run_poller\.$", error)
            poller = loops.poller()
            running = threading.Thread(target=poller.run, daemon=True)
            running.start()
            until(lambda: abs(int(server().hget(key, "polled") or 0) - server_ms()) < HEARTBEAT_TIMEOUT)
            poller.stop()
            running.join()
            assert healthy("--consuming")

    def test_all_problems_are_reported(self) -> None:
        DelayQueue("mail").push("one")
        jobs.noop.enqueue()
        wait_a_while()
        assert unhealthy(*SOON, "--json", code=3).count("Unhealthy: ") == 2

    def test_site_without_tasks_or_with_an_invalid_backend(self, settings: Settings) -> None:
        settings.TASKS = {"default": {"BACKEND": DUMMY}}
        assert json.loads(healthy("--consuming", "--json"))["queues"] == []
        settings.TASKS = {"default": {"BACKEND": "nowhere.Backend"}}
        assert "Could not find backend 'nowhere.Backend'" in unhealthy("--consuming", "--json")

    def test_server_lost_during_the_check(
        self, monkeypatch: pytest.MonkeyPatch, own_server: EmbeddedServer
    ) -> None:
        original = Health.listeners

        def stop_server(self: Health) -> Any:
            own_server.stop()
            return original(self)

        monkeypatch.setattr(Health, "listeners", stop_server)
        assert "Redis" in unhealthy("--consuming", "--timeout", "0.3")


def wait_a_while() -> None:
    """Make jobs that are ready now at least 20 ms old."""
    begins = server_ms()
    until(lambda: server_ms() > begins + 20)


def write_heartbeat(worker: str, *, beat: int, consumed: int, started: int, running: int = 0) -> None:
    """Write a worker's heartbeat with times relative to now, in ms."""
    now = server_ms()
    record = f"{now + beat} {now + consumed} {now + started} {running} 7"
    server().hset(JobKeys(conf.prefix(), "tasks", "default").workers, worker, record)


def test_async_operations(own_prefix: str) -> None:
    async def check() -> list[list[Heartbeat]]:
        await Health().aprobe()
        found = [await Health().aworkers("default"), await Health().alisteners()]
        await clients.aclose()
        return found

    engine().beat("w", consumed=True, started=0, running=2, done=3, ended={"default": 3})
    timers().beat("l", consumed=False, started=1, running=0, done=0, ended={})
    [[worker], [listener]] = asyncio.run(check())
    assert (worker.id, worker.running, worker.alive) == ("w", 2, True)
    assert (listener.id, listener.alive) == ("l", False)
