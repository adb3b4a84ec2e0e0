"""The CACHES entries and the ACL lines of docs/scaling.md, with real servers that accept TLS only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import caches
from django.test import override_settings

from django_redis_messaging import Chat, Inbox
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer, free_port
from tests.support import permissions
from tests.support.certificates import Authority
from tests.support.clusters import Cluster
from tests.support.sentinels import NAME, Sentinel

pytestmark = pytest.mark.timing

PAGE = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
#: heading → the code of its entry
ENTRIES = dict(re.findall(r"^### ([\w ]+)\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
#: prefixes of tests, as testing.py makes them
PREFIX = "test:????????????"
VALUES = {f"key-{number}": number for number in range(20)}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


class TlsSentinel(Sentinel):
    """A Sentinel that uses TLS in both directions."""

    tls: dict[str, str]

    def _lines(self) -> list[str]:
        first, *lines = super()._lines()
        options = {"port": "0", "tls-port": first.partition(" ")[2], "tls-replication": "yes", **self.tls}
        return [f"{name} {value}" for name, value in options.items()] + lines


def entry(heading: str, authority: Authority, names: dict[str, int]) -> dict[str, Any]:
    """The CACHES of the page, with ports on this machine for its host names."""
    code = ENTRIES[heading].replace("/etc/ssl/redis-ca.pem", authority.certificate).replace("mymaster", NAME)
    for name, port in names.items():
        code = re.sub(rf"{name}:\d+", f"127.0.0.1:{port}", code)
        code = re.sub(rf'"{name}", \d+', f'"127.0.0.1", {port}', code)
    found: dict[str, Any] = {}
    exec(code, found)  # noqa: S102  (our own documentation)
    caches: dict[str, Any] = found["CACHES"]
    return caches


def add_users(client: Any, *more: str) -> None:
    """Add the users of the documentation."""
    rules = [rule.replace("PREFIX", PREFIX) for rule in permissions.line()]
    client.execute_command("ACL", "SETUSER", "messaging", "on", ">SECRET", *rules, *more)
    [site] = re.findall(r"^user (site .*)$", PAGE, re.MULTILINE)
    client.execute_command("ACL", "SETUSER", *site.split())


@contextmanager
def site(entries: dict[str, Any]) -> Iterator[None]:
    clients.close()
    with override_settings(CACHES=entries):
        yield
        clients.close()


def use(entries: dict[str, Any]) -> None:
    """Use both entries of a site."""
    with site(entries):
        cache: Any = caches["default"]
        cache.set_many(VALUES, timeout=60)
        assert cache.get_many(VALUES) == VALUES and cache.incr("key-1") == 2
        assert cache.delete_many(["key-1", "key-2"]) == 2 and cache.ttl("key-3") > 50
        with cache.lock("lock", timeout=5):
            cache.set("key-3", "locked")
        for _ in range(5):
            Chat.create("ann", ["bob"], "hi")
        assert cache.get("key-3") == "locked"
        assert cache.delete_pattern("key-*") == 18
        assert [len(one.messages) for one in Inbox("bob").pending(ack=True)] == [1] * 5


def test_one_server(authority: Authority) -> None:
    port = free_port()
    options: dict[str, str | int] = {"tls-port": port, "bind": "127.0.0.1", **authority.server_options()}
    with EmbeddedServer(options=options) as server, server.client() as client:
        add_users(client)
        entries = entry("One server", authority, {"redis.internal": port})
        use(entries)
        with site(entries):
            chat = Chat.create("ann", ["bob"])
            caches["default"].clear()
            assert chat.members()


def test_sentinels(authority: Authority) -> None:
    port, tls = free_port(), authority.server_options()
    options: dict[str, str | int] = {"tls-port": port, "bind": "127.0.0.1", "tls-replication": "yes", **tls}
    sentinel = TlsSentinel(port)
    sentinel.tls = tls
    with EmbeddedServer(options=options) as server, server.client() as client, sentinel:
        add_users(client)
        with sentinel.client() as watched:
            [watcher] = re.findall(r"^user (watcher .*)$", PAGE, re.MULTILINE)
            watched.execute_command("ACL", "SETUSER", *watcher.split(), "&*")
        names = {f"sentinel{number}.internal": sentinel.port for number in (1, 2, 3)}
        use(entry("Sentinels", authority, names))


def test_a_cluster(authority: Authority) -> None:
    with Cluster(tls=authority.server_options()) as cluster:
        for client in cluster.clients:
            add_users(client, *permissions.additions()["Redis Cluster"])
        first, second, _ = cluster.tls_ports
        nodes = {
            f"{name}{number}.internal": port
            for name in ("cache", "node")
            for number, port in ((1, first), (2, second))
        }
        use(entry("Cluster", authority, nodes))
