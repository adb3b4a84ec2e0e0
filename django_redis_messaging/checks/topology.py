"""Says what kind of servers an alias leads to, and checks that a failover works and loses little.

Only in `check --deploy`, since it queries the servers; those that don't reply are reported by check_server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from django.core.checks import CheckMessage, Error, Info, Warning

from .. import conf
from ..core import durability
from ..core.endpoints import endpoint
from ..core.routing import Cluster
from ..errors import MessagingError
from .caches import check_alias, chosen_alias
from .servers import Server, Watch, read_servers, read_watch, replica_versions

#: minimum number of Sentinels: two of them can't agree if one is lost
MIN_SENTINELS = 3
#: minimum number of Sentinels that must agree that a primary is down
MIN_QUORUM = 2


def check_topology(**_: object) -> list[CheckMessage]:
    """Describe the servers; check replicas, Sentinels, versions, and how long a failover takes."""
    alias = chosen_alias()
    if alias is None or any(message.is_serious() for message in check_alias()):
        return []
    try:
        servers, watch = read_servers(alias), read_watch(alias)
        return list(_check(alias, servers, watch))
    except MessagingError:
        return []  # check_server reports it


def _check(alias: str, servers: list[Server], watch: Watch | None) -> Iterator[CheckMessage]:
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
    required = durability.configured()
    few = [] if required is None else [one for one in servers if len(one.replicas) < required.replicas]
    if required is not None and few:
        found = ", ".join(f"{server.name} has {len(server.replicas)}" for server in few)
        yield Error(
            f"DURABILITY requires {_count(required.replicas, 'replica')} to confirm each write, but {found}: "
            "every write would raise OutcomeUnknown.",
            hint="Add replicas, or lower the number.",
            id="messaging.E011",
        )
