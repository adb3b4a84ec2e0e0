"""The sections of the console, in their order: each has an entry in the admin's index."""

from __future__ import annotations

from typing import NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


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
    Section("history", _("History")),
    Section("audit", _("Audit trail")),
)
