"""One body, two worlds.

An operation is written once, as a generator that yields what is to be sent and receives the reply. Two
runners drive it, one blocking and one awaiting:

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
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from .. import conf
from . import clients, keys, observers
from .steps import Command, Fan, Gather, Listen, PopHint, Script, Step

__all__ = [
    "Command",
    "Fan",
    "Gather",
    "Listen",
    "PopHint",
    "Script",
    "Service",
    "Steps",
    "asynchronous",
    "operation",
]

T = TypeVar("T")
P = ParamSpec("P")
#: what the body of an operation is: it yields steps, receives replies, returns the result
Steps = Generator[Step, Any, T]


class Performer(Protocol):
    """Whatever has operations: it knows which Redis they are for."""

    _using: str


S = TypeVar("S", bound=Performer)


class Service:
    """A thing in Redis, named by its arguments. Making one does no I/O."""

    def __init__(self, *, using: str | None = None) -> None:
        self._using = using if using is not None else conf.alias()
        self._prefix = keys.checked_prefix(conf.prefix())


def operation(body: Callable[Concatenate[S, P], Steps[T]]) -> Callable[Concatenate[S, P], T]:
    """The blocking form of `body`."""

    @functools.wraps(body)
    def blocking(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not observers.wanted():
            return clients.perform(self._using, body(self, *args, **kwargs))
        with observers.timed(_title(self, body)):
            return clients.perform(self._using, body(self, *args, **kwargs))

    return blocking


def asynchronous(
    blocking: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The awaiting form of an `@operation`: the same body, the same parameters."""
    body = cast(Any, blocking).__wrapped__

    @functools.wraps(body)
    async def awaiting(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not observers.wanted():
            return await clients.aperform(self._using, body(self, *args, **kwargs))
        with observers.timed(_title(self, body)):
            return await clients.aperform(self._using, body(self, *args, **kwargs))

    awaiting.__name__ = f"a{body.__name__}"
    awaiting.__qualname__ = f"{body.__qualname__.rpartition('.')[0]}.{awaiting.__name__}"
    return awaiting


def _title(performer: object, body: Callable[..., object]) -> str:
    """Such as Chat.send."""
    return f"{type(performer).__name__}.{body.__name__.lstrip('_')}"
