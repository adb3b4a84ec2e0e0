"""The system checks: each problem has an id and a hint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.core.management import call_command
from django.test import override_settings
from django_redis.cache import RedisCache

from django_redis_messaging import checks, conf
from django_redis_messaging.checks import server as server_checks
from django_redis_messaging.core.embedded import EmbeddedServer

pytestmark = pytest.mark.versions

LOCMEM = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}


def redis(location: object = "redis://127.0.0.1:6379/1", **options: object) -> dict[str, Any]:
    return {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}


GOOD: dict[str, Any] = {"default": redis("redis://127.0.0.1:6379/0"), "messaging": redis()}


@contextmanager
def site(messaging: object = None, caches: dict[str, Any] | None = None) -> Iterator[None]:
    with override_settings(REDIS_MESSAGING=messaging or {}, CACHES=caches or GOOD):
        yield


def found(*, deploy: bool = False) -> list[CheckMessage]:
    return run_checks(tags=[checks.TAG], include_deployment_checks=deploy)


def ids(*, deploy: bool = False) -> list[str]:
    return [str(message.id).removeprefix("messaging.") for message in found(deploy=deploy)]


def only(*, deploy: bool = False) -> CheckMessage:
    [message] = found(deploy=deploy)
    assert message.hint, "a message says what to do"
    return message


def test_a_valid_site_has_no_messages() -> None:
    with site({"CHAT_MAX_LENGTH": 50, "COMMAND_DEADLINE": 3}):
        assert found() == []


def test_they_run_with_manage_py_check(capsys: pytest.CaptureFixture[str]) -> None:
    with site({"CHAT_MAX_LENGHT": 1}):
        call_command("check", tags=["messaging"])
    assert "messaging.W001" in capsys.readouterr().err


def test_each_id_is_in_the_list_and_used_for_one_thing() -> None:
    package = Path(str(checks.__file__)).parent
    listed = re.findall(r"messaging\.([EW]\d{3})", str(checks.__doc__))
    used = re.findall(
        r'id="messaging\.([EW]\d{3})"',
        "".join(path.read_text(encoding="utf-8") for path in sorted(package.glob("*.py"))),
    )
    assert sorted(listed) == sorted(set(used))
    assert len(listed) == len(set(listed))


class TestSettings:
    @pytest.mark.parametrize("given", [["ALIAS"], "messaging", 5])
    def test_not_a_dict(self, given: object) -> None:
        with site(given):
            assert ids() == ["E001"]
            assert "dict" in only().msg

    def test_an_unknown_key_with_a_suggestion(self) -> None:
        with site({"CHAT_MAX_LENGHT": 5}):
            assert ids() == ["W001"]
            assert "'CHAT_MAX_LENGTH'" in str(only().hint)

    def test_a_lower_case_key(self) -> None:
        with site({"alias": "messaging"}):
            assert "'ALIAS'" in str(only().hint)

    @pytest.mark.parametrize("key", ["COLOUR_OF_THE_BELL", 5])
    def test_an_unknown_key_without_a_suggestion(self, key: object) -> None:
        with site({key: 5}):
            assert ids() == ["W001"]
            assert "CHAT_KEEP_LAST" in str(only().hint)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("ALIAS", 5),
            ("ALIAS", b"messaging"),
            ("LINK_HOSTS", "example.com"),
            ("LINK_HOSTS", ["example.com", None]),
            ("LINK_HOSTS", {"example.com"}),
            ("CHAT_MAX_LENGTH", [5]),
            ("PREFIX", None),
            ("PREFIX", 5),
            ("PREFIX", ""),
            ("PREFIX", "a{b"),
            ("PREFIX", "a}"),
            ("PREFIX", "a b"),
            ("PREFIX", "a\x00"),
            ("PREFIX", "a\x1b"),
            ("PREFIX", "a*"),
            ("PREFIX", "a" * 300),
            ("COMMAND_DEADLINE", 0),
            ("COMMAND_DEADLINE", -1.5),
            ("COMMAND_DEADLINE", "10"),
            ("COMMAND_DEADLINE", None),
            ("COMMAND_DEADLINE", float("inf")),
            ("COMMAND_DEADLINE", float("nan")),
            ("COMMAND_DEADLINE", True),
            ("REQUEST_WINDOW", 0),
            ("REQUEST_WINDOW", 1.5),
            ("CHAT_KEEP_LAST", -1),
            ("CHAT_KEEP_LAST", None),
            ("CHAT_MAX_LENGTH", 0),
            ("CHAT_MAX_LENGTH", "5000"),
            ("CHAT_MAX_AGE", 0),
            ("CHAT_MAX_AGE", "1 day"),
            ("SEND_RATE", -60),
            ("OBSERVE", 5),
            ("OBSERVE", print),
            ("IDENTITY", None),
        ],
    )
    def test_an_invalid_value(self, key: str, value: object) -> None:
        with site({key: value}):
            [message] = [message for message in found() if message.id == "messaging.E002"]
            assert f"'{key}'" in message.msg
            assert "default" in str(message.hint)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("ALIAS", None),
            ("LINK_HOSTS", ["example.com"]),
            ("LINK_HOSTS", ("example.com", ".example.org")),
            ("PREFIX", "site:shop-7"),
            ("PREFIX", lambda: "tenant"),
            ("COMMAND_DEADLINE", 1),
            ("COMMAND_DEADLINE", 0.5),
            ("CHAT_KEEP_LAST", 0),
            ("CHAT_MAX_AGE", None),
            ("CHAT_MAX_AGE", 86400),
            ("OBSERVE", None),
            ("OBSERVE", "tests.test_checks.observer"),
            ("IDENTITY", "tests.test_checks.Identity"),
        ],
    )
    def test_a_valid_value(self, key: str, value: object) -> None:
        with site({key: value}):
            assert found() == []

    def test_every_default_is_valid(self) -> None:
        defaults = vars(conf.Settings())
        with site({key: value for key, value in defaults.items() if key != "IDENTITY"}):
            assert found() == []

    @pytest.mark.parametrize(
        "path", ["nowhere.observer", "tests.test_checks.nothing", "plainword", "", "tests.test_checks.LOCMEM"]
    )
    @pytest.mark.parametrize("key", ["OBSERVE", "IDENTITY"])
    def test_a_path_that_cannot_be_used(self, key: str, path: str) -> None:
        with site({key: path}):
            assert ids() == ["E003"]
            assert repr(path) in only().msg


def observer(operation: str, seconds: float, outcome: str) -> None:
    """A target of a dotted path."""


class Identity:
    """A target of a dotted path."""


class TestAlias:
    def test_missing(self) -> None:
        with site({"ALIAS": "chats"}):
            assert ids() == ["E004"]
            assert '"chats": {"BACKEND": "django_redis.cache.RedisCache"' in str(only().hint)

    @pytest.mark.parametrize(
        "entry",
        [LOCMEM, {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://h/1"}],
        ids=["locmem", "django's own"],
    )
    def test_not_of_django_redis(self, entry: dict[str, Any]) -> None:
        with site(caches={"default": entry}):
            assert ids() == ["E005"]
            assert entry["BACKEND"] in only().msg

    def test_a_subclass_of_the_django_redis_backend_is_fine(self) -> None:
        with site(caches={**GOOD, "messaging": {**redis(), "BACKEND": "tests.test_checks.OwnCache"}}):
            assert found() == []

    def test_sharded(self) -> None:
        entry = redis(["redis://a/1", "redis://b/1"], CLIENT_CLASS="django_redis.client.ShardClient")
        with site(caches={**GOOD, "messaging": entry}):
            assert ids() == ["E006"]

    def test_the_default_cache_with_an_entry_to_paste(self) -> None:
        with site(caches={"default": redis("redis://:secret@redis.internal:6380/0")}):
            assert ids() == ["W002"]
            hint = str(only().hint)
        assert '"messaging": {' in hint
        assert "redis.internal:6380/1" in hint
        assert "secret" not in hint
        assert "cache.clear()" in only_message("W002", {"default": redis("redis://h/0")})

    def test_the_entry_to_paste_is_valid(self) -> None:
        with site(caches={"default": redis("unix:///run/redis.sock?db=0")}):
            hint = str(only().hint)
        pasted = eval(f"{{{hint[hint.index('messaging') - 1 :]}}}")  # noqa: S307  (our own words)
        with site(caches={"default": redis("unix:///run/redis.sock?db=0"), **pasted}):
            assert found() == []

    def test_the_default_cache_chosen_on_purpose(self) -> None:
        with site({"ALIAS": "default"}, {"default": redis()}):
            assert found() == []

    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            ("redis://127.0.0.1:6379/1", "redis://127.0.0.1:6379/1"),
            ("redis://localhost/1", "redis://127.0.0.1:6379/1"),
            ("redis://REDIS.internal/1", "redis://user:secret@redis.internal/1"),
            ("redis://h/0", "redis://h"),
            ("redis://h?db=2", "redis://h/2"),
            ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
            ("redis://h/1", ["redis://g/1", "redis://h/1"]),
            ("redis://h/1", "redis://g/1,redis://h/1"),
        ],
    )
    @pytest.mark.parametrize("backend", ["django_redis.cache", "django.core.cache.backends.redis"])
    def test_a_database_shared_with_another_cache(self, ours: str, theirs: object, backend: str) -> None:
        other = {"BACKEND": f"{backend}.RedisCache", "LOCATION": theirs}
        with site(caches={"default": LOCMEM, "sessions": other, "messaging": redis(ours)}):
            assert ids() == ["W003"]
            assert "'sessions'" in only().msg

    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            ("redis://h/1", "redis://h/2"),
            ("redis://h:1/1", "redis://h:2/1"),
            ("redis://h/1", "redis://g/1"),
            ("unix:///run/a.sock?db=1", "unix:///run/b.sock?db=1"),
            ("redis://h/1", "somewhere else"),
        ],
    )
    def test_a_database_of_its_own(self, ours: str, theirs: object) -> None:
        with site(caches={"default": redis(theirs), "messaging": redis(ours)}):
            assert found() == []

    def test_a_database_given_as_an_option(self) -> None:
        theirs = redis("redis://h", CONNECTION_POOL_KWARGS={"db": 4})
        with site(caches={"default": theirs, "messaging": redis("redis://h/4")}):
            assert ids() == ["W003"]

    @pytest.mark.parametrize(
        "entry",
        [
            redis(SOCKET_TIMEOUT=0.1),
            redis(CONNECTION_POOL_KWARGS={"socket_timeout": 0.5}),
            redis("redis://127.0.0.1:6379/1?socket_timeout=0.2"),
        ],
    )
    def test_a_socket_timeout_that_is_too_short(self, entry: dict[str, Any]) -> None:
        with site(caches={**GOOD, "messaging": entry}):
            assert ids() == ["W004"]
            assert "SOCKET_TIMEOUT" in str(only().hint)

    def test_a_socket_timeout_that_is_long_enough(self) -> None:
        with site(caches={**GOOD, "messaging": redis(SOCKET_TIMEOUT=5)}):
            assert found() == []


def only_message(id: str, caches: dict[str, Any]) -> str:
    with site(caches=caches):
        message = only()
    assert message.id == f"messaging.{id}"
    return message.msg


class OwnCache(RedisCache):  # type: ignore[misc]  # the driver has no types
    """A site's own backend."""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A well-configured server, except within a test."""
    with EmbeddedServer(append_only=True) as started:
        yield started


