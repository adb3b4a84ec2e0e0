"""What happens to live streams: cuts, clients that come and go or take nothing, servers that stop."""

from __future__ import annotations

import asyncio
import gc
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlencode

import httpx
import httpx_sse
import pytest
from django.conf import settings
from django.core.handlers.asgi import ASGIRequest

from django_redis_messaging import Chat, notify
from django_redis_messaging.core.encoding import current_prefix
from django_redis_messaging.services.live.stream import Stream
from django_redis_messaging.web import live

from ..support.asgi_site import CuttingProxy, EventSource, Site, open_hubs
from ..support.people import Member
from ..support.server import server, until
from .conftest import Members, client_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timing]

#: times that a stream is cut
CUTS = 20
#: streams that begin and end
CYCLES = 300
#: connections that the pool may have opened because several were needed at once, for example
SLACK = CYCLES // 50


class Raw:
    """A connection of a client that may do anything."""

    def __init__(self, site: Site, cookie: str, *, buffer: int | None = None, **query: str) -> None:
        self.socket = socket.socket()
        if buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", site.port))
        self.socket.sendall(
            f"GET /messages/live/?{urlencode(query)} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Accept: text/event-stream\r\nCookie: {cookie}\r\n\r\n".encode()
        )

    def __enter__(self) -> socket.socket:
        return self.socket

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def cookie_of(user: Member) -> str:
    return f"sessionid={client_of(user).cookies['sessionid'].value}"


class Left(NamedTuple):
    """What streams hold: objects, tasks of the site's event loop, threads, connections to Redis."""

    objects: int
    tasks: int
    threads: int
    connections: int


def left() -> Left:
    gc.collect()
    objects = [one for one in gc.get_objects() if isinstance(one, (Stream, ASGIRequest, live.EventSender))]
    [(loop, _)] = open_hubs()
    # the event loop has some threads for all streams together
    threads = [one for one in threading.enumerate() if not one.name.startswith("asyncio_")]
    return Left(len(objects), len(asyncio.all_tasks(loop)), len(threads), len(server().client_list()))


def test_nothing_is_left_of_streams(site: Site, ann: Member, bob: Member) -> None:
    chat = Chat.create(ann, [bob], "Hello")
    cookie = cookie_of(bob)

    def visit(number: int) -> None:
        with Raw(site, cookie, room=chat.id) as connection:
            received = b""
            while number % 2 and b"event: room" not in received:
                received += connection.recv(65536)

    with ThreadPoolExecutor(4) as threads, EventSource(site, ann, room=chat.id) as witness:
        witness.until("room")
        list(threads.map(visit, range(20)))
        until(lambda: site.streams() == 1)
        before = left()
        list(threads.map(visit, range(CYCLES)))
        until(lambda: site.streams() == 1)
        until(lambda: all(now - then <= SLACK for now, then in zip(left(), before, strict=True)))
        chat.send(bob, "Still there?")
        witness.until("room", lambda data: data["messages"])


def test_a_stream_holds_no_thread(site: Site, ann: Member, bob: Member) -> None:
    with ExitStack() as stack:
        stack.enter_context(EventSource(site, ann)).until("bell")
        before = left().threads
        for _ in range(7):
            stack.enter_context(EventSource(site, ann)).until("bell")
        until(lambda: left().threads <= before)
        assert site.streams() == 8


