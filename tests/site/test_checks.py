"""The settings, and the system checks: each message has an ID and a hint."""

from __future__ import annotations

import ast
import dataclasses
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from django.conf import settings
from django.core.checks import CheckMessage, run_checks
from django.core.management import call_command
from django.middleware.csrf import CsrfViewMiddleware
from django.test import override_settings
from django.utils.decorators import method_decorator
from django.views import View
from django_redis.cache import RedisCache
from redis.exceptions import BusyLoadingError

from django_redis_messaging import Chat, ConfigurationError, checks, conf, middleware, rate_limit
from django_redis_messaging.apps import TAG
from django_redis_messaging.checks import servers as server_checks
from django_redis_messaging.checks import settings as deployment
from django_redis_messaging.checks import values
from django_redis_messaging.checks.servers import FIXED, Server
from django_redis_messaging.core.connection import BlockingConnection
from django_redis_messaging.devserver.server import EmbeddedServer, find_bundled
from django_redis_messaging.management import loops
from django_redis_messaging.middleware import OURS
from django_redis_messaging.services.common.arguments import MAX_DURATION
from django_redis_messaging.services.files.reading import MAX_LINE_BYTES
from django_redis_messaging.services.jobs.engine import MAX_ATTEMPTS
from django_redis_messaging.services.rates.rate_limit import MAX_LIMIT
from django_redis_messaging.web import checks as pages
from django_redis_messaging.web import limits
from django_redis_messaging.web.identity import Identity

from ..web.conftest import Alone

pytestmark = pytest.mark.versions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
#: what depends on the server of this machine, or on its data; others tests expect them
OF_THE_SERVER = {"messaging.I001", "messaging.W031", "messaging.W032"}
LOCMEM = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}


def redis(location: object = "redis://127.0.0.1:6379/1", **options: object) -> dict[str, Any]:
    return {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}


GOOD: dict[str, Any] = {"default": redis("redis://127.0.0.1:6379/0"), "messaging": redis()}


@contextmanager
def site(messaging: object = None, caches: dict[str, Any] | None = None) -> Iterator[None]:
    middleware = [*settings.MIDDLEWARE, "django.middleware.security.SecurityMiddleware"]
    with override_settings(REDIS_MESSAGING=messaging or {}, CACHES=caches or GOOD, MIDDLEWARE=middleware):
        yield


def found(*, deploy: bool = False) -> list[CheckMessage]:
    """The messages, but those about the server: see core/test_aliases.py and web/test_checks.py."""
    messages = run_checks(tags=[TAG], include_deployment_checks=deploy)
    return [message for message in messages if message.id not in OF_THE_SERVER]


def ids(*, deploy: bool = False) -> list[str]:
    return [str(message.id).removeprefix("messaging.") for message in found(deploy=deploy)]


def only(*, deploy: bool = False) -> CheckMessage:
    [message] = found(deploy=deploy)
    assert message.hint, "each message needs a hint"
    return message


