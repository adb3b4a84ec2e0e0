"""The services are tested on a standalone server and on a Redis Cluster of one node: see pytest_hooks.py."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from django.conf import settings as site_settings

from django_redis_messaging import conf
from django_redis_messaging.core import commands
from django_redis_messaging.core.encoding import FORMAT
from django_redis_messaging.services.listening import listener
from tests.support.pytest_hooks import FURTHER, LIMITED

from . import permissions
from .scripts import Planting, planted
from .server import raw_clients, server

#: features of docs/security.md that need more, with the modules that test them
FEATURES = {
    "Pages for operators; `messaging_locks`, `…_rates`, `…_files`, `…_repair`; reports of old formats": {
        "rates/test_rates_command",
        "chats/test_repair_command",
        "locks/test_locks_command",
        "site/test_formats",
    },
    "`@on_key_event` handlers in `run_listener`": {
        "listening/test_behaviour",
        "listening/test_flags",
        "listening/test_topology",
        "listening/test_faults",
    },
    "`run_listener --configure`": {"listening/test_flags"},
    "Live streams": {"live/test_streams"},
}

#: modules that test `Lock(key=…)`
WITH_LOCK_KEYS = {"locks/test_behaviour", "locks/test_locks_command"}

_USER = "it connects as another user to a unix socket"
_ORDER = "events of several primaries have no common order, and each primary has a limit of its own"
_ONE = "it observes one of several primaries"
_EACH = "each primary has flags, and says so"
_PIPELINE = "the driver's Cluster client has no such transactions"
#: tests and modules that need the unix socket of the server, with the reason
UNIX_SOCKET = {
    "broadcasts/test_node": "publisher.mjs connects to a unix socket",
    "tests/test_permissions": _USER,
    "test_forbidden_config_is_a_warning": _USER,
    "test_config_get_without_config_set": _USER,
}
#: tests that need a single server, with the reason
ONE_SERVER = {
    "test_original_flags_deliver_no_expiry": _ORDER,
    "test_each_handler_receives_its_events": _ORDER,
    "test_second_stop_waits_for_no_handler": _ORDER,
    "test_slow_handlers_lose_events_above_the_limit": _ORDER,
    "test_hanging_handler_lets_another_listener_take_over": _ORDER,
    "test_expired_lease_is_taken_over": _ORDER,
    "test_lease_is_kept_and_released": _ONE,
    "test_own_lease_is_acquired_again": _ONE,
    "test_lost_lease_is_noticed": _ONE,
    "test_leases_due_at_the_same_time_share_a_round_trip": "only leases on one server are renewed together",
    "test_unresponsive_server_is_disconnected": _ONE,
    "test_flags_that_somebody_removes_are_added_again": _EACH,
    "test_flags_that_somebody_removes_are_reported_once": _EACH,
    "test_another_database": "a Cluster has one database",
    "test_a_bucket_is_kept_for_the_retention_after_its_end": _PIPELINE,
    "test_the_original_cannot_reject_a_late_write": _PIPELINE,
    "test_in_the_original_a_newcomer_overtakes": _PIPELINE,
}


@pytest.fixture
def messaging_alias(server_kind: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The alias of that server, also used for `using=None`."""
    if server_kind == "cluster":
        request.getfixturevalue("cluster_server")
    elif server_kind in FURTHER:
        skip_if_impossible(server_kind, request)
        topology, settings = (
            request.getfixturevalue("servers")[server_kind],
            request.getfixturevalue("settings"),
        )
        settings.CACHES = {**settings.CACHES, server_kind: topology.entry}
        if topology.cluster is not None:
            raw_clients[server_kind] = topology.cluster
    with named_alias(server_kind):
        yield conf.alias()


@contextmanager
def named_alias(server_kind: str) -> Iterator[None]:
    """Let the app use the alias of this kind of server. Its connections stay open, unlike with `settings`."""
    if server_kind == "standalone":
        yield
        return
    changed = {**site_settings.REDIS_MESSAGING, "ALIAS": server_kind}
    with mock.patch.object(site_settings, "REDIS_MESSAGING", changed):
        conf.current.cache_clear()
        yield
    conf.current.cache_clear()


def module_of(request: pytest.FixtureRequest) -> str:
    """The folder and the name of the module of a test."""
    return f"{request.path.parent.name}/{request.path.stem}"


def skip_if_impossible(server_kind: str, request: pytest.FixtureRequest) -> None:
    """Skip a test that needs what this kind of server doesn't have."""
    lacking = {} if server_kind == "valkey" else UNIX_SOCKET
    lacking = {**lacking, **ONE_SERVER} if server_kind == "primaries" else lacking
    for name in (request.node.originalname, module_of(request)):
        if name in lacking:
            pytest.skip(lacking[name])


@pytest.fixture(autouse=LIMITED)
def limited_user(
    messaging_alias: str, own_prefix: str | None, server_kind: str, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Run the test with the permissions of docs/security.md, and of what its module tests."""
    # a module without Redis; tests that restart the server, which then has no users
    if (
        own_prefix is None
        or "::TestOutage::" in request.node.nodeid
        or module_of(request) == "tests/test_permissions"
    ):
        yield
        return
    more = permissions.additions()
    features = ["Redis Cluster"] if server_kind == "cluster" else []
    features += [feature for feature, modules in FEATURES.items() if module_of(request) in modules]
    rules = [rule for feature in features for rule in more[feature]]
    rules.append(f"~{own_prefix}:*:{FORMAT}:*")  # tenants
    if module_of(request) in WITH_LOCK_KEYS:
        rules += [f"~*{own_prefix}*", *(f"~{{{name}}}:*" for name in ("shop", "k", "door"))]
    with permissions.limited(messaging_alias, own_prefix, *rules):
        yield


@pytest.fixture
def plant() -> Iterator[Planting]:
    """Plant a mistake in the scripts until the test ends."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield lambda mistake: planted(mistake, monkeypatch)
    commands.load.cache_clear()


@pytest.fixture
def keyspace_events(own_prefix: str) -> Iterator[None]:
    """The server publishes all keyspace events during the test."""
    setting = "notify-keyspace-events"
    client = server()
    before = client.config_get(setting)[setting]
    client.config_set(setting, "KEA")
    yield
    client.config_set(setting, before)


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another listener take over quickly."""
    monkeypatch.setattr(listener, "LEASE", 600)


@pytest.fixture
def site() -> Iterator[str]:
    """Prefix of the site's own keys in this test, which are removed afterwards."""
    start, client = f"site-{conf.prefix()}:", server()
    yield start
    for key in client.scan_iter(match=f"{start}*", count=1000):
        client.delete(key)
