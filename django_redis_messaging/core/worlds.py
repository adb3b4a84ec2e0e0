"""What code that is written once needs to run either blocking or in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar, cast

from .sockets import AsyncConnection, BlockingConnection

A = TypeVar("A")
T = TypeVar("T")


class World(NamedTuple):
    """The primitives that shared code uses: those that block a thread, or those of asyncio.

    Shared code is a coroutine that awaits `done(...)` around each call that does I/O. In the blocking world
    the call has finished by then, and the coroutine is never suspended, so `run` needs no event loop.
    """

    connection: type[BlockingConnection] | type[AsyncConnection]
    done: Callable[[Any], Awaitable[Any]]
    sleep: Callable[[float], Awaitable[None]]
    event: Callable[[], threading.Event | asyncio.Event]
    #: waits until an event is set, or for this many seconds
    wait: Callable[[Any, float], Awaitable[None]]


async def _done(result: T) -> T:
    return result


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251  (the blocking world: its coroutines run outside of event loops)


async def _wait(event: threading.Event, seconds: float) -> None:
    event.wait(seconds)


async def _await(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _identity(awaitable: Awaitable[T]) -> Awaitable[T]:
    return awaitable


BLOCKING = World(BlockingConnection, _done, _sleep, threading.Event, _wait)
ASYNCIO = World(AsyncConnection, _identity, asyncio.sleep, asyncio.Event, _await)


def run(function: Callable[[A], Coroutine[Any, Any, T]], argument: A) -> T:
    """Run a coroutine function of the blocking world and return its result."""
    try:
        # One expression and a plain call: an interrupt between making the coroutine and its first step would
        # leave it never awaited.
        function(argument).send(None)
    except StopIteration as finished:
        return cast(T, finished.value)
    raise RuntimeError("Code of the blocking world was suspended: it awaited something other than World's.")