class TestValues:
    """The values that the app uses."""

    def test_defaults_need_no_setting(self) -> None:
        with override_settings(REDIS_MESSAGING={}):
            del settings.REDIS_MESSAGING  # type: ignore[misc]
            assert conf.configured() == {}
            assert conf.current() == conf.Settings()

    def test_given_values_replace_the_defaults_and_take_effect_at_once(self) -> None:
        with override_settings(REDIS_MESSAGING={"SEND_RATE": 1}):
            assert conf.current() == conf.Settings(SEND_RATE=1)
            with override_settings(REDIS_MESSAGING={"SEND_RATE": 2, "CHAT_MAX_LENGHT": 7}):  # an unknown key
                assert conf.current() == conf.Settings(SEND_RATE=2)
            assert conf.current().SEND_RATE == 1

    @pytest.mark.parametrize("given", [None, [], "messaging"])
    def test_only_a_dict_is_accepted(self, given: object) -> None:
        with (
            override_settings(REDIS_MESSAGING=given),
            pytest.raises(ConfigurationError, match="REDIS_MESSAGING must be a dict"),
        ):
            conf.current()

    @pytest.mark.parametrize(
        ("alias", "caches", "expected"),
        [
            ({}, ("default", "messaging"), "messaging"),
            ({}, ("default",), "default"),
            ({"ALIAS": "chats"}, ("default",), "chats"),
        ],
    )
    def test_alias(self, alias: dict[str, str], caches: tuple[str, ...], expected: str) -> None:
        with override_settings(REDIS_MESSAGING=alias, CACHES=dict.fromkeys(caches, redis())):
            assert conf.alias() == expected

    def test_prefix_callable_is_called_each_time(self, own_prefix: str) -> None:
        tenants = iter("ab")
        with override_settings(REDIS_MESSAGING={"PREFIX": lambda: next(tenants)}):
            assert [conf.prefix(), conf.prefix()] == [f"{own_prefix}:a", f"{own_prefix}:b"]

    def test_every_setting_has_a_comment(self) -> None:
        """conf.py is the reference of the settings."""
        source = Path(str(conf.__file__)).read_text(encoding="utf-8")
        for field in dataclasses.fields(conf.Settings):
            assert re.search(rf"#: .+\n    {field.name}: ", source), field.name

    def test_settings_are_immutable(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            conf.current().SEND_RATE = 5  # type: ignore[misc]


def test_valid_site_has_no_messages() -> None:
    with site({"CHAT_MAX_LENGTH": 50, "COMMAND_DEADLINE": 3}):
        assert found() == []


def test_checks_run_with_manage_py_check(capsys: pytest.CaptureFixture[str]) -> None:
    with site({"CHAT_MAX_LENGHT": 1}):
        call_command("check", tags=["messaging"])
    assert "messaging.W001" in capsys.readouterr().err


def calls() -> Iterator[ast.Call]:
    """The expressions of the package that make messages."""
    for path in Path(str(checks.__file__)).parents[1].rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if 'id="messaging.' in source:
            found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
            yield from (call for call in found if message_id(call))


def message_id(call: ast.Call) -> str:
    values = [word.value for word in call.keywords if word.arg == "id"]
    text = values[0].value if values and isinstance(values[0], ast.Constant) else ""
    return str(text).removeprefix("messaging.") if str(text).startswith("messaging.") else ""


class TestPage:
    def test_it_lists_each_id_once(self) -> None:
        listed = re.findall(r"^\| `messaging\.([EWI]\d{3})` \|", PAGE, re.MULTILINE)
        assert sorted(listed) == sorted({message_id(call) for call in calls()})

    def test_each_message_says_what_to_do(self) -> None:
        silent = [message_id(call) for call in calls() if "hint" not in {word.arg for word in call.keywords}]
        assert silent == ["I001"]

    def test_each_id_is_expected_by_a_test(self) -> None:
        texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
        expected = set(re.findall(r"[\"'.]([EWI]\d{3})[\"']", "".join(texts)))
        assert {message_id(call) for call in calls()} - expected == set()

    def test_versions_with_the_fixes(self) -> None:
        for kind, lines in FIXED.items():
            [listed] = re.findall(rf"^\| {kind.title()} \| ([\d., ]+) \|$", PAGE, re.MULTILINE)
            expected = [f"{major}.{minor}.{patch}" for (major, minor), patch in lines.items()]
            assert listed.split(", ") == expected


class TestSettings:
    @pytest.mark.parametrize(
        ("given", "id", "text"),
        [
            (["ALIAS"], "E001", "dict"),
            ("messaging", "E001", "dict"),
            (5, "E001", "dict"),
            ({"CHAT_MAX_LENGHT": 5}, "W001", "'CHAT_MAX_LENGTH'"),
            ({"alias": "messaging"}, "W001", "'ALIAS'"),
            # without a suggestion
            ({"COLOUR_OF_THE_BELL": 5}, "W001", "All keys: docs/settings.md."),
            ({5: 5}, "W001", "All keys: docs/settings.md."),
        ],
    )
    def test_what_is_no_dict_or_has_unknown_keys(self, given: object, id: str, text: str) -> None:
        with site(given):
            assert ids() == [id]
            assert text in (only().msg if id == "E001" else str(only().hint))

    @pytest.mark.parametrize(
        ("key", "values"),
        [
            ("ALIAS", [5, b"messaging"]),
            (
                "LINK_HOSTS",
                [
                    *("example.com", ["example.com", None], {"example.com"}, ["https://example.com"], [""]),
                    *(["example.com/path"], ["example.com:443"], ["*.example.com"]),
                ],
            ),
            (
                "TRUSTED_PROXIES",
                ["10.0.0.1", ["10.0.0.1/33"], ["proxy.internal"], [10], ["0.0.0.0/0"], ["::/0"]],
            ),
            (
                "PREFIX",
                [lambda tenant: tenant, None, 5, "", "a{b", "a}", "a b", "a\x00", "a\x1b", "a*", "a" * 300],
            ),
            ("COMMAND_DEADLINE", [0, -1.5, "10", None, float("inf"), float("nan"), True]),
            ("DURABILITY", [1, {"replicas": 1}, {"replicas": 0, "timeout": 1}]),
            ("REQUEST_WINDOW", [0, 1.5, 10**10]),
            ("CHAT_KEEP_LAST", [-1, None, False]),
            ("PRESENCE_MAX_MEMBERS", [-1]),
            ("CHAT_MAX_LENGTH", [0, "5000", [5], 2**53, True]),
            ("CHAT_MAX_AGE", [0, "1 day", 0.0001, 10**10, True]),
            ("JOB_MAX_ATTEMPTS", [10_001]),
            ("JOB_DEAD_TTL", [0.0001]),
            ("FILES_BLOCK_BYTES", [2**29 + 1]),
            ("FILES_MAX_LINE_BYTES", [2**30 + 1]),
            ("FILES_CHECKSUM", ["md5", "", 5, True]),
            ("FOLLOW_USERS", [1, "yes", None]),
            ("TEST", [{"SERVER": "mine"}, "private"]),
            (
                "DIGEST_BASE_URL",
                [
                    None,
                    "example.com",
                    "//example.com",
                    "https://",
                    "ftp://h",
                    "https://h/?a=1",
                    "https://[h",
                    "https://h:a",
                ],
            ),
            ("CHAT_MAX_MEMBERS", [10_001]),
            ("SEND_RATE", [-60, "60/m", 10**7]),
            ("OBSERVE", [5, print]),
            ("METRICS_TOKEN", [5, "", "short", "with spaces in it", "ä" * 20]),
            ("IDENTITY", [None, Identity]),
        ],
    )
    def test_invalid_values(self, key: str, values: list[object]) -> None:
        for value in values:
            with site({key: value}):
                [message] = [message for message in found() if message.id == "messaging.E002"]
                assert f"'{key}'" in message.msg, value
                assert "default" in str(message.hint)

    def test_a_token_is_not_shown(self) -> None:
        with site({"METRICS_TOKEN": "too-short"}):
            [message] = found()
            assert "too-short" not in f"{message.msg} {message.hint}"

    @pytest.mark.parametrize(
        ("key", "values"),
        [
            ("ALIAS", [None]),
            ("LINK_HOSTS", [[], ["example.com"], ("localhost", ".example.org", "*", "[::1]", "10.0.0.1")]),
            ("FILES_CHECKSUM", [None, "sha256"]),
            ("DIGEST_BASE_URL", ["", "https://example.com", "http://localhost:8000/app/"]),
            ("TRUSTED_PROXIES", [[], ["10.0.0.1/8", "2001:db8::1", "unix"], ("127.0.0.1",)]),
            ("PREFIX", ["site:shop-7", lambda: "tenant"]),
            ("COMMAND_DEADLINE", [1, 0.5]),
            ("DURABILITY", [{"replicas": 1, "timeout": 0.5}]),
            ("CHAT_KEEP_LAST", [0]),
            ("PRESENCE_MAX_MEMBERS", [0]),
            ("TYPING_MAX_MEMBERS", [0]),
            ("CHAT_MAX_AGE", [None, 86400]),
            ("CHAT_MAX_MEMBERS", [10_000]),
            ("OBSERVE", [None, "tests.site.test_checks.observer"]),
            ("METRICS_TOKEN", [None, "x" * 16]),
            ("IDENTITY", ["tests.site.test_checks.SiteIdentity"]),
        ],
    )
    def test_valid_values(self, key: str, values: list[object]) -> None:
        for value in values:
            with site({key: value}):
                assert found() == [], value

    def test_defaults_are_valid(self) -> None:
        defaults = vars(conf.Settings())
        with site({key: value for key, value in defaults.items() if key != "IDENTITY"}):
            assert found() == []

    @pytest.mark.parametrize(
        ("key", "names"),
        [
            ("OBSERVE", ["aobserver", "async_callable", "narrow_observer"]),
            ("IDENTITY", ["observer", "OwnCache", "DemandingIdentity"]),
        ],
    )
    def test_paths_that_cannot_be_used(self, key: str, names: list[str]) -> None:
        here = "tests.site.test_checks"
        own = [f"{here}.{name}" for name in ("nothing", "LOCMEM", *names)]
        for path in ("nowhere.observer", "plainword", "", *own):
            with site({key: path}):
                assert ids() == ["E003"], path
                assert repr(path) in only().msg
                assert ("needs arguments" in only().msg) == path.endswith("DemandingIdentity")

    def test_an_error_of_the_imported_module_has_its_kind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "broken_module.py").write_text('{}["SITE_URL"]')
        with site({"IDENTITY": "broken_module.Identity"}):
            assert "can't be imported (KeyError: 'SITE_URL')" in only().msg

    def test_each_setting_has_a_rule(self) -> None:
        """The rules apply before the services do; their limits are the same."""
        assert list(values.RULES) == [field.name for field in dataclasses.fields(conf.Settings)]
        assert MAX_DURATION == values.MAX_SECONDS * 1000
        assert (MAX_ATTEMPTS, MAX_LIMIT, MAX_LINE_BYTES) == (
            values.MAX_ATTEMPTS, values.MAX_RATE, values.MAX_LINE_BYTES,
        )  # fmt: skip


