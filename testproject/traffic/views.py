"""The page of the traffic."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.generic import TemplateView, View

from django_redis_messaging import LockError

from . import access_log, counting, figures

#: seconds that a request waits for the counts of the log that it has published
PATIENCE = 5.0


class TrafficView(LoginRequiredMixin, TemplateView):
    """The requests by country and day."""

    template_name = "traffic/traffic.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        visits = counting.visits()
        days = figures.read_days(visits)
        return super().get_context_data(
            log=access_log.find_log().name,
            days=days,
            totals=figures.by_day(days),
            total=sum(one.total for one in days),
            malformed=visits.malformed(),
            waiting=counting.waiting(),
            **kwargs,
        )


class ProcessView(LoginRequiredMixin, View):
    """For staff: publishes the access log, then redirects to the page."""

    http_method_names = ["post"]  # noqa: RUF012  (as in Django's own views)

    def handle_no_permission(self) -> HttpResponseRedirect:
        """After signing in, continue on the page: this URL can't be opened."""
        return redirect_to_login(reverse("traffic"))

    def post(self, request: HttpRequest) -> HttpResponse:
        """Publish it, and wait for a while until it is counted."""
        if not request.user.is_staff:
            raise PermissionDenied
        try:
            report = counting.publish()
        except LockError:
            messages.error(request, _("Somebody else is publishing the log at the moment. Please try again."))
            return redirect("traffic")
        if not report.files:
            messages.info(request, _("This log was processed before. Nothing was counted twice."))
        elif counting.wait_until_counted(PATIENCE):
            messages.success(request, _("The log was processed."))
        return redirect("traffic")
