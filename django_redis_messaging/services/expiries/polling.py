"""The poller's rounds over timers."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.keys import current_prefix
from ..polling import Round, default_alias, register, rounds_of_slot
from .engine import TimerEngine
from .keys import namespaces_key


@register(default_alias)
def timers(using: str) -> Iterable[Round]:
    """One round for each page of namespaces."""
    prefix = current_prefix()
    return rounds_of_slot(using, TimerEngine(prefix), namespaces_key(prefix))
