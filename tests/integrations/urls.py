"""URLs of a site with metrics and health checks."""

from __future__ import annotations

from django.urls import include, path
from health_check.views import HealthCheckView


class Health(HealthCheckView):
    checks = (
        "django_redis_messaging.health.Redis",
        ("django_redis_messaging.health.Consuming", {"max_age": 0.0}),
    )


urlpatterns = [
    path("metrics/", include("django_redis_messaging.metrics.urls")),
    path("health/", Health.as_view()),
]
