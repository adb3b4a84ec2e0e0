"""The one seam to Redis: who sends a step. One client a process and alias, one an event loop and alias."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import suppress

from django.core.signals import setting_changed

from .. import conf
from .awaiting import AwaitingClient
from .blocking import BlockingClient
from .endpoints import endpoint
from .retry import hurry

__all__ = ["AwaitingClient", "BlockingClient", "aclose", "awaiting", "blocking", "close"]

#: whoever is in a hurry has connections of their own, whose time limits are shorter
_blocking: dict[tuple[str, float | None], BlockingClient] = {}
_awaiting: dict[tuple[str, int], tuple[asyncio.AbstractEventLoop, AwaitingClient]] = {}
_inherited: list[object] = []


def blocking(alias: str) -> BlockingClient:
    """The blocking client of an alias."""
    whose = (alias, hurry())
    try:
        return _blocking[whose]
    except KeyError:
        return _blocking.setdefault(whose, BlockingClient(alias))


def awaiting(alias: str) -> AwaitingClient:
    """The awaiting client of an alias, for the event loop that runs."""
    loop = asyncio.get_running_loop()
    found = _awaiting.get((alias, id(loop)))
    if found is not None and found[0] is loop:
        return found[1]
    for key, (other, _) in list(_awaiting.items()):
        if other.is_closed():
            del _awaiting[key]
    client = AwaitingClient(alias)
    client.closing = _closing(client)
    with suppress(StopIteration):
        client.closing.asend(None).send(None)  # as far as its yield: nothing is awaited before
    _awaiting[alias, id(loop)] = (loop, client)
    return client


async def _closing(client: AwaitingClient) -> AsyncGenerator[None, None]:
    """Closes a client's connections when its loop ends: whoever runs a loop shuts down the asynchronous
    generators that began in it, before closing it."""
    try:
        yield
    finally:
        await client.close()


def close() -> None:
    """Close the idle blocking connections; the next call opens new ones."""
    for client in list(_blocking.values()):
        client.close()


async def aclose() -> None:
    """Close the idle connections of the event loop that runs."""
    loop = asyncio.get_running_loop()
    for key, (owner, client) in list(_awaiting.items()):
        if owner is loop:
            del _awaiting[key]
            await client.close()


def _forget_all() -> None:
    _blocking.clear()
    _awaiting.clear()


def _forget_the_parents() -> None:
    # In a forked child the sockets are the parent's: forget them, don't talk over them. Awaiting ones
    # are kept alive, unused: destroyed, they would leave the epoll that parent and child share, and the
    # parent would not see its replies any more.
    _inherited.extend(_awaiting.values())
    _forget_all()


def _forget(*, setting: str, **_: object) -> None:
    if setting in {conf.NAME, "CACHES"}:
        close()
        _forget_all()
        endpoint.cache_clear()


os.register_at_fork(after_in_child=_forget_the_parents)
setting_changed.connect(_forget, dispatch_uid="django_redis_messaging.clients")
