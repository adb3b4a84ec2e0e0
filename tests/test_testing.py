"""The pytest plugin as the tests of a site use it, in separate runs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from django.conf import settings
from django_redis import get_redis_connection

from django_redis_messaging import Chat, Inbox, conf
from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.testing import Prefix, remove_keys

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
    before = client.dbsize()

    code, output = run(
        site, "-o", "messaging_server=configured", env={"SITE_REDIS": messaging_server.url + "&client_name=x"}
    )

    assert code == 0, output
    assert "client_name=x" in output
    assert client.dbsize() == before


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
                from django.conf import settings
                assert not settings.configured
                assert "django_redis_messaging.core.embedded" not in sys.modules
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

    assert remove_keys("messaging", odd) == 2
    assert client.exists(odd, f"{own_prefix}:xaa\\:1") == 2


def test_remove_keys_works_in_batches(own_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_redis_messaging.core.primaries.SCAN_COUNT", 3)
    client = get_redis_connection("messaging")
    for number in range(10):
        client.set(f"{own_prefix}:{number}", "1")
    assert remove_keys("messaging", own_prefix) == 10
    assert remove_keys("messaging", own_prefix) == 0


def test_prefix_may_be_a_callable() -> None:
    prefix = Prefix(lambda: "tenant")
    assert prefix() == "tenant"
    with prefix.instead("inner"):
        assert prefix() == "inner"
        with prefix.instead("innermost"):
            assert prefix() == "innermost"
        assert prefix() == "inner"
    assert prefix() == "tenant"


def test_private_server_is_used_by_the_alias(messaging_server: EmbeddedServer) -> None:
    assert settings.CACHES["messaging"]["LOCATION"] == messaging_server.url
