"""A panel for django-debug-toolbar: the operations of a request.

    DEBUG_TOOLBAR_PANELS = [..., "django_redis_messaging.debug_panel.MessagingPanel"]

It has their names, scripts and commands, but no keys, arguments and bodies.
"""

# the toolbar's own attributes are properties
# pyright: reportAssignmentType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from typing import Any

try:
    from debug_toolbar.panels import Panel
except ImportError as error:
    raise ImportError("The panel needs django-debug-toolbar: pip install django-debug-toolbar.") from error

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from .core.commands import titles
from .core.operations import observe, observed_steps, unobserve

__all__ = ["MessagingPanel"]

#: operations of a request that are listed; later ones are only counted
MAX_ROWS = 500
#: the panel of the request that runs
_current: ContextVar[MessagingPanel | None] = ContextVar("messaging_panel", default=None)


class MessagingPanel(Panel):
    """The operations of a request, each with its time, its scripts and commands, and how it ended."""

    is_async = True
    title = _("Messaging")
    template = "django_redis_messaging/debug_panel.html"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rows: list[dict[str, Any]] = []
        self._operations = self._round_trips = 0
        self._seconds = 0.0

    @property
    def nav_subtitle(self) -> str:
        """The number of operations, and their time."""
        stats = self.get_stats()
        count = stats.get("operations", 0)
        return ngettext(
            "%(count)d operation in %(ms).2f ms", "%(count)d operations in %(ms).2f ms", count
        ) % {
            "count": count,
            "ms": stats.get("ms", 0.0),
        }

    def enable_instrumentation(self) -> None:
        """Observe the operations of this request."""
        _current.set(self)
        observe(self._note)

    def disable_instrumentation(self) -> None:
        """Observe no more operations."""
        unobserve(self._note)
        _current.set(None)

    def _note(self, operation: str, seconds: float, outcome: str) -> None:
        if _current.get() is not self:  # it is an operation of another request, or of a thread of the site
            return
        steps = observed_steps()
        self._operations += 1
        self._round_trips += len(steps)
        self._seconds += seconds
        if len(self._rows) < MAX_ROWS:
            sent = Counter(title for step in steps for title in titles(step))
            row = {"operation": operation, "ms": 1000 * seconds, "round_trips": len(steps)}
            row["sent"] = [f"{number} {title}" if number > 1 else title for title, number in sent.items()]
            self._rows.append({**row, "error": "" if outcome == "ok" else outcome})

    def generate_stats(self, request: HttpRequest, response: HttpResponse) -> None:
        """Store what was noted."""
        self.record_stats(
            {
                "operations": self._operations,
                "round_trips": self._round_trips,
                "ms": 1000 * self._seconds,
                "rows": self._rows,
                "hidden": self._operations - len(self._rows),
            }
        )

    def generate_server_timing(self, request: HttpRequest, response: HttpResponse) -> None:
        """Show the time in the developer tools of the browser."""
        self.record_server_timing("messaging", "Messaging", self.get_stats()["ms"])
