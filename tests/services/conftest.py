"""The services are tested on a standalone server and on a Redis Cluster of one node: see ../gate.py."""

import os
from collections.abc import Iterator

import pytest
from pytest_django import Settings

from django_redis_messaging import conf
from django_redis_messaging.core import scripts
from django_redis_messaging.services.listening import channel, dispatch

from . import permissions
from .asking import server
from .planting import Planting, planted

#: whether all tests run as a user of Redis who has only the permissions that the app needs
LIMITED = "MESSAGING_ACL" in os.environ
#: features of docs/security.md that need more, with the modules that test them
FEATURES = {
    "`messaging_locks`, `messaging_files` and `messaging_repair`": {"test_messaging_locks"},
    "`@on_key_event` handlers in `run_listener`": {
        "test_listener",
        "test_listener_flags",
        "test_listener_primaries",
        "test_listener_servers",
    },
    "`run_listener --configure`": {"test_listener_flags"},
}

#: modules that test `Lock(key=…)`
WITH_LOCK_KEYS = {"test_locks", "test_messaging_locks"}


@pytest.fixture
def messaging_alias(server_kind: str, request: pytest.FixtureRequest, settings: Settings) -> str:
    """The alias of that server, also used for `using=None`."""
    if server_kind == "cluster":
        request.getfixturevalue("cluster_server")
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "cluster"}
    return conf.alias()


@pytest.fixture(autouse=LIMITED)
def limited_user(
    messaging_alias: str, own_prefix: str | None, server_kind: str, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Run the test with the permissions of docs/security.md, and of what its module tests."""
    # a module without Redis; tests that restart the server, which then has no users
    if own_prefix is None or "::TestOutage::" in request.node.nodeid:
        yield
        return
    more = permissions.additions()
    features = ["Redis Cluster"] if server_kind == "cluster" else []
    features += [feature for feature, modules in FEATURES.items() if request.path.stem in modules]
    rules = [rule for feature in features for rule in more[feature]]
    rules.append(f"~{own_prefix}:*:1:*")  # tenants
    if request.path.stem in WITH_LOCK_KEYS:
        rules += [f"~*{own_prefix}*", *(f"~{{{name}}}:*" for name in ("shop", "k", "door"))]
    with permissions.limited(messaging_alias, own_prefix, *rules):
        yield


@pytest.fixture
def plant() -> Iterator[Planting]:
    """Plant a mistake in the scripts until the test ends."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield lambda mistake: planted(mistake, monkeypatch)
    scripts.load.cache_clear()


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
    for module in (dispatch, channel):
        monkeypatch.setattr(module, "LEASE", 600)


@pytest.fixture
def site() -> Iterator[str]:
    """Prefix of the site's own keys in this test, which are removed afterwards."""
    start, client = f"site-{conf.prefix()}:", server()
    yield start
    for key in client.scan_iter(match=f"{start}*", count=1000):
        client.delete(key)
