"""The flags of notify-keyspace-events: added, missing, forbidden."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from django_redis_messaging import Expiry, conf
from django_redis_messaging.core import clients, keyspace

from .asking import server, until
from .listening import NOTIFY, Heard, key_handler, listening

pytestmark = [pytest.mark.worlds, pytest.mark.timing, pytest.mark.usefixtures("telling", "short_lease")]


class TestConfigure:
    def test_it_adds_what_is_missing_and_leaves_the_rest(self, site: str) -> None:
        server().config_set(NOTIFY, "E$")
        heard = Heard()
        with listening(key_events=[key_handler(f"{site}*", heard, "expired")], configure=True):
            assert set(server().config_get(NOTIFY)[NOTIFY]) == set("E$Kx")
            server().psetex(f"{site}a", 1, 1)
            until(lambda: not server().exists(f"{site}a"))
            until(lambda: heard)

    def test_what_is_enough_is_not_touched(self, site: str) -> None:
        server().config_set(NOTIFY, "AKE")
        before = int(server().info("commandstats")["cmdstat_config|set"]["calls"])
        with listening(key_events=[key_handler(f"{site}*", Heard(), "expired")], configure=True):
            pass
        assert server().config_get(NOTIFY)[NOTIFY] == "AKE"
        assert int(server().info("commandstats")["cmdstat_config|set"]["calls"]) == before

    def test_without_it_nothing_is_set(self, site: str) -> None:
        server().config_set(NOTIFY, "")
        with listening(key_events=[key_handler(f"{site}*", Heard(), "expired")]):
            pass
        assert server().config_get(NOTIFY)[NOTIFY] == ""

    @pytest.mark.parametrize("configure", [True, False])
    def test_config_forbidden_is_a_warning(
        self, site: str, settings: Settings, caplog: pytest.LogCaptureFixture, configure: bool
    ) -> None:
        heard, fired = Heard(), Heard()
        server().execute_command("ACL", "SETUSER", "limited", "on", ">word", "~*", "&*", "+@all", "-config")
        alias = conf.alias()
        location = settings.CACHES[alias]["LOCATION"].replace("unix://", "unix://limited:word@")
        entry = {**settings.CACHES[alias], "LOCATION": location}
        plain = server()
        settings.CACHES = {**settings.CACHES, "limited": entry}
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "limited"}
        wanted = [key_handler(f"{site}*", heard, "set")]
        with listening({"order": fired}, wanted, configure=configure):
            plain.set(f"{site}a", 1)
            Expiry("order").start("17", 0.02)
            until(lambda: heard and fired)
        assert caplog.text.count("does not allow CONFIG GET notify-keyspace-events") == 1
        clients.close()
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": alias}
        plain.execute_command("ACL", "DELUSER", "limited")

    def test_one_that_may_look_and_not_set(
        self, site: str, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        rules = ("on", ">word", "~*", "&*", "+@all", "-config", "+config|get")
        server().execute_command("ACL", "SETUSER", "looker", *rules)
        server().config_set(NOTIFY, "K$e")
        plain, alias = server(), conf.alias()
        location = settings.CACHES[alias]["LOCATION"].replace("unix://", "unix://looker:word@")
        settings.CACHES = {**settings.CACHES, "looker": {**settings.CACHES[alias], "LOCATION": location}}
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "looker"}
        with listening(key_events=[key_handler(f"{site}*", Heard(), "expired")], configure=True):
            pass
        assert "Setting notify-keyspace-events failed" in caplog.text
        assert "also needs x" in caplog.text
        clients.close()
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": alias}
        plain.execute_command("ACL", "DELUSER", "looker")

    def test_the_server_knows_the_flag_of_each_event(self) -> None:
        for event, flag in keyspace.FLAGS.items():
            server().config_set(NOTIFY, f"K{flag}")
            assert set(server().config_get(NOTIFY)[NOTIFY]) == {"K", flag}, event
            assert set(keyspace.required_flags("a", {event})) == {"K", flag}
