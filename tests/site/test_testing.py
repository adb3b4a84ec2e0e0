"""The tests of a site: they never use its server, and don't see each other's data.

Most tests here run those of a small site, in `project/`, in another process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import django.test.runner
import django.test.utils
import pytest
from django.conf import settings
from django.test import override_settings
from django_redis import get_redis_connection

from django_redis_messaging import Chat, ConfigurationError, Inbox, conf
from django_redis_messaging.core import testruns
from django_redis_messaging.core.testruns import Prefix, Run, layers
from django_redis_messaging.core.topology import endpoint, remove_keys
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.testing import Redirection

from ..support.processes import ROOT

SITE = ROOT / "tests" / "site" / "project"
MANAGE = ("manage.py", "test", "--noinput", "site_tests")
#: without those that start a process of each kind
FEWER = (*MANAGE[:-1], *(f"site_tests.{name}" for name in ("Sequences", "Settings", "Isolated")))
#: the same for pytest
FEW = "not FirstIsAProcess and not Pages and not Live"
PYTEST = ("-m", "pytest", "-p", "no:playwright", "-p", "no:cacheprovider", "-q")
#: of a project without Django
PLAIN = ("-p", "no:playwright", "-p", "no:django", "-p", "no:asyncio", "-c", os.devnull, "--confcutdir", ".")
#: what the option of pytest and the setting can be
PRIVATE, CONFIGURED = "messaging_server=private", "messaging_server=configured"

#: runs Python on the site; returns the output
Call = Callable[..., str]


def call(url: str, *words: str, code: int = 0, **environment: str) -> str:
    """Run Python on the site that has this server, as if no tests were running; returns the output."""
    inherited = {key: value for key, value in os.environ.items() if key != testruns.VARIABLE}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=SITE,
        env={
            **inherited,
            "DJANGO_SETTINGS_MODULE": "settings",
            "SITE_REDIS": url,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), inherited.get("PYTHONPATH")))),
            "COLUMNS": "200",
            **environment,
        },
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    return output


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """The server of the site. User 1 has a chat, a mailbox and an entry of the directory."""
    with EmbeddedServer() as started:
        call(started.url, "seed.py")
        with started.client() as client:
            for key in client.scan_iter():
                client.persist(key)
        yield started


def content(server: EmbeddedServer) -> dict[tuple[int, bytes], object]:
    """What is stored: each key of each database."""
    found: dict[tuple[int, bytes], object] = {}
    for db in range(16):
        with server.client(db=db) as client:
            found |= {(db, key): client.dump(key) for key in client.scan_iter(count=1000)}
    return found


@pytest.fixture
def run(server: EmbeddedServer) -> Iterator[Call]:
    """Run something on the site, which must change nothing on its server."""
    before = content(server)
    assert len(before) > 5
    yield lambda *words, **options: call(server.url, *words, **options)

    assert content(server) == before


@pytest.fixture
def run_while_down(tmp_path: Path) -> Call:
    """Run something on the site while its server is down."""
    url = f"unix://{tmp_path}/none.sock?db=0"
    return lambda *words, **options: call(url, *words, IS_DOWN="1", **options)


class TestPrivateServer:
    """The tests of the site use a server of their own."""

    @pytest.mark.parametrize(
        ("words", "environment"),
        [
            pytest.param(MANAGE, {}, id="serial"),
            pytest.param(
                (*MANAGE, "--parallel", "2"), {"DURABLE": "1"}, id="fork", marks=pytest.mark.versions
            ),
            # the option comes before the setting
            pytest.param(
                (*PYTEST, "-o", PRIVATE),
                {"TEST_SERVER": "configured"},
                id="pytest",
                marks=pytest.mark.versions,
            ),
        ],
    )
    def test_nothing_changes_on_the_server_of_the_site(
        self, run: Call, words: tuple[str, ...], environment: dict[str, str]
    ) -> None:
        output = run(*words, **environment)
        assert ("OK" if words[0] == "manage.py" else "passed") in output

    def test_spawned_processes_while_the_server_of_the_site_is_down(self, run_while_down: Call) -> None:
        assert "OK" in run_while_down(*MANAGE, "--parallel", "2", START_METHOD="spawn")

    def test_each_worker_of_xdist_has_a_server_while_that_of_the_site_is_down(
        self, run_while_down: Call, tmp_path: Path
    ) -> None:
        servers = tmp_path / "servers"
        words = (*PYTEST, "-n", "2", "site_tests.py", "collecting.py", "-k", "not Pages and not Live")
        assert "passed" in run_while_down(*words, SERVERS=str(servers))
        assert len(set(servers.read_text(encoding="utf-8").split())) == 2

    def test_no_change_of_the_settings_leads_to_the_server_of_the_site(self, run: Call) -> None:
        output = run(*PYTEST, "fixture_tests.py", code=1)
        assert "19 passed, 4 errors" in output
        for turn, problem in enumerate(
            (
                "CACHES['jobs'] leads to the server of the site",
                "CACHES['pages'] leads to the server of the site",
                "The test runs without its prefix",
                "CACHES['new'] leads to the server of the site",
            )
        ):
            assert f"test_broken_isolation[{turn}] - Failed: {problem}" in output

    def test_processes_of_a_server_of_forks_have_the_prefix_of_their_test(self, run: Call) -> None:
        assert "OK" in run("manage.py", "test", "--noinput", "forkserver_tests")

    def test_settings_without_a_module(self, run: Call) -> None:
        """settings.configure() and a test runner."""
        assert "Ran 1 test" in run("configured.py")

    def test_a_call_at_collection_without_pytest_django(self, run: Call) -> None:
        assert "1 passed" in run("-m", "pytest", *PLAIN, "collecting.py")

    def test_without_a_server_calls_fail_and_say_what_to_do(self, run: Call) -> None:
        run(*MANAGE, NO_PROGRAM="1")


class TestConfiguredServer:
    """The tests of the site use its server, with keys of their own."""

    @pytest.mark.parametrize(
        ("words", "environment"),
        [
            (FEWER, {"TEST_SERVER": "configured"}),
            ((*MANAGE, "--parallel", "2"), {"TEST_SERVER": "configured"}),
            ((*PYTEST, "-n", "2", "-o", CONFIGURED, "fixture_tests.py", "site_tests.py", "-k", FEW), {}),
        ],
        ids=["serial", "parallel", "xdist"],
    )
    def test_no_other_key_changes(
        self, run: Call, words: tuple[str, ...], environment: dict[str, str]
    ) -> None:
        run(*words, IS_CONFIGURED="1", **environment)

    def test_an_invalid_setting_leads_to_no_server(self, run: Call) -> None:
        run(*PYTEST, TEST_SERVER="mine")
        wrong = """REDIS_MESSAGING['TEST'] must be {"SERVER": "private"} or {"SERVER": "configured"}"""
        assert wrong in run(*MANAGE, code=1, TEST_SERVER="mine")


class TestOutside:
    """Where no tests run, and in projects without the app."""

    def test_the_server_of_the_site_is_used_until_tests_begin(self, run: Call) -> None:
        output = run("reading.py")
        assert "no issues" in output and "unread: [1, 0, 0]" in output
        assert "refused: The tests of this process have ended" in output
        ended = output.split("variable: ")[1].split()[0]
        output = run("reading.py", code=1, **{testruns.VARIABLE: ended})
        assert f"{testruns.VARIABLE} names a run of tests that has ended: unset it." in output
        assert "messaging.W022" in output

    def test_invalid_variable(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "run.json").write_text("{")
        monkeypatch.setenv(testruns.VARIABLE, str(tmp_path / "run.json"))
        with pytest.raises(ConfigurationError, match="is not valid: unset it"):
            testruns._read_variable()

    def test_the_plugin_does_nothing_in_other_projects(self) -> None:
        """After an invalid option, in the same process."""
        program = f"""if True:
            import pytest
            words = ["-s", *{PLAIN!r}, "inert.py"]
            print("invalid:", int(pytest.main([*words, "-o", "messaging_server=somewhere"])))
            raise SystemExit(pytest.main(words))
        """
        output = call("", "-c", program)
        assert "private or configured, not 'somewhere'" in output
        assert "invalid: 4" in output and "1 passed" in output


class TestRun:
    def test_a_call_within_the_start_of_the_run_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As one of a signal handler: the run does not exist yet, and the site must not be used."""
        with monkeypatch.context() as patch:
            patch.setattr(testruns, "_run", None)
            patch.setattr(testruns, "_changing", True)
            with pytest.raises(RuntimeError, match="being started"):
                testruns.current()

    @pytest.mark.versions
    def test_internals_of_django_are_as_they_were(self) -> None:
        """core/testruns.py reads what setup_test_environment() sets, and the number of a parallel process."""
        assert hasattr(django.test.utils._TestState, "saved_data")
        with pytest.raises(RuntimeError, match="already called"):
            django.test.utils.setup_test_environment()
        assert django.test.runner._worker_id == 0
        source = Path(django.test.runner.__file__).read_text(encoding="utf-8")
        assert "_worker_id = counter.value" in source

    def test_entries_are_restored_at_the_end(self) -> None:
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


