"""What is refused: servers whose certificate is not trusted, and commands that the user may not send."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings
from redis.crc import key_slot

from django_redis_messaging import ConfigurationError, RecentContacts, conf
from django_redis_messaging.core import clients
from django_redis_messaging.core.commands import Command
from django_redis_messaging.devserver.server import EmbeddedServer, free_port
from django_redis_messaging.services.users.keys import UserKeys
from tests.conftest import Call
from tests.support.certificates import Authority
from tests.support.clusters import SLOTS

from ..support.topologies import Topology
from .conftest import ALIAS

pytestmark = pytest.mark.topologies
only = pytest.mark.parametrize("topology", ["redis-tls", "primaries-tls"], indirect=True)
limited = pytest.mark.parametrize("topology", ["redis-acl", "primaries-acl"], indirect=True)
cluster = pytest.mark.parametrize("topology", ["primaries-tls"], indirect=True)
#: the alias of a server that is refused
REFUSED = "refused"
#: django-redis keeps its pools by URL: a client name makes a separate pool
_numbers = count()


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    """An authority that the site doesn't trust."""
    return Authority(tmp_path)


def use(settings: Settings, location: str, **options: Any) -> None:
    """Let the alias REFUSED lead to this URL; the deadline is short."""
    entry = {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": f"{location}?client_name=test-{next(_numbers)}",
        "OPTIONS": {"CONNECTION_POOL_KWARGS": options},
    }
    settings.CACHES = {**settings.CACHES, REFUSED: entry}
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 0.3}


class TestCertificates:
    @only
    async def test_an_authority_that_is_not_trusted(
        self, call: Call, topology: Topology, settings: Settings, other: Authority
    ) -> None:
        """Neither by default nor if the site trusts another one."""
        for options in ({}, {"ssl_ca_certs": other.certificate}):
            use(settings, topology.entry["LOCATION"], **options)
            with pytest.raises(ConfigurationError, match="not trusted"):
                await call(RecentContacts("ann", using=REFUSED), "touch", "bob")

    @pytest.mark.parametrize("topology", ["redis-tls"], indirect=True)
    async def test_another_address(self, call: Call, settings: Settings, other: Authority) -> None:
        port = free_port()
        tls = other.server_options("127.0.0.2")
        with EmbeddedServer(options={"bind": "127.0.0.1", "tls-port": port, **tls}):
            use(settings, f"rediss://127.0.0.1:{port}/0", ssl_ca_certs=other.certificate)
            with pytest.raises(ConfigurationError, match=r"IP address mismatch.*'127\.0\.0\.1'\. Check"):
                await call(RecentContacts("ann", using=REFUSED), "touch", "bob")

    @cluster
    async def test_one_node(
        self, call: Call, topology: Topology, settings: Settings, other: Authority
    ) -> None:
        """The second node has a certificate of another authority: only calls to this node fail."""
        use(settings, topology.entry["LOCATION"], **topology.entry["OPTIONS"]["CONNECTION_POOL_KWARGS"])
        with certificate_of(topology.primaries[1], other.server_options()):
            for at, user in users().items():
                contacts = RecentContacts(user, using=REFUSED)
                if at == 1:
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


def users() -> dict[int, str]:
    """A user for each primary, by its number."""
    names = [f"user{number}" for number in range(50)]
    keys = [UserKeys(conf.prefix(), name).contacts for name in names]
    return {key_slot(key.encode()) * 3 // SLOTS: name for key, name in zip(keys, names, strict=True)}
