"""Operations with a blocking and an async version.

An operation is written once, as a generator that yields the steps to send and receives their replies. Two
runners drive it, one blocking and one async:

    class Chat(Service):
        @operation
        def send(self, sender: str, body: str) -> Steps[Message]:
            reply = yield Script("chat_send", keys=[...], args=[...])
            return Message(...)

        asend = asynchronous(send)

    chat.send("ann", "hi")            # Message
    await chat.asend("ann", "hi")     # Message
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator
from types import GeneratorType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from .. import conf
from . import clients, keys, observers
from .steps import BulkCommand, Command, Fan, Gather, Listen, PopHint, Script, Step

__all__ = [
    "BulkCommand",
    "Command",
    "Fan",
    "Gather",
    "Listen",
    "PopHint",
    "Script",
    "Service",
    "Steps",
    "aperform",
    "aperform_renewal",
    "asynchronous",
    "operation",
    "perform",
    "perform_renewal",
]

T = TypeVar("T")
P = ParamSpec("P")
#: the body of an operation: yields steps, receives their replies, returns the result
Steps = Generator[Step, Any, T]


class Performer(Protocol):
    """An object with operations, for the Redis of an alias."""

    _using: str


S = TypeVar("S", bound=Performer)


class Service:
    """The base of the classes with operations. Creating an instance does no I/O."""

    def __init__(self, *, using: str | None = None) -> None:
        self._using = using if using is not None else conf.alias()
        self._prefix = keys.current_prefix()


def operation(body: Callable[Concatenate[S, P], Steps[T]]) -> Callable[Concatenate[S, P], T]:
    """Make the blocking version of an operation."""

    @functools.wraps(body)
    def blocking(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not observers.enabled():
            return clients.perform(self._using, body(self, *args, **kwargs))
        with observers.timed(_title(self, body)):
            return clients.perform(self._using, body(self, *args, **kwargs))

    return blocking


def asynchronous(
    blocking: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make the async version of an `@operation`, with the same body and parameters."""
    body = cast(Any, blocking).__wrapped__

    @functools.wraps(body)
    async def async_version(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not observers.enabled():
            return await clients.aperform(self._using, body(self, *args, **kwargs))
        with observers.timed(_title(self, body)):
            return await clients.aperform(self._using, body(self, *args, **kwargs))

    async_version.__name__ = f"a{body.__name__}"
    async_version.__qualname__ = f"{body.__qualname__.rpartition('.')[0]}.{async_version.__name__}"
    return async_version


def _title(performer: object, body: Callable[..., object]) -> str:
    """The name of an operation for observers, such as Chat.send."""
    return f"{type(performer).__name__}.{body.__name__.lstrip('_')}"


def perform(using: str, steps: Steps[T]) -> T:
    """Run the steps of a plain generator, such as one of the lease engine, blocking the thread. Observers see
    the name of the generator function, such as Engine.claim."""
    if not observers.enabled():
        return clients.perform(using, steps)
    with observers.timed(_name_of(steps)):
        return clients.perform(using, steps)


async def aperform(using: str, steps: Steps[T]) -> T:
    """The async version of `perform`."""
    if not observers.enabled():
        return await clients.aperform(using, steps)
    with observers.timed(_name_of(steps)):
        return await clients.aperform(using, steps)


def perform_renewal(using: str, steps: Steps[T]) -> T:
    """`perform` for the renewal of a lease: it has a connection of its own, so that it doesn't wait while all
    others are in use."""
    if not observers.enabled():
        return clients.perform_renewal(using, steps)
    with observers.timed(_name_of(steps)):
        return clients.perform_renewal(using, steps)


async def aperform_renewal(using: str, steps: Steps[T]) -> T:
    """The async version of `perform_renewal`."""
    if not observers.enabled():
        return await clients.aperform_renewal(using, steps)
    with observers.timed(_name_of(steps)):
        return await clients.aperform_renewal(using, steps)


def _name_of(steps: Steps[Any]) -> str:
    owner, dot, name = cast("GeneratorType[Any, Any, Any]", steps).__qualname__.rpartition(".")
    return f"{owner}{dot}{name.lstrip('_')}"
