"""Metrics for Prometheus: `path("metrics/", include("django_redis_messaging.metrics.urls"))`.

Needs the extra `metrics`, and the setting METRICS_TOKEN.
"""

try:
    import prometheus_client as prometheus_client
except ImportError as error:
    raise ImportError(
        "Metrics need the package prometheus-client: pip install 'django-redis-messaging[metrics]'."
    ) from error

from .collector import Collector
from .observing import observe_operation

__all__ = ["Collector", "observe_operation"]
