"""Checks of the servers behind the alias: version, data, memory, failover, events.

Only `check --deploy` runs them, because they query the servers.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

from django.core.checks import CheckMessage, Error, Info, Warning
from redis.exceptions import RedisError

from .. import conf, handlers
from ..core import clients, outcome
from ..core.commands import Command, Words
from ..core.connection import BLOCKING, Address, Target, run_blocking
from ..core.topology import (
    QUERY_TIMEOUT,
    Cluster,
    Endpoint,
    Primaries,
    Primary,
    Sentinel,
    endpoint,
    first_reply,
)
from ..errors import MessagingError, Unavailable
from .settings import check_handlers, usable_alias

#: the oldest versions with all commands that the scripts use
MIN_VERSIONS = {"redis": (6, 2), "valkey": (7, 2)}
#: by line of releases, the first patch release with the fixes of VULNERABILITIES that concern it. No such
#: release is known of the other lines before the last one; later lines have the fixes from the beginning
FIXED = {
    "redis": {(6, 2): 20, (7, 2): 14, (7, 4): 9, (8, 2): 6, (8, 4): 3, (8, 6): 3},
    "valkey": {(7, 2): 13, (8, 0): 8, (8, 1): 7, (9, 0): 4},
}
#: memory errors by which clients that may run scripts or blocking commands could execute code on the server;
#: not all concern each line
VULNERABILITIES = "CVE-2025-49844, CVE-2026-23479, CVE-2026-23631"
#: a script, and the same by its SHA-1, as this app calls its scripts
PROBES: tuple[Words, ...] = (
    ("EVAL", "return 1", "0"),
    ("EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"),
)
#: minimum number of Sentinels: two of them can't agree if one is lost
MIN_SENTINELS = 3
#: minimum number of Sentinels that must agree that a primary is down
MIN_QUORUM = 2
#: settings of a server that are read, if the user may
SETTINGS = ("save", "lazyfree-lazy-expire", "cluster-node-timeout")
ServerInfo = dict[str, str]
T = TypeVar("T")


class Server(NamedTuple):
    """A primary."""

    #: how messages name it: CACHES['messaging'], for a Cluster with the address
    name: str
    info: ServerInfo
    #: empty: it has no such setting; None: the user may not read it
    settings: dict[str, str | None]
    #: the error reply to a script; empty if scripts can be run
    refusal: str = ""

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


def check_server(**_: object) -> list[CheckMessage]:
    """Check the server's version, scripts, eviction policy, persistence and lazy expiry."""
    alias = usable_alias()
    if alias is None:
        return []
    try:
        return [message for server in read_servers(alias) for message in _check_one(server)]
    except Unavailable as error:
        return [_unreachable(alias, error, "Then repeat the check.")]
    except MessagingError as error:
        hint = "Check the entry, its user and password, and the ACL: this check needs INFO."
        return [_unreachable(alias, error, hint)]


def _unreachable(alias: str, error: MessagingError, hint: str) -> CheckMessage:
    return Warning(
        f"The Redis of CACHES[{alias!r}] could not be queried. {error}", hint=hint, id="messaging.W005"
    )


def _check_one(server: Server) -> list[CheckMessage]:
    found = (
        _check_version(server),
        _check_fixes(server),
        _check_scripts(server),
        _check_eviction(server),
        _check_disk(server),
        _check_lazy_expiry(server),
    )
    return [message for message in found if message is not None]


def _check_version(server: Server) -> CheckMessage | None:
    kind, _, version = server.version.partition(" ")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return _unknown(server, "its version", "Make sure that it is Redis 6.2 or newer.")
    if tuple(map(int, numbers.groups())) >= MIN_VERSIONS[kind]:
        return None
    return Error(
        f"{server.name} is {kind.title()} {version}, which lacks commands that this app uses.",
        hint="Update the server to Redis 6.2 or Valkey 7.2, or newer.",
        id="messaging.E007",
    )


def _check_fixes(server: Server) -> CheckMessage | None:
    kind, _, version = server.version.partition(" ")
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None:
        return None
    major, minor, patch = map(int, numbers.groups())
    fixed, line = FIXED[kind], (major, minor)
    if line > max(fixed) or patch >= fixed.get(line, math.inf):
        return None
    nearest = min(one for one in fixed if one >= line)
    release = ".".join(map(str, (*nearest, fixed[nearest])))
    return Warning(
        f"{server.name} is {kind.title()} {version}, which by its version lacks the fix of at least one of "
        f"{VULNERABILITIES}: whoever may run commands could execute code on the server.",
        hint=f"Use {kind.title()} {release}, or a newer release. If your distribution or service has fixed "
        "this version without changing its number, silence this check.",
        id="messaging.W032",
    )


