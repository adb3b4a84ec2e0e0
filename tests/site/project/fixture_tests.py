"""Tests with the fixtures of the pytest plugin, whatever they do to the settings."""

import os
from typing import Any

import pytest
from django.conf import settings as site
from django.core.cache import caches
from django.test import SimpleTestCase, override_settings
from django_redis import get_redis_connection

from django_redis_messaging import Chat, DelayQueue, Inbox, Lock, conf
from django_redis_messaging.core.encoding import FORMAT
from django_redis_messaging.devserver.server import EmbeddedServer

IS_CONFIGURED = "IS_CONFIGURED" in os.environ
ITSELF = site.CACHES["messaging"]
COPY = {**ITSELF, "KEY_PREFIX": "copy"}
WHOLE = {**site.CACHES}

only_private = pytest.mark.skipif(IS_CONFIGURED, reason="the servers of CACHES are used")


def create() -> None:
    Chat.create("ann", ["bob"], "Hello!", chat_id="same")


def parameters(alias: str) -> dict[str, Any]:
    found: dict[str, Any] = get_redis_connection(alias).connection_pool.connection_kwargs
    return found


@only_private
@override_settings(SECRET_KEY="class", REDIS_MESSAGING={"ALIAS": "messaging", "PREFIX": "tenant"})
class TestOverridden(SimpleTestCase):
    def test_before_the_first_test_with_a_fixture(self) -> None:
        assert site.SECRET_KEY == "class"
        assert parameters("jobs")["path"] in site.SITE

    @pytest.mark.usefixtures("messaging_prefix")
    def test_with_a_fixture(self) -> None:
        assert parameters("jobs")["path"] not in site.SITE
        create()


@override_settings(CACHES=WHOLE)
class TestCopied(SimpleTestCase):
    @pytest.mark.usefixtures("messaging_prefix")
    def test_create(self) -> None:
        create()


@pytest.mark.parametrize("turn", range(4))
class TestIsolation:
    """Each test has its own keys."""

    def test_blocking(self, messaging_prefix: str, turn: int) -> None:
        create()
        assert Inbox("bob").unread() == 1
        assert conf.prefix() == messaging_prefix
        assert conf.current().COMMAND_DEADLINE == 5

    @pytest.mark.asyncio
    async def test_awaiting(self, messaging_prefix: str, turn: int) -> None:
        await Chat.acreate("ann", ["bob"], "Hello!", chat_id="same")
        assert await Inbox("bob").aunread() == 1


def test_location(messaging_prefix: str) -> None:
    assert (site.CACHES["messaging"]["LOCATION"] == site.SITE) is IS_CONFIGURED


@only_private
def test_prefix_of_a_test_with_settings(messaging_prefix: str, settings: Any) -> None:
    assert conf.prefix() == messaging_prefix
    settings.REDIS_MESSAGING = {"CHAT_KEEP_LAST": 3}
    assert conf.prefix() == messaging_prefix
    assert conf.current().CHAT_KEEP_LAST == 3
    with override_settings(REDIS_MESSAGING={"PREFIX": "site"}):
        assert conf.prefix() == messaging_prefix
    with override_settings(REDIS_MESSAGING={"PREFIX": "tenant"}):
        assert conf.prefix() == f"{messaging_prefix}:tenant"
        create()
    create()
    keys = get_redis_connection("messaging").keys()
    assert {key.decode().rpartition(f":{FORMAT}:")[0] for key in keys} == {
        messaging_prefix,
        f"{messaging_prefix}:tenant",
    }


@only_private
def test_aliases_are_separate(messaging_prefix: str, messaging_server: EmbeddedServer) -> None:
    for alias in ("jobs", "messaging", "pages"):
        queue = DelayQueue("calls", using=alias)
        queue.push(alias)
        assert queue.stats().ready == 1
        assert parameters(alias)["path"] == str(messaging_server.socket)
    caches["pages"].set("key", {"a": 1})
    assert get_redis_connection("pages").get("pages:1:key") == b'{"a": 1}'
    assert type(caches["pages"]).__name__ == "OwnCache"
    caches["pages"].clear()
    assert DelayQueue("calls").stats().ready == 1


@only_private
def test_nothing_is_left(messaging_prefix: str) -> None:
    assert [get_redis_connection(alias).dbsize() for alias in ("messaging", "jobs", "pages")] == [0] * 3


@only_private
def test_copies_of_entries(messaging_prefix: str, settings: Any) -> None:
    settings.CACHES = {"messaging": COPY, "new": {**COPY, "LOCATION": site.SITE.replace("db=0", "db=8")}}
    DelayQueue("calls").push("mine")
    assert DelayQueue("calls", using="new").stats().ready == 0
    DelayQueue("calls", using="new").push("new")
    with Lock("nightly", using="new"):
        pass


@pytest.fixture
def changed_before(monkeypatch: pytest.MonkeyPatch, turn: int) -> None:
    """Removed after the fixture of the plugin has ended."""
    if turn == 3:
        monkeypatch.setitem(site.CACHES, "new", ITSELF)


@only_private
@pytest.mark.parametrize("turn", range(4))
def test_broken_isolation(
    monkeypatch: pytest.MonkeyPatch, changed_before: None, messaging_prefix: str, turn: int
) -> None:
    """Each of these ends with an error."""
    if turn == 0:
        monkeypatch.setitem(site.CACHES, "jobs", ITSELF)
    elif turn == 1:
        monkeypatch.setattr(caches, "settings", {"pages": ITSELF})
    elif turn == 2:
        monkeypatch.setattr(conf, "prefix_hook", None)