def observer(operation: str, seconds: float, outcome: str) -> None:
    """An importable observer."""


async def aobserver(operation: str, seconds: float, outcome: str) -> None:
    """One that nobody would await."""


class AsyncCallable:
    async def __call__(self, operation: str, seconds: float, outcome: str) -> None:
        """The same."""


async_callable = AsyncCallable()


def narrow_observer(operation: str) -> None:
    """One that can't take what it is given."""


class SiteIdentity(Identity):
    """An importable identity."""


class DemandingIdentity(Identity):
    """One that can't be created."""

    def __init__(self, tenant: str) -> None:
        """Need an argument."""


class TestAlias:
    def test_missing_alias(self) -> None:
        with site({"ALIAS": "chats"}):
            assert ids() == ["E004"]
            assert str(only().hint).startswith(
                'Add it to CACHES:\n    "chats": {"BACKEND": "django_redis.cache.RedisCache"'
            )
        with site({"ALIAS": "messages"}):
            assert str(only().hint).startswith(
                "Correct ALIAS ('messaging' exists), or add to CACHES:\n    \"messages\": {"
            )

    @pytest.mark.parametrize(
        "entry",
        [LOCMEM, {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://h/1"}],
        ids=["locmem", "django's own"],
    )
    def test_backend_not_based_on_django_redis(self, entry: dict[str, Any]) -> None:
        with site(caches={"default": entry}):
            assert ids() == ["E005"]
            assert entry["BACKEND"] in only().msg
            assert str(only().hint).startswith('Keep that cache, and add to CACHES:\n    "messaging": {')
        with site(caches={"default": LOCMEM, "messaging": entry}):
            assert ids() == ["E005"]
            assert only().hint == 'Change its BACKEND to "django_redis.cache.RedisCache".'

    def test_custom_backend_based_on_django_redis(self) -> None:
        with site(caches={**GOOD, "messaging": {**redis(), "BACKEND": "tests.site.test_checks.OwnCache"}}):
            assert found() == []

    def test_sharded_backend(self) -> None:
        entry = redis(["redis://a/1", "redis://b/1"], CLIENT_CLASS="django_redis.client.ShardClient")
        with site(caches={**GOOD, "messaging": entry}):
            assert ids() == ["E006"]

    def test_suggested_database_is_not_that_of_other_programs(self) -> None:
        """Programs that name no database use 0."""
        with site({"ALIAS": "chats"}, {"default": redis("redis://h/3"), "more": redis("redis://h/1")}):
            assert "redis://h/2" in str(only().hint)

    def test_default_cache_with_a_suggested_entry(self) -> None:
        with site(caches={"default": redis("redis://:secret@redis.internal:6380/0")}):
            assert ids() == ["W002"]
            assert "cache.clear()" in only().msg
            hint = str(only().hint)
        assert '"messaging": {' in hint
        assert "redis.internal:6380/1" in hint
        assert "secret" not in hint

    def test_suggested_entry_is_valid(self) -> None:
        with site(caches={"default": redis("unix:///run/redis.sock?db=0")}):
            hint = str(only().hint)
        pasted = eval(f"{{{hint[hint.index('messaging') - 1 :]}}}")  # noqa: S307  (our own words)
        with site(caches={"default": redis("unix:///run/redis.sock?db=0"), **pasted}):
            assert found() == []

    def test_default_cache_chosen_explicitly(self) -> None:
        with site({"ALIAS": "default"}, {"default": redis()}):
            assert found() == []

    @pytest.mark.parametrize(
        ("own_entry", "other_entry", "shared"),
        [
            ("redis://127.0.0.1:6379/1", "redis://127.0.0.1:6379/1", True),
            ("redis://localhost/1", "redis://127.0.0.1:6379/1", True),
            ("redis://REDIS.internal/1", "redis://user:secret@redis.internal/1", True),
            ("redis://h/0", "redis://h", True),
            ("redis://h?db=2", "redis://h/2", True),
            ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1", True),
            ("redis://h/1", ["redis://g/1", "redis://h/1"], True),
            ("redis://h/1", "redis://g/1,redis://h/1", True),
            ("redis://h/1", "redis://h/2", False),
            ("redis://h:1/1", "redis://h:2/1", False),
            ("redis://h/1", "redis://g/1", False),
            ("unix:///run/a.sock?db=1", "unix:///run/b.sock?db=1", False),
            ("redis://h/1", "somewhere else", False),
        ],
    )
    def test_database_shared_with_another_cache(
        self, own_entry: str, other_entry: object, shared: bool
    ) -> None:
        for backend in ("django_redis.cache", "django.core.cache.backends.redis"):
            other = {"BACKEND": f"{backend}.RedisCache", "LOCATION": other_entry}
            with site(caches={"default": LOCMEM, "sessions": other, "messaging": redis(own_entry)}):
                assert ids() == (["W003"] if shared else [])
                assert not shared or "'sessions'" in only().msg

    @pytest.mark.parametrize(
        "entry",
        [
            {"LOCATION": Path("/cache")},
            {"LOCATION": 11211},
            {"LOCATION": b"redis://h/4"},
            {"LOCATION": [Path("/cache"), None]},
            {"LOCATION": "redis://[h/4"},
            {"LOCATION": "redis://h:port/4"},
            {"LOCATION": "redis://h?db=zero"},
            {"LOCATION": "redis://h/4", "OPTIONS": {"CONNECTION_POOL_KWARGS": {"db": "zero", "port": "x"}}},
            {"LOCATION": "unix://?db=4", "OPTIONS": {"host": 7, "path": 7, "db": []}},
            {"LOCATION": "redis://", "OPTIONS": {"host": 7, "port": None, "db": float("inf")}},
            {"OPTIONS": None},
            {"LOCATION": "redis://h/5", "OPTIONS": None},
            {"LOCATION": "redis://h/5", "OPTIONS": ["timeout"]},
            {"LOCATION": "redis://h/5", "OPTIONS": {"CONNECTION_POOL_KWARGS": None}},
            {"LOCATION": "redis://h/5", "OPTIONS": {5: 6}},
            {"BACKEND": ".."},
            {},
            None,
        ],
        ids=str,
    )
    def test_other_entries_may_contain_anything(self, entry: dict[str, Any] | None) -> None:
        others = {"default": entry, "more": redis("redis://h/3")}
        with site(caches={**others, "messaging": redis("redis://h/4")}):
            assert set(ids()) <= {"W003"}
        with site({"ALIAS": "more"}, caches=others):
            assert found() == []
        with site({"ALIAS": "missing"}, caches=others):
            assert ids() == ["E004"]
            assert '"missing": {' in str(only().hint)

    def test_own_backend_may_be_anything(self) -> None:
        with site(caches={"messaging": {"BACKEND": ".."}}):
            assert ids() == ["E005"]

    def test_databases_of_an_unusual_entry_are_compared(self) -> None:
        for entry in (
            {"LOCATION": ("redis://h/4",), "OPTIONS": None},
            redis({"redis://h:6379/4"}),
            redis("redis://h", CONNECTION_POOL_KWARGS={"db": 4}),
        ):
            with site(caches={"default": entry, "messaging": redis("redis://h", db="4")}):
                assert ids() == ["W003"]

    @pytest.mark.parametrize("options", [None, {"CONNECTION_POOL_KWARGS": None}, {"db": "zero"}], ids=str)
    def test_own_entry_with_unusual_options(self, options: object) -> None:
        with site(caches={"messaging": {**redis(), "OPTIONS": options}}):
            assert found() == []

    def test_socket_timeout_that_is_too_short(self) -> None:
        for entry in (
            redis(SOCKET_TIMEOUT=0.1),
            redis(CONNECTION_POOL_KWARGS={"socket_timeout": 0.5}),
            redis("redis://127.0.0.1:6379/1?socket_timeout=0.2"),
        ):
            with site(caches={**GOOD, "messaging": entry}):
                assert ids() == ["W004"]
                assert "SOCKET_TIMEOUT" in str(only().hint)
        with site(caches={**GOOD, "messaging": redis(SOCKET_TIMEOUT=5)}):
            assert found() == []


class OwnCache(RedisCache):  # type: ignore[misc]  # the driver has no types
    """A site's own backend."""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A server with suitable settings, except during some tests."""
    with EmbeddedServer(append_only=True, options={"lazyfree-lazy-expire": "yes"}) as started:
        yield started


class TestServer:
    """Checks of real servers with --deploy, with suitable and unsuitable settings."""

    @pytest.fixture
    def deployed(self, server: EmbeddedServer) -> Iterator[EmbeddedServer]:
        with site(caches={"default": LOCMEM, "messaging": redis(server.url)}):
            yield server

    def test_suitable_server_is_contacted_by_deploy_checks_only(self, deployed: EmbeddedServer) -> None:
        assert found(deploy=True) == []
        with deployed.client() as admin:
            before = admin.info("stats")["total_commands_processed"]
            assert found() == []
            after = admin.info("stats")["total_commands_processed"]
        assert after - before == 1  # this test's own INFO

    @pytest.mark.parametrize(
        ("settings", "wanted", "text"),
        [
            ({"maxmemory-policy": "allkeys-lru"}, ["E008"], "allkeys-lru"),
            ({"maxmemory-policy": "allkeys-lfu"}, ["E008"], "allkeys-lfu"),
            ({"maxmemory-policy": "allkeys-random"}, ["E008"], "allkeys-random"),
            ({"maxmemory-policy": "volatile-lru"}, ["W006"], "volatile-lru"),
            ({"maxmemory-policy": "volatile-ttl"}, ["W006"], "volatile-ttl"),
            ({"appendonly": "no"}, ["W007"], "redis-cli config set appendonly yes"),
            ({"appendonly": "no", "save": "3600 1"}, [], ""),
            ({"lazyfree-lazy-expire": "no"}, ["W012"], "lazyfree-lazy-expire to yes"),
        ],
        ids=str,
    )
    def test_settings(
        self, deployed: EmbeddedServer, settings: dict[str, str], wanted: list[str], text: str
    ) -> None:
        with changed(deployed, settings):
            assert ids(deploy=True) == wanted
            assert not wanted or text in only(deploy=True).msg + str(only(deploy=True).hint)

    def test_forbidden_config_is_reported(self, server: EmbeddedServer) -> None:
        with as_user(server, "+@all -config"):
            assert found(deploy=True) == []  # INFO shows that the append-only file is on
            with changed(server, {"lazyfree-lazy-expire": "no"}):
                assert found(deploy=True) == []
            with changed(server, {"appendonly": "no"}):
                assert ids(deploy=True) == ["W008"]
                assert "disk" in only(deploy=True).msg

    def test_forbidden_info_is_reported(self, server: EmbeddedServer) -> None:
        with as_user(server, "+@all -info"):
            assert ids(deploy=True) == ["W005"]
            assert "ACL" in str(only(deploy=True).hint)

    def test_wrong_password(self, server: EmbeddedServer) -> None:
        with site(
            caches={"default": LOCMEM, "messaging": redis(server.url + "&client_name=w", PASSWORD="no")}
        ):
            assert ids(deploy=True) == ["W005"]

    def test_unreachable_server_is_a_warning(self) -> None:
        with site({"COMMAND_DEADLINE": 0.3}, {"default": LOCMEM, "messaging": redis("unix:///nowhere.sock")}):
            assert ids(deploy=True) == ["W005"]
            assert "Start the server" in only(deploy=True).msg
            assert only(deploy=True).hint == "Then repeat the check."

    def test_server_is_not_contacted_with_an_invalid_alias(self) -> None:
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
        message = server_checks._check_version(Server("CACHES['messaging']", info, {}))
        assert [str(message.id).removeprefix("messaging.") for message in [message] if message] == wanted

    def test_scripts_that_the_acl_forbids(self, server: EmbeddedServer) -> None:
        for forbidden in ("-eval", "-evalsha", "-@scripting"):
            with as_user(server, f"+@all {forbidden}"):
                assert ids(deploy=True) == ["E014"]
                assert "+eval +evalsha" in str(only(deploy=True).hint)

    def test_scripts_that_the_acl_of_a_cluster_forbids(self, cluster_server: EmbeddedServer) -> None:
        with as_user(cluster_server, "+@all -evalsha"):
            assert "E014" in ids(deploy=True)
        with as_user(cluster_server, "+@all"):
            assert "E014" not in ids(deploy=True)

    def test_a_primary_of_a_cluster_that_loads_its_data(
        self, cluster_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It refuses scripts for the moment."""
        exchange = BlockingConnection.exchange

        def load(connection: BlockingConnection, calls: Any, seconds: float) -> Any:
            replies = exchange(connection, calls, seconds)
            error = BusyLoadingError("Redis is loading the dataset in memory")
            return [
                error if words[0].startswith("EVAL") else one
                for words, one in zip(calls, replies, strict=True)
            ]

        with as_user(cluster_server, "+@all"):
            assert "W005" not in ids(deploy=True)
            monkeypatch.setattr(BlockingConnection, "exchange", load)
            [message] = [one for one in found(deploy=True) if one.id == "messaging.W005"]
            assert "is loading" in message.msg and "E014" not in ids(deploy=True)

    def test_valkey_without_its_lua_module(self) -> None:
        options = {"enable-module-command": "yes", "lazyfree-lazy-expire": "yes"}
        valkey = EmbeddedServer(append_only=True, options=options, program=find_bundled())
        with (
            valkey,
            valkey.client() as admin,
            site(caches={"default": LOCMEM, "messaging": redis(valkey.url)}),
        ):
            assert found(deploy=True) == []
            admin.execute_command("MODULE UNLOAD lua")
            assert ids(deploy=True) == ["E014"]
            assert "Lua module" in str(only(deploy=True).hint)
            with pytest.raises(ConfigurationError, match=r"can't run Lua scripts.*with its Lua module"):
                Chat.create("ann", ["bob"])

    @pytest.mark.parametrize(
        ("version", "first"),
        [
            ("redis 6.2.19", "Redis 6.2.20"),
            ("redis 6.2.20", None),
            ("redis 7.0.15", "Redis 7.2.14"),
            ("redis 7.2.4", "Redis 7.2.14"),
            ("redis 7.2.14", None),
            ("redis 8.0.6", "Redis 8.2.6"),
            ("redis 8.6.2", "Redis 8.6.3"),
            ("redis 8.8.0", None),
            ("valkey 7.2.12", "Valkey 7.2.13"),
            ("valkey 9.0.4", None),
            ("valkey 9.1.2", None),
            ("redis unstable", None),
        ],
    )
    def test_fixes_of_vulnerabilities(self, version: str, first: str | None) -> None:
        kind, _, number = version.partition(" ")
        message = server_checks._check_fixes(Server("it", {f"{kind}_version": number}, {}))
        assert (message and message.id) == (first and "messaging.W032")
        assert message is None or f"Use {first}, or a newer release." in str(message.hint)


@contextmanager
def changed(server: EmbeddedServer, settings: dict[str, str]) -> Iterator[None]:
    """Change the server's settings in the block."""
    with server.client() as admin:
        before = {name: admin.config_get(name)[name] for name in settings}
        for name, value in settings.items():
            admin.config_set(name, value)
        yield
        for name, value in before.items():
            admin.config_set(name, value)


def test_tasks_without_a_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Django 5.2 without the backport."""
    monkeypatch.setattr(loops, "tasks_installed", lambda: False)
    with site():
        assert ids() == ["E015"]
        assert "django-redis-messaging[tasks]" in str(only().hint)
        with override_settings(TASKS={"default": {"BACKEND": "django_tasks.backends.dummy.DummyBackend"}}):
            assert ids() == []


class OwnCsrf(CsrfViewMiddleware):
    """A site's own middleware."""


class TestMiddleware:
    ALL = tuple(pages.MIDDLEWARE)

    @pytest.mark.parametrize("missing", ALL)
    def test_missing_middleware_is_named(self, server: EmbeddedServer, missing: str) -> None:
        with (
            site(caches={"default": LOCMEM, "messaging": redis(server.url)}),
            override_settings(MIDDLEWARE=[one for one in self.ALL if one != missing]),
        ):
            assert found() == []
            assert ids(deploy=True) == ["W014"]
            assert str(only(deploy=True).hint) == f'Add to MIDDLEWARE:\n    "{missing}",'
            assert missing.rpartition(".")[2] in only(deploy=True).msg
            with override_settings(ROOT_URLCONF="django.contrib.auth.urls"):  # without the pages
                assert found(deploy=True) == []

    def test_subclasses_are_sufficient(self) -> None:
        others = [one for one in self.ALL if "csrf" not in one]
        with override_settings(MIDDLEWARE=[*others, "tests.site.test_checks.OwnCsrf", "no.such.middleware"]):
            assert pages._check_middleware() is None


SENTINELS = {
    "CLIENT_CLASS": "django_redis.client.SentinelClient",
    "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
    "SENTINELS": [("sentinel1", 26379), ("sentinel2", 26380)],
}
TLS: dict[str, Any] = {"CONNECTION_POOL_KWARGS": {"ssl": True}, "SENTINEL_KWARGS": {"ssl": True}}


class TestTransport:
    """Whether a Redis on another machine is reached by TLS and with a password."""

    @pytest.mark.parametrize(
        ("entry", "wanted"),
        [
            (redis("redis://redis.internal/1"), dict.fromkeys(("W015", "W016"), "redis.internal:6379")),
            (redis("redis://:secret@10.0.0.7:6380/1"), {"W015": "10.0.0.7:6380"}),
            (redis("rediss://redis.internal/1"), {"W016": "redis.internal:6379"}),
            (redis("rediss://redis.internal/2", PASSWORD="secret"), {}),
            (redis("rediss://ann:secret@redis.internal/1"), {}),
            (redis("rediss://r/1", CONNECTION_POOL_KWARGS={"credential_provider": object()}), {}),
            (redis("redis://127.0.0.1/1"), {}),
            (redis("redis://127.7.7.7/1"), {}),
            (redis("redis://[::1]/1"), {}),
            (redis("redis://localhost/1"), {}),
            (redis("unix:///run/redis.sock?db=1"), {}),
            (
                redis(["rediss://:secret@node1", "redis://:secret@node2", "rediss://node3"]),
                {"W015": "node2:6379", "W016": "node3:6379"},
            ),
            (redis("rediss://:secret@node1,redis://:secret@node2:7"), {"W015": "node2:7"}),
            (
                redis("redis://mymaster/1", **SENTINELS),
                dict.fromkeys(("W015", "W016"), "mymaster:6379, sentinel1:26379, sentinel2:26380"),
            ),
            (
                redis("redis://:secret@mymaster/1", **SENTINELS, **TLS),
                {"W016": "sentinel1:26379, sentinel2:26380"},
            ),
            (
                redis(
                    "redis://:secret@mymaster/2",
                    **SENTINELS,
                    CONNECTION_POOL_KWARGS={"ssl": True},
                    SENTINEL_KWARGS={"ssl": True, "password": "secret"},
                ),
                {},
            ),
        ],
    )
    def test_servers_without_tls_or_password_are_named(self, entry: Any, wanted: dict[str, str]) -> None:
        with site(caches={"default": LOCMEM, "messaging": entry}):
            messages = {str(one.id).removeprefix("messaging."): one for one in deployment.check_transport()}
        assert messages.keys() == wanted.keys()
        for id, names in wanted.items():
            assert f" connects to {names} without " in messages[id].msg
            assert "secret" not in messages[id].msg and messages[id].hint

    def test_it_runs_with_deploy_only(self) -> None:
        caches = {"default": LOCMEM, "messaging": redis("redis://redis.invalid/1")}
        with site({"COMMAND_DEADLINE": 0.1}, caches):
            assert found() == []
            assert {"W015", "W016"} <= set(ids(deploy=True))


@contextmanager
def as_user(server: EmbeddedServer, rights: str) -> Iterator[None]:
    """Connect the site as a user with these permissions."""
    with server.client() as admin:
        admin.execute_command(f"ACL SETUSER limited reset on >secret ~messaging:* {rights}")
        url = server.url.replace("unix://", "unix://limited:secret@") + f"&client_name={len(rights)}"
        with site(caches={"default": LOCMEM, "messaging": redis(url)}):
            yield
        admin.execute_command("ACL DELUSER limited")


class TestRateLimits:
    @pytest.fixture
    def no_other_limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without those of other tests."""
        declared: WeakSet[Any] = WeakSet()
        for module in (middleware, limits):
            monkeypatch.setattr(module, "declared", declared)

    @pytest.mark.parametrize(
        ("rules", "text"),
        [
            ({"rate": "5/m"}, "must be a list, not dict"),
            (["5/m"], "RATE_LIMITS[0] in REDIS_MESSAGING: it must be a dict"),
            ([{"rate": "5/m"}, {"path": "/api/"}], "RATE_LIMITS[1] in REDIS_MESSAGING: it has no rate"),
            ([{"rate": "5/m", "paths": "/api/"}], "unknown key 'paths'"),
            ([{"rate": "5/m", "block": False}], "unknown key 'block'"),
            ([{"rate": "5/m", "path": "api/"}], "path must be the beginning of a path"),
            ([{"rate": "5/m", "path": []}], "path must be the beginning of a path"),
            ([{"rate": "5/m", "exclude": 5}], "RATE_LIMITS[0]"),
            ([{"rate": "many"}], "not 'many'"),
            ([{"rate": "5/m", "key": "users"}], "not 'users'"),
            ([{"rate": "5/m", "methods": "POST"}], "methods must be a list"),
            ([{"rate": "5/m", "algorithm": "window", "burst": 3}], "burst= needs"),
            ([{"rate": "5/m", "on_outage": "never"}], "not 'never'"),
        ],
    )
    def test_invalid_rules(self, rules: object, text: str) -> None:
        with site({"RATE_LIMITS": rules}):
            assert text in only().msg
            assert ids() == ["E012"]

    def test_arguments_of_decorators(self) -> None:
        view = rate_limit("5/m", on_outage="never")(lambda request: None)  # type: ignore[arg-type]
        with site():
            assert ids() == ["E012"]
        del view
        gc.collect()
        with site():
            assert ids() == []

    @pytest.mark.usefixtures("no_other_limits")
    def test_names(self) -> None:
        """Limits of one name count together: then they should have the same rate."""

        class Page(View):
            pass

        views = [rate_limit("100/s")(Page.as_view()), rate_limit("100/1s")(Page.as_view())]
        methods = [method_decorator(rate_limit(rate), name="dispatch") for rate in ("1/s", "2/s")]
        pages = [decorate(type("Page", (View,), {})) for decorate in methods]
        with site():
            assert ids() == []
        views.append(rate_limit("3/h")(Page.as_view()))
        with site():
            assert f"{__name__}.TestRateLimits.test_names.<locals>.Page." in only().msg
            assert ids() == ["W027"]
        assert views and pages

    def test_place_of_the_middleware(self) -> None:
        with site({"RATE_LIMITS": [{"rate": "5/m", "key": "ip"}]}):
            assert ids() == ["W024"]
            with override_settings(MIDDLEWARE=[OURS, *settings.MIDDLEWARE]):
                assert ids() == []
        with site({"RATE_LIMITS": [{"rate": "5/m"}]}):
            with override_settings(MIDDLEWARE=[OURS, *settings.MIDDLEWARE]):
                assert ids() == ["W025"]
            with override_settings(MIDDLEWARE=[*settings.MIDDLEWARE, OURS]):
                assert ids() == []

    @pytest.mark.usefixtures("no_other_limits")
    def test_proxies(self) -> None:
        def warned(messaging: dict[str, Any], **proxied: Any) -> bool:
            with site(messaging), override_settings(**proxied):
                return [message.id for message in middleware.check_proxies()] == ["messaging.W026"]

        by_user, by_address = ({"RATE_LIMITS": [{"rate": "5/m", "key": key}]} for key in ("user", "ip"))
        assert warned(by_address, USE_X_FORWARDED_HOST=True)
        assert warned(by_address, SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https"))
        assert not warned(by_address)
        assert not warned(by_user, USE_X_FORWARDED_HOST=True)
        assert not warned({**by_address, "TRUSTED_PROXIES": ["unix"]}, USE_X_FORWARDED_HOST=True)
        view = rate_limit("5/m")(lambda request: None)
        assert warned({}, USE_X_FORWARDED_HOST=True)
        assert view


class TestLayout:
    @pytest.fixture(autouse=True)
    def templates(self, tmp_path: Path) -> Iterator[None]:
        texts = {
            "base.html": "<main>{% block content %}{% endblock %}</main>",
            "child.html": "{% extends 'base.html' %}{% block aside %}{% endblock %}",
            "chosen.html": "{% extends request.parent %}",
            "inner.html": "{% block body %}<main>{% block content %}{% endblock %}</main>{% endblock %}",
            "super.html": "{% extends 'inner.html' %}{% block body %}{% if 1 %}{{ block.super }}{% endif %}"
            "{% endblock %}",
            "moved.html": "{% extends 'body.html' %}{% block body %}{% block content %}{% endblock %}"
            "{% endblock %}",
            "body.html": "{% with a=1 %}{% block body %}{% endblock %}{% endwith %}",
            "outside.html": "{% extends 'body.html' %}{% block content %}{% endblock %}",
            "overridden.html": "{% extends 'inner.html' %}{% block body %}Ours{% endblock %}",
            "replaced.html": "{% extends 'moved.html' %}{% block body %}{% endblock %}",
            "ours.html": "{% extends 'django_redis_messaging/contacts.html' %}",
            "bare.html": "{% extends 'empty.html' %}{% block title %}{% endblock %}",
            "empty.html": "<p>content</p>",
            "broken.html": "{% block content %}",
            "orphan.html": "{% extends 'missing.html' %}{% block content %}{% endblock %}",
            "next/base.html": "{% extends 'base.html' %}",
        }
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        [engine] = settings.TEMPLATES
        with override_settings(TEMPLATES=[{**engine, "DIRS": [tmp_path / "next", tmp_path]}]):
            yield

    @pytest.mark.parametrize(
        "layout",
        ["auto", "admin", "standalone"]
        + [f"{name}.html" for name in ("base", "child", "chosen", "inner", "super", "moved")]
        + ["django_redis_messaging/alone.html", "admin/base.html"],
    )
    def test_what_can_be_used(self, layout: str) -> None:
        with site({"LAYOUT": layout}):
            assert ids() == []

    @pytest.mark.parametrize(
        ("layout", "text"),
        [
            ("bare.html", "has no block `content`"),
            ("outside.html", "is never shown"),
            ("overridden.html", "is never shown"),
            ("replaced.html", "is never shown"),
            ("ours.html", "is part of the pages"),
            ("django_redis_messaging/base.html", "is part of the pages"),
            ("django_redis_messaging/site.html", "is part of the pages"),
            ("django_redis_messaging/in_site.html", "is part of the pages"),
            ("broken.html", "can't be loaded (TemplateSyntaxError: "),
            ("missing.html", "can't be loaded (TemplateDoesNotExist: missing.html)"),
            ("orphan.html", "can't be loaded (TemplateDoesNotExist: missing.html)"),
            ("Admin", "can't be loaded (TemplateDoesNotExist: Admin)"),
            ("", "can't be loaded"),
        ],
    )
    def test_what_cannot(self, layout: str, text: str) -> None:
        with site({"LAYOUT": layout}):
            message = only()
            assert message.id == "messaging.E013"
            assert message.msg.startswith(f"REDIS_MESSAGING['LAYOUT'] is {layout!r}, but ")
            assert "this template" in message.msg and text in message.msg

    def test_the_admin_that_is_not_there(self) -> None:
        with site({"LAYOUT": "admin"}), override_settings(ROOT_URLCONF=Alone):
            assert "E013" in ids()
        with site({"LAYOUT": "auto"}), override_settings(ROOT_URLCONF=Alone):
            assert "E013" not in ids()

    @pytest.mark.parametrize("layout", ["admin", "missing.html"])
    def test_sites_without_the_pages(self, layout: str) -> None:
        with site({"LAYOUT": layout}), override_settings(ROOT_URLCONF="django.contrib.auth.urls"):
            assert ids() == []
            del settings.ROOT_URLCONF
            assert ids() == []

    def test_templates_of_this_app_that_are_not_found(self) -> None:
        with site({"LAYOUT": "base.html"}), override_settings(TEMPLATES=[]):
            message = only()
        assert message.id == "messaging.E013"
        assert "but the templates of this app can't be loaded (TemplateDoesNotExist: " in message.msg
        assert "APP_DIRS" in str(message.hint)

    def test_what_is_no_name(self) -> None:
        with site({"LAYOUT": None}):
            assert ids() == ["E002"]
