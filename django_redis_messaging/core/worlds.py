"""What code that is written once needs to run either blocking or in an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar, cast

from .sockets import AsyncConnection, BlockingConnection

A = TypeVar("A")
T = TypeVar("T")


class BlockingSignal:
    """Wakes one thread. Unlike that of an Event, its `set` may be called in a signal handler."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """End the wait, now or later."""
        self._items.put(None)

    set_from_any_thread = set

    async def wait(self, seconds: float) -> None:
        """Wait until it is set, or for this many seconds."""
        with suppress(Empty):
            self._items.get(timeout=max(seconds, 0))


class LoopSignal:
    """Wakes one task of the running event loop."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def set(self) -> None:
        """End the wait, now or later."""
        if not self._future.done():
            self._future.set_result(None)

    def set_from_any_thread(self) -> None:
        """`set`, also from outside of the loop."""
        with suppress(RuntimeError):  # the loop is closed
            self._future.get_loop().call_soon_threadsafe(self.set)

    async def wait(self, seconds: float) -> None:
        """Wait until it is set, or for this many seconds."""
        await asyncio.wait([self._future], timeout=max(seconds, 0))


class World(NamedTuple):
    """The primitives that shared code uses: those that block a thread, or those of asyncio.

    Shared code is a coroutine that awaits `done(...)` around each call that does I/O. In the blocking world
    the call has finished by then, and the coroutine is never suspended, so `run` needs no event loop.
    """

    connection: type[BlockingConnection] | type[AsyncConnection]
    done: Callable[[Any], Awaitable[Any]]
    sleep: Callable[[float], Awaitable[None]]
    signal: Callable[[], BlockingSignal | LoopSignal]


async def _done(result: T) -> T:
    return result


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251  (the blocking world: its coroutines run outside of event loops)


def _identity(awaitable: Awaitable[T]) -> Awaitable[T]:
    return awaitable


BLOCKING = World(BlockingConnection, _done, _sleep, BlockingSignal)
ASYNCIO = World(AsyncConnection, _identity, asyncio.sleep, LoopSignal)


def run(function: Callable[[A], Coroutine[Any, Any, T]], argument: A) -> T:
    """Run a coroutine function of the blocking world and return its result."""
    try:
        # One expression and a plain call: an interrupt between making the coroutine and its first step would
        # leave it never awaited.
        function(argument).send(None)
    except StopIteration as finished:
        return cast(T, finished.value)
    raise RuntimeError("Code of the blocking world was suspended: it awaited something other than World's.")
