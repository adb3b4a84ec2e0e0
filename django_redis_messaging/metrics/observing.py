"""Counts and durations of the operations of a process, if the site wants them:

    REDIS_MESSAGING = {"OBSERVE": "django_redis_messaging.metrics.observe_operation"}

Each process has its own. Where a server runs several, set PROMETHEUS_MULTIPROC_DIR, as the documentation of
prometheus_client says: then a scrape has the sums of all processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

#: seconds: the upper limits of the buckets
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: not the default registry: a site that exports it, too, would have the operations twice
registry = CollectorRegistry()
_operations = Counter(
    "messaging_operations",
    "Operations on Redis",
    ["operation", "outcome"],
    registry=registry,
)
_durations = Histogram(
    "messaging_operation_duration_seconds",
    "Duration of an operation on Redis",
    ["operation"],
    buckets=BUCKETS,
    registry=registry,
)


def observe_operation(operation: str, seconds: float, outcome: str) -> None:
    """Count an operation; for the setting OBSERVE, or observe()."""
    _operations.labels(operation, outcome).inc()
    _durations.labels(operation).observe(seconds)


class OperationsCollector(Collector):
    """The operations of this process; with PROMETHEUS_MULTIPROC_DIR, those of all processes."""

    def collect(self) -> Iterator[Metric]:
        """The metrics of operations; in the directory, there may be others, of the site."""
        if not os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            yield from registry.collect()
            return
        for metric in MultiProcessCollector(None).collect():
            if metric.name.startswith("messaging_operation"):
                yield metric