class TestServer:
    """With --deploy: real servers, configured well and badly."""

    @pytest.fixture
    def at(self, server: EmbeddedServer) -> Iterator[EmbeddedServer]:
        with site(caches={"default": LOCMEM, "messaging": redis(server.url)}):
            yield server

    @pytest.fixture
    def setting(self, server: EmbeddedServer) -> Iterator[Callable[[str, str], None]]:
        """Change the server's configuration for the test."""
        with server.client() as admin:
            before: dict[str, Any] = {}

            def to(name: str, value: str) -> None:
                before[name] = admin.config_get(name)[name]
                admin.config_set(name, value)

            yield to
            for name, value in before.items():
                admin.config_set(name, value)

    def test_a_well_configured_server(self, at: EmbeddedServer) -> None:
        assert found(deploy=True) == []

    def test_only_deploy_checks_query_it(self, at: EmbeddedServer) -> None:
        with at.client() as admin:
            before = admin.info("stats")["total_commands_processed"]
            assert found() == []
            after = admin.info("stats")["total_commands_processed"]
        assert after - before == 1  # the INFO of this test

    @pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
    def test_a_server_that_evicts_any_key(
        self, at: EmbeddedServer, setting: Callable[[str, str], None], policy: str
    ) -> None:
        setting("maxmemory-policy", policy)
        assert ids(deploy=True) == ["E008"]
        assert policy in only(deploy=True).msg

    @pytest.mark.parametrize("policy", ["volatile-lru", "volatile-ttl"])
    def test_a_server_that_evicts_keys_with_a_ttl(
        self, at: EmbeddedServer, setting: Callable[[str, str], None], policy: str
    ) -> None:
        setting("maxmemory-policy", policy)
        assert ids(deploy=True) == ["W006"]

    def test_a_server_without_persistence(
        self, at: EmbeddedServer, setting: Callable[[str, str], None]
    ) -> None:
        setting("appendonly", "no")
        assert ids(deploy=True) == ["W007"]
        assert "appendonly" in str(only(deploy=True).hint)

    def test_snapshots_are_enough(self, at: EmbeddedServer, setting: Callable[[str, str], None]) -> None:
        setting("appendonly", "no")
        setting("save", "3600 1")
        assert found(deploy=True) == []

    def test_without_config_it_reports_what_it_could_not_read(
        self, server: EmbeddedServer, setting: Callable[[str, str], None]
    ) -> None:
        with as_user(server, "+@all -config"):
            assert found(deploy=True) == []  # INFO reports that the append-only file is enabled
            setting("appendonly", "no")
            assert ids(deploy=True) == ["W008"]
            assert "disk" in only(deploy=True).msg

    def test_without_info(self, server: EmbeddedServer) -> None:
        with as_user(server, "+@all -info"):
            assert ids(deploy=True) == ["W005"]
            assert "ACL" in str(only(deploy=True).hint)

    def test_a_wrong_password(self, server: EmbeddedServer) -> None:
        with site(
            caches={"default": LOCMEM, "messaging": redis(server.url + "&client_name=w", PASSWORD="no")}
        ):
            assert ids(deploy=True) == ["W005"]

    def test_an_unreachable_server_is_a_warning(self) -> None:
        with site({"COMMAND_DEADLINE": 0.3}, {"default": LOCMEM, "messaging": redis("unix:///nowhere.sock")}):
            assert ids(deploy=True) == ["W005"]
            assert "Start it" in str(only(deploy=True).hint)

    def test_it_is_not_queried_if_the_alias_is_unusable(self) -> None:
        with site(caches={"default": LOCMEM}):
            assert ids(deploy=True) == ["E005"]
        with site(["not a dict"]):
            assert ids(deploy=True) == ["E001"]

    @pytest.mark.parametrize(
        ("info", "wanted"),
        [
            ({"redis_version": "6.0.16"}, ["E007"]),
            ({"redis_version": "5.0"}, ["E007"]),
            ({"redis_version": "6.2.0"}, []),
            ({"redis_version": "8.4.0-rc1"}, []),
            ({"redis_version": "7.2.4", "valkey_version": "7.1.9"}, ["E007"]),
            ({"redis_version": "7.2.4", "valkey_version": "7.2.5"}, []),
            ({"redis_version": "7.2.4", "valkey_version": "10.0.0"}, []),
            ({"redis_version": "unstable"}, ["W008"]),
            ({}, ["W008"]),
        ],
        ids=str,
    )
    def test_versions(self, info: dict[str, str], wanted: list[str]) -> None:
        message = server_checks._check_version("messaging", info)
        assert [str(message.id).removeprefix("messaging.") for message in [message] if message] == wanted


@contextmanager
def as_user(server: EmbeddedServer, rights: str) -> Iterator[None]:
    """Let the site connect as a user with these permissions."""
    with server.client() as admin:
        admin.execute_command(f"ACL SETUSER limited reset on >secret ~messaging:* {rights}")
        url = server.url.replace("unix://", "unix://limited:secret@") + f"&client_name={len(rights)}"
        with site(caches={"default": LOCMEM, "messaging": redis(url)}):
            yield
        admin.execute_command("ACL DELUSER limited")