def _check_scripts(server: Server) -> CheckMessage | None:
    if not server.refusal:
        return None
    if "no permissions" in server.refusal:
        hint = "Add +eval +evalsha to its ACL; docs/security.md has the whole line."
    elif "scripting engine" in server.refusal:
        hint = (
            "Start a Valkey with its Lua module, which is part of a build unless it was left out or unloaded."
        )
    else:
        hint = "Use a server or service that allows EVAL and EVALSHA."
    return Error(
        f"{server.name} refuses Lua scripts ({server.refusal}): nearly every operation of this app is one, "
        "and fails.",
        hint=hint,
        id="messaging.E014",
    )


def _check_eviction(server: Server) -> CheckMessage | None:
    policy = server.info.get("maxmemory_policy", "")
    if policy.startswith("allkeys-"):
        return Error(
            f"The Redis of {server.name} evicts any key when its memory is full ({policy}): chats would "
            "be lost.",
            hint="Set its maxmemory-policy to noeviction, or use a separate server for messaging.",
            id="messaging.E008",
        )
    if policy.startswith("volatile-"):
        return Warning(
            f"The Redis of {server.name} evicts keys with a TTL when its memory is full ({policy}): it "
            "would lose request ids, and a repeated request could be applied twice.",
            hint="Set its maxmemory-policy to noeviction, or use a separate server for messaging.",
            id="messaging.W006",
        )
    if not policy:
        return _unknown(server, "its eviction policy", "Make sure that its maxmemory-policy is noeviction.")
    return None


def _check_disk(server: Server) -> CheckMessage | None:
    if server.info.get("aof_enabled") == "1":
        return None
    snapshots = server.settings["save"]
    if snapshots is None:
        hint = "The user may not call CONFIG. Make sure that appendonly or snapshots (save) are enabled."
        return _unknown(server, "whether it persists data on disk", hint)
    if snapshots:
        return None
    return Warning(
        f"The Redis of {server.name} doesn't persist data on disk: a restart deletes all chats.",
        hint="First call redis-cli config set appendonly yes, then write appendonly yes into its redis.conf, "
        "for the next start.",
        id="messaging.W007",
    )


def _check_lazy_expiry(server: Server) -> CheckMessage | None:
    """No message if the setting can't be read: most managed servers refuse CONFIG."""
    if server.settings["lazyfree-lazy-expire"] != "no":
        return None
    return Warning(
        f"The Redis of {server.name} frees expired keys in the foreground: it doesn't reply while it "
        "frees a large one, such as the request ids of many pushes.",
        hint="Set its lazyfree-lazy-expire to yes.",
        id="messaging.W012",
    )


def _unknown(server: Server, what: str, hint: str) -> CheckMessage:
    return Warning(
        f"{server.name}: the check could not read {what}.",
        hint=hint,
        id="messaging.W008",
    )


def check_topology(**_: object) -> list[CheckMessage]:
    """Describe the servers; check replicas, Sentinels, versions, and how long a failover takes."""
    alias = usable_alias()
    if alias is None:
        return []
    try:
        servers, watch = read_servers(alias), read_watch(alias)
        return list(_check_topology(alias, servers, watch))
    except MessagingError:
        return []  # check_server reports it


def _check_topology(alias: str, servers: list[Server], watch: Watch | None) -> Iterator[CheckMessage]:
    name, versions = f"CACHES[{alias!r}]", replica_versions(alias, servers)
    is_cluster = isinstance(endpoint(alias).router, Cluster)
    yield Info(_description(name, servers, watch, versions, is_cluster=is_cluster), id="messaging.I001")
    if is_cluster or watch is not None:
        yield from _check_replicas(servers)
        yield from _check_failover(servers, watch)
    if watch is not None:
        yield from _check_sentinels(name, watch)
    yield from _check_versions(name, servers, versions)
    yield from _check_durability(servers)


def _description(
    name: str, servers: list[Server], watch: Watch | None, versions: list[str], *, is_cluster: bool
) -> str:
    if is_cluster:
        kind = f"a Cluster of {_count(len(servers), 'primary', 'primaries')}"
    elif watch is not None:
        sentinels = _count(watch.sentinels, "Sentinel")
        kind = f"one primary, watched by {sentinels} (quorum {watch.quorum})"
    else:
        kind = "one server"
    lines = [f"{name} leads to {kind}:", *(f"    {_line(server)}" for server in servers)]
    if versions:
        counts = ", ".join(f"{count} with {one}" for one, count in Counter(versions).items())
        lines.append(f"    replicas: {counts}")
    return "\n".join(lines)


