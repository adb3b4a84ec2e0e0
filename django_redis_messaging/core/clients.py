"""The clients that send steps to Redis: one for each process and alias, one for each event loop and alias.

Renewals of leases have clients of their own, so that they never queue for a connection behind busy callers.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from sys import modules
from typing import Any, TypeVar

from django.core.signals import setting_changed
from redis.exceptions import RedisError

from .. import conf
from ..errors import MessagingError
from . import runs
from .commands import Command, Script, Step
from .connection import ASYNCIO, BLOCKING, Address, run
from .execution import Client
from .topology import endpoint, remove_keys

__all__ = [
    "Client",
    "aclose",
    "aperform",
    "blocking",
    "close",
    "execute",
    "perform",
    "perform_renewal",
    "running",
    "server_of",
]

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: blocking clients, by alias
_blocking: dict[str, Client] = {}
#: blocking clients that only renew leases
_renewing: dict[str, Client] = {}
#: clients of event loops, by alias and id of the loop
_running: dict[tuple[str, int], tuple[asyncio.AbstractEventLoop, Client, AsyncGenerator[None, None]]] = {}
#: what a forked child has of its parent's event loops, see `_discard_inherited`
_inherited: list[object] = []


def perform(using: str, steps: Generator[Step, Any, T]) -> T:
    """Run the steps of an operation against the Redis of an alias; blocks the thread."""
    client = None if runs.UTILS in modules else _blocking.get(using)  # nearly always as `blocking` finds it
    return run((client or blocking(using)).perform, steps)


def execute(using: str, step: Step) -> Any:
    """Send one step and return its reply; blocks the thread."""
    return run(blocking(using).execute, step)


async def aperform(using: str, steps: Generator[Step, Any, T]) -> T:
    """Run the steps of an operation against the Redis of an alias, in the running event loop."""
    return await running(using).perform(steps)


def perform_renewal(using: str, steps: Generator[Step, Any, T]) -> T:
    """`perform` for the renewal of a lease, on a connection that other operations don't use."""
    if runs.UTILS in modules:
        runs.current()
    client = _renewing.get(using) or _renewing.setdefault(using, Client(using, BLOCKING))
    return run(client.perform, steps)


def server_of(using: str, step: Command | Script) -> Address | None:
    """The server to which the blocking client sends a step now; None: the alias's server."""
    return blocking(using).endpoint.route(step)


def blocking(alias: str) -> Client:
    """The blocking client of an alias."""
    if runs.UTILS in modules:  # in tests only: the test environment may have been set up since the last call
        runs.current()
    try:
        return _blocking[alias]
    except KeyError:
        return _blocking.setdefault(alias, Client(alias, BLOCKING))


def running(alias: str) -> Client:
    """The client of an alias for the running event loop."""
    if runs.UTILS in modules:
        runs.current()
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
        closing.asend(None).send(None)  # runs to its yield, without a suspension
    _running[alias, id(loop)] = (loop, client, closing)
    return client


async def _closing(client: Client) -> AsyncGenerator[None, None]:
    """Close a client's connections when its loop ends: asyncio.run() shuts down the loop's asynchronous
    generators before it closes the loop."""
    try:
        yield
    finally:
        client.connections.close(retire=True)
        await asyncio.sleep(0)  # the loop closes the sockets in its next iteration


def close() -> None:
    """Close the idle blocking connections; the next call opens new ones."""
    for client in (*_blocking.values(), *_renewing.values()):
        client.connections.close()


async def aclose() -> None:
    """Close the idle connections of the running event loop."""
    loop = asyncio.get_running_loop()
    for key, (owner, client, _) in list(_running.items()):
        if owner is loop:
            _running.pop(key, None)
            client.connections.close(retire=True)
    await asyncio.sleep(0)  # the loop closes the sockets in its next iteration


def _discard_all() -> None:
    _blocking.clear()
    _renewing.clear()
    _running.clear()


def _discard_inherited() -> None:
    # In a forked child the sockets belong to the parent, so the child must not use them. Those of an event
    # loop are kept alive: destroying them would remove them from the epoll instance that parent and child
    # share, and the parent would never see its replies.
    _inherited.extend(_running.values())
    _discard_all()


def _reset(*, setting: str, **_: object) -> None:
    if setting in {conf.NAME, "CACHES"}:
        _retire_all()


def _retire_all(*_: object, **__: object) -> None:
    """Close all connections, those in use when they are given back; the next calls make new clients."""
    for client in (*_blocking.values(), *_renewing.values()):
        client.connections.close(retire=True)
    for loop, client, _closing in list(_running.values()):
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(functools.partial(client.connections.close, retire=True))
    _discard_all()
    endpoint.cache_clear()


def _remove_keys(sender: runs.Run, **_: object) -> None:
    """Remove the keys of a run of tests that uses the servers of the site."""
    for alias in sender.aliases:
        try:
            remove_keys(endpoint(alias), sender.root)
        except (MessagingError, RedisError) as error:
            logger.warning("Keys %s:* of CACHES[%r] could not be removed: %s", sender.root, alias, error)


os.register_at_fork(after_in_child=_discard_inherited)
setting_changed.connect(_reset, dispatch_uid="django_redis_messaging.clients")
runs.changed.connect(_retire_all, dispatch_uid="django_redis_messaging.clients")
runs.ending.connect(_remove_keys, dispatch_uid="django_redis_messaging.clients")
