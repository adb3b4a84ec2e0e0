"""The options of a CACHES entry and their effects on this app, the entries of docs/scaling.md, and what
`check --deploy` says of the servers."""

from __future__ import annotations

import re
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import caches
from django.test import override_settings
from redis.credentials import CredentialProvider, StreamingCredentialProvider

from django_redis_messaging import Chat, ConfigurationError, Inbox
from django_redis_messaging.checks import servers as topology
from django_redis_messaging.checks.servers import Watch, check_server, check_topology
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer as Server
from django_redis_messaging.devserver.server import free_port
from tests.conftest import Call
from tests.core.conftest import Connect, at_once, frozen, takes
from tests.support import permissions
from tests.support.clusters import Cluster
from tests.support.example_service import Things
from tests.support.sentinels import Sentinel, Sentinels, service_name
from tests.support.topologies import PREFIXES, Servers

pytestmark = pytest.mark.usefixtures("closing")
BACKEND = "django_redis.cache.RedisCache"


class TestOptions:
    @pytest.mark.parametrize(
        "options",
        [
            {"decode_responses": True},
            {"protocol": 3},
            {"protocol": 2},
            {"decode_responses": True, "protocol": 3},
            {"health_check_interval": 1},
        ],
        ids=str,
    )
    async def test_they_change_no_reply(
        self, call: Call, connect: Connect, server: Server, options: dict[str, object]
    ) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning, module="redis")
            things = connect(server, options)
            await call(things, "add", "a")
            assert await call(things, "get", "a") == b"1"
            assert await call(things, "do", "HSET", things.key("h"), "f", "v") == 1
            assert await call(things, "do", "HGETALL", things.key("h")) == [b"f", b"v"]
            await call(things, "do", "ZADD", things.key("z"), 1, "m")
            assert await call(things, "do", "ZSCORE", things.key("z"), "m") == b"1"

    async def test_the_database_is_used(self, connect: Connect, server: Server) -> None:
        things = connect(server.url.replace("db=0", "db=3"))
        things.add("a")
        await things.aadd("a")
        with server.client(db=3) as there:
            assert there.get(things.key("a")) == b"2"

    def test_an_object_can_name_its_alias(self, connect: Connect, server: Server) -> None:
        things = connect(server)
        entry = settings.CACHES["messaging"]
        other = {**entry, "LOCATION": server.url.replace("db=0", "db=5")}
        with override_settings(CACHES={**settings.CACHES, "other": other}):
            assert Things(using="other").add("a") == 1
            assert things.get("a") is None
            clients.close()

    def test_a_change_of_the_settings_is_followed(self, connect: Connect, server: Server) -> None:
        things = connect(server)
        things.add("a")
        moved = {**settings.CACHES["messaging"], "LOCATION": server.url.replace("db=0", "db=6")}
        clients.close()
        with override_settings(CACHES={**settings.CACHES, "messaging": moved}):
            assert things.get("a") is None
            clients.close()
        assert things.get("a") == b"1"

    async def test_over_tcp_and_ipv6(self, call: Call, connect: Connect) -> None:
        with Server(options={"port": (port := free_port()), "bind": "127.0.0.1 -::1"}):
            things = connect(f"redis://127.0.0.1:{port}/0?", {"socket_keepalive": True})
            assert await call(things, "add", "a") == 1
            try:
                with socket.socket(socket.AF_INET6) as probe:
                    probe.bind(("::1", 0))
            except OSError:
                pytest.skip("this machine has no IPv6")
            assert await call(connect(f"redis://[::1]:{port}/0?"), "add", "a") == 1

    async def test_the_first_of_several_addresses_is_the_primary(
        self, call: Call, connect: Connect, server: Server, private: Server, admin: Any
    ) -> None:
        things = connect(server)
        entry = settings.CACHES["messaging"]
        several = {**entry, "LOCATION": [entry["LOCATION"] + "-first", private.url]}
        with override_settings(CACHES={"messaging": several}):
            assert [await call(things, "add", "a") for _ in range(5)] == [1, 2, 3, 4, 5]
            assert admin.dbsize() == 0


