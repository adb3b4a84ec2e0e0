"""What is wrong right now, as sentences with a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..checks.settings import check_alias
from ..checks.values import check_settings
from ..core.encoding import printable
from ..services.common.things import Thing
from ..services.history.gauges import QueueGauges
from ..services.jobs.engine import HEARTBEAT_TIMEOUT
from ..services.jobs.heartbeats import alive
from .state import MAX_AGE, State
from .tables import Tone, duration

#: seconds for which a job may be ready
MAX_READY = 60
#: seconds without a heartbeat after which a worker counts as lost: it sends one every ten
MAX_SILENCE = 45
#: share of the memory that may be used
MAX_MEMORY = 0.9
#: for how long a slow script is reported
SLOW_FOR = timedelta(hours=1)


@dataclass(frozen=True)
class Trouble:
    """Something that is wrong."""

    text: str
    remedy: str
    tone: Tone = "bad"
    #: what it is about
    thing: Thing | None = None
    #: the name of a page about it
    page: str = ""


def find_troubles(state: State) -> list[Trouble]:
    """All of them, the worst first."""
    found = [trouble for check in CHECKS for trouble in check(state)]
    return sorted(found, key=lambda one: one.tone != "bad")


def about(queue: QueueGauges) -> dict[str, Any]:
    """What a trouble of a queue, or of a namespace of timers, is about."""
    series = queue.series
    if series.kind == "timers":
        return {"page": "timers"}
    return {"thing": Thing("queue", series.name, series.where)}


def errors(state: State) -> Iterator[Trouble]:
    """Servers that can't be read."""
    for text in state.errors:
        yield Trouble(printable(text), _("Check the server, and what its user may do."))


def settings(state: State) -> Iterator[Trouble]:
    """What the checks find: wrong settings, and events that a listener misses."""
    for message in [*check_settings(), *check_alias(), *state.flags]:
        yield Trouble(message.msg, str(message.hint or ""), "bad" if message.is_serious() else "warn")


def missing_poller(state: State) -> Iterator[Trouble]:
    """Nobody does what is due by time."""
    silences = state.attendance.silences
    silent = [one for one in silences.values() if one is not None and one * 1000 > HEARTBEAT_TIMEOUT]
    never = any(number and silences.get(alias) is None for alias, number in state.attendance.periodic.items())
    since = max(silent) if silent else state.age
    is_away = since is None or since > 4 * MAX_AGE
    if not (is_away or silent or never):
        return
    text = _("No poller has been running.")
    if since is not None and is_away:
        text = _("No poller has been running for %(time)s.") % {"time": duration(since)}
    elif never:
        text = _("No poller has looked at all periodic tasks.")
    tone: Tone = "bad" if silent or never else "warn"
    yield Trouble(text, _("Start manage.py run_poller, or run_messaging."), tone, page="schedule")


def old_jobs(state: State) -> Iterator[Trouble]:
    """Jobs that nobody starts."""
    paused = {(alias, one.queue) for alias, found in state.attendance.paused.items() for one in found}
    for queue in state.queues:
        series = queue.series
        if (queue.oldest_age or 0) <= MAX_READY or (series.where, series.name) in paused:
            continue
        if series.kind == "timers" and not alive(state.attendance.listeners):
            continue  # reported by missing_listener
        text = _("The oldest job of %(queue)s has been ready for %(time)s.") % {
            "queue": printable(series.name), "time": duration(queue.oldest_age or 0),
        }  # fmt: skip
        yield Trouble(text, remedy_for(queue, state), **about(queue))


def remedy_for(queue: QueueGauges, state: State) -> str:
    """What starts the jobs of a queue."""
    series = queue.series
    if series.kind == "timers":
        return _("Start more listeners.")
    if not series.where:
        return _("Start the consumers of this delay queue.")
    if not alive(state.attendance.workers.get(series.where, [])):
        return _("No worker is running: start manage.py run_worker.")
    return _("The workers are busy or don't serve this queue: start more.")


