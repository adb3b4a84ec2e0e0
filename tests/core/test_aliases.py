"""The options of a CACHES entry and their effects on this app (docs/settings.md)."""

from __future__ import annotations

import socket
import ssl
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings
from redis.credentials import CredentialProvider, StreamingCredentialProvider

from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer, free_port
from django_redis_messaging.errors import ConfigurationError
from tests.conftest import Call
from tests.core.conftest import Connect
from tests.core.test_retry import at_once, frozen, takes
from tests.support.example_service import Things

pytestmark = pytest.mark.usefixtures("closing")


class TestAliases:
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
    async def test_its_options_change_no_reply(
        self, connect: Connect, server: EmbeddedServer, options: dict[str, object]
    ) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning, module="redis")
            things = connect(server, options)
            things.add("a")
            assert things.get("a") == await things.aget("a") == b"1"
            assert things.do("HSET", things.key("h"), "f", "v") == 1
            wanted = [b"f", b"v"]
            assert things.do("HGETALL", things.key("h")) == wanted
            assert await things.ado("HGETALL", things.key("h")) == wanted
            things.do("ZADD", things.key("z"), 1, "m")
            assert things.do("ZSCORE", things.key("z"), "m") == await things.ado(
                "ZSCORE", things.key("z"), "m"
            )
            assert things.do("ZSCORE", things.key("z"), "m") == b"1"

    async def test_over_tcp(self, connect: Connect) -> None:
        with EmbeddedServer(options={"port": 0}) as server:
            port = free_port()
            with server.client() as admin:
                admin.config_set("port", port)
            things = connect(f"redis://127.0.0.1:{port}/0?", {"socket_keepalive": True})
            assert [things.add("a"), await things.aadd("a")] == [1, 2]

    async def test_the_database_of_the_alias_is_used(self, connect: Connect, server: EmbeddedServer) -> None:
        things = connect(server.url.replace("db=0", "db=3"))
        things.add("a")
        await things.aadd("a")
        with server.client(db=3) as there:
            assert there.get(things.key("a")) == b"2"

    async def test_a_database_that_does_not_exist_is_a_clear_error(
        self, call: Call, connect: Connect, server: EmbeddedServer
    ) -> None:
        things = connect(server.url.replace("db=0", "db=99"))
        with at_once(), pytest.raises(ConfigurationError, match="DB index is out of range"):
            await call(things, "add", "a")

    async def test_protected_mode_is_a_clear_error(self, call: Call, connect: Connect) -> None:
        own = "127.0.0.1"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
            probe.connect(("192.0.2.1", 9))  # sends nothing, but chooses the address of this machine
            own = probe.getsockname()[0]
        if own.startswith("127."):
            pytest.skip("This machine has no address besides that of the loopback interface.")
        with EmbeddedServer(options={"port": (port := free_port()), "bind": "0.0.0.0"}):  # noqa: S104
            things = connect(f"redis://{own}:{port}?db=0")
            with at_once(), pytest.raises(ConfigurationError, match="protected mode"):
                await call(things, "add", "a")

    @pytest.mark.parametrize(
        "entry",
        [
            {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
            {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1:1"},
            {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": ["redis://127.0.0.1:1/0", "redis://127.0.0.1:1/1"],
                "OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"},
            },
        ],
        ids=["locmem", "django's own", "sharded"],
    )
    async def test_an_unusable_alias_is_a_clear_error(self, entry: dict[str, object]) -> None:
        with override_settings(CACHES={"default": entry}):
            with pytest.raises(ConfigurationError, match="django-redis"):
                Things(using="default").add("a")
            with pytest.raises(ConfigurationError, match="django-redis"):
                await Things(using="default").aadd("a")

    def test_a_missing_alias_is_a_clear_error(self) -> None:
        with pytest.raises(ConfigurationError, match="nowhere"):
            Things(using="nowhere").add("a")

    def test_an_object_can_name_its_alias(self, connect: Connect, server: EmbeddedServer) -> None:
        things = connect(server)
        caches = {**settings.CACHES}
        caches["other"] = {**caches["messaging"], "LOCATION": server.url.replace("db=0", "db=5")}
        with override_settings(CACHES=caches):
            assert Things(using="other").add("a") == 1
            assert things.get("a") is None
            clients.close()

    def test_a_change_of_the_settings_is_followed(self, connect: Connect, server: EmbeddedServer) -> None:
        things = connect(server)
        caches = {**settings.CACHES}
        things.add("a")
        moved = {**caches["messaging"], "LOCATION": server.url.replace("db=0", "db=6")}
        clients.close()
        with override_settings(CACHES={**caches, "messaging": moved}):
            assert things.get("a") is None
            clients.close()
        assert things.get("a") == b"1"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
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
async def test_a_mistake_names_the_entry(call: Call, entry: dict[str, Any], said: str) -> None:
    url = f"redis://127.0.0.1:1/0?client_name=mistake-{abs(hash(str(entry)))}-{call.__qualname__[-9:]}"
    whole = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, **entry}
    with override_settings(CACHES={"default": whole}), takes(0, 2):
        with pytest.raises(ConfigurationError, match=r"CACHES\['default'\]") as raised:
            await call(Things(using="default"), "add", "a")
        assert said in str(raised.value)


