"""What is read from Redis at each scrape."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as BaseCollector

from .. import conf
from ..checks.servers import read_infos
from ..core.outcome import deadline
from ..errors import MessagingError
from ..services.jobs.heartbeats import alive
from ..services.live.hub import open_streams
from ..surveys import Survey, SurveyedQueue, aliases, survey

logger = logging.getLogger(__name__)

#: characters of the value of a label
MAX_LABEL = 255
QUEUE_LABELS = ("kind", "backend", "queue")
#: metric of a queue → what it says, and its value
QUEUE_METRICS = {
    "ready": "Jobs that can start now",
    "delayed": "Jobs that are not due yet",
    "running": "Jobs that are running",
    "dead": "Jobs that have failed for good",
    "parked": "Jobs that wait for a lock, a permit, a rate, or the end of a pause of their task",
    "oldest_age_seconds": "Time for which the oldest ready job has been ready; 0 if none is",
    "throughput": "Jobs that ended per second, over about a minute",
    "paused": "1 if the queue is paused",
}
#: field of INFO → metric of a server, and what it says
SERVER_GAUGES = {
    "used_memory": ("memory_used_bytes", "Memory that the server uses"),
    "maxmemory": ("memory_max_bytes", "Limit of its memory; 0: none"),
    "connected_clients": ("clients", "Connections of clients"),
    "instantaneous_ops_per_sec": ("operations_per_second", "Commands per second, by the server itself"),
}
SERVER_COUNTERS = {
    "evicted_keys": ("evicted_keys", "Keys that were evicted because the memory was full"),
    "total_commands_processed": ("commands", "Commands"),
}


class Collector(BaseCollector):
    """Reads the state of queues, workers and servers at each scrape, within WEB_DEADLINE: a few round trips
    for each CACHES alias, for 500 queues at most.

        prometheus_client.REGISTRY.register(Collector())
    """

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that a registry does not collect when this is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The metrics. Where Redis doesn't answer, `messaging_up` is 0 and most are missing."""
        surveys: dict[str, Survey] = {}
        infos: dict[tuple[str, str], Mapping[str, str]] = {}
        with deadline(conf.current().WEB_DEADLINE):
            found = aliases()
            for alias in found:
                with suppress(MessagingError):
                    surveys[alias] = _survey(alias)
                    infos |= {(alias, address): info for address, info in read_infos(alias).items()}
        yield from _states(found, surveys)
        yield from _queues([queue for one in surveys.values() for queue in one.queues])
        yield from _consumers(surveys)
        yield from _servers(infos)
        yield GaugeMetricFamily(
            "messaging_live_streams", "Open live streams of this process", value=open_streams()
        )


def _survey(alias: str) -> Survey:
    try:
        return survey(alias)
    except MessagingError as error:
        logger.warning("Reading the metrics of CACHES[%r] failed; they are left out: %s", alias, error)
        raise


def _states(found: Sequence[str], surveys: Mapping[str, Survey]) -> Iterator[Metric]:
    up = GaugeMetricFamily("messaging_up", "1 if Redis answers", labels=["alias"])
    duration = GaugeMetricFamily("messaging_round_trip_seconds", "One round trip to Redis", labels=["alias"])
    truncated = GaugeMetricFamily(
        "messaging_queues_truncated", "1 if there are more queues than are counted", labels=["alias"]
    )
    for alias in found:
        up.add_metric([_label(alias)], alias in surveys)
    for alias, one in surveys.items():
        duration.add_metric([_label(alias)], one.round_trip)
        truncated.add_metric([_label(alias)], one.is_truncated)
    yield from (up, duration, truncated)


def _queues(queues: Sequence[SurveyedQueue]) -> Iterator[Metric]:
    by_labels = {tuple(map(_label, (one.kind, one.backend, one.name))): one for one in queues}
    for name, text in QUEUE_METRICS.items():
        family = GaugeMetricFamily(f"messaging_queue_{name}", text, labels=QUEUE_LABELS)
        for labels, queue in by_labels.items():
            family.add_metric(labels, _value(queue, name))
        yield family


def _value(queue: SurveyedQueue, name: str) -> float:
    load = queue.load
    match name:
        case "running":
            return load.leased
        case "oldest_age_seconds":
            return load.oldest_age or 0.0
        case "paused":
            return queue.is_paused
    value: float = getattr(load, name)
    return value


def _consumers(surveys: Mapping[str, Survey]) -> Iterator[Metric]:
    workers = GaugeMetricFamily("messaging_workers", "Workers that take tasks", labels=["backend"])
    listeners = GaugeMetricFamily("messaging_listeners", "Listeners that fire timers", labels=["alias"])
    for alias, one in surveys.items():
        for backend, found in one.workers.items():
            workers.add_metric([_label(backend)], len(alive(found)))
        if one.listeners is not None:
            listeners.add_metric([_label(alias)], len(alive(one.listeners)))
    yield from (workers, listeners)


def _servers(infos: Mapping[tuple[str, str], Mapping[str, str]]) -> Iterator[Metric]:
    kinds = ((SERVER_GAUGES, GaugeMetricFamily), (SERVER_COUNTERS, CounterMetricFamily))
    for fields, kind in kinds:
        for field, (name, text) in fields.items():
            family = kind(f"messaging_server_{name}", text, labels=["alias", "server"])
            for labels, info in infos.items():
                with suppress(KeyError, ValueError):  # a service that hides the field
                    family.add_metric(list(map(_label, labels)), float(info[field]))
            yield family


def _label(value: str) -> str:
    """The value of a label, without lone surrogates, which UTF-8 can't encode."""
    return value[:MAX_LABEL].encode(errors="backslashreplace").decode()