def lost_workers(state: State) -> Iterator[Trouble]:
    """Workers without a heartbeat."""
    for alias, workers in state.attendance.workers.items():
        for worker in workers:
            if worker.silent > MAX_SILENCE:
                yield Trouble(
                    _("The worker %(worker)s has not been heard of for %(time)s.")
                    % {"worker": printable(worker.id), "time": duration(worker.silent)},
                    _("It was killed, or its machine hangs. What it ran is started again elsewhere."),
                    thing=Thing("worker", worker.id, alias),
                )


def dead_jobs(state: State) -> Iterator[Trouble]:
    """Jobs that have failed for good."""
    for queue in state.queues:
        if queue.dead:
            text = ngettext(
                "%(number)s job of %(queue)s has failed for good.",
                "%(number)s jobs of %(queue)s have failed for good.",
                queue.dead,
            ) % {"number": queue.dead, "queue": printable(queue.series.name)}
            yield Trouble(text, _("See why, then retry or discard them."), "warn", **about(queue))


def missing_listener(state: State) -> Iterator[Trouble]:
    """Timers that nobody fires."""
    timers = [queue for queue in state.queues if queue.series.kind == "timers" and not queue.is_idle]
    if timers and not alive(state.attendance.listeners):
        yield Trouble(
            _("There are timers, but no listener is running."),
            _("Start manage.py run_listener, or run_messaging."),
            page="timers",
        )


def memory(state: State) -> Iterator[Trouble]:
    """Servers that are nearly full."""
    for (alias, address), info in state.servers.items():
        used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
        if limit and used > MAX_MEMORY * limit:
            yield Trouble(
                _("The server %(server)s uses %(percent)s %% of its memory.")
                % {"server": address or alias, "percent": round(100 * used / limit)},
                _("Raise maxmemory, or remove data: when it is full, nothing new is stored."),
            )


def evictions(state: State) -> Iterator[Trouble]:
    """Servers that have removed keys in the last hour; without a history, since they were started."""
    for (alias, address), info in state.servers.items():
        lately = state.evicted.get((alias, address))
        number = int(info.get("evicted_keys", 0)) if lately is None else lately
        if not number:
            continue
        if lately is None:
            text = ngettext(
                "The server %(server)s has evicted %(number)s key since it was started.",
                "The server %(server)s has evicted %(number)s keys since it was started.",
                number,
            )
        else:
            text = ngettext(
                "The server %(server)s has evicted %(number)s key in the last hour.",
                "The server %(server)s has evicted %(number)s keys in the last hour.",
                number,
            )
        yield Trouble(
            text % {"server": address or alias, "number": number},
            _("Data was lost. Set maxmemory-policy to noeviction, or use another server for caches."),
        )


def persistence(state: State) -> Iterator[Trouble]:
    """Servers that could not store their data, or have lost their replicas or primary."""
    for (alias, address), info in state.servers.items():
        for name in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"):
            if info.get(name, "ok") != "ok":
                yield Trouble(
                    _("The server %(server)s could not store its data: %(field)s.")
                    % {"server": address or alias, "field": name},
                    _("See its log; often its disk is full."),
                )


def slow_scripts(state: State) -> Iterator[Trouble]:
    """Scripts that kept others waiting."""
    recent = [one for one in state.slow if datetime.now(UTC) - one.at < SLOW_FOR]
    if recent:
        longest = max(one.duration for one in recent) / 1000
        yield Trouble(
            ngettext(
                "%(number)s script took longer than 5 ms within the last hour: %(ms)s ms.",
                "%(number)s scripts took longer than 5 ms within the last hour, the longest %(ms)s ms.",
                len(recent),
            )
            % {"number": len(recent), "ms": round(longest)},
            _("The server is overloaded or slow: see SLOWLOG GET, and the CPU of its machine."),
            "warn",
        )


def full_history(state: State) -> Iterator[Trouble]:
    """Series of which no history is kept."""
    if state.refused:
        yield Trouble(
            _("The history has its maximum number of series; others are not recorded."),
            _("Raise HISTORY_MAX_SERIES."),
            "warn",
            page="history",
        )


#: in the order in which they are shown
CHECKS: tuple[Callable[[State], Iterator[Trouble]], ...] = (
    errors,
    settings,
    missing_poller,
    missing_listener,
    lost_workers,
    old_jobs,
    memory,
    evictions,
    persistence,
    dead_jobs,
    slow_scripts,
    full_history,
)
