"""What is due by time among timers."""

from __future__ import annotations

from collections.abc import Iterable

from ..polling import Round, register
from .store import TimerStore


@register
def timers() -> Iterable[Round]:
    """One round over all namespaces."""
    return [TimerStore().sweep]
