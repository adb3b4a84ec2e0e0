"""What the overview shows: the state of all parts of the app, in a few round trips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage

from .. import conf, surveys
from ..checks.servers import ServerInfo, check_flags, read_infos
from ..core.commands import Clock, Command
from ..core.encoding import current_prefix
from ..core.operations import Steps, perform
from ..core.topology import STANDALONE
from ..errors import MessagingError
from ..services.common.arguments import to_datetime
from ..services.common.catalogue import Catalogue, Counts
from ..services.expiries.timers import TimerEngine
from ..services.history.gauges import QueueGauges, ServerGauges, Snapshot
from ..services.history.history import MAX_READ, History
from ..services.jobs.engine import Paused, parse_paused
from ..services.jobs.heartbeats import Heartbeat, heartbeat_calls, parse_heartbeats

if TYPE_CHECKING:
    from ..tasks.backend import RedisBackend

#: seconds after which a snapshot is too old to be shown: the poller makes one every ten
MAX_AGE = 30
#: µs from which on a script is slow
SLOW = 5000
#: how much later than an hour ago the history of an hour may begin
MAX_GAP = timedelta(minutes=5)
#: entries of the slow log that are read
MAX_SLOW = 16
#: calls for each backend
CALLS = 5


@dataclass(frozen=True)
class Attendance:
    """Which processes are there, and what is paused."""

    #: by alias in TASKS, the workers
    workers: Mapping[str, Sequence[Heartbeat]]
    #: by alias in TASKS, what is paused
    paused: Mapping[str, Sequence[Paused]]
    #: by alias in TASKS, seconds since a poller looked at its periodic tasks; None: none ever did
    silences: Mapping[str, float | None]
    #: by alias in TASKS, the number of its periodic tasks
    periodic: Mapping[str, int]
    listeners: Sequence[Heartbeat]


@dataclass(frozen=True, slots=True)
class SlowCall:
    """A script that was slow, from the server's slow log."""

    at: datetime
    #: how long it ran: µs
    duration: int


@dataclass(frozen=True)
class State:
    """The state of the app at all aliases that it uses."""

    queues: Sequence[QueueGauges]
    #: what the poller has last recorded of the servers of the app's alias
    gauges: Sequence[ServerGauges]
    #: seconds since a poller counted them; None: none ever did
    age: float | None
    attendance: Attendance
    #: by alias in CACHES and address: the fields of INFO; missing: it may not be read
    servers: Mapping[tuple[str, str], ServerInfo]
    slow: Sequence[SlowCall]
    counts: Counts
    #: of the same servers, keys that were evicted in the last hour; missing: there is no history of it
    evicted: Mapping[tuple[str, str], int] = field(default_factory=dict)
    #: texts of errors: parts that can't be read
    errors: Sequence[str] = field(default_factory=list)
    #: records that the history has not kept, since it has as many series as it may
    refused: int = 0
    #: what the check of the flags for keyspace events finds
    flags: Sequence[CheckMessage] = ()


def read_state() -> State:
    """Read all of it."""
    main = conf.alias()
    snapshots: dict[str, Snapshot] = {main: read_snapshot(main)}
    servers: dict[tuple[str, str], ServerInfo] = {}
    evicted: dict[tuple[str, str], int] = {}
    errors = []
    for alias in surveys.aliases():
        try:
            snapshots[alias] = snapshots.get(alias) or read_snapshot(alias)
            infos = read_infos(alias)
            servers |= {(alias, address): info for address, info in infos.items()}
            found = count_evicted(alias, infos, snapshots[alias].servers)
            evicted |= {(alias, address): number for address, number in found.items()}
        except MessagingError as error:  # the others are shown all the same
            errors.append(str(error))
    return State(
        [queue for snapshot in snapshots.values() for queue in snapshot.queues],
        snapshots[main].servers,
        snapshots[main].polled_age,
        read_attendance([*snapshots]),
        servers,
        read_slow(main),
        Catalogue().count(),
        evicted,
        errors,
        History().refused(),
        check_flags(),
    )