def test_nobody_gets_what_is_for_others(site: Site, member: Members) -> None:
    """While hundreds of requests are cut off at any moment, each reader gets their own messages alone."""
    readers = [member(f"reader{number}") for number in range(4)]
    chats = [Chat.create("speaker", [one], f"For {one}") for one in readers]
    cookies = [cookie_of(one) for one in readers]
    chance = random.Random(0)
    stopped = threading.Event()

    def disturb() -> None:
        while not stopped.is_set():
            at = chance.randrange(len(readers))
            with Raw(site, cookies[at], room=chats[at].id) as connection, suppress(TimeoutError):
                connection.settimeout(chance.uniform(0.0001, 0.02))
                connection.recv(chance.randrange(1, 4000))

    with ExitStack() as stack:
        sources = [
            stack.enter_context(EventSource(site, one, room=chat.id))
            for one, chat in zip(readers, chats, strict=True)
        ]
        for source in sources:
            source.until("room")  # the stream begins with the newest message
        threads = [threading.Thread(target=disturb) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for number in range(25):
                for one, chat in zip(readers, chats, strict=True):
                    chat.send("speaker", f"{number} for {one}")
                    notify(one, f"{number} for {one}")
                for one, source in zip(readers, sources, strict=True):
                    expected = f"{number} for {one}"
                    source.until("room", lambda data, text=expected: has(data, text))
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
    for one, chat, source in zip(readers, chats, sources, strict=True):
        rooms = [data for name, data in source.seen if name == "room"]
        bodies = [message["body"] for data in rooms for message in data["messages"]]
        assert bodies == [f"{number} for {one}" for number in range(25)]
        assert {data["chat"] for data in rooms} == {chat.id}
        rows = [row for name, data in source.seen if name == "chats" for row in data["chats"]]
        assert {row["id"] for row in rows} == {chat.id}


def has(data: dict[str, list[dict[str, str]]], text: str) -> bool:
    return any(message["body"] == text for message in data["messages"])


def test_who_takes_nothing_is_dropped(
    site: Site, ann: Member, bob: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_STALL", 0.5)
    chat = Chat.create(ann, [bob], "Hello")
    with (
        Raw(site, cookie_of(bob), buffer=4096, room=chat.id),
        EventSource(site, ann, room=chat.id) as witness,
    ):
        witness.until("room")
        until(lambda: site.streams() == 2)
        sent = 0
        while site.streams() == 2:
            sent += 1
            chat.send(ann, f"{sent} " + 60_000 * "x")
            text = witness.until("room", lambda data: data["messages"])["messages"][0]["body"]
            assert text.startswith(f"{sent} ")
    with EventSource(site, bob, room=chat.id, after=sent) as source:  # who comes back misses nothing
        assert source.until("room")["messages"][0]["body"].startswith(f"{sent} ")


@pytest.mark.promise
def test_everything_arrives_once_through_cuts(ann: Member, bob: Member, site: Site) -> None:
    chat = Chat.create(ann, [bob], "First", title="Trip")
    cookies = {"sessionid": client_of(bob).cookies["sessionid"].value}
    stopped = threading.Event()
    sent: list[str] = []

    def speak() -> None:
        while not stopped.wait(0.005):
            sent.append(f"Message {len(sent)}")
            chat.send(ann, sent[-1])

    received: list[str] = []
    speaker = threading.Thread(target=speak)
    with CuttingProxy(site, max_bytes=15_000) as proxy:
        proxy.cutting.set()
        speaker.start()
        last_id = ""
        try:
            while proxy.cuts < CUTS:
                last_id = follow(proxy.url, chat, cookies, last_id, received)
        finally:
            stopped.set()
            speaker.join()
        proxy.cutting.clear()
        while len(received) <= len(sent):
            last_id = follow(
                proxy.url, chat, cookies, last_id, received, enough=lambda: len(received) > len(sent)
            )
    assert proxy.cuts >= CUTS
    assert received == ["First", *sent]


def follow(
    url: str,
    chat: Chat,
    cookies: dict[str, str],
    last_id: str,
    received: list[str],
    *,
    enough: Callable[[], bool] = lambda: False,
) -> str:
    """Receive messages until the connection is cut; returns the id of the last event."""
    headers = {"Last-Event-ID": last_id} if last_id else {}
    parameters = {"room": chat.id, "after": 0}
    try:
        with (
            httpx.Client(cookies=cookies, headers=headers) as client,
            httpx_sse.connect_sse(client, "GET", f"{url}/messages/live/", params=parameters) as source,
        ):
            for event in source.iter_sse():
                last_id = event.id or last_id
                if event.event == "room":
                    received += [message["body"] for message in event.json()["messages"]]
                if enough():
                    break
    except httpx.TransportError:
        pass  # cut: the next connection goes on
    return last_id


class TestServers:
    """Under the servers that sites use, streams work, and end when the server stops."""

    APPLICATION = "tests.support.header_site:application"
    #: seconds in which a server must start
    START = 60
    #: seconds in which it must stop; without options, gunicorn takes 30, and the others as long as the stream
    STOP = 25
    #: seconds for which a stream lasts with hypercorn, which always waits for its end
    LIFETIME = 6

    def commands(self) -> dict[str, list[str]]:
        """With the options in docs/web.md; the address follows."""
        site = self.APPLICATION
        return {
            "uvicorn": ["uvicorn", site, "--lifespan", "off", "--timeout-graceful-shutdown", "1", "--port"],
            "gunicorn": ["gunicorn", site, "-k", "asgi", "--graceful-timeout", "2", "-b"],
            "gunicorn with uvicorn": [
                "gunicorn", site, "-k", "uvicorn_worker.UvicornWorker", "--graceful-timeout", "2", "-b",
            ],
            "hypercorn": ["hypercorn", site, "--workers", "0", "-b"],
        }  # fmt: skip

    @contextmanager
    def serving(self, server: str, command: list[str]) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
        """The port and the process of a server that starts."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        environment = {
            **os.environ,
            "REDIS_URL": settings.CACHES["messaging"]["LOCATION"],
            "PREFIX": current_prefix(),
            "LIVE_LIFETIME": str(self.LIFETIME if server == "hypercorn" else 600),
        }
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        address = str(port) if server == "uvicorn" else f"127.0.0.1:{port}"
        words = [sys.executable, "-m", *command, address]
        process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE)
        try:
            yield port, process
        finally:
            process.kill()
            process.wait()

    def wait_until_open(self, port: int, process: subprocess.Popen[bytes]) -> None:
        ends = time.monotonic() + self.START
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            assert process.poll() is None
            assert time.monotonic() < ends
            time.sleep(0.02)

    def test_a_server_that_stops_ends_its_streams(self) -> None:
        """Nothing is logged as an error of the site."""
        chat = Chat.create("1", ["2"], "Hello")
        with ExitStack() as stack:
            running = {
                server: stack.enter_context(self.serving(server, command))
                for server, command in self.commands().items()
            }
            sources = {}
            for server, (port, process) in running.items():
                self.wait_until_open(port, process)
                source = EventSource(port, None, headers={"User": "2"}, room=chat.id)
                sources[server] = stack.enter_context(source)
                source.until("room")
            chat.send("1", "Anybody?")
            for source in sources.values():
                [message] = source.until("room", lambda data: data["messages"])["messages"]
                assert message["label"] == "User 1"
            for _, process in running.values():
                process.send_signal(signal.SIGTERM)
            stopped = time.monotonic()
            for server, (_, process) in running.items():
                with suppress(http.client.IncompleteRead):  # cut off
                    while sources[server].next() is not None:
                        pass
                _, errors = process.communicate(timeout=self.START)
                assert time.monotonic() - stopped < self.STOP, server
                assert b"Traceback" not in errors, server
