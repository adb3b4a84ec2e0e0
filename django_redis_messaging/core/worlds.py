"""One body, two worlds: what code that is written once needs to block a thread, or to await."""

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
    """What code that is written once needs to block a thread, or to await.

    It is a coroutine, and awaits `done(...)` around each call that does I/O. In the blocking world that
    call has done it by then, and nothing is ever suspended, so `run` gets by without an event loop.
    """

    connection: type[BlockingConnection] | type[AsyncConnection]
    done: Callable[[Any], Awaitable[Any]]
    sleep: Callable[[float], Awaitable[None]]
    event: Callable[[], threading.Event | asyncio.Event]
    #: waits until an event is set, or for so many seconds
    wait: Callable[[Any, float], Awaitable[None]]


async def _done(result: T) -> T:
    return result


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251  (the pause before an attempt: in this world, blocking is what is meant)


async def _wait(event: threading.Event, seconds: float) -> None:
    event.wait(seconds)


async def _await(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _as_it_is(awaitable: Awaitable[T]) -> Awaitable[T]:
    return awaitable


BLOCKING = World(BlockingConnection, _done, _sleep, threading.Event, _wait)
ASYNCIO = World(AsyncConnection, _as_it_is, asyncio.sleep, asyncio.Event, _await)


def run(function: Callable[[A], Coroutine[Any, Any, T]], argument: A) -> T:
    """What a coroutine function of the blocking world returns."""
    try:
        # One expression and a plain call: an interrupt that came after the coroutine is made, and before it
        # begins, would leave it never awaited.
        function(argument).send(None)
    except StopIteration as finished:
        return cast(T, finished.value)
    raise RuntimeError("Code of the blocking world was suspended: it awaited something else than a World's.")
