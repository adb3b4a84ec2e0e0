"""The site of the tests under ASGI, in a thread, and a client for its live streams."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import uvicorn
from django.contrib.auth.models import User
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application
from django.test import Client

from django_redis_messaging.core.encoding import current_prefix
from django_redis_messaging.services.live import hub

from .people import Member, user_of


def open_hubs() -> list[tuple[asyncio.AbstractEventLoop, hub.Hub]]:
    """The hubs of this test in this process, with their event loops."""
    prefix = current_prefix()
    return [found for (_, of, _), found in hub._hubs.items() if of == prefix and not found[0].is_closed()]


class Site:
    """The site, served by uvicorn; it can be stopped and started again at the same port."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        config = uvicorn.Config(
            ASGIStaticFilesHandler(get_asgi_application()),
            port=self.port, lifespan="off", log_level="warning", timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="site", daemon=True)
        self._thread.start()
        while not self._server.started:
            self._thread.join(0.01)
            assert self._thread.is_alive()

    def streams(self) -> int:
        """The number of open streams."""
        return sum(one.number_of_streams for _, one in open_hubs())

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def serving() -> Iterator[Site]:
    site = Site()
    try:
        yield site
    finally:
        site.stop()


class CuttingProxy(socketserver.ThreadingTCPServer):
    """Forwards to the site, and cuts live streams after some bytes, wherever that is in an event."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, site: Site, *, max_bytes: int = 4000, seed: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Forwarding)
        self.target = ("127.0.0.1", site.port)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.cuts = 0
        #: while it is set, streams are cut
        self.cutting = threading.Event()
        self._chance = random.Random(seed)
        self._max_bytes = max_bytes

    def limit(self) -> int:
        """The number of bytes after which a stream is cut."""
        return self._chance.randrange(1, self._max_bytes)

    def __enter__(self) -> CuttingProxy:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Forwarding(socketserver.BaseRequestHandler):
    """One connection: requests on one thread, answers on another."""

    server: CuttingProxy

    def handle(self) -> None:
        with socket.create_connection(self.server.target) as self.site:
            self.is_stream = False
            requests = threading.Thread(target=self._forward_requests, daemon=True)
            requests.start()
            with contextlib.suppress(OSError):  # one of the two sides is gone
                self._forward_answers()
            for end in (self.request, self.site):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            requests.join()

    def _forward_requests(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(65536):
                self.is_stream = b"/messages/live/" in data
                self.site.sendall(data)
            self.site.shutdown(socket.SHUT_RDWR)

    def _forward_answers(self) -> None:
        left = self.server.limit()
        while data := self.site.recv(65536):
            if self.is_stream and self.server.cutting.is_set() and len(data) >= left:
                self.request.sendall(data[:left])
                self.server.cuts += 1
                return
            left -= len(data) if self.is_stream else 0
            self.request.sendall(data)


class EventSource:
    """Reads server-sent events of one connection, as the standard says."""

    def __init__(
        self,
        site: Site | int,
        user: User | Member | None,
        /,
        *,
        last_id: str = "",
        headers: Mapping[str, str] | None = None,
        **parameters: Any,
    ) -> None:
        client = Client()
        if user is not None:
            client.force_login(user_of(user))
        self.session = client
        cookies = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())
        headers = {"Accept": "text/event-stream", "Cookie": cookies, **(headers or {})}
        if last_id:
            headers["Last-Event-ID"] = last_id
        self._connection = http.client.HTTPConnection("127.0.0.1", getattr(site, "port", site), timeout=30)
        self._connection.request(
            "GET", f"/messages/live/?{urlencode(parameters, doseq=True)}", headers=headers
        )
        self.response = self._connection.getresponse()
        self.last_id = last_id
        self.seen: list[tuple[str, Any]] = []

    def __enter__(self) -> EventSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.response.close()
        self._connection.close()

    def next(self) -> tuple[str, Any] | None:
        """The next event; None at the end of the stream."""
        name, data, number = "message", [], None
        while line := self.response.readline().decode():
            line = line.rstrip("\n")
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
            elif field == "id":
                number = value
            elif not line and data:
                if number is not None:
                    self.last_id = number
                self.seen.append((name, json.loads("\n".join(data))))
                return self.seen[-1]
        return None

    def until(self, name: str, condition: Callable[[Any], object] = lambda data: True) -> Any:
        """The data of the next event with this name that meets the condition."""
        while (event := self.next()) is not None:
            if event[0] == name and condition(event[1]):
                return event[1]
        raise AssertionError(f"The stream ended without {name}: {self.seen}")
