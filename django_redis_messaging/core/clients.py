"""The one seam to Redis: who sends a step. One client a process and alias, one an event loop and alias."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from typing import Any, TypeVar

from django.core.signals import setting_changed

from .. import conf
from .endpoints import endpoint
from .execution import Client
from .steps import Step
from .worlds import ASYNCIO, BLOCKING, run

__all__ = ["Client", "aclose", "aperform", "ask", "blocking", "close", "perform", "running"]

T = TypeVar("T")

_blocking: dict[str, Client] = {}
_running: dict[tuple[str, int], tuple[asyncio.AbstractEventLoop, Client, AsyncGenerator[None, None]]] = {}
_inherited: list[object] = []


def perform(using: str, steps: Generator[Step, Any, T]) -> T:
    """Do what the steps say with the Redis of an alias, blocking the thread."""
    return run(blocking(using).perform, steps)


def ask(using: str, step: Step) -> Any:
    """The reply to one step, blocking the thread."""
    return run(blocking(using).execute, step)


async def aperform(using: str, steps: Generator[Step, Any, T]) -> T:
    """Do what the steps say with the Redis of an alias, in the event loop that runs."""
    return await running(using).perform(steps)


def blocking(alias: str) -> Client:
    """The blocking client of an alias."""
    try:
        return _blocking[alias]
    except KeyError:
        return _blocking.setdefault(alias, Client(alias, BLOCKING))


def running(alias: str) -> Client:
    """The client of an alias for the event loop that runs."""
    loop = asyncio.get_running_loop()
    found = _running.get((alias, id(loop)))
    if found is not None and found[0] is loop:
        return found[1]
    for key, (other, *_) in list(_running.items()):
        if other.is_closed():
            _running.pop(key, None)
    client = Client(alias, ASYNCIO)
    closing = _closing(client)
    with suppress(StopIteration):
        closing.asend(None).send(None)  # as far as its yield: nothing is awaited before
    _running[alias, id(loop)] = (loop, client, closing)
    return client


async def _closing(client: Client) -> AsyncGenerator[None, None]:
    """Closes a client's connections when its loop ends: whoever runs a loop shuts down the asynchronous
    generators that began in it, before closing it."""
    try:
        yield
    finally:
        client.connections.close(retire=True)
        await asyncio.sleep(0)  # the loop closes the sockets in its next turn


def close() -> None:
    """Close the idle blocking connections; the next call opens new ones."""
    for client in list(_blocking.values()):
        client.connections.close()


async def aclose() -> None:
    """Close the idle connections of the event loop that runs."""
    loop = asyncio.get_running_loop()
    for key, (owner, client, _) in list(_running.items()):
        if owner is loop:
            _running.pop(key, None)
            client.connections.close(retire=True)
    await asyncio.sleep(0)  # the loop closes the sockets in its next turn


def _forget_all() -> None:
    _blocking.clear()
    _running.clear()


def _forget_the_parents() -> None:
    # In a forked child the sockets are the parent's: forget them, don't talk over them. Those of an event
    # loop are kept alive, unused: destroyed, they would leave the epoll that parent and child share, and the
    # parent would not see its replies any more.
    _inherited.extend(_running.values())
    _forget_all()


def _forget(*, setting: str, **_: object) -> None:
    if setting not in {conf.NAME, "CACHES"}:
        return
    for client in list(_blocking.values()):
        client.connections.close(retire=True)
    for loop, client, _closing in list(_running.values()):
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(functools.partial(client.connections.close, retire=True))
    _forget_all()
    endpoint.cache_clear()


os.register_at_fork(after_in_child=_forget_the_parents)
setting_changed.connect(_forget, dispatch_uid="django_redis_messaging.clients")
