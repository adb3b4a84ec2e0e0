"""The page of the audit trail: who changed what through the console."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from ..services.audit import AuditTrail, Entry
from .base import ConsolePage
from .tables import Row, Table

#: entries on a page
PAGE = 50


class AuditPage(ConsolePage):
    """The entries of the trail, the latest first; `?before=` pages."""

    section = "audit"

    def get(self, request: HttpRequest) -> HttpResponse:
        entries = AuditTrail().entries(request.GET.get("before", ""), limit=PAGE)
        table = Table(
            _("Changes"),
            [_("Time"), _("User"), _("Action"), _("Changed"), _("Number"), _("Details")],
            entries,
            audit_row,
            _("Nothing has been changed yet."),
            next_url=self.url("audit", before=entries[-1].id) if len(entries) == PAGE else "",
        )
        return self.page({"page_title": _("Audit trail"), "tables": [table]})


def audit_row(entry: Entry) -> Row:
    """A change."""
    return Row([entry.at, entry.by, entry.action, entry.thing, entry.number, entry.detail])
