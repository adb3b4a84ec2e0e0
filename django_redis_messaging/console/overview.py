"""The overview: the number of each capability that matters, and what is wrong right now."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from .base import ConsolePage


class OverviewPage(ConsolePage):
    """The first page of the console."""

    section = "overview"

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.page({"page_title": _("Overview"), "tables": []})
