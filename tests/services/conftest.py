"""The services are tested on a standalone server and on a Redis Cluster of one node: see ../gate.py."""

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from django_redis_messaging import conf
from django_redis_messaging.core import scripts
from django_redis_messaging.services.listening import channel, dispatch

from .asking import server
from .planting import Planting, planted


@pytest.fixture
def messaging_alias(server_kind: str, request: pytest.FixtureRequest, settings: Settings) -> str:
    """The alias of that server, also used for `using=None`."""
    if server_kind == "cluster":
        request.getfixturevalue("cluster_server")
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "cluster"}
    return conf.alias()


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
