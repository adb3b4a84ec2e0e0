"""The hook for logs, metrics and traces: callables that are called after each operation.

    from django_redis_messaging import observe

    @observe
    def to_metrics(operation: str, seconds: float, outcome: str) -> None: ...

`operation` is "Chat.send", `outcome` "ok" or the name of the error's class. The setting OBSERVE names
such a callable by its dotted path. It is called in the thread or task in which the operation ends, so it must
not be async. Operations that an observer calls itself are not observed.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from .. import conf
from ..errors import ConfigurationError
from .failures import log_exception

logger = logging.getLogger(__name__)

Observer = Callable[[str, float, str], object]

_added: list[Observer] = []
#: whether an observer is running: its own operations are not observed
_observing: ContextVar[bool] = ContextVar("observing", default=False)


def observe(observer: Observer) -> Observer:
    """Call `observer(operation, seconds, outcome)` after each operation; usable as a decorator.

    Raises TypeError for an async function, which would never be awaited.
    """
    if _is_async(observer):
        raise TypeError(f"{observer!r} is async: an observer must be a plain function.")
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
    if not named:
        return tuple(_added)
    observer = import_string(named)
    if _is_async(observer):
        raise ConfigurationError(
            f"OBSERVE in {conf.NAME} is {named}, an async function: use a plain function."
        )
    return (*_added, observer)


def _is_async(observer: Observer) -> bool:
    return inspect.iscoroutinefunction(observer) or inspect.iscoroutinefunction(
        getattr(observer, "__call__", None)  # noqa: B004
    )


def enabled() -> bool:
    """Whether there are observers; without any, the default, operations are not timed."""
    return bool(_all()) and not _observing.get()


@contextmanager
def timed(operation: str) -> Iterator[None]:
    """Time the block, and call the observers at its end."""
    outcome = "ok"
    began = time.perf_counter()
    try:
        yield
    except BaseException as error:
        outcome = type(error).__name__
        raise
    finally:
        seconds = time.perf_counter() - began
        token = _observing.set(True)
        try:
            for observer in _all():
                _call(observer, operation, seconds, outcome)
        finally:
            _observing.reset(token)


def _call(observer: Observer, operation: str, seconds: float, outcome: str) -> None:
    try:
        observer(operation, seconds, outcome)
    except Exception as error:
        # The operation is over: a failing observer must not change its result.
        log_exception(logger, error, "The observer %r failed.", observer)


def _reset(*, setting: str, **_: object) -> None:
    if setting == conf.NAME:
        _all.cache_clear()


setting_changed.connect(_reset, dispatch_uid="django_redis_messaging.observers")
