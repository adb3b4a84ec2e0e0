"""The console: pages on which operators see all that the app does for a site, and act on it.

Here are its sections. The admin imports this module in each process of a site, so it imports nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy


class Section(NamedTuple):
    """A section. Its first page has its name as path, and `messaging_NAME` as the name of its URL."""

    name: str
    title: str | Promise


SECTIONS = (
    Section("overview", _("Overview")),
    Section("queues", _("Tasks and queues")),
    Section("schedule", _("Schedule")),
    Section("timers", _("Timers")),
    Section("locks", _("Locks")),
    Section("limits", _("Rate limits")),
    Section("chats", _("Chats")),
    Section("channels", _("Channels")),
    Section("history", pgettext_lazy("console", "History")),
    Section("audit", _("Audit trail")),
)
