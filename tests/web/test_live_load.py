"""Clients of live streams that come and go, or take nothing: nobody else notices, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import NamedTuple
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from django.core.handlers.asgi import ASGIRequest

from django_redis_messaging import Chat, notify
from django_redis_messaging.services.live.stream import Stream
from django_redis_messaging.web import live
from tests.support.server import server, until

from ..support.asgi_site import EventSource, Site, open_hubs
from .conftest import client_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timing]

CYCLES = 1000
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


def cookie_of(user: User) -> str:
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


def test_nothing_is_left_of_streams(site: Site, people: tuple[User, User]) -> None:
    ann, bob = people
    chat = Chat.create(str(ann.pk), [str(bob.pk)], "Hello")
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
        chat.send(str(bob.pk), "Still there?")
        witness.until("room", lambda data: data["messages"])


def test_a_stream_holds_no_thread(site: Site, people: tuple[User, User]) -> None:
    with ExitStack() as stack:
        stack.enter_context(EventSource(site, people[0])).until("bell")
        before = left().threads
        for _ in range(7):
            stack.enter_context(EventSource(site, people[0])).until("bell")
        until(lambda: left().threads <= before)
        assert site.streams() == 8


def test_nobody_gets_what_is_for_others(site: Site, person: Callable[..., User]) -> None:
    """While hundreds of requests are cut off at any moment, each reader gets their own messages alone."""
    readers = [person(f"reader{number}") for number in range(4)]
    chats = [Chat.create("speaker", [str(one.pk)], f"For {one.pk}") for one in readers]
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
            for number in range(50):
                for one, chat in zip(readers, chats, strict=True):
                    chat.send("speaker", f"{number} for {one.pk}")
                    notify(str(one.pk), f"{number} for {one.pk}")
                for one, source in zip(readers, sources, strict=True):
                    expected = f"{number} for {one.pk}"
                    source.until("room", lambda data, text=expected: has(data, text))
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
    for one, chat, source in zip(readers, chats, sources, strict=True):
        rooms = [data for name, data in source.seen if name == "room"]
        bodies = [message["body"] for data in rooms for message in data["messages"]]
        assert bodies == [f"{number} for {one.pk}" for number in range(50)]
        assert {data["chat"] for data in rooms} == {chat.id}
        rows = [row for name, data in source.seen if name == "chats" for row in data["chats"]]
        assert {row["id"] for row in rows} == {chat.id}


def has(data: dict[str, list[dict[str, str]]], text: str) -> bool:
    return any(message["body"] == text for message in data["messages"])


def test_who_takes_nothing_is_dropped(
    site: Site, people: tuple[User, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_STALL", 0.5)
    ann, bob = people
    chat = Chat.create(str(ann.pk), [str(bob.pk)], "Hello")
    with (
        Raw(site, cookie_of(bob), buffer=4096, room=chat.id),
        EventSource(site, ann, room=chat.id) as witness,
    ):
        witness.until("room")
        until(lambda: site.streams() == 2)
        sent = 0
        while site.streams() == 2:
            sent += 1
            chat.send(str(ann.pk), f"{sent} " + 60_000 * "x")
            text = witness.until("room", lambda data: data["messages"])["messages"][0]["body"]
            assert text.startswith(f"{sent} ")
    with EventSource(site, bob, room=chat.id, after=sent) as source:  # who comes back misses nothing
        assert source.until("room")["messages"][0]["body"].startswith(f"{sent} ")
