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

from ..support.listeners import NOTIFY, Received, is_dispatcher, key_handler, listening
from ..support.server import server, until

pytestmark = [
    pytest.mark.worlds,
    pytest.mark.timing,
    pytest.mark.usefixtures("keyspace_events", "short_lease"),
]


class TestConfigure:
    def test_configure_adds_the_missing_flags_only(self, site: str) -> None:
        server().config_set(NOTIFY, "E$")
        received = Received()
        with listening(key_events=[key_handler(f"{site}*", received, "expired")], configure=True):
            assert set(server().config_get(NOTIFY)[NOTIFY]) == set("E$Kx")
            server().psetex(f"{site}a", 1, 1)
            until(lambda: not server().exists(f"{site}a"))
            until(lambda: received)

    def test_sufficient_flags_are_not_changed(self, site: str) -> None:
        server().config_set(NOTIFY, "AKE")
        before = int(server().info("commandstats")["cmdstat_config|set"]["calls"])
        with listening(key_events=[key_handler(f"{site}*", Received(), "expired")], configure=True):
            pass
        assert server().config_get(NOTIFY)[NOTIFY] == "AKE"
        assert int(server().info("commandstats")["cmdstat_config|set"]["calls"]) == before

    def test_flags_that_somebody_removes_are_added_again(
        self, site: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(listener, "FLAGS_INTERVAL", 0.1)
        received = Received()
        with listening(key_events=[key_handler(f"{site}*", received, "set")], configure=True):
            server().config_set(NOTIFY, "")
            until(lambda: set("K$") <= set(server().config_get(NOTIFY)[NOTIFY]))
            server().set(f"{site}a", 1)
            until(lambda: received)
        assert caplog.text.count("to '': events may have been lost") == 1

    def test_flags_that_somebody_removes_are_reported_once(
        self, site: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(listener, "FLAGS_INTERVAL", 0.1)
        server().config_set(NOTIFY, "KA")
        received = Received()
        with listening(key_events=[key_handler(f"{site}*", received, "set")]):
            server().config_set(NOTIFY, "")
            until(lambda: "also needs $K" in caplog.text)
            server().config_set(NOTIFY, "K$")
            server().set(f"{site}a", 1)
            until(lambda: received)
        assert caplog.text.count("also needs $K") == 1
        assert server().config_get(NOTIFY)[NOTIFY] == "$K"

    def test_check_that_fails_is_repeated(
        self, site: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(listener, "FLAGS_INTERVAL", 0.1)
        received = Received()
        with listening(key_events=[key_handler(f"{site}*", received, "set")], configure=True):
            for client in server().client_list():
                if client["cmd"] in {"config|get", "config|set"}:
                    server().client_kill_filter(_id=client["id"])
            until(lambda: "Checking notify-keyspace-events failed, retrying" in caplog.text)
            server().config_set(NOTIFY, "")
            until(lambda: set("K$") <= set(server().config_get(NOTIFY)[NOTIFY]))
            server().set(f"{site}a", 1)
            until(lambda: received)

    def test_setting_that_gets_no_reply_is_repeated(
        self, site: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(listener, "FLAGS_INTERVAL", 0.1)
        lost, original = [1], listener._call

        def call(connection: Any, *words: str) -> Any:
            if words[1] == "SET" and lost and lost.pop():
                raise TimeoutError("no reply in time")
            return original(connection, *words)

        monkeypatch.setattr(listener, "_call", call)
        server().config_set(NOTIFY, "")
        received = Received()
        with listening(key_events=[key_handler(f"{site}*", received, "set")], configure=True):
            until(lambda: set("K$") <= set(server().config_get(NOTIFY)[NOTIFY]))
            server().set(f"{site}a", 1)
            until(lambda: received)
        assert "Checking notify-keyspace-events failed, retrying" in caplog.text

    def test_busy_server_is_asked_again(
        self, site: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(listener, "FLAGS_INTERVAL", 0.1)
        busy, original = [1], listener._call

        def call(connection: Any, *words: str) -> Any:
            if busy and busy.pop():
                raise ResponseError("BUSY Redis is busy running a script.")
            return original(connection, *words)

        monkeypatch.setattr(listener, "_call", call)
        server().config_set(NOTIFY, "")
        with listening(key_events=[key_handler(f"{site}*", Received(), "set")], configure=True):
            until(lambda: set("K$") <= set(server().config_get(NOTIFY)[NOTIFY]))
        assert "does not allow" not in caplog.text

    def test_flags_are_not_set_without_configure(self, site: str) -> None:
        server().config_set(NOTIFY, "")
        with listening(key_events=[key_handler(f"{site}*", Received(), "expired")]):
            pass
        assert server().config_get(NOTIFY)[NOTIFY] == ""

    @pytest.mark.parametrize("configure", [True, False])
    def test_forbidden_config_is_a_warning(
        self, site: str, settings: Settings, caplog: pytest.LogCaptureFixture, configure: bool
    ) -> None:
        received, fired = Received(), Received()
        server().execute_command("ACL", "SETUSER", "limited", "on", ">word", "~*", "&*", "+@all", "-config")
        alias = conf.alias()
        location = settings.CACHES[alias]["LOCATION"].replace("unix://", "unix://limited:word@")
        entry = {**settings.CACHES[alias], "LOCATION": location}
        plain = server()
        settings.CACHES = {**settings.CACHES, "limited": entry}
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "limited"}
        wanted = [key_handler(f"{site}*", received, "set")]
        with listening({"order": fired}, wanted, configure=configure):
            plain.set(f"{site}a", 1)
            Expiry("order").start("17", 0.02)
            until(lambda: received and fired)
        assert caplog.text.count("does not allow CONFIG GET notify-keyspace-events") == 1
        clients.close()
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": alias}
        plain.execute_command("ACL", "DELUSER", "limited")

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
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": managed.url}
            settings.CACHES = {**settings.CACHES, "managed": entry}
            settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "managed"}
            with (
                listening(key_events=[key_handler(f"{site}*", received, "set")], configure=True) as made,
                managed.client() as plain,
            ):
                until(lambda: is_dispatcher(made))
                for number in range(3):
                    plain.set(f"{site}{number}", 1)
                    until(lambda number=number: len(received) > number)
            clients.close()
        assert caplog.text.count("does not allow CONFIG GET notify-keyspace-events") == 1

    def test_config_get_without_config_set(
        self, site: str, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        rules = ("on", ">word", "~*", "&*", "+@all", "-config", "+config|get")
        server().execute_command("ACL", "SETUSER", "reader", *rules)
        server().config_set(NOTIFY, "K$e")
        plain, alias = server(), conf.alias()
        location = settings.CACHES[alias]["LOCATION"].replace("unix://", "unix://reader:word@")
        settings.CACHES = {**settings.CACHES, "reader": {**settings.CACHES[alias], "LOCATION": location}}
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "reader"}
        with listening(key_events=[key_handler(f"{site}*", Received(), "expired")], configure=True):
            pass
        assert "Setting notify-keyspace-events failed" in caplog.text
        assert "also needs x" in caplog.text
        clients.close()
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": alias}
        plain.execute_command("ACL", "DELUSER", "reader")

    def test_server_accepts_the_flag_of_each_event(self) -> None:
        for event, flag in handlers.FLAGS.items():
            server().config_set(NOTIFY, f"K{flag}")
            assert set(server().config_get(NOTIFY)[NOTIFY]) == {"K", flag}, event
            assert set(handlers.required_flags("a", {event})) == {"K", flag}