def read_snapshot(using: str) -> Snapshot:
    """The latest counts of the queues at an alias; if no poller has made them, they are made now."""
    history = History(using=using)
    snapshot = history.now()
    if snapshot.age is None or snapshot.age > MAX_AGE:
        queues = history.refresh().queues
        return snapshot._replace(queues=queues)
    return snapshot


def count_evicted(
    using: str, infos: Mapping[str, ServerInfo], recorded: Sequence[ServerGauges]
) -> dict[str, int]:
    """By address, how many keys the servers of an alias have evicted in the last hour, by their history;
    without those whose history doesn't go back so far. One round trip, and none if no key was evicted since
    they were started."""
    addresses = {
        address or STANDALONE.id: address
        for address, info in infos.items()
        if int(info.get("evicted_keys", 0))
    }
    series = [one.series for one in recorded if one.series.name in addresses]
    lines = History(using=using).lines(series[:MAX_READ], columns=("evicted",))
    found = {}
    for line in lines:
        if line.points and line.points[0].moment <= line.first + MAX_GAP:
            address = addresses[line.series.name]
            numbers = [int(point.values["evicted"] or 0) for point in line.points]
            found[address] = increase([*numbers, int(infos[address]["evicted_keys"])])
    return found


def increase(numbers: Sequence[int]) -> int:
    """By how much a count has grown that begins anew when its server is restarted.

    >>> increase([5, 7, 7, 2]), increase([5])
    (4, 0)
    """
    return sum(after - before if after >= before else after for before, after in pairwise(numbers))


def read_attendance(aliases: Sequence[str]) -> Attendance:
    """Who is there, in one round trip for each alias."""
    workers: dict[str, Sequence[Heartbeat]] = {}
    paused: dict[str, Sequence[Paused]] = {}
    silences: dict[str, float | None] = {}
    listeners: Sequence[Heartbeat] = ()
    periodic: dict[str, int] = {}
    timers = TimerEngine(current_prefix())
    for using in aliases:
        backends = [one for one in surveys.backends().values() if one.using == using]
        calls = [call for one in backends for call in calls_of(one)]
        if using == conf.alias():
            calls += heartbeat_calls(timers.keys)
        replies = perform(using, send(calls))
        for at, backend in enumerate(backends):
            clock, beats, pauses, polled, stored = replies[CALLS * at : CALLS * (at + 1)]
            workers[backend.alias] = parse_heartbeats(clock, beats)
            paused[backend.alias] = parse_paused(pauses)
            age = (Clock.milliseconds(clock) - int(polled)) / 1000 if polled else None
            silences[backend.alias] = age
            periodic[backend.alias] = stored + declared(backend.alias)
        if using == conf.alias():
            listeners = parse_heartbeats(*replies[-2:])
    return Attendance(workers, paused, silences, periodic, listeners)


def calls_of(backend: RedisBackend) -> list[Command]:
    """What is read of a backend."""
    keys = backend.engine.keys
    return [
        *heartbeat_calls(keys),
        backend.engine.paused_call(),
        Command("HGET", keys.periodic, "polled", reads=True),
        Command("HLEN", keys.schedules, reads=True),
    ]


def send(calls: Sequence[Command]) -> Steps[list[Any]]:
    """The replies to some calls."""
    replies: list[Any] = yield calls
    return replies


def declared(alias: str) -> int:
    """The number of periodic tasks in the code."""
    from ..tasks.schedules import tasks_of

    return len(tasks_of(alias))


def read_slow(using: str) -> list[SlowCall]:
    """The slow scripts in the slow log, the latest first; none if the user may not read it."""
    try:
        [reply] = perform(using, send([Command("SLOWLOG", "GET", MAX_SLOW, reads=True)]))
    except MessagingError:
        return []
    return [
        SlowCall(to_datetime(began * 1000), duration)
        for _number, began, duration, words, *_client in reply
        if duration >= SLOW and words and words[0].upper() in (b"EVALSHA", b"EVAL", b"FCALL")
    ]
