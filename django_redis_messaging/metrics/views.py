"""The page that Prometheus scrapes."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.utils.cache import add_never_cache_headers
from django.utils.crypto import constant_time_compare
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.debug import sensitive_variables
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from .. import conf
from .collector import Collector
from .observing import OperationsCollector


@method_decorator(login_not_required, name="dispatch")
class MetricsView(View):
    """The metrics, in the format that the request accepts: the text of Prometheus, or OpenMetrics."""

    http_method_names = ("get", "head", "options")

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not conf.current().METRICS_TOKEN:
            raise Http404
        if self.may_scrape(request):
            response = super().dispatch(request, *args, **kwargs)
        else:
            response = HttpResponse(status=401, headers={"WWW-Authenticate": "Bearer"})
        add_never_cache_headers(response)
        return response

    @sensitive_variables()
    def may_scrape(self, request: HttpRequest) -> bool:
        """Whether the request has the token of the setting METRICS_TOKEN."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        expected = conf.current().METRICS_TOKEN or ""
        return scheme.lower() == "bearer" and constant_time_compare(token.strip(), expected)

    def get(self, request: HttpRequest) -> HttpResponse:
        """Answer a scrape."""
        registry = CollectorRegistry()
        registry.register(Collector())
        registry.register(OperationsCollector())
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return HttpResponse(encode(registry), content_type=content_type)
