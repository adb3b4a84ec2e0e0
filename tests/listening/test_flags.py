"""The flags of notify-keyspace-events: added, missing, or forbidden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings
from redis.exceptions import ResponseError, TimeoutError

from django_redis_messaging import Expiry, conf, handlers
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.listening import listener

from ..support.aliases import lead_to, limited_user
from ..support.listeners import NOTIFY, Received, following, is_dispatcher, key_handler, listening
from ..support.server import change, server, until

pytestmark = [
    pytest.mark.worlds,
    pytest.mark.timing,
    pytest.mark.usefixtures("keyspace_events", "short_lease"),
]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flags are checked often: after a reply to a PING."""
    monkeypatch.setattr(listener, "FLAGS_INTERVAL", 0.1)
    monkeypatch.setattr(listener, "PING_INTERVAL", 0.3)


def flags() -> str:
    return str(server().config_get(NOTIFY)[NOTIFY])


def set_flags(new: str) -> None:
    server().config_set(NOTIFY, new)


def sets_of_config() -> int:
    return int(server().info("commandstats")["cmdstat_config|set"]["calls"])


def check_delivery(site: str, received: Received) -> None:
    server().set(f"{site}a", 1)
    until(lambda: received)


class TestConfigure:
    def test_configure_adds_the_missing_flags_only(self, site: str) -> None:
        set_flags("E$")
        received = Received()
        with listening(key_events=[key_handler(f"{site}*", received, "expired")], configure=True):
            assert set(flags()) == set("E$Kx")
            server().psetex(f"{site}a", 1, 1)
            until(lambda: not server().exists(f"{site}a"))
            until(lambda: received)

    @pytest.mark.parametrize(("before", "configure"), [("AKE", True), ("", False)])
    def test_flags_are_not_set_if_they_suffice_or_without_configure(
        self, before: str, configure: bool, site: str
    ) -> None:
        set_flags(before)
        calls = sets_of_config()
        with following(site, Received(), configure=configure):
            pass
        assert (flags(), sets_of_config()) == (before, calls)

    @pytest.mark.usefixtures("often")
    def test_flags_that_somebody_removes_are_added_again(
        self, site: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        received = Received()
        with following(site, received, configure=True):
            set_flags("")
            until(lambda: set("K$") <= set(flags()))
            check_delivery(site, received)
        assert caplog.text.count("to '': events may have been lost") == 1

    @pytest.mark.usefixtures("often")
    def test_flags_that_somebody_removes_are_reported_once(
        self, site: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        set_flags("KA")
        received = Received()
        with following(site, received):
            set_flags("")
            until(lambda: "also needs $K" in caplog.text)
            set_flags("K$")
            check_delivery(site, received)
        assert caplog.text.count("also needs $K") == 1
        assert flags() == "$K"

    @pytest.mark.usefixtures("often")
    def test_check_that_fails_is_repeated(self, site: str, caplog: pytest.LogCaptureFixture) -> None:
        received = Received()
        with following(site, received, configure=True):
            for client in server().client_list():
                if client["cmd"] in {"config|get", "config|set"}:
                    server().client_kill_filter(_id=client["id"])
            until(lambda: "Checking notify-keyspace-events failed, retrying" in caplog.text)
            set_flags("")
            until(lambda: set("K$") <= set(flags()))
            check_delivery(site, received)

    @pytest.mark.usefixtures("often")
    @pytest.mark.parametrize(
        ("command", "error"),
        [
            ("SET", TimeoutError("no reply in time")),
            ("GET", ResponseError("BUSY Redis is busy running a script.")),
        ],
    )
    def test_command_that_gets_no_reply_is_repeated(
        self,
        command: str,
        error: Exception,
        site: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        failures, original = [error], listener._call

        def call(connection: Any, *words: str) -> Any:
            if words[1] == command and failures:
                raise failures.pop()
            return original(connection, *words)

        monkeypatch.setattr(listener, "_call", call)
        set_flags("")
        received = Received()
        with following(site, received, configure=True):
            until(lambda: set("K$") <= set(flags()))
            check_delivery(site, received)
        assert "Checking notify-keyspace-events failed, retrying" in caplog.text
        assert "does not allow" not in caplog.text


class TestForbidden:
    @pytest.mark.parametrize("configure", [True, False])
    def test_forbidden_config_is_a_warning(
        self, site: str, settings: Settings, caplog: pytest.LogCaptureFixture, configure: bool
    ) -> None:
        received, fired = Received(), Received()
        wanted = [key_handler(f"{site}*", received, "set")]
        with (
            limited_user(settings, "-config") as plain,
            listening({"order": fired}, wanted, configure=configure),
        ):
            plain.set(f"{site}a", 1)
            Expiry("order").start("17", 0.02)
            until(lambda: received and fired)
        assert caplog.text.count("does not allow CONFIG GET notify-keyspace-events") == 1

    def test_config_get_without_config_set(
        self, site: str, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        set_flags("K$e")
        wanted = [key_handler(f"{site}*", Received(), "expired")]
        with (
            limited_user(settings, "-config", "+config|get"),
            listening(key_events=wanted, configure=True),
        ):
            pass
        assert "Setting notify-keyspace-events failed" in caplog.text
        assert "also needs x" in caplog.text

    @pytest.mark.one_server
    def test_server_without_config_is_asked_once(
        self,
        site: str,
        settings: Settings,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        tmp_path: Path,
    ) -> None:
        """As with most managed servers."""
        monkeypatch.setattr(listener, "FLAGS_INTERVAL", 0.0)
        received, lines = Received(), tmp_path / "server.conf"
        lines.write_text('rename-command CONFIG ""\n')
        with EmbeddedServer(options={"include": str(lines), NOTIFY: "KEA"}) as managed:
            alias = conf.alias()
            lead_to(settings, managed.url)
            with following(site, received, configure=True) as made, managed.client() as plain:
                until(lambda: is_dispatcher(made))
                for number in range(3):
                    plain.set(f"{site}{number}", 1)
                    until(lambda number=number: len(received) > number)
            clients.close()
            change(settings, ALIAS=alias)
        assert caplog.text.count("does not allow CONFIG GET notify-keyspace-events") == 1

    def test_server_accepts_the_flag_of_each_event(self) -> None:
        for event, flag in handlers.FLAGS.items():
            set_flags(f"K{flag}")
            assert set(flags()) == {"K", flag}, event
            assert set(handlers.required_flags("a", {event})) == {"K", flag}
