"""The demo's servers: Redis, where none is configured, and the site itself."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import uvicorn
from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application
from django.core.management.base import CommandError
from django.test import override_settings
from django_redis import get_redis_connection
from shop import following

from django_redis_messaging import ConfigurationError, handlers
from django_redis_messaging.core import clients
from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.services.listening import Listener
from django_redis_messaging.services.together import Together
from django_redis_messaging.tasks.polling import our_backends
from django_redis_messaging.tasks.worker import Limits, Worker

#: seconds that requests under way may take when the demo stops
PATIENCE = 2


class Stopped(BaseException):
    """Ctrl-C or SIGTERM, at a time when no request is served."""


_asked: list[int] = []


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C and SIGTERM end what is inside, and nothing else: what has to be cleaned up is."""
    _asked.clear()
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except Stopped:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_if_asked() -> None:
    """End here if a signal came at a time when its exception could get lost: in a destructor, it does."""
    if _asked:
        raise Stopped


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    _asked.append(number)
    raise Stopped


@contextmanager
def redis() -> Iterator[str]:
    """The server that REDIS_URL names, else a private one with its data in the demo's directory."""
    settings.DATA_DIR.mkdir(parents=True, exist_ok=True)
    if "REDIS_URL" in os.environ:
        yield "the server of REDIS_URL"
        return
    server = EmbeddedServer(settings.DATA_DIR / "redis", append_only=True)
    try:
        server.start()
        entry = {**settings.CACHES["messaging"], "LOCATION": server.url}
        # The checks have used the alias already: this makes everybody look again.
        with override_settings(CACHES={**settings.CACHES, "messaging": entry}):
            yield f"a private server, data in {server.directory}"
    except ConfigurationError as error:
        raise CommandError(str(error)) from error
    finally:
        clients.close()
        server.close()


def remove_keys() -> None:
    """Remove the keys of earlier demos, and no others."""
    client = get_redis_connection("messaging")
    for key in client.scan_iter(match=f"{settings.REDIS_MESSAGING['PREFIX']}:*", count=1000):
        client.unlink(key)


def bind(host: str, port: int) -> socket.socket:
    """The socket the site will listen on, taken before anything else is begun."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        in_use = f"Port {port} is in use: stop what listens there, or give another --port."
        other = f"Can't listen on {host} port {port} ({error}): give another --host or --port."
        raise CommandError(in_use if getattr(error, "errno", None) == errno.EADDRINUSE else other) from error
    return listening


@contextmanager
def working() -> Iterator[None]:
    """While this lasts, this process executes tasks, calls the handlers of timers, and hears of changes."""
    [backend] = our_backends()
    worker = Worker(backend, backend.queue_names, Limits(concurrency=2, drain=PATIENCE))
    handlers.discover()
    listener = Listener(handlers.timers, handlers.key_events, Limits(concurrency=2, drain=PATIENCE))
    together = Together({"worker": worker, "listener": listener})
    thread = threading.Thread(target=together.run, name="messaging")
    thread.start()
    unfollow = following.start()
    try:
        yield
    finally:
        together.stop()
        unfollow()
        thread.join()


class Site(uvicorn.Server):
    """The site under ASGI, static files included; `ready` is called once it answers."""

    def __init__(self, ready: Callable[[], None]) -> None:
        application = ASGIStaticFilesHandler(get_asgi_application())
        super().__init__(
            uvicorn.Config(
                application,
                lifespan="off",
                log_level="warning",
                timeout_graceful_shutdown=PATIENCE,
            )
        )
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        stop_if_asked()
        await super().startup(sockets=sockets)
        self._ready()