class TestPrefix:
    def test_objects_use_the_prefix_of_the_test(
        self, own_prefix: str, messaging_server: EmbeddedServer
    ) -> None:
        assert settings.CACHES["messaging"]["LOCATION"] == messaging_server.url
        Chat.create("ann", ["bob"], "hello", chat_id="here")
        keys = list(get_redis_connection("messaging").scan_iter(f"{own_prefix}:*"))
        assert conf.prefix() == own_prefix
        assert any(b"chat:here" in key for key in keys)

    async def test_connections_of_an_async_test_are_closed(self) -> None:
        assert await Inbox("ann").aunread() == 0

    def test_only_keys_with_the_prefix_are_removed(
        self, own_prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = get_redis_connection("messaging")
        odd = f"{own_prefix}:*[a-z]?\\"
        client.mset(dict.fromkeys((f"{odd}:1", f"{odd}:2", odd, f"{own_prefix}:xaa\\:1"), "1"))
        assert remove_keys(endpoint("messaging"), odd) == 2
        assert client.exists(odd, f"{own_prefix}:xaa\\:1") == 2
        monkeypatch.setattr("django_redis_messaging.core.topology.SCAN_COUNT", 3)
        client.mset({f"{own_prefix}:{number}": "1" for number in range(10)})
        assert remove_keys(endpoint("messaging"), own_prefix) == 12
        assert remove_keys(endpoint("messaging"), own_prefix) == 0

    def test_it_replaces_that_of_the_site(self, messaging_settings: Prefix) -> None:
        [*_, of_site] = layers(conf.NAME)
        site, prefix = {"PREFIX": "site"}, messaging_settings
        # the end of the override lets the app read its settings anew, so it must come last
        with override_settings(REDIS_MESSAGING=site), mock.patch.dict(of_site, site), prefix.instead("inner"):
            assert conf.prefix() == "inner"
            assert [prefix("site"), prefix("messaging"), prefix("tenant")] == [
                "inner", "inner", "inner:tenant",
            ]  # fmt: skip
            assert [prefix("inner"), prefix("inner:tenant"), prefix("")] == ["inner", "inner:tenant", ""]
            with prefix.instead("innermost"):
                assert conf.prefix() == "innermost"
            assert conf.prefix() == "inner"
            with override_settings(REDIS_MESSAGING={"PREFIX": lambda: "tenant"}):
                assert conf.prefix() == "inner:tenant"
