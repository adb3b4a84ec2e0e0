"""The URLconf to include: `path("metrics/", include("django_redis_messaging.metrics.urls"))`."""

from django.urls import path

from .views import MetricsView

app_name = "messaging_metrics"

urlpatterns = [path("", MetricsView.as_view(), name="metrics")]
