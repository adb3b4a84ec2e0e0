"""Reports failures, whatever the exception is.

An exception can be impossible to format: its `__str__` raises SystemExit, its attributes have wrong types,
its class has no name. Formatting it, and so logging it, raises then. A loop that must go on, or whose end
must be noticed, uses what is here instead of `logger.exception` and `traceback.format_exception`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from traceback import format_exception, format_tb
from types import TracebackType
from typing import Self


def name_of(kind: type) -> str:
    """The qualified name of a class, or a name that was found in its place; without lone surrogates, which
    UTF-8 can't encode."""
    try:
        name = f"{kind.__qualname__}"
    except BaseException:
        name = f"{type.__dict__['__name__'].__get__(kind)}"
    return name.encode(errors="backslashreplace").decode()


def describe(error: BaseException) -> str:
    """An exception as one line: the name of its class and its text, as far as they can be had."""
    name = name_of(type(error))
    try:
        text = str(error)
    except BaseException as failure:
        return f"{name} (its text can't be formatted: {name_of(type(failure))})"
    return f"{name}: {text}" if text else name


def format_traceback(error: BaseException) -> str:
    """The traceback of an exception with its causes; without these if that is all that can be formatted."""
    try:
        return "".join(format_exception(error))
    except BaseException as failure:
        with suppress(BaseException):
            frames = "".join(format_tb(error.__traceback__))
            return (
                f"Traceback (most recent call last):\n{frames}{describe(error)}\n"
                f"(The exception can't be formatted: {name_of(type(failure))}.)\n"
            )
    return f"{describe(error)}\n(The exception can't be formatted.)\n"


def log_exception(
    logger: logging.Logger, error: BaseException, message: str, *args: object, level: int = logging.ERROR
) -> None:
    """`logger.exception`, for an exception that may be impossible to format; it raises nothing."""
    try:
        logger.log(level, message, *args, exc_info=error)
    except BaseException:  # of a handler: the exception can't be formatted, or the handler is broken
        with suppress(BaseException):
            logger.log(level, f"{message}\n%s", *args, format_traceback(error))


class LoopGuard:
    """A block around a loop, or around one turn of it: whatever it raises ends here. `on_failure` is called
    first, so that the failure has its effect, then the exception is logged.

    SystemExit and KeyboardInterrupt end here, too: in a thread they would end it without an error.
    """

    def __init__(
        self,
        logger: logging.Logger,
        message: str,
        *args: object,
        on_failure: Callable[[], object] = lambda: None,
    ) -> None:
        self._logger = logger
        self._message = message
        self._args = args
        self._on_failure = on_failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        try:
            self._on_failure()
        except BaseException as failure:
            log_exception(self._logger, failure, "Reacting to a failure failed.")
        log_exception(self._logger, error, self._message, *self._args)
        return True