@pytest.mark.timing
async def test_ocsp_is_rejected_if_it_is_not_supported(
    call: Call, connect: Connect, private: EmbeddedServer
) -> None:
    """The driver has no async version of it, and needs a package for the blocking one."""
    with EmbeddedServer(options={"port": (port := free_port())}):
        things = connect(
            f"rediss://127.0.0.1:{port}/0?", {"ssl_validate_ocsp": True, "ssl_cert_reqs": "none"}
        )
        with takes(0, 3), pytest.raises(ConfigurationError, match=r"CACHES\['\w+'\]"):
            await call(things, "add", "a")


class TestCredentials:
    @pytest.fixture
    def guarded(self, private: EmbeddedServer) -> EmbeddedServer:
        with private.client() as admin:
            for user in ("ann", "bob"):
                admin.execute_command(f"ACL SETUSER {user} on >secret-{user} ~* +@all")
            admin.execute_command("ACL SETUSER default >of-all")
        return private

    async def test_in_the_location(self, call: Call, connect: Connect, guarded: EmbeddedServer) -> None:
        things = connect(guarded.url.replace("unix://", "unix://ann:secret-ann@"))
        assert await call(things, "do", "ACL", "WHOAMI") == b"ann"

    async def test_as_options(self, call: Call, connect: Connect, guarded: EmbeddedServer) -> None:
        things = connect(guarded, more={"PASSWORD": "of-all"})
        assert await call(things, "do", "ACL", "WHOAMI") == b"default"

    async def test_as_options_of_the_pool(
        self, call: Call, connect: Connect, guarded: EmbeddedServer
    ) -> None:
        things = connect(guarded, {"username": "bob", "password": "secret-bob"})
        assert await call(things, "do", "ACL", "WHOAMI") == b"bob"

    async def test_by_a_provider(self, call: Call, connect: Connect, guarded: EmbeddedServer) -> None:
        things = connect(guarded, {"credential_provider": Provider("ann")})
        assert await call(things, "do", "ACL", "WHOAMI") == b"ann"

    async def test_by_a_provider_whose_token_changes(
        self, call: Call, connect: Connect, guarded: EmbeddedServer
    ) -> None:
        provider = Streaming("ann")
        things = connect(guarded, {"credential_provider": provider})
        for _ in range(2):
            assert await call(things, "do", "ACL", "WHOAMI") == b"ann"
        provider.renew("bob")
        assert await call(things, "do", "ACL", "WHOAMI") == b"bob"
        assert await call(things, "do", "ACL", "WHOAMI") == b"bob"


class Provider(CredentialProvider):
    def __init__(self, user: str) -> None:
        self.user = user

    def get_credentials(self) -> tuple[str, str]:
        return self.user, f"secret-{self.user}"

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()


