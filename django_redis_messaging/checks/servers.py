"""Reads what the servers of an alias say of themselves: all primaries of a Cluster, and the Sentinels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

from redis.exceptions import RedisError

from ..core import clients
from ..core.endpoints import QUERY_TIMEOUT, Endpoint, endpoint, first_reply
from ..core.primaries import Primaries, Primary
from ..core.routing import Cluster, Sentinel
from ..core.sockets import Address, Target
from ..core.steps import Command, Words
from ..core.worlds import BLOCKING, run
from ..errors import MessagingError, Unavailable

T = TypeVar("T")
Info = dict[str, str]
#: settings that are read if the user may
SETTINGS = ("save", "lazyfree-lazy-expire", "cluster-node-timeout")


class Server(NamedTuple):
    """A primary."""

    #: how messages name it: CACHES['messaging'], for a Cluster with the address
    name: str
    info: Info
    #: empty: it has no such setting; None: the user may not read it
    settings: dict[str, str | None]

    @property
    def version(self) -> str:
        """Such as `redis 7.0.15`; "unknown" if it isn't known."""
        return version(self.info)

    @property
    def replicas(self) -> list[Address]:
        """The addresses of its connected replicas."""
        lines = (value for name, value in self.info.items() if name[:5] == "slave" and name[5:].isdigit())
        fields = (dict(field.split("=", 1) for field in line.split(",")) for line in lines)
        return [(one["ip"], int(one["port"])) for one in fields]


class Watch(NamedTuple):
    """How Sentinels watch a service."""

    sentinels: int
    quorum: int
    #: ms after which a silent primary is down for a Sentinel
    down_after: int


def read_servers(alias: str) -> list[Server]:
    """The primaries of an alias; raises MessagingError."""
    name, info = f"CACHES[{alias!r}]", parse_info(clients.execute(alias, Command("INFO", reads=True)))
    found = endpoint(alias)
    if not isinstance(found.router, Cluster):
        return [Server(name, info, {setting: _read_setting(alias, setting) for setting in SETTINGS})]
    try:
        with closing(Primaries(found)) as primaries:
            return [_read_primary(name, found, primary) for primary in primaries.discover()]
    except RedisError as error:
        raise Unavailable(f"A primary of the Cluster could not be queried: {error}") from error


def read_watch(alias: str) -> Watch | None:
    """How the Sentinels watch the service of an alias; None without Sentinels, or if none may be asked."""
    found = endpoint(alias)
    if not isinstance(found.router, Sentinel):
        return None
    return _first_reply(found.sentinels, ("SENTINEL", "MASTER", found.router.service), _parse_watch)


def replica_versions(alias: str, servers: list[Server]) -> list[str]:
    """The versions of the replicas; "unknown" for those that can't be reached from here."""
    found = endpoint(alias)
    replicas = [found.target(address) for server in servers for address in server.replicas]

    def parse(reply: bytes, _: object) -> str:
        return version(parse_info(reply))

    return [_first_reply([replica], ("INFO", "server"), parse) or "unknown" for replica in replicas]


def parse_info(reply: bytes) -> Info:
    """The fields of a reply to INFO."""
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def version(info: Info) -> str:
    """Such as `redis 7.0.15`, or "unknown"."""
    kind = "valkey" if "valkey_version" in info else "redis"
    number = info.get(f"{kind}_version", "")
    return f"{kind} {number}" if number else "unknown"


def _read_primary(name: str, endpoint: Endpoint, primary: Primary) -> Server:
    with primary.connected(endpoint) as connection:
        where = name if primary.address is None else f"{name} ({primary.address[0]}:{primary.address[1]})"
        calls: list[Words] = [("INFO",), *(("CONFIG", "GET", setting) for setting in SETTINGS)]
        info, *settings = connection.exchange(calls, endpoint.default_reply_timeout)
        if isinstance(info, RedisError):
            raise info
        values = [None if isinstance(one, RedisError) else _value(one) for one in settings]
        return Server(where, parse_info(info), dict(zip(SETTINGS, values, strict=True)))


def _read_setting(alias: str, name: str) -> str | None:
    try:
        return _value(clients.execute(alias, Command("CONFIG", "GET", name, reads=True)))
    except MessagingError:
        return None


def _value(reply: list[bytes]) -> str:
    return reply[1].decode() if len(reply) == 2 else ""


def _first_reply(targets: list[Target], command: Words, parse: Callable[[Any, object], T]) -> T | None:
    async def ask(seconds: float) -> T | None:
        return await first_reply(BLOCKING, targets, command, parse, seconds)

    return run(ask, QUERY_TIMEOUT * len(targets))


def _parse_watch(reply: list[bytes], _: object) -> Watch:
    fields = {name.decode(): value.decode() for name, value in zip(reply[::2], reply[1::2], strict=True)}
    others, quorum = int(fields["num-other-sentinels"]), int(fields["quorum"])
    return Watch(others + 1, quorum, int(fields["down-after-milliseconds"]))
