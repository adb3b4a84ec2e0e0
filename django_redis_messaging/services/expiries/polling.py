"""The poller's rounds over timers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ... import conf
from ...core.keys import current_prefix
from ..polling import Round, register, sweep
from .engine import TimerEngine


@register
def timers() -> Iterable[Round]:
    """One round over all namespaces."""
    return [partial(sweep, conf.alias(), TimerEngine(current_prefix()).sweep_all)]
