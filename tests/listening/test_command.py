"""`manage.py run_listener`, the checks of handlers, and timers in the other commands."""

from __future__ import annotations

import functools
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_redis_messaging import ConfigurationError, Expiry, conf, handlers, on_expiry, on_key_event
from django_redis_messaging.checks.servers import check_flags
from django_redis_messaging.checks.settings import check_handlers
from django_redis_messaging.core.encoding import FORMAT
from django_redis_messaging.services.jobs.engine import Outcome
from tests.support.engines import timers
from tests.support.listeners import NOTIFY, Received, claim_due
from tests.support.processes import PATIENCE, Start, commands
from tests.support.server import server, until
from tests.support.terminal import output_of

pytestmark = pytest.mark.one_server

EXPIRIES = """
import time
from pathlib import Path
from django_redis_messaging import on_expiry, on_key_event

@on_expiry("order")
def unpaid(expired):
    if expired.payload:
        Path(expired.payload["marker"]).write_text(expired.name)
        time.sleep(expired.payload["seconds"])

@on_key_event("session:*", events={"expired"})
async def gone(event):
    pass
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Run manage.py of a site with handlers in its app `shop`, in a separate process."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "expiries.py").write_text(EXPIRIES)
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    with commands() as run:
        yield functools.partial(run, apps="shop", path=tmp_path)


@pytest.fixture
def no_flags(own_prefix: str) -> Iterator[None]:
    """The server publishes no keyspace events, after the test neither."""
    server().config_set(NOTIFY, "")
    yield
    server().config_set(NOTIFY, "")


class TestCommand:
    def test_first_signal_drains(self, start: Start, tmp_path: Path) -> None:
        marker = tmp_path / "marker"
        Expiry("order").start("17", 0.001, {"marker": str(marker), "seconds": 1})
        process = start("run_listener", "--concurrency", "1")
        until(marker.exists)
        Expiry("order").start("18", 0.001)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        assert out == (
            "Listening for timers of order, keys session:*. Ctrl-C ends it.\nEnded after 1 timers.\n"
        )
        assert "also needs Kx. Add it, or run with --configure." in errors
        assert timers().stats("order")[:4] == [1, 0, 0, 0]

    @pytest.mark.timing
    def test_second_signal_stops(self, start: Start, tmp_path: Path) -> None:
        marker = tmp_path / "marker"
        Expiry("order").start("17", 0.001, {"marker": str(marker), "seconds": 60})
        process = start("run_listener", "--verbosity", "0")
        until(marker.exists)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (0, "")
        assert time.monotonic() - began < 10
        assert timers().stats("order")[:4] == [1, 0, 0, 0]

    def test_key_events_only(self, start: Start, tmp_path: Path, no_flags: None) -> None:
        text = EXPIRIES[: EXPIRIES.index("@on_expiry")] + EXPIRIES[EXPIRIES.index("@on_key_event") :]
        (tmp_path / "shop" / "expiries.py").write_text(text)
        process = start("run_listener", "--configure")
        assert process.stdout
        assert process.stdout.readline() == "Listening for keys session:*. Ctrl-C ends it.\n"
        until(lambda: server().config_get(NOTIFY)[NOTIFY] in {"Kx", "xK"})
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (0, "Ended after 0 timers.\n"), errors

    def test_missing_handlers(self) -> None:
        with pytest.raises(CommandError, match=r"No handlers found: define some in expiries\.py") as error:
            call_command("run_listener")
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["--concurrency", "0"], "--concurrency must be between 1 and 1000"),
            (["--lease", "0.5"], "--lease must be between 1 and"),
            (["--lease", "nan"], "--lease must be between 1 and"),
            (["--drain", "-1"], "--drain must be between 0 and"),
            (["--concurrency", "many"], "invalid int value"),
        ],
    )
    def test_invalid_options(self, arguments: list[str], text: str) -> None:
        with pytest.raises(CommandError) as error:
            call_command("run_listener", *arguments)
        assert text in str(error.value)
        assert "\n" not in str(error.value)


class TestChecks:
    def ids(self) -> list[str | None]:
        return [message.id for message in check_handlers()]

    def test_valid_handlers_pass(self) -> None:
        on_expiry("order")(Received())
        on_key_event("order:*", events={"expired", "set"})(Received())
        on_key_event(f"{conf.prefix()}:mine:*")(Received())
        on_key_event("*")(Received())
        assert check_handlers() == []

    def test_own_keys_are_reported(self) -> None:
        on_key_event(f"{conf.prefix()}:{FORMAT}:{{chat:*")(Received.__call__)
        [message] = check_handlers()
        assert message.id == "messaging.W009"
        assert "tests.support.listeners.Received.__call__ is never called" in message.msg

    def test_unknown_events_are_reported(self) -> None:
        on_key_event("order:*", events={"expire", "expird"})(Received.__call__)
        [message] = check_handlers()
        assert message.id == "messaging.W010"
        assert "'expird'" in message.msg
        assert message.hint == "Did you mean 'expired'?"
        handlers.key_events.clear()
        on_key_event("order:*", events={"§"})(Received())
        [message] = check_handlers()
        assert "table" in str(message.hint)

    def test_two_handlers_of_a_namespace_are_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def discover() -> None:
            raise ConfigurationError("The namespace 'order' has a handler already.")

        monkeypatch.setattr(handlers, "discover", discover)
        assert self.ids() == ["messaging.E009"]
        assert check_flags() == []

    @pytest.mark.parametrize("given", [[], "wrong", {"PREFIX": "a b"}])
    def test_invalid_settings_are_ignored_here(self, given: Any) -> None:
        on_key_event("order:*")(Received())
        with override_settings(REDIS_MESSAGING=given):
            assert check_handlers() == []

    def test_checks_are_registered(self) -> None:
        on_key_event("order:*", events={"expird"})(Received())
        assert "messaging.W010" in [message.id for message in run_checks(tags=["messaging"])]


@pytest.mark.usefixtures("no_flags")
class TestServerChecks:
    def test_insufficient_flags_are_reported(self) -> None:
        """The flags of the original example, `K$e`, deliver no expiry."""
        on_key_event("order:*", events={"expired"})(Received.__call__)
        server().config_set(NOTIFY, "K$e")
        [message] = check_flags()
        assert message.id == "messaging.W011"
        assert "without 'x'" in message.msg
        assert "'$Kex'" in str(message.hint)

    def test_sufficient_flags_pass(self) -> None:
        """Without handlers of key events, no flags are needed."""
        on_expiry("order")(Received())
        assert check_flags() == []
        on_key_event("order:*", events={"expired"})(Received())
        server().config_set(NOTIFY, "AKE")
        assert check_flags() == []

    def test_unreachable_server_is_ignored_here(self) -> None:
        on_key_event("order:*", events={"expired"})(Received())
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere?db=0"}
        messaging = {"ALIAS": "nowhere", "COMMAND_DEADLINE": 0.1}
        with override_settings(CACHES={**settings.CACHES, "nowhere": entry}, REDIS_MESSAGING=messaging):
            assert check_flags() == []


class TestOtherCommands:
    @pytest.fixture
    def dead_and_waiting(self) -> None:
        """A dead timer and a waiting one."""
        Expiry("order").start("17", 0.001)
        assert timers().settle(claim_due().lease.settlement(Outcome.DEAD, line='F"no"'))
        Expiry("order").start("18", 60)

    def test_stats(self, dead_and_waiting: None) -> None:
        [row] = [
            row for row in json.loads(output_of("messaging_stats", "--json")[0]) if "timers" in row["queue"]
        ]
        expected = {"ready": 0, "delayed": 1, "leased": 0, "dead": 1, "parked": 0, "oldest_age": None}
        expected |= {"throughput": 0.0, "time_to_drain": 0.0, "paused": None, "paused_tasks": {}}
        assert row == {"queue": "timers order", **expected}

    def test_redrive(self, dead_and_waiting: None) -> None:
        for namespaces, count in ((["order", "another"], 0), (["order"], 1), (["order"], 0)):
            out, _ = output_of("redrive", *namespaces, "--timers")
            assert out == f"{count} requeued in order.\n"
        with pytest.raises(CommandError, match="namespace is empty"):
            call_command("redrive", "", "--timers")
