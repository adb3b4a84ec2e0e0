"""One hook in the runners, through which logs, metrics and traces go.

    from django_redis_messaging import observe

    @observe
    def to_metrics(operation: str, seconds: float, outcome: str) -> None: ...

`operation` is "Chat.send", `outcome` "ok" or the name of the error's class. The setting OBSERVE names
such a callable by its dotted path.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from .. import conf

logger = logging.getLogger(__name__)

Observer = Callable[[str, float, str], object]

_added: list[Observer] = []


def observe(observer: Observer) -> Observer:
    """Call `observer(operation, seconds, outcome)` after each operation; usable as a decorator."""
    _added.append(observer)
    _all.cache_clear()
    return observer


def unobserve(observer: Observer) -> None:
    """Stop calling `observer`."""
    _added.remove(observer)
    _all.cache_clear()


@functools.cache
def _all() -> tuple[Observer, ...]:
    named = conf.current().OBSERVE
    return (*_added, import_string(named)) if named else tuple(_added)


def wanted() -> bool:
    """Whether anybody observes: nobody does by default, and then nothing is timed."""
    return bool(_all())


@contextmanager
def timed(operation: str) -> Iterator[None]:
    """Tell the observers of what happens inside."""
    outcome = "ok"
    began = time.perf_counter()
    try:
        yield
    except BaseException as error:
        outcome = type(error).__name__
        raise
    finally:
        seconds = time.perf_counter() - began
        for observer in _all():
            _tell(observer, operation, seconds, outcome)


def _tell(observer: Observer, operation: str, seconds: float, outcome: str) -> None:
    try:
        observer(operation, seconds, outcome)
    except Exception:
        # the operation is over, and its result is not the observer's to spoil
        logger.exception("The observer %r failed.", observer)


def _forget(*, setting: str, **_: object) -> None:
    if setting == conf.NAME:
        _all.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_redis_messaging.observers")
