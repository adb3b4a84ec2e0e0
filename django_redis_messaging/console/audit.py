"""The page of the audit trail: who changed what through the console."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from ..services.audit import AuditTrail, Entry
from .base import ChangePage, ConsolePage
from .coordination import Release, ResetLimit, SetLimit
from .jobs import CHANGES
from .queues import PauseQueue, PurgeQueue, ResumeQueue
from .schedule import PERIODIC_CHANGES, TIMER_CHANGES
from .tables import Row, Table

#: entries on a page
PAGE = 50
_ALL: tuple[type[ChangePage], ...] = (
    *CHANGES, PauseQueue, ResumeQueue, PurgeQueue, *PERIODIC_CHANGES, *TIMER_CHANGES, Release, SetLimit,
    ResetLimit,
)  # fmt: skip
#: action → the words of its button
LABELS = {one.action: one.label for one in _ALL}


class AuditPage(ConsolePage):
    """The entries of the trail, the latest first; `?before=` pages."""

    section = "audit"

    def get(self, request: HttpRequest) -> HttpResponse:
        entries = AuditTrail().entries(request.GET.get("before", ""), limit=PAGE)
        table = Table(
            _("Changes"),
            [_("Time"), _("User"), pgettext("console", "Action"), _("Object"), _("Number"), _("Details")],
            entries,
            audit_row,
            _("Nothing has been changed yet."),
            next_url=self.url("audit", before=entries[-1].id) if len(entries) == PAGE else "",
        )
        return self.page({"page_title": _("Audit trail"), "tables": [table]})


def audit_row(entry: Entry) -> Row:
    """A change."""
    label = str(LABELS.get(entry.action, entry.action))
    return Row([entry.at, entry.by, label, entry.thing, entry.number, entry.detail])
