"""The poller's rounds over timers."""

from __future__ import annotations

from collections.abc import Iterable

from ... import conf
from ...core.keys import current_prefix
from ..polling import Round, register, rounds_of_slot
from .engine import TimerEngine
from .keys import namespaces_key


@register
def timers() -> Iterable[Round]:
    """One round for each page of namespaces."""
    prefix = current_prefix()
    return rounds_of_slot(conf.alias(), TimerEngine(prefix), namespaces_key(prefix))
