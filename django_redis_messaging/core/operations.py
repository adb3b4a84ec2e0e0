"""Operations with a blocking and an async version, the observers of operations, and reports of failures.

An operation is written once, as a generator that yields the steps to send and receives their replies. Two
runners drive it, one blocking and one async:

    class Chat(Service):
        @operation
        def send(self, sender: str, body: str) -> Steps[Message]:
            reply = yield Script("chats/send", keys=[...], args=[...])
            return Message(...)

        asend = asynchronous(send)

    chat.send("ann", "hi")            # Message
    await chat.asend("ann", "hi")     # Message

An observer is called after each operation, in its thread or task, so it must not be async. Operations that an
observer calls itself are not observed. The setting OBSERVE names one by its dotted path; others are added:

    from django_redis_messaging import observe

    @observe
    def to_metrics(operation: str, seconds: float, outcome: str) -> None: ...

`operation` is "Chat.send", `outcome` "ok" or the name of the error's class.

An exception can be impossible to format: its `__str__` raises SystemExit, its attributes have wrong types,
its class has no name. Formatting it, and so logging it, raises then. A loop that must go on, or whose end
must be noticed, uses `LoopGuard` and `log_exception` instead of `logger.exception`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from traceback import format_exception, format_tb
from types import GeneratorType, TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, cast

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from .. import conf
from ..errors import ConfigurationError
from . import clients, encoding
from .commands import (
    BulkCommand,
    Clock,
    Command,
    Confirmation,
    Fan,
    Gather,
    InOrder,
    Listen,
    PopHint,
    Script,
    Step,
    Together,
)

__all__ = [
    "BulkCommand",
    "Clock",
    "Command",
    "Confirmation",
    "Fan",
    "Gather",
    "InOrder",
    "Listen",
    "LoopGuard",
    "PopHint",
    "Script",
    "Service",
    "Steps",
    "Together",
    "aperform",
    "asynchronous",
    "describe",
    "format_traceback",
    "log_exception",
    "name_of",
    "observe",
    "observed_steps",
    "operation",
    "perform",
    "perform_renewal",
    "unobserve",
]

logger = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")
#: the body of an operation: yields steps, receives their replies, returns the result
Steps = Generator[Step, Any, T]
Observer = Callable[[str, float, str], object]


class Performer(Protocol):
    """An object with operations, for the Redis of an alias."""

    @property
    def _using(self) -> str: ...


S = TypeVar("S", bound=Performer)
_added_observers: list[Observer] = []
#: while observers are running, the steps of the operation; None: none are. Their own operations are not
#: observed
_observing: ContextVar[Sequence[Step] | None] = ContextVar("observing", default=None)


class Service:
    """The base of the classes with operations. Creating an instance does no I/O."""

    def __init__(self, *, using: str | None = None) -> None:
        self._using = using if using is not None else conf.alias()
        self._prefix = encoding.current_prefix()


def operation(body: Callable[Concatenate[S, P], Steps[T]]) -> Callable[Concatenate[S, P], T]:
    """Make the blocking version of an operation."""

    @functools.wraps(body)
    def blocking(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not are_observed():
            return clients.perform(self._using, body(self, *args, **kwargs))
        with Timed(_title(self, body)) as timed:
            return clients.perform(self._using, timed.noting(body(self, *args, **kwargs)))

    return blocking


def asynchronous(
    blocking: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make the async version of an `@operation`, with the same body and parameters."""
    body = cast(Any, blocking).__wrapped__

    @functools.wraps(body)
    async def async_version(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not are_observed():
            return await clients.aperform(self._using, body(self, *args, **kwargs))
        with Timed(_title(self, body)) as timed:
            return await clients.aperform(self._using, timed.noting(body(self, *args, **kwargs)))

    async_version.__name__ = f"a{body.__name__}"
    async_version.__qualname__ = f"{body.__qualname__.rpartition('.')[0]}.{async_version.__name__}"
    return async_version


def _title(performer: object, body: Callable[..., object]) -> str:
    """The name of an operation for observers, such as Chat.send."""
    return f"{type(performer).__name__}.{body.__name__.lstrip('_')}"


def perform(using: str, steps: Steps[T]) -> T:
    """Run the steps of a plain generator, such as one of the lease engine, blocking the thread. Observers see
    the name of the generator function, such as Engine.claim."""
    if not are_observed():
        return clients.perform(using, steps)
    with Timed(_name_of(steps)) as timed:
        return clients.perform(using, timed.noting(steps))


async def aperform(using: str, steps: Steps[T]) -> T:
    """The async version of `perform`."""
    if not are_observed():
        return await clients.aperform(using, steps)
    with Timed(_name_of(steps)) as timed:
        return await clients.aperform(using, timed.noting(steps))


def perform_renewal(using: str, steps: Steps[T]) -> T:
    """`perform` for the renewal of a lease: it has a connection of its own, so that it doesn't wait while all
    others are in use."""
    if not are_observed():
        return clients.perform_renewal(using, steps)
    with Timed(_name_of(steps)) as timed:
        return clients.perform_renewal(using, timed.noting(steps))


def _name_of(steps: Steps[Any]) -> str:
    owner, dot, name = cast("GeneratorType[Any, Any, Any]", steps).__qualname__.rpartition(".")
    return f"{owner}{dot}{name.lstrip('_')}"


def observe(observer: Observer) -> Observer:
    """Call `observer(operation, seconds, outcome)` after each operation; usable as a decorator.

    Raises TypeError for an async function, which would never be awaited.
    """
    if is_async_observer(observer):
        raise TypeError(f"{observer!r} is async: an observer must be a plain function.")
    _added_observers.append(observer)
    return observer


def unobserve(observer: Observer) -> None:
    """Stop calling `observer`."""
    _added_observers.remove(observer)


def _observers() -> list[Observer]:
    named = _named_observer()
    return [*_added_observers, *([named] if named else [])]


@functools.cache
def _named_observer() -> Observer | None:
    """The one in the settings."""
    named = conf.current().OBSERVE
    if not named:
        return None
    try:
        observer = import_string(named)
    except ImportError as error:
        raise ConfigurationError(
            f"OBSERVE in {conf.NAME} is {named!r}, which can't be imported: {error}."
        ) from error
    if is_async_observer(observer):
        raise ConfigurationError(
            f"OBSERVE in {conf.NAME} is {named}, an async function: use a plain function."
        )
    return cast(Observer, observer)


def is_async_observer(observer: Observer) -> bool:
    """Whether `observer` returns a coroutine, which nobody would await."""
    return inspect.iscoroutinefunction(observer) or inspect.iscoroutinefunction(
        getattr(observer, "__call__", None)  # noqa: B004
    )


def are_observed() -> bool:
    """Whether there are observers; without any, the default, operations are not timed."""
    return bool(_added_observers or _named_observer()) and _observing.get() is None


def observed_steps() -> Sequence[Step]:
    """For observers: the steps that the operation has sent, each in one round trip unless it was retried."""
    return _observing.get() or ()


class Timed:
    """Times the block of an operation, and calls the observers at its end."""

    __slots__ = ("_began", "_operation", "_sent")

    def __init__(self, operation: str) -> None:
        self._operation = operation
        #: the steps of the operation
        self._sent: list[Step] = []

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self._began
        outcome = "ok" if kind is None else kind.__name__
        token = _observing.set(self._sent)
        try:
            for observer in _observers():
                _notify(observer, self._operation, seconds, outcome)
        finally:
            _observing.reset(token)

    def noting(self, steps: Steps[T]) -> Steps[T]:
        """The same steps; notes each for the observers."""
        try:
            step = next(steps)
            while True:
                self._sent.append(step)
                try:
                    reply = yield step
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result


def _notify(observer: Observer, operation: str, seconds: float, outcome: str) -> None:
    try:
        observer(operation, seconds, outcome)
    except Exception as error:
        # The operation is over: a failing observer must not change its result.
        log_exception(logger, error, "The observer %r failed.", observer)


def _forget_observers(*, setting: str, **_: object) -> None:
    if setting == conf.NAME:
        _named_observer.cache_clear()


setting_changed.connect(_forget_observers, dispatch_uid="django_redis_messaging.observers")


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


def log_exception(
    logger: logging.Logger, error: BaseException, message: str, *args: object, level: int = logging.ERROR
) -> None:
    """`logger.exception`, for an exception that may be impossible to format; it raises nothing."""
    try:
        logger.log(level, message, *args, exc_info=error)
    except BaseException:  # of a handler: the exception can't be formatted, or the handler is broken
        with suppress(BaseException):
            logger.log(level, f"{message}\n%s", *args, format_traceback(error))


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


def describe(error: BaseException) -> str:
    """An exception as one line: the name of its class and its text, as far as they can be had."""
    name = name_of(type(error))
    try:
        text = str(error)
    except BaseException as failure:
        return f"{name} (its text can't be formatted: {name_of(type(failure))})"
    return f"{name}: {text}" if text else name


def name_of(kind: type) -> str:
    """The qualified name of a class, or a name that was found in its place; without lone surrogates, which
    UTF-8 can't encode."""
    try:
        name = f"{kind.__qualname__}"
    except BaseException:
        name = f"{type.__dict__['__name__'].__get__(kind)}"
    return name.encode(errors="backslashreplace").decode()
