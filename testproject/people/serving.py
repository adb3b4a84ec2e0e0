"""The servers of the demo: Redis, background work, and the site itself."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType

import uvicorn
from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application
from django.core.management.base import CommandError
from django.test import override_settings
from market import deliveries
from office import life
from shop import subscriptions
from traffic import counting

from django_redis_messaging import ConfigurationError, handlers
from django_redis_messaging.core import clients, topology
from django_redis_messaging.core.encoding import FORMAT, current_prefix
from django_redis_messaging.core.topology import endpoint, scan
from django_redis_messaging.devserver.cluster import EmbeddedCluster
from django_redis_messaging.devserver.server import EmbeddedServer, make_private, open_private
from django_redis_messaging.management.loops import LoopGroup, poller
from django_redis_messaging.services.listening import Listener
from django_redis_messaging.tasks.backend import our_backends
from django_redis_messaging.tasks.worker import Limits, Worker

#: seconds that running requests and tasks may take when the demo stops
SHUTDOWN_TIMEOUT = 2
#: number of nodes that `demo --cluster` runs
PRIMARIES = 3
#: patterns of the files in the demo's directory: the database with its journals, the options, the access log,
#: and the location of the servers
DATA_FILES = ("*.sqlite3*", "*.json", "*.log*", "location")


class Stopped(BaseException):
    """Ends the demo after Ctrl-C or SIGTERM while the site is not serving requests."""


#: numbers of the signals that were received
_received: list[int] = []
#: not empty while the first signal interrupts what runs
_interruptible: list[None] = []


@contextmanager
def handle_stop_signals() -> Iterator[None]:
    """End the block on Ctrl-C and SIGTERM, after its cleanup.

    The first signal is only noted, for `stop_if_requested`: an exception that is raised anywhere could leave
    a lock acquired or a thread running. The second one interrupts.
    """
    _received.clear()
    previous = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except Stopped:
        pass
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def stop_if_requested() -> None:
    """Raise Stopped if a signal was received."""
    if _received:
        raise Stopped


@contextmanager
def interruptible() -> Iterator[None]:
    """The first signal interrupts the block, such as a question to the user."""
    _interruptible.append(None)
    try:
        stop_if_requested()
        yield
    finally:
        _interruptible.clear()


def _stop(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    if _interruptible or len(_received) > 1:
        raise Stopped


@contextmanager
def run_redis(*, cluster: bool = False) -> Iterator[str]:
    """Use the server in REDIS_URL, or run a private one or a private Cluster, with its data in the demo's
    directory.

    Yields a description of the server.
    """
    make_data_private()
    if "REDIS_URL" in os.environ:
        if cluster:
            raise CommandError("REDIS_URL names a server, and --cluster starts others: give one of the two.")
        yield "the server in REDIS_URL"
        return
    server: EmbeddedServer | EmbeddedCluster
    if cluster:
        kind = f"a private Cluster of {PRIMARIES} primaries"
        server = EmbeddedCluster(settings.DATA_DIR / "cluster", primaries=PRIMARIES, append_only=True)
    else:
        kind, server = "a private server", EmbeddedServer(settings.DATA_DIR / "redis", append_only=True)
    try:
        server.start()
        entry = {**settings.CACHES["messaging"], "LOCATION": server.url}
        # The system checks have read the alias already: override_settings resets what was cached.
        with override_settings(CACHES={**settings.CACHES, "messaging": entry}), _location_stored(server.url):
            yield f"{kind}, data in {server.directory}"
    except ConfigurationError as error:
        raise CommandError(str(error)) from error
    finally:
        clients.close()
        server.close()


@contextmanager
def _location_stored(url: str) -> Iterator[None]:
    """Let other commands find the servers: the ports and the password of a Cluster change at each start."""
    file = settings.LOCATION_FILE
    file.unlink(missing_ok=True)
    with open_private(file, "wb") as stored:
        stored.write(url.encode())
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def make_data_private() -> None:
    """Create the demo's directory for its owner only; restrict an existing one and the files in it."""
    try:
        make_private(settings.DATA_DIR, *DATA_FILES)
    except ConfigurationError as error:
        raise CommandError(str(error)) from error


def count_keys() -> int:
    """The number of keys of earlier demos."""
    pages = scan(endpoint("messaging"), key_pattern())
    return len({key for _, keys in pages for key in keys})  # SCAN may list a key twice


def remove_keys() -> int:
    """Remove the keys of earlier demos, and no others; returns their number."""
    return topology.remove_keys(endpoint("messaging"), f"{current_prefix()}:{FORMAT}")


def key_pattern() -> str:
    """Matches the keys of the demo; a server may have other keys that begin with its prefix."""
    return f"{current_prefix()}:{FORMAT}:*"


def bind(host: str, port: int) -> socket.socket:
    """Open the socket of the site before anything else, so that a used port fails early."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named. Without it, the body of an answer waits for the
    # acknowledgement of its header: 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        in_use = f"Port {port} is in use: stop the other program, or give another --port."
        other = f"Can't listen on {host} port {port} ({error}): give another --host or --port."
        raise CommandError(in_use if getattr(error, "errno", None) == errno.EADDRINUSE else other) from error
    return listening


@contextmanager
def run_background_work() -> Iterator[None]:
    """Run tasks, the handlers of timers, the poller, the subscriptions of the shop, the deliveries of the
    market, the consumer of access logs, and the traffic of the office in threads of this process."""
    [backend] = our_backends()
    worker = Worker(backend, backend.queue_names, Limits(concurrency=4, drain=SHUTDOWN_TIMEOUT))
    handlers.discover()
    listener = Listener(handlers.timers, handlers.key_events, Limits(concurrency=2, drain=SHUTDOWN_TIMEOUT))
    together = LoopGroup({"worker": worker, "listener": listener, "poller": poller()})
    thread = threading.Thread(target=together.run, name="messaging")
    thread.start()
    stops = [together.stop, subscriptions.start(), deliveries.start(), counting.start(), life.start()]
    try:
        yield
    finally:
        with ThreadPoolExecutor(len(stops)) as pool:  # each waits until its threads have ended
            list(pool.map(lambda stop: stop(), stops))
        thread.join()


class Site(uvicorn.Server):
    """The site under ASGI with its static files; `ready` is called once it accepts requests."""

    def __init__(self, ready: Callable[[], None]) -> None:
        application = ASGIStaticFilesHandler(get_asgi_application())
        super().__init__(
            uvicorn.Config(
                application,
                lifespan="off",
                log_level="warning",
                timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
            )
        )
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        stop_if_requested()
        await super().startup(sockets=sockets)
        self._ready()