def _line(server: Server) -> str:
    address = server.name.partition(" (")[2].removesuffix(")")
    persistence = "append-only file" if server.info.get("aof_enabled") == "1" else _snapshots(server)
    eviction = server.info.get("maxmemory_policy", "unknown")
    replicas = _count(len(server.replicas), "replica")
    facts = [server.version, replicas, f"persistence: {persistence}", f"eviction: {eviction}"]
    return f"{address}: {', '.join(facts)}" if address else ", ".join(facts)


def _snapshots(server: Server) -> str:
    saves = server.settings["save"]
    return "unknown" if saves is None else "snapshots" if saves else "none"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _check_replicas(servers: list[Server]) -> Iterator[CheckMessage]:
    alone = [server.name for server in servers if not server.replicas]
    if alone:
        yield Warning(
            f"No replica follows {', '.join(alone)}: if such a primary is lost, nothing takes over, and its"
            " data is lost.",
            hint="Add a replica to each primary.",
            id="messaging.W018",
        )


def _check_failover(servers: list[Server], watch: Watch | None) -> Iterator[CheckMessage]:
    timeouts = [server.settings["cluster-node-timeout"] for server in servers]
    longest = watch.down_after if watch is not None else max((int(one) for one in timeouts if one), default=0)
    deadline = conf.current().COMMAND_DEADLINE
    if longest / 1000 >= deadline:
        setting = "cluster-node-timeout" if watch is None else "down-after-milliseconds of the Sentinels"
        yield Warning(
            f"A failover begins {longest / 1000:g} s after the loss of a primary, but operations are retried "
            f"for {deadline:g} s only: they fail meanwhile.",
            hint=f"Set {setting} to 5000 or less, or raise COMMAND_DEADLINE in {conf.NAME}.",
            id="messaging.W019",
        )


def _check_sentinels(name: str, watch: Watch) -> Iterator[CheckMessage]:
    if watch.sentinels < MIN_SENTINELS or not MIN_QUORUM <= watch.quorum <= watch.sentinels:
        yield Warning(
            f"The service of {name} is watched by {_count(watch.sentinels, 'Sentinel')} with a quorum of "
            f"{watch.quorum}: a failover may be impossible, or be caused by a single one.",
            hint="Run three Sentinels or more, on different machines, with a quorum of two or more.",
            id="messaging.W020",
        )


def _check_versions(name: str, servers: list[Server], replicas: list[str]) -> Iterator[CheckMessage]:
    found = {*(server.version for server in servers), *replicas} - {"unknown"}
    if len(found) > 1:
        yield Warning(
            f"The servers of {name} have different versions: {', '.join(sorted(found))}.",
            hint="Update all of them: a replica can't load the data of a newer primary.",
            id="messaging.W021",
        )


def _check_durability(servers: list[Server]) -> Iterator[CheckMessage]:
    required = outcome.configured_durability()
    few = [] if required is None else [one for one in servers if len(one.replicas) < required.replicas]
    if required is not None and few:
        found = ", ".join(f"{server.name} has {len(server.replicas)}" for server in few)
        yield Error(
            f"DURABILITY requires {_count(required.replicas, 'replica')} to confirm each write, but {found}: "
            "every write would raise OutcomeUnknown.",
            hint="Add replicas, or lower the number.",
            id="messaging.E011",
        )


def check_flags(**_: object) -> list[CheckMessage]:
    """Check that the server's notify-keyspace-events enables the events of all handlers."""
    alias = usable_alias()
    if any(message.is_serious() for message in check_handlers()):
        return []
    if alias is None or not handlers.key_events:
        return []
    try:
        found = clients.execute(alias, Command("CONFIG", "GET", "notify-keyspace-events", reads=True))
    except MessagingError:
        return []  # another check reports that the server can't be queried
    enabled = found[1].decode() if len(found) == 2 else ""
    return [
        _missing_flags(alias, one, enabled)
        for one in handlers.key_events
        if handlers.missing(enabled, one.flags)
    ]


def _missing_flags(alias: str, one: handlers.KeyHandler, enabled: str) -> CheckMessage:
    return Warning(
        f"notify-keyspace-events of CACHES[{alias!r}] is {enabled!r}: {handlers.title(one.function)} "
        f"({one.pattern}) misses events without {handlers.missing(enabled, one.flags)!r}.",
        hint="Run the listener with --configure, or set it to "
        f"{handlers.merged(enabled, one.flags)!r} in the server's configuration.",
        id="messaging.W011",
    )