class Streaming(Provider, StreamingCredentialProvider):
    """A provider of tokens that expire."""

    def __init__(self, user: str) -> None:
        super().__init__(user)
        self._callbacks: list[Callable[[Any], None]] = []

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


class TestAddresses:
    async def test_ipv6(self, call: Call, connect: Connect) -> None:
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
                port = probe.getsockname()[1]
        except OSError:
            pytest.skip("this machine has no IPv6")
        with EmbeddedServer(options={"port": port, "bind": "::1"}):
            things = connect(f"redis://[::1]:{port}/0?")
            assert await call(things, "add", "a") == 1

    async def test_the_first_of_several_is_the_primary(
        self, call: Call, connect: Connect, server: EmbeddedServer, private: EmbeddedServer
    ) -> None:
        things = connect(server)
        entry = settings.CACHES["messaging"]
        several = {**entry, "LOCATION": [entry["LOCATION"] + "-first", private.url]}
        with override_settings(CACHES={"messaging": several}):
            assert [await call(things, "add", "a") for _ in range(5)] == [1, 2, 3, 4, 5]
            with private.client() as replica:
                assert replica.dbsize() == 0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private certificate authority, and a server's certificate signed by it."""
    place = tmp_path_factory.mktemp("tls")
    for line in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -addext keyUsage=keyCertSign "
        "-keyout ca.key -out ca.pem",
        "req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr",
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names "
        "-out server.pem",
    ):
        (place / "names").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid")
        subprocess.run(["openssl", *line.split()], cwd=place, check=True, capture_output=True)
    return place


@pytest.mark.timing
class TestTls:
    @pytest.fixture
    def secured(self, certificates: Path) -> Iterator[tuple[EmbeddedServer, str]]:
        port = free_port()
        options = {
            "tls-port": port,
            "tls-cert-file": str(certificates / "server.pem"),
            "tls-key-file": str(certificates / "server.key"),
            "tls-ca-cert-file": str(certificates / "ca.pem"),
            "tls-auth-clients": "no",
        }
        with EmbeddedServer(options=options) as server:
            yield server, f"rediss://127.0.0.1:{port}/0?"

    async def test_a_private_certificate_authority(
        self, call: Call, connect: Connect, certificates: Path, secured: tuple[EmbeddedServer, str]
    ) -> None:
        _, url = secured
        things = connect(url, {"ssl_ca_certs": str(certificates / "ca.pem")})
        assert [await call(things, "add", "a") for _ in range(3)] == [1, 2, 3]
        long = "x" * 1_000_000
        await call(things, "do", "SET", things.key("long"), long)
        assert await call(things, "do", "GET", things.key("long")) == long.encode()
        assert await call(things, "take", "list", 0.05) is None
        await call(things, "do", "ZADD", things.key("list"), 0, "x")
        assert await call(things, "take", "list", 5) == b"x"

    async def test_a_certificate_of_an_unknown_authority_is_rejected(
        self, call: Call, connect: Connect, secured: tuple[EmbeddedServer, str]
    ) -> None:
        _, url = secured
        things = connect(url, COMMAND_DEADLINE=60)
        with takes(0, 10), pytest.raises(ConfigurationError, match=r"not trusted: .* Check ssl_ca_certs"):
            await call(things, "add", "a")
        things = connect(url, {"ssl_cert_reqs": ssl.CERT_NONE})
        assert await call(things, "add", "a") == 1

    async def test_closing_does_not_wait_for_a_frozen_server(
        self, connect: Connect, certificates: Path, secured: tuple[EmbeddedServer, str]
    ) -> None:
        server, url = secured
        things = connect(url, {"ssl_ca_certs": str(certificates / "ca.pem")})
        things.add("a")
        things.wait("list", 0.01)
        await things.aadd("a")
        await things.await_("list", 0.01)
        with frozen(server), takes(0, 0.5):
            clients.close()
            await clients.aclose()
        assert [things.add("a"), await things.aadd("a")] == [3, 4]
