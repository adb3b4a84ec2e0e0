"""The pytest plugin as the tests of a site use it, in separate runs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from django.conf import settings
from django.test import override_settings
from django_redis import get_redis_connection

from django_redis_messaging import Chat, Inbox, conf
from django_redis_messaging.core import testruns
from django_redis_messaging.core.testruns import Prefix, Run, layers
from django_redis_messaging.core.topology import endpoint, remove_keys
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.testing import Redirection

SETTINGS = """
    import os
    SECRET_KEY = "site"
    USE_TZ = True
    INSTALLED_APPS = ["django_redis_messaging"]
    CACHES = {
        "messaging": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": os.environ.get("SITE_REDIS", "redis://nowhere.invalid:1/0"),
        }
    }
    REDIS_MESSAGING = {"PREFIX": "site", "CHAT_KEEP_LAST": 7}
"""
CONFTEST = """
    import pytest

    @pytest.fixture(autouse=True)
    def own_prefix(messaging_prefix):
        pass
"""
TESTS = """
    import pytest
    from django.conf import settings
    from django_redis_messaging import Chat, Inbox, conf

    @pytest.mark.parametrize("turn", range(4))
    def test_blocking(turn):
        Chat.create("ann", ["bob"], "Hello!", chat_id="same")
        assert Inbox("bob").unread() == 1
        assert conf.prefix() != "site"
        assert conf.current().CHAT_KEEP_LAST == 7

    @pytest.mark.parametrize("turn", range(4))
    async def test_awaiting(turn):
        await Chat.acreate("ann", ["bob"], "Hello!", chat_id="same")
        assert await Inbox("bob").aunread() == 1

    def test_location():
        print("LOCATION", settings.CACHES["messaging"]["LOCATION"])
"""

GUARDED_SETTINGS = """
    import os
    SECRET_KEY = "site"
    USE_TZ = True
    INSTALLED_APPS = ["django_redis_messaging"]
    SITE = os.environ["SITE_REDIS"]
    CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "pages": {
            "BACKEND": "pages.OwnCache",
            "LOCATION": SITE,
            "KEY_PREFIX": "pages",
            "OPTIONS": {"SERIALIZER": "django_redis.serializers.json.JSONSerializer"},
        },
        "jobs": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": [SITE, SITE],
            "OPTIONS": {"PASSWORD": "wrong", "SOCKET_TIMEOUT": 5},
        },
        "messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": SITE},
    }
    REDIS_MESSAGING = {"PREFIX": "site", "CHAT_KEEP_LAST": 7}
