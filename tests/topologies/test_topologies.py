"""Every service on every topology, sync and async; what a process asks its servers; and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from ssl import CERT_NONE
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import override_settings
from pytest_django import Settings
from redis.crc import key_slot

from django_redis_messaging import ConfigurationError, RecentContacts, conf
from django_redis_messaging.core import clients
from django_redis_messaging.core.commands import Command
from django_redis_messaging.core.testruns import Prefix
from django_redis_messaging.devserver.server import EmbeddedServer, free_port
from django_redis_messaging.services.users.keys import UserKeys
from django_redis_messaging.testing import close_connections
from tests.conftest import Call
from tests.core.conftest import at_once, count
from tests.support.certificates import Authority

from ..support.aliases import entry
from ..support.server import change
from ..support.services import ALONE, SHARED, STORIES, Shared, Story
from ..support.topologies import TOPOLOGIES, Servers, Topology

pytestmark = pytest.mark.topologies
#: the CACHES aliases of the topology under test, and of a server that is refused
ALIAS, REFUSED = "topology", "refused"
#: items of each resource
ITEMS = 3
#: test_permissions.py runs the same on a single server with the ACL line, without rules for other features
services = pytest.mark.parametrize(
    "topology", [one for one in TOPOLOGIES if one != "redis-acl"], indirect=True
)
only = pytest.mark.parametrize("topology", ["redis-tls", "primaries-tls"], indirect=True)
limited = pytest.mark.parametrize("topology", ["redis-acl", "primaries-acl"], indirect=True)


@pytest.fixture(scope="session", params=TOPOLOGIES)
def topology(
    request: pytest.FixtureRequest, servers: Servers, messaging_settings: Prefix
) -> Iterator[Topology]:
    found = servers[request.param]
    with override_settings(CACHES={**django_settings.CACHES, ALIAS: found.entry}):
        yield found
        close_connections(ALIAS)


@pytest.fixture
def messaging_alias(topology: Topology, settings: Settings) -> str:
    """Its alias, also used for `using=None`."""
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": ALIAS}
    return conf.alias()


@services
@pytest.mark.parametrize("story", [*STORIES, *ALONE], ids=lambda story: story.__qualname__)
async def test_a_caller(story: Story, call: Call) -> None:
    await story(call, "me")


@services
@pytest.mark.parametrize("service", SHARED, ids=lambda service: service.__name__)
async def test_shared_resources(service: type[Shared], call: Call) -> None:
    shared = service(lambda key: ["one", "two"])
    shared.begin()
    with shared.processing():
        for number in range(ITEMS):
            for name in shared.names:
                await shared.produce(call, name, f"item {number}")
        while not shared.is_drained:
            for name in shared.names:
                await shared.consume(call, name)
    await shared.check(call)
    assert shared.total == ITEMS * len(shared.names)
    found = (shared.violations, shared.lost, shared.doubled, shared.repeated, shared.reported, shared.errors)
    assert found == ([], set(), 0, 0, 0, {})


class TestDiscovery:
    async def test_the_topology_is_read_once(self, call: Call, topology: Topology) -> None:
        """One command at the first connection, and none in 100 calls to all nodes. Sentinels are asked for
        the primary instead."""
        before = discoveries(topology)
        await call(RecentContacts("first"), "touch", "bob")
        nodes, sentinels = (new - old for new, old in zip(discoveries(topology), before, strict=True))
        assert (nodes, sentinels) == ((0, 1) if topology.sentinels else (1, 0))
        learnt = discoveries(topology)
        for number in range(100):
            await call(RecentContacts(f"user{number}"), "touch", "bob")
        assert discoveries(topology) == learnt

    async def test_a_script_is_sent_in_full_once_to_each_node(self, call: Call, topology: Topology) -> None:
        await call(RecentContacts("first"), "touch", "bob")
        for client in topology.primaries:
            client.script_flush()
        before = [in_full(client) for client in topology.primaries]
        for number in range(60):
            await call(RecentContacts(f"user{number}"), "touch", "bob")
        after = [in_full(client) for client in topology.primaries]
        assert after == [(missing + 1, full + 1) for missing, full in before]


def discoveries(topology: Topology) -> tuple[int, int]:
    """How often the servers were asked for the topology, also in vain, and the Sentinels for the primary."""
    asked = (
        int(stat["calls"]) + int(stat["rejected_calls"])
        for client in topology.clients
        for name, stat in client.info("commandstats").items()
        if name.startswith(("cmdstat_cluster|slots", "cmdstat_role"))
    )
    return sum(asked), sum(len(network.lines) for network in topology.sentinels)


def in_full(client: Any) -> tuple[int, int]:
    """How many scripts a server did not know, and how many were sent to it in full."""
    return count(client, "errorstats", "NOSCRIPT"), count(client, "commandstats", "eval")


class TestCertificates:
    @pytest.fixture
    def other(self, tmp_path: Path) -> Authority:
        """An authority that the site doesn't trust."""
        return Authority(tmp_path)

    @only
    async def test_an_authority_that_is_not_trusted(
        self, call: Call, topology: Topology, settings: Settings, other: Authority
    ) -> None:
        """Neither by default nor if the site trusts another one."""
        ann, url = RecentContacts("ann", using=REFUSED), topology.entry["LOCATION"]
        for options in ({}, {"ssl_ca_certs": other.certificate}):
            use(settings, url, deadline=60, **options)
            with at_once(), pytest.raises(ConfigurationError, match=r"not trusted: .* Check ssl_ca_certs"):
                await call(ann, "touch", "bob")
        use(settings, url, ssl_cert_reqs=CERT_NONE)
        await call(ann, "touch", "bob")

    @pytest.mark.parametrize("topology", ["redis-tls"], indirect=True)
    async def test_another_address(self, call: Call, settings: Settings, other: Authority) -> None:
        port, tls = free_port(), other.server_options("127.0.0.2")
        with EmbeddedServer(options={"bind": "127.0.0.1", "tls-port": port, **tls}):
            use(settings, f"rediss://127.0.0.1:{port}/0", ssl_ca_certs=other.certificate)
            with pytest.raises(ConfigurationError, match=r"IP address mismatch.*'127\.0\.0\.1'\. Check"):
                await call(RecentContacts("ann", using=REFUSED), "touch", "bob")

    @pytest.mark.parametrize("topology", ["primaries-tls"], indirect=True)
    async def test_one_node(
        self, call: Call, topology: Topology, servers: Servers, settings: Settings, other: Authority
    ) -> None:
        """The second node has a certificate of another authority: only calls to this node fail."""
        use(settings, topology.entry["LOCATION"], **topology.entry["OPTIONS"]["CONNECTION_POOL_KWARGS"])
        with certificate_of(topology.primaries[1], other.server_options()), servers.cluster() as cluster:
            for number in range(20):
                contacts = RecentContacts(f"user{number}", using=REFUSED)
                key = UserKeys(conf.prefix(), f"user{number}").contacts
                if cluster.owner(key_slot(key.encode())) == 1:
                    with pytest.raises(ConfigurationError, match="not trusted"):
                        await call(contacts, "touch", "bob")
                else:
                    await call(contacts, "touch", "bob")


@limited
async def test_the_user_may_not_leave_the_prefix(call: Call, topology: Topology) -> None:
    await call(RecentContacts("ann"), "touch", "bob")
    for words in (("GET", "other"), ("FLUSHDB",), ("CONFIG", "GET", "*"), ("KEYS", "*")):
        with pytest.raises(ConfigurationError, match="no permissions"):
            clients.execute(ALIAS, Command(*words))


def use(settings: Settings, location: str, *, deadline: float = 0.3, **options: Any) -> None:
    """Let the alias REFUSED lead to this URL."""
    settings.CACHES = {**settings.CACHES, REFUSED: entry(location, CONNECTION_POOL_KWARGS=options)}
    change(settings, COMMAND_DEADLINE=deadline)


@contextmanager
def certificate_of(client: Any, options: dict[str, str]) -> Iterator[None]:
    """Let a server use another certificate for new connections."""
    names = ("tls-cert-file", "tls-key-file")
    before = client.config_get(*names)
    client.config_set(names[0], options[names[0]], names[1], options[names[1]])
    try:
        yield
    finally:
        client.config_set(names[0], before[names[0]], names[1], before[names[1]])
