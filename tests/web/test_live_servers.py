"""Live streams under the servers that sites use: they work, and end when the server stops."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from django.conf import settings

from django_redis_messaging import Chat
from django_redis_messaging.core.encoding import current_prefix

from ..support.asgi_site import EventSource

pytestmark = pytest.mark.timing

APPLICATION = "tests.support.header_site:application"
SERVERS = {
    "uvicorn": ["uvicorn", APPLICATION, "--lifespan", "off", "--timeout-graceful-shutdown", "1", "--port"],
    "gunicorn": ["gunicorn", APPLICATION, "-k", "asgi", "--graceful-timeout", "2", "-b"],
    "gunicorn with uvicorn": [
        "gunicorn", APPLICATION, "-k", "uvicorn_worker.UvicornWorker", "--graceful-timeout", "2", "-b",
    ],
    "hypercorn": ["hypercorn", APPLICATION, "--workers", "0", "-b"],
}  # fmt: skip
#: seconds in which a server must start
START = 60
#: seconds in which it must stop; without options, gunicorn takes 30, and the others as long as the stream
STOP = 25
#: seconds for which a stream lasts with hypercorn, which always waits for its end
LIFETIME = 10


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def serving_by(server: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The port and the process of a running server."""
    port, (name, *arguments) = free_port(), SERVERS[server]
    address = str(port) if name == "uvicorn" else f"127.0.0.1:{port}"
    environment = {
        **os.environ,
        "REDIS_URL": settings.CACHES["messaging"]["LOCATION"],
        "PREFIX": current_prefix(),
        "LIVE_LIFETIME": str(LIFETIME if server == "hypercorn" else 600),
    }
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    process = subprocess.Popen(
        [sys.executable, "-m", name, *arguments, address], env=environment, stderr=subprocess.PIPE
    )
    try:
        ends = time.monotonic() + START
        while not is_open(port):
            assert process.poll() is None
            assert time.monotonic() < ends
        yield port, process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_that_stops_ends_its_streams(server: str) -> None:
    """With the options in docs/web.md. Nothing is logged as an error of the site."""
    chat = Chat.create("1", ["2"], "Hello")
    with (
        serving_by(server) as (port, process),
        EventSource(port, None, headers={"User": "2"}, room=chat.id) as source,
    ):
        source.until("room")
        chat.send("1", "Anybody?")
        assert source.until("room", lambda data: data["messages"])["messages"][0]["label"] == "User 1"
        process.send_signal(signal.SIGTERM)
        stopped = time.monotonic()
        with suppress(http.client.IncompleteRead):  # cut off
            while source.next() is not None:
                pass
        _, errors = process.communicate(timeout=START)
        assert time.monotonic() - stopped < STOP
    assert b"Traceback" not in errors