def read_servers(alias: str) -> list[Server]:
    """The primaries of an alias; raises MessagingError."""
    name, info = f"CACHES[{alias!r}]", parse_info(clients.execute(alias, Command("INFO", reads=True)))
    found = endpoint(alias)
    if not isinstance(found.router, Cluster):
        settings = {setting: _read_setting(alias, setting) for setting in SETTINGS}
        return [Server(name, info, settings, _refusal(alias))]
    try:
        with closing(Primaries(found)) as primaries:
            return [_read_primary(name, found, primary) for primary in primaries.discover()]
    except RedisError as error:
        raise Unavailable(
            f"A primary of the Cluster could not be queried ({error}). Start it, or correct LOCATION."
        ) from error


def _read_primary(name: str, endpoint: Endpoint, primary: Primary) -> Server:
    with primary.connected(endpoint) as connection:
        where = name if primary.address is None else f"{name} ({primary.address[0]}:{primary.address[1]})"
        calls: list[Words] = [("INFO",), *PROBES, *(("CONFIG", "GET", setting) for setting in SETTINGS)]
        replies = connection.exchange(calls, endpoint.default_reply_timeout)
        info, probes, settings = replies[0], replies[1 : 1 + len(PROBES)], replies[1 + len(PROBES) :]
        error = next((one for one in (info, *probes) if isinstance(one, RedisError)), None)
        if error is not None and (error is info or outcome.is_temporary(error)):
            raise error  # a server that loads its data refuses scripts for the moment
        values = [None if isinstance(one, RedisError) else _value(one) for one in settings]
        refusal = "" if error is None else str(error)
        return Server(where, parse_info(info), dict(zip(SETTINGS, values, strict=True)), refusal)


def read_infos(alias: str) -> dict[str, ServerInfo]:
    """The fields of INFO of the primaries of an alias, by address, which is empty without a Cluster. Raises
    MessagingError, also where the user may not call INFO."""
    info = parse_info(clients.execute(alias, Command("INFO", reads=True)))
    found = endpoint(alias)
    if not isinstance(found.router, Cluster):
        return {"": info}
    try:
        with closing(Primaries(found)) as primaries:
            return dict(_read_info(found, primary) for primary in primaries.discover())
    except RedisError as error:
        raise Unavailable(f"A primary of the Cluster could not be queried ({error}).") from error


def _read_info(endpoint: Endpoint, primary: Primary) -> tuple[str, ServerInfo]:
    with primary.connected(endpoint) as connection:
        [info] = connection.exchange([("INFO",)], endpoint.default_reply_timeout)
    if isinstance(info, RedisError):
        raise info
    return ":".join(map(str, primary.address or ())), parse_info(info)


def _refusal(alias: str) -> str:
    try:
        for words in PROBES:
            clients.execute(alias, Command(*words, reads=True))
    except Unavailable:
        raise
    except MessagingError as error:
        return str(error.__cause__ or error)
    return ""


def _read_setting(alias: str, name: str) -> str | None:
    try:
        return _value(clients.execute(alias, Command("CONFIG", "GET", name, reads=True)))
    except MessagingError:
        return None


def _value(reply: list[bytes]) -> str:
    return reply[1].decode() if len(reply) == 2 else ""


def parse_info(reply: bytes) -> ServerInfo:
    """The fields of a reply to INFO."""
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def version(info: ServerInfo) -> str:
    """Such as `redis 7.0.15`, or "unknown"."""
    kind = "valkey" if "valkey_version" in info else "redis"
    number = info.get(f"{kind}_version", "")
    return f"{kind} {number}" if number else "unknown"


def read_watch(alias: str) -> Watch | None:
    """How the Sentinels watch the service of an alias; None without Sentinels, or if none may be asked."""
    found = endpoint(alias)
    if not isinstance(found.router, Sentinel):
        return None
    return _first_reply(found.sentinels, ("SENTINEL", "MASTER", found.router.service), _parse_watch)


def _parse_watch(reply: list[bytes], _: object) -> Watch:
    fields = {name.decode(): value.decode() for name, value in zip(reply[::2], reply[1::2], strict=True)}
    others, quorum = int(fields["num-other-sentinels"]), int(fields["quorum"])
    return Watch(others + 1, quorum, int(fields["down-after-milliseconds"]))


def replica_versions(alias: str, servers: list[Server]) -> list[str]:
    """The versions of the replicas; "unknown" for those that can't be reached from here."""
    found = endpoint(alias)
    replicas = [found.target(address) for server in servers for address in server.replicas]

    def parse(reply: bytes, _: object) -> str:
        return version(parse_info(reply))

    return [_first_reply([replica], ("INFO", "server"), parse) or "unknown" for replica in replicas]


def _first_reply(targets: list[Target], command: Words, parse: Callable[[Any, object], T]) -> T | None:
    async def ask(seconds: float) -> T | None:
        return await first_reply(BLOCKING, targets, command, parse, seconds)

    return run_blocking(ask, QUERY_TIMEOUT * len(targets))
