"""The site of the tests under ASGI, in a thread, and a client for its live streams."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import uvicorn
from django.contrib.auth.models import User
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application
from django.test import Client


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


class EventSource:
    """Reads server-sent events of one connection, as the standard says."""

    def __init__(self, site: Site, user: User | None, /, *, last_id: str = "", **parameters: Any) -> None:
        client = Client()
        if user is not None:
            client.force_login(user)
        self.session = client
        cookies = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())
        headers = {"Accept": "text/event-stream", "Cookie": cookies}
        if last_id:
            headers["Last-Event-ID"] = last_id
        self._connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=10)
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
