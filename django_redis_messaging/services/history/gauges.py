"""Gauges: how many jobs wait in each queue, and the state of the servers. The poller records them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import NamedTuple

from redis.exceptions import RedisError

from ... import conf
from ...core.commands import Argument, Clock, Command, Script, batched
from ...core.encoding import current_prefix
from ...core.operations import Steps
from ...core.topology import Endpoint, Primaries, Primary, endpoint
from ..common.arguments import request
from ..jobs import sources
from ..jobs.load import QueueLoad, read_loads
from ..jobs.poller import Round, register
from ..jobs.sources import Queue, read_queues
from .keys import RESOLUTIONS, HistoryKeys, Series
from .recording import PAGE, Counts, record
from .things import Numbers, read_things

logger = logging.getLogger(__name__)

#: seconds between two snapshots. A poller makes none if another one has made one since
INTERVAL = RESOLUTIONS[0].seconds
#: queues that a poller counts; those that a page counts, if no poller has
MAX_QUEUES, MAX_FRESH = 1000, 200
#: queues that are counted in one round trip
PIPELINE_SIZE = 200
#: age of a snapshot from which on rates are worked out
MIN_SECONDS = 1.0
#: ms for which a snapshot is kept
SNAPSHOT_TTL = 86_400_000
#: gauge of a server → its name in the reply to INFO
SERVER_FIELDS = {
    "memory": "used_memory",
    "maxmemory": "maxmemory",
    "clients": "connected_clients",
    "ops": "instantaneous_ops_per_sec",
    "evicted": "evicted_keys",
}
#: the sections of INFO that have them: Redis 6 takes one at a time
SECTIONS = ("memory", "clients", "stats")
#: the fields of a snapshot that have its moment, and that of the latest one that a poller has made
MOMENT, POLLED = b"at", b"polled"


class QueueGauges(NamedTuple):
    """The latest gauges of a queue, or of a namespace of timers."""

    series: Series
    #: jobs that can start now
    ready: int
    #: jobs that are not due yet
    delayed: int
    #: jobs that are running
    leased: int
    #: jobs that have failed for good
    dead: int
    #: jobs that wait for a lock, a permit, a rate, or the end of a pause of their task
    parked: int
    #: seconds for which the oldest ready job has been ready; None: none is
    oldest_age: float | None
    #: jobs that ended per second, over about a minute
    throughput: float
    #: jobs that were added per second since the snapshot before, as these numbers tell
    added: float = 0.0

    @property
    def text(self) -> str:
        """The gauges as they are stored."""
        oldest = "-" if self.oldest_age is None else round(self.oldest_age * 1000)
        return (
            f"ready={self.ready} delayed={self.delayed} leased={self.leased} dead={self.dead} "
            f"parked={self.parked} oldest={oldest} rate={self.throughput} in={self.added}"
        )

    @property
    def is_idle(self) -> bool:
        """Whether it has no jobs but dead ones."""
        return not self.unfinished

    @property
    def unfinished(self) -> int:
        """How many jobs wait or run."""
        return self.ready + self.delayed + self.leased + self.parked

    def since(self, before: QueueGauges | None, seconds: float | None) -> QueueGauges:
        """The same with the rate at which jobs were added, from the snapshot before and its age."""
        if before is None or seconds is None or not MIN_SECONDS <= seconds < math.inf:
            return self
        more = (self.unfinished - before.unfinished) / seconds
        return self._replace(added=round(max(more + self.throughput, 0.0), 3))

    @property
    def recorded(self) -> dict[str, int]:
        """The gauges of its history."""
        names = ("ready", "delayed", "leased", "dead", "parked")
        return {"oldest": round(self.oldest_age or 0), **{name: getattr(self, name) for name in names}}


class ServerGauges(NamedTuple):
    """The latest gauges of a server that owns keys."""

    series: Series
    #: bytes that it uses
    memory: int
    #: bytes that it may use; 0: any number
    maxmemory: int
    #: connections
    clients: int
    #: commands per second
    ops: int
    #: keys that it has evicted since its start
    evicted: int
    #: µs of a PING of the poller
    round_trip: int

    @property
    def recorded(self) -> dict[str, int]:
        """The gauges of its history."""
        found = self._asdict()
        del found["series"]
        return found

    @property
    def text(self) -> str:
        """The gauges as they are stored."""
        return " ".join(f"{name}={number}" for name, number in self.recorded.items())


Gauges = QueueGauges | ServerGauges


class Snapshot(NamedTuple):
    """The latest gauges of all queues and servers."""

    #: when they were read; None: there are none
    moment: datetime | None
    #: seconds since then, by the server's clock; infinite after that was set back. None: there are none
    age: float | None
    #: in the order of their kinds and names
    queues: list[QueueGauges]
    servers: list[ServerGauges]
    #: as `age`, of the latest one that a poller has made: pages make some, too
    polled_age: float | None = None


def read_snapshot(prefix: str) -> Steps[Snapshot]:
    """The latest snapshot, in one round trip."""
    key = HistoryKeys(prefix).now
    clock, flat = yield [Clock(key), Command("HGETALL", key, reads=True)]
    stored: dict[bytes, bytes] = dict(batched(flat, 2))
    at, polled = stored.pop(MOMENT, None), stored.pop(POLLED, None)
    if at is None:
        return Snapshot(None, None, [], [])
    now = Clock.milliseconds(clock)
    found = [_parse(name.decode(), text.decode()) for name, text in sorted(stored.items())]
    queues = [one for one in found if isinstance(one, QueueGauges)]
    servers = [one for one in found if isinstance(one, ServerGauges)]
    moment = datetime.fromtimestamp(int(at) / 1000, UTC)
    return Snapshot(moment, _age(now, at), queues, servers, None if polled is None else _age(now, polled))


def _age(now: int, at: bytes) -> float:
    """Seconds since a moment, ms; infinite after the clock was set back."""
    age = (now - int(at)) / 1000
    return age if age >= 0 else math.inf


def _parse(name: str, text: str) -> Gauges:
    series = Series.parse(name)
    words = dict(word.split("=", 1) for word in text.split())
    if series.kind == "server":
        return ServerGauges(series, **{name: int(words[name]) for name in series.columns.names})
    ready, delayed, leased, dead, parked = (
        int(words[name]) for name in ("ready", "delayed", "leased", "dead", "parked")
    )
    oldest = None if words["oldest"] == "-" else int(words["oldest"]) / 1000
    rates = float(words["rate"]), float(words["in"])
    return QueueGauges(series, ready, delayed, leased, dead, parked, oldest, *rates)


def store_snapshot(prefix: str, gauges: Iterable[Gauges], *, is_polled: bool = True) -> Steps[None]:
    """Replace the snapshot. `is_polled`: whether a poller does."""
    words: list[Argument] = [SNAPSHOT_TTL, int(is_polled)]
    for one in gauges:
        words += (str(one.series), one.text)
    yield Script("history/snapshot", [HistoryKeys(prefix).now], words)


def count_queues(using: str, limit: int, before: Snapshot) -> Steps[list[QueueGauges]]:
    """The gauges of the queues at an alias, at most `limit`. `before`: the latest snapshot."""
    last = {one.series: one for one in before.queues}
    found: list[QueueGauges] = []
    for page in batched((yield from read_queues(using, limit)), PIPELINE_SIZE):
        loads = yield from read_loads([(one.engine, one.stored) for one in page])
        found += map(_gauges_of, page, loads)
    return [one.since(last.get(one.series), before.age) for one in found]


def _gauges_of(queue: Queue, load: QueueLoad) -> QueueGauges:
    kind = "timers" if queue.kind == "timers" else "queue"
    return QueueGauges(
        Series(kind, queue.name, queue.where),
        load.ready,
        load.delayed,
        load.leased,
        load.dead,
        load.parked,
        load.oldest_age,
        load.throughput,
    )


@register(sources.aliases)
def gauges(using: str) -> Iterable[Round]:
    """One round, which records the gauges of an alias."""
    if conf.current().HISTORY_MAX_SERIES:
        prefix = current_prefix()
        yield Round(("history", prefix), using, partial(record_gauges, using, prefix), min_interval=0)


#: alias and prefix → when this process reads the gauges next: monotonic. Its poller does rounds more often
_next: dict[tuple[str, str], float] = {}


def record_gauges(using: str, prefix: str) -> Steps[float]:
    """Record the gauges, unless that was done within the last ten seconds. Returns the seconds until then."""
    now = monotonic()
    left = _next.get((using, prefix), now) - now
    if left > 0:
        return left
    before = yield from read_snapshot(prefix)
    age = before.polled_age
    if age is not None and age < INTERVAL - 1:
        _next[using, prefix] = now + INTERVAL - age
        return INTERVAL - age
    _next[using, prefix] = now + INTERVAL
    queues = yield from count_queues(using, MAX_QUEUES, before)
    servers = read_servers(using)
    yield from store_snapshot(prefix, [*queues, *servers])
    last = {one.series: one for one in before.queues}
    changed = [one for one in queues if is_worth_recording(one, last.get(one.series))]
    worth: list[Gauges] = [*servers, *changed]
    yield from _record(prefix, {one.series: one.recorded for one in worth})
    # not before: of a Cluster, another server may have to reply
    yield from _record(prefix, (yield from read_things(using)))
    return float(INTERVAL)


def _record(prefix: str, gauges: Mapping[Series, Numbers]) -> Steps[None]:
    for page in batched(gauges.items(), PAGE):
        yield from record(prefix, {series: Counts({}, numbers) for series, numbers in page}, request(None))


def is_worth_recording(now: QueueGauges, before: QueueGauges | None) -> bool:
    """Whether a queue has jobs, or had some; one that stays idle is not recorded."""
    if before is None:
        return not now.is_idle or now.dead > 0
    return not (now.is_idle and before.is_idle and now.dead == before.dead)


def read_servers(using: str) -> list[ServerGauges]:
    """The gauges of all servers of an alias that own keys. Those that can't be read are left out."""
    found = endpoint(using)
    try:
        with closing(Primaries(found)) as primaries:
            return [one for primary in primaries.discover() if (one := _read_server(found, primary))]
    except (RedisError, OSError) as error:
        logger.debug("The state of the servers of %r is not recorded: %s", using, error)
        return []


def _read_server(found: Endpoint, primary: Primary) -> ServerGauges | None:
    with primary.connected(found) as connection:
        began = monotonic()
        connection.exchange([("PING",)], found.default_reply_timeout)
        round_trip = round((monotonic() - began) * 1e6)
        replies = connection.exchange([("INFO", one) for one in SECTIONS], found.default_reply_timeout)
    error = next((one for one in replies if isinstance(one, Exception)), None)
    if error is not None:  # such as a missing permission
        logger.debug("The state of the server %s is not recorded: %s", primary.id, error)
        return None
    numbers = _numbers(replies)
    name = "" if primary.address is None else f"{primary.address[0]}:{primary.address[1]}"
    return ServerGauges(Series("server", name or primary.id), **numbers, round_trip=round_trip)


def _numbers(replies: Sequence[bytes]) -> Mapping[str, int]:
    lines = dict(line.split(":", 1) for reply in replies for line in reply.decode().split() if ":" in line)
    return {name: int(lines.get(field, 0)) for name, field in SERVER_FIELDS.items()}