class TestMistakes:
    async def test_a_database_that_does_not_exist(self, call: Call, connect: Connect, server: Server) -> None:
        things = connect(server.url.replace("db=0", "db=99"))
        with at_once(), pytest.raises(ConfigurationError, match="DB index is out of range"):
            await call(things, "add", "a")

    async def test_protected_mode(self, call: Call, connect: Connect) -> None:
        own = "127.0.0.1"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
            probe.connect(("192.0.2.1", 9))  # sends nothing, but chooses the address of this machine
            own = probe.getsockname()[0]
        if own.startswith("127."):
            pytest.skip("This machine has no address besides that of the loopback interface.")
        with Server(options={"port": (port := free_port()), "bind": "0.0.0.0"}):  # noqa: S104
            things = connect(f"redis://{own}:{port}?db=0")
            with at_once(), pytest.raises(ConfigurationError, match="protected mode"):
                await call(things, "add", "a")

    @pytest.mark.parametrize(
        ("entry", "said"),
        [
            ({"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}, "django-redis"),
            ({"BACKEND": "django.core.cache.backends.redis.RedisCache"}, "django-redis"),
            (
                {
                    "LOCATION": ["redis://127.0.0.1:1/0", "redis://127.0.0.1:1/1"],
                    "OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"},
                },
                "django-redis",
            ),
            ({"OPTIONS": {"CLIENT_CLASS": "django_redis.client.DefualtClient"}}, "DefualtClient"),
            ({"LOCATION": "127.0.0.1:6379/0"}, "scheme"),
            ({"LOCATION": "redis://127.0.0.1:port/0"}, "port"),
            ({"OPTIONS": {"SOCKET_TIMEOUT": "5"}}, "timeout"),
            ({"OPTIONS": {"CONNECTION_POOL_KWARGS": {"max_conections": 5}}}, "max_conections"),
            ({"OPTIONS": {"CONNECTION_POOL_KWARGS": {"redis_connect_func": print}}}, "credential_provider"),
            (
                {
                    "LOCATION": "rediss://127.0.0.1:1/0",
                    "OPTIONS": {"CONNECTION_POOL_KWARGS": {"ssl_cert_reqs": "perhaps"}},
                },
                "perhaps",
            ),
        ],
        ids=str,
    )
    async def test_an_unusable_entry_is_named(self, call: Call, entry: dict[str, Any], said: str) -> None:
        url = f"redis://127.0.0.1:1/0?client_name=mistake-{abs(hash(str(entry)))}-{call.__qualname__[-9:]}"
        whole = {"BACKEND": BACKEND, "LOCATION": url, **entry}
        with override_settings(CACHES={"default": whole}), takes(0, 2):
            with pytest.raises(ConfigurationError, match=r"'default'") as raised:
                await call(Things(using="default"), "add", "a")
            assert said in str(raised.value)

    def test_a_missing_alias(self) -> None:
        with pytest.raises(ConfigurationError, match="nowhere"):
            Things(using="nowhere").add("a")


class Provider(StreamingCredentialProvider):
    """A provider of tokens that expire."""

    def __init__(self, user: str) -> None:
        self.user = user
        self._callbacks: list[Callable[[Any], None]] = []

    def get_credentials(self) -> tuple[str, str]:
        return self.user, f"secret-{self.user}"

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()

    def on_next(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def on_error(self, callback: Callable[[Exception], None]) -> None:
        raise NotImplementedError

    def is_streaming(self) -> bool:
        return True

    def renew(self, user: str) -> None:
        self.user = user
        for callback in self._callbacks:
            callback(user)


class Constant(CredentialProvider):
    """A provider of a name and a password."""

    def get_credentials(self) -> tuple[str, str]:
        return "ann", "secret-ann"

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()


async def test_credentials(call: Call, connect: Connect, private: Server, admin: Any) -> None:
    """In LOCATION, as options, as options of the pool, by a provider, and by one whose token changes."""
    for user in ("ann", "bob"):
        admin.execute_command(f"ACL SETUSER {user} on >secret-{user} ~* +@all")
    admin.execute_command("ACL SETUSER default >of-all")
    provider = Provider("ann")
    for url, options, more, user in (
        (private.url.replace("unix://", "unix://ann:secret-ann@"), {}, {}, b"ann"),
        (private.url, {}, {"PASSWORD": "of-all"}, b"default"),
        (private.url, {"username": "bob", "password": "secret-bob"}, {}, b"bob"),
        (private.url, {"credential_provider": Constant()}, {}, b"ann"),
        (private.url, {"credential_provider": provider}, {}, b"ann"),
    ):
        things = connect(url, options, more)
        assert await call(things, "do", "ACL", "WHOAMI") == user
    provider.renew("bob")
    assert [await call(things, "do", "ACL", "WHOAMI") for _ in range(2)] == [b"bob", b"bob"]


@pytest.mark.timing
class TestTls:
    @pytest.fixture
    def secured(self, servers: Servers) -> Iterator[tuple[Server, str]]:
        """A server that the test may break, and its address."""
        port = free_port()
        with Server(options={"tls-port": port, **servers.tls}) as server:
            yield server, f"rediss://127.0.0.1:{port}/0?"

    async def test_closing_does_not_wait_for_a_frozen_server(
        self, connect: Connect, servers: Servers, secured: tuple[Server, str]
    ) -> None:
        server, url = secured
        things = connect(url, {"ssl_ca_certs": servers.authority.certificate})
        things.do("SET", things.key("long"), long := "x" * 1_000_000)
        assert (
            things.do("GET", things.key("long"))
            == await things.ado("GET", things.key("long"))
            == long.encode()
        )
        things.add("a")
        things.wait("list", 0.01)
        await things.aadd("a")
        await things.await_("list", 0.01)
        with frozen(server), takes(0, 0.5):
            clients.close()
            await clients.aclose()
        assert [things.add("a"), await things.aadd("a")] == [3, 4]

    async def test_ocsp_is_rejected_if_it_is_not_supported(self, call: Call, connect: Connect) -> None:
        """The driver has no async version of it, and needs a package for the blocking one."""
        with Server(options={"port": (port := free_port())}):
            options = {"ssl_validate_ocsp": True, "ssl_cert_reqs": "none"}
            things = connect(f"rediss://127.0.0.1:{port}/0?", options)
            with takes(0, 3), pytest.raises(ConfigurationError, match=r"CACHES\['\w+'\]"):
                await call(things, "add", "a")


PAGE = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
#: heading → the code of its entry
ENTRIES = dict(re.findall(r"^### ([\w ]+)\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
VALUES = {f"key-{number}": number for number in range(20)}


class TlsSentinel(Sentinel):
    """A Sentinel that uses TLS in both directions."""

    tls: dict[str, str]

    def _lines(self) -> list[str]:
        first, *lines = super()._lines()
        options = {"port": "0", "tls-port": first.partition(" ")[2], "tls-replication": "yes", **self.tls}
        return [f"{name} {value}" for name, value in options.items()] + lines


@pytest.mark.timing
class TestDocumentedEntries:
    """The CACHES entries and the ACL lines of docs/scaling.md, with real servers that accept TLS only."""

    def entry(
        self, heading: str, servers: Servers, names: dict[str, int], service: str = ""
    ) -> dict[str, Any]:
        """The CACHES of the page, with ports on this machine for its host names."""
        certificate = servers.authority.certificate
        code = ENTRIES[heading].replace("/etc/ssl/redis-ca.pem", certificate).replace("mymaster", service)
        for name, port in names.items():
            code = re.sub(rf"{name}:\d+", f"127.0.0.1:{port}", code)
            code = re.sub(rf'"{name}", \d+', f'"127.0.0.1", {port}', code)
        found: dict[str, Any] = {}
        exec(code, found)  # noqa: S102  (our own documentation)
        caches: dict[str, Any] = found["CACHES"]
        return caches

    @contextmanager
    def users(self, clients: list[Any], *more: str) -> Iterator[None]:
        """Add the users of the documentation."""
        rules = [rule.replace("PREFIX", PREFIXES) for rule in permissions.line()]
        [site] = re.findall(r"^user (site .*)$", PAGE, re.MULTILINE)
        for client in clients:
            client.execute_command("ACL", "SETUSER", "messaging", "on", ">SECRET", *rules, *more)
            client.execute_command("ACL", "SETUSER", *site.split())
        yield
        for client in clients:
            client.execute_command("ACL", "DELUSER", "messaging", "site")

    @contextmanager
    def site(self, entries: dict[str, Any]) -> Iterator[None]:
        """Use both entries of a site."""
        clients.close()
        with override_settings(CACHES=entries):
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
            yield
            clients.close()

    def test_one_server(self, servers: Servers) -> None:
        [client] = servers["redis-tls"].clients
        entries = self.entry("One server", servers, {"redis.internal": servers.tls_port})
        with self.users([client]), self.site(entries):
            chat = Chat.create("ann", ["bob"])
            caches["default"].clear()
            assert chat.members()

    def test_sentinels(self, servers: Servers) -> None:
        port, tls = free_port(), servers.tls
        options: dict[str, str | int] = {
            "tls-port": port,
            "bind": "127.0.0.1",
            "tls-replication": "yes",
            **tls,
        }
        sentinel = TlsSentinel(port)
        sentinel.tls = tls
        with Server(options=options) as server, server.client() as client, sentinel:
            with sentinel.client() as watched:
                [watcher] = re.findall(r"^user (watcher .*)$", PAGE, re.MULTILINE)
                watched.execute_command("ACL", "SETUSER", *watcher.split(), "&*")
            names = {f"sentinel{number}.internal": sentinel.port for number in (1, 2, 3)}
            entries = self.entry("Sentinels", servers, names, service_name(port))
            with self.users([client]), self.site(entries):
                pass

    def test_a_cluster(self, servers: Servers, cluster: Cluster) -> None:
        first, second, *_ = cluster.tls_ports
        names = {
            f"{name}{number}.internal": port
            for name in ("cache", "node")
            for number, port in ((1, first), (2, second))
        }
        more, entries = permissions.additions()["Redis Cluster"], self.entry("Cluster", servers, names)
        with self.users(cluster.clients, *more), self.site(entries):
            pass


@pytest.mark.timing
class TestDeployCheck:
    """What `check --deploy` says of the servers: a single one, a Cluster, Sentinels."""

    @pytest.fixture
    def configure(self) -> Iterator[Callable[..., None]]:
        """Change settings of servers during the test."""
        with ExitStack() as stack:

            def change(client: Any, setting: str, value: str | int) -> None:
                stack.callback(client.config_set, setting, client.config_get(setting)[setting])
                client.config_set(setting, value)

            yield change

    def found(self) -> dict[str, str]:
        """Id → text of each message; each but the description says what to do."""
        messages = check_topology()
        assert [message.id for message in messages if not message.hint] == ["messaging.I001"]
        return {str(message.id).removeprefix("messaging."): message.msg for message in messages}

    def test_a_single_server(self, connect: Connect, private: Server, admin: Any) -> None:
        connect(private)
        version = admin.info("server")["redis_version"]
        [(id, text)] = self.found().items()
        assert id == "I001"
        assert text.splitlines()[0] == "CACHES['messaging'] leads to one server:"
        assert text.splitlines()[1].strip() == (
            f"redis {version}, 0 replicas, persistence: append-only file, eviction: noeviction"
        )

    def test_a_cluster(
        self, connect: Connect, cluster: Cluster, cluster_server: Server, configure: Callable[..., None]
    ) -> None:
        cluster.set_timeout(2000)
        connect(cluster.url(0), COMMAND_DEADLINE=2)
        messages = self.found()
        assert messages.keys() == {"I001", "W019"}
        head, *lines = messages["I001"].splitlines()
        assert head == "CACHES['messaging'] leads to a Cluster of 3 primaries:"
        primaries = [line for line in lines if "127.0.0.1:" in line and "1 replica" in line]
        assert len(primaries) == 3
        assert "begins 2 s after" in messages["W019"]
        connect(cluster.url(0), COMMAND_DEADLINE=5)
        assert self.found().keys() == {"I001"}
        # the settings of each primary are checked, not only those of the one that is named
        configure(cluster.clients[2], "maxmemory-policy", "allkeys-lru")
        evicting = [message.msg for message in check_server() if message.id == "messaging.E008"]
        assert [text.count("127.0.0.1:") for text in evicting] == [1]
        assert "eviction: allkeys-lru" in self.found()["I001"]
        connect(cluster_server, COMMAND_DEADLINE=60)
        messages = self.found()
        assert messages.keys() == {"I001", "W018"}
        assert "0 replicas" in messages["I001"]
        assert "No replica follows CACHES['messaging']" in messages["W018"]

    def test_sentinels(self, connect: Connect) -> None:
        with Sentinels() as sentinels:
            durability = {"replicas": 1, "timeout": 1}
            connect(sentinels.url, more=sentinels.options, DURABILITY=durability)
            messages = self.found()
            assert messages.keys() == {"I001", "W020"}
            assert "one primary, watched by 1 Sentinel (quorum 1):" in messages["I001"]
            assert "1 replica, " in messages["I001"] and "replicas: 1 with redis " in messages["I001"]
            connect(sentinels.url, more=sentinels.options, DURABILITY={**durability, "replicas": 2})
            error = "2 replicas to confirm each write, but CACHES['messaging'] has 1"
            assert error in self.found()["E011"]

    def test_a_server_that_does_not_reply_is_reported_once(self, connect: Connect) -> None:
        connect("unix:///nowhere.sock?db=0", COMMAND_DEADLINE=0.2)
        assert check_topology() == []
        assert [message.id for message in check_server()] == ["messaging.W005"]

    @pytest.mark.parametrize(
        ("sentinels", "quorum", "good"), [(3, 2, 1), (5, 2, 1), (2, 2, 0), (3, 1, 0), (3, 4, 0)]
    )
    def test_sentinels_that_can_decide(self, sentinels: int, quorum: int, good: int) -> None:
        messages = list(topology._check_sentinels("it", Watch(sentinels, quorum, 1000)))
        assert [message.id for message in messages] == ["messaging.W020"] * (1 - good)

    def test_servers_of_different_versions(self) -> None:
        servers = [topology.Server("it", {"redis_version": "7.0.15"}, {})]
        assert list(topology._check_versions("it", servers, ["redis 7.0.15", "unknown"])) == []
        [message] = topology._check_versions("it", servers, ["redis 7.2.4"])
        assert (message.id, "redis 7.0.15, redis 7.2.4" in message.msg) == ("messaging.W021", True)

    def test_what_may_not_be_read_is_unknown(self, connect: Connect, server: Server) -> None:
        with server.client() as admin:
            admin.execute_command("ACL", "SETUSER", "curious", "on", ">secret", "+@all", "-config")
            connect(server.url.replace("unix://", "unix://curious:secret@"))
            assert "persistence: unknown" in self.found()["I001"]
            admin.execute_command("ACL", "DELUSER", "curious")