"""
GUARDED = """
    import pytest
    from django.conf import settings as site
    from django.core.cache import caches
    from django.test import SimpleTestCase, override_settings
    from django_redis import get_redis_connection
    from django_redis_messaging import Chat, DelayQueue, Inbox, Lock, conf

    COPY = {**site.CACHES["messaging"], "KEY_PREFIX": "copy"}
    WHOLE = {**site.CACHES}
    ITSELF = site.CACHES["messaging"]

    def parameters(alias):
        return get_redis_connection(alias).connection_pool.connection_kwargs

    @override_settings(SECRET_KEY="class", REDIS_MESSAGING={"ALIAS": "messaging", "PREFIX": "tenant"})
    class TestOverridden(SimpleTestCase):
        def test_1(self):
            assert site.SECRET_KEY == "class"
            assert "db=9" in site.SITE and parameters("jobs")["db"] == 9

        @pytest.mark.usefixtures("messaging_prefix")  # the first test with it starts the server
        def test_2(self):
            assert parameters("jobs")["db"] != 9
            Chat.create("ann", ["bob"], "Hello!", chat_id="same")

    @override_settings(CACHES=WHOLE)
    class TestCopied(SimpleTestCase):
        @pytest.mark.usefixtures("messaging_prefix")
        def test_3(self):
            Chat.create("ann", ["bob"], "Hello!", chat_id="same")

    def test_4_prefix_of_a_test_with_settings(messaging_prefix, settings):
        assert conf.prefix() == messaging_prefix
        settings.REDIS_MESSAGING = {"CHAT_KEEP_LAST": 3}
        assert conf.prefix() == messaging_prefix
        assert conf.current().CHAT_KEEP_LAST == 3
        with override_settings(REDIS_MESSAGING={"PREFIX": "site"}):
            assert conf.prefix() == messaging_prefix
        with override_settings(REDIS_MESSAGING={"PREFIX": "tenant"}):
            assert conf.prefix() == f"{messaging_prefix}:tenant"
            Chat.create("ann", ["bob"], "Hello!", chat_id="same")
        Chat.create("ann", ["bob"], "Hello!", chat_id="same")
        assert {key.decode().rpartition(":1:")[0] for key in get_redis_connection("messaging").keys()} == {
            messaging_prefix, f"{messaging_prefix}:tenant"
        }

    def test_5_aliases_are_separate(messaging_prefix, messaging_server):
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

    def test_6_nothing_is_left(messaging_prefix):
        assert [get_redis_connection(alias).dbsize() for alias in ("messaging", "jobs", "pages")] == [0] * 3

    @pytest.mark.parametrize("turn", range(4))
    def test_8_broken_isolation(monkeypatch, broken, messaging_prefix, turn):
        if turn == 0:
            monkeypatch.setitem(site.CACHES, "jobs", ITSELF)
        elif turn == 1:
            monkeypatch.setattr(caches, "settings", {"pages": ITSELF})
        elif turn == 2:
            monkeypatch.setattr(conf, "prefix_hook", None)

    @pytest.fixture
    def broken(monkeypatch, turn):
        if turn == 3:
            monkeypatch.setitem(site.CACHES, "new", ITSELF)

    def test_7_copies_of_entries(messaging_prefix, settings):
        settings.CACHES = {"messaging": COPY, "new": {**COPY, "LOCATION": site.SITE.replace("db=9", "db=8")}}
        DelayQueue("calls").push("mine")
        assert DelayQueue("calls", using="new").stats().ready == 0
        DelayQueue("calls", using="new").push("new")
        with Lock("nightly", using="new"):
            pass
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The directory of a site with tests."""
    for name, text in {"settings": SETTINGS, "conftest": CONFTEST, "test_site": TESTS}.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nDJANGO_SETTINGS_MODULE = settings\npythonpath = .\nasyncio_mode = auto\n"
        "asyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n",
        encoding="utf-8",
    )
    return tmp_path


def run(site: Path, *args: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run pytest on that site; its exit code and output."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-s", "-p", "no:playwright", *args],
        cwd=site,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "settings", **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_tests_of_a_site_get_a_private_server_and_prefix(site: Path) -> None:
    code, output = run(site)
    assert code == 0, output
    assert "9 passed" in output
    assert "LOCATION unix://" in output


def test_each_worker_of_xdist_has_a_server(site: Path) -> None:
    (site / "test_site.py").write_text(
        textwrap.dedent("""
            from django.conf import settings

            def test_server(worker_id):
                with open("servers", "a") as out:
                    out.write(f"{worker_id} {settings.CACHES['messaging']['LOCATION']}\\n")
        """),
        encoding="utf-8",
    )
    code, output = run(site, "-n", "2", "--dist", "each")
    assert code == 0, output
    servers = {tuple(line.split()) for line in (site / "servers").read_text(encoding="utf-8").splitlines()}
    assert len(servers) == 2
    assert len({url for _, url in servers}) == 2


def test_configured_server_is_left_unchanged(
    site: Path, messaging_server: EmbeddedServer, own_prefix: str
) -> None:
    client = get_redis_connection("messaging")
    client.set(f"{own_prefix}:foreign", "1")
    before = set(client.scan_iter())

    code, output = run(
        site, "-o", "messaging_server=configured", env={"SITE_REDIS": messaging_server.url + "&client_name=x"}
    )

    assert code == 0, output
    assert "client_name=x" in output
    after = set(client.scan_iter())  # keys of earlier tests may have expired
    assert after <= before
    assert f"{own_prefix}:foreign".encode() in after


@pytest.fixture
def guarded(site: Path, messaging_server: EmbeddedServer, own_prefix: str) -> Iterator[Callable[..., str]]:
    """Run the site with three aliases on a server to which nothing may be written; returns the output."""
    (site / "conftest.py").unlink()
    (site / "settings.py").write_text(textwrap.dedent(GUARDED_SETTINGS), encoding="utf-8")
    (site / "test_site.py").write_text(textwrap.dedent(GUARDED), encoding="utf-8")
    (site / "pages.py").write_text(
        "from django_redis.cache import RedisCache\n\nclass OwnCache(RedisCache):\n    pass\n",
        encoding="utf-8",
    )
    url = messaging_server.url.replace("db=0", "db=9")

    def run_guarded(*args: str) -> str:
        _, output = run(site, "-p", "no:cacheprovider", *args, env={"SITE_REDIS": url, "COLUMNS": "200"})
        return output

    yield run_guarded
    for number in (8, 9):
        with messaging_server.client(db=number) as client:
            written = client.keys()
            client.flushdb()
        assert written == []


def test_no_change_of_the_settings_leads_to_the_server_of_the_site(guarded: Callable[..., str]) -> None:
    output = guarded()
    assert "10 passed, 4 errors" in output, output
    for turn, said in enumerate(
        (
            "CACHES['jobs'] leads to the server of the site",
            "CACHES['pages'] leads to the server of the site",
            "The test runs without its prefix",
            "CACHES['new'] leads to the server of the site",
        )
    ):
        assert f"test_8_broken_isolation[{turn}] - Failed: {said}" in output


def test_unknown_choice_is_reported(site: Path) -> None:
    code, output = run(site, "-o", "messaging_server=somewhere")
    assert code != 0
    assert "private or configured, not 'somewhere'" in output


def test_unused_plugin_does_nothing(site: Path) -> None:
    (site / "conftest.py").unlink()
    (site / "test_site.py").write_text(
        textwrap.dedent("""
            import sys

            def test_inert():
                assert {"django", "redis", "django_redis_messaging.api"}.isdisjoint(sys.modules)
        """),
        encoding="utf-8",
    )
    (site / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    code, output = run(site, "-p", "no:django", "-p", "no:asyncio", env={"DJANGO_SETTINGS_MODULE": ""})
    assert code == 0, output


def test_objects_use_the_prefix_of_the_test(own_prefix: str) -> None:
    Chat.create("ann", ["bob"], "hello", chat_id="here")
    keys = list(get_redis_connection("messaging").scan_iter(f"{own_prefix}:*"))
    assert conf.prefix() == own_prefix
    assert any(b"chat:here" in key for key in keys)


async def test_connections_of_an_async_test_are_closed() -> None:
    assert await Inbox("ann").aunread() == 0


def test_remove_keys_removes_only_keys_with_the_prefix(own_prefix: str) -> None:
    client = get_redis_connection("messaging")
    odd = f"{own_prefix}:*[a-z]?\\"
    for key in (f"{odd}:1", f"{odd}:2", f"{odd}", f"{own_prefix}:xaa\\:1"):
        client.set(key, "1")

    assert remove_keys(endpoint("messaging"), odd) == 2
    assert client.exists(odd, f"{own_prefix}:xaa\\:1") == 2


def test_remove_keys_works_in_batches(own_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_redis_messaging.core.topology.SCAN_COUNT", 3)
    client = get_redis_connection("messaging")
    for number in range(10):
        client.set(f"{own_prefix}:{number}", "1")
    assert remove_keys(endpoint("messaging"), own_prefix) == 10
    assert remove_keys(endpoint("messaging"), own_prefix) == 0


def test_prefix_of_a_test_replaces_that_of_the_site(messaging_settings: Prefix) -> None:
    [*_, of_site] = layers(conf.NAME)
    site, prefix = {"PREFIX": "site"}, messaging_settings
    # the end of the override lets the app read its settings anew, so it must come last
    with override_settings(REDIS_MESSAGING=site), mock.patch.dict(of_site, site), prefix.instead("inner"):
        assert conf.prefix() == "inner"
        assert [prefix("site"), prefix("messaging"), prefix("tenant")] == ["inner", "inner", "inner:tenant"]
        assert [prefix("inner"), prefix("inner:tenant"), prefix("")] == ["inner", "inner:tenant", ""]
        with prefix.instead("innermost"):
            assert conf.prefix() == "innermost"
        assert conf.prefix() == "inner"
        with override_settings(REDIS_MESSAGING={"PREFIX": lambda: "tenant"}):
            assert conf.prefix() == "inner:tenant"


def test_entries_are_restored_at_the_end() -> None:
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://elsewhere.invalid:1/0"}
    own = {**entry, "LOCATION": "redis://started.invalid:2/0"}
    other = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    before = {alias: {**values} for alias, values in settings.CACHES.items()}
    state = {"url": "unix:///private.sock?db=0", "servers": [("elsewhere.invalid", 1)]}
    with override_settings(CACHES={"messaging": entry, "own": own, "default": other}):
        with Redirection(Run({**testruns.EMPTY_STATE, **state})) as redirection:
            assert settings.CACHES["messaging"]["LOCATION"] == "unix:///private.sock?db=0"
            assert settings.CACHES["own"] is own
            assert settings.CACHES["default"] is other
            assert redirection.aliases() == ["messaging"]
        assert {"messaging": entry, "own": own, "default": other} == settings.CACHES
    assert before == settings.CACHES


def test_private_server_is_used_by_the_alias(messaging_server: EmbeddedServer) -> None:
    assert settings.CACHES["messaging"]["LOCATION"] == messaging_server.url
