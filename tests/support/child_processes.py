"""Functions that other processes run. `enter` configures Django there for one server and one prefix."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any

import django
from django.conf import settings

from django_redis_messaging import Chat, Inbox, Message, OutcomeUnknown, Unavailable

#: seconds that a function may wait for a condition
PATIENCE = 60.0
_barriers: list[Barrier] = []


@dataclass(frozen=True)
class Stage:
    """The server and the settings that a process uses."""

    url: str
    messaging: dict[str, Any]


@dataclass
class Received:
    """What a member received."""

    bodies: dict[int, str] = field(default_factory=dict)
    #: IDs received again after they were acknowledged
    repeated: list[int] = field(default_factory=list)
    #: first IDs of pages with gaps
    out_of_order: list[int] = field(default_factory=list)

    def receive(self, message: Message) -> None:
        if self.bodies.setdefault(message.id, message.body) != message.body:
            self.repeated.append(message.id)


def enter(stage: Stage, barrier: Barrier | None = None) -> None:
    """Configure Django in this process; `barrier`: where functions of several processes meet."""
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": stage.url}
    settings.configure(CACHES={"default": entry, "messaging": entry}, REDIS_MESSAGING=stage.messaging)
    if barrier:
        _barriers.append(barrier)


def serve(stage: Stage, log: str, **more: Any) -> None:
    """Configure this process for a management command and append its output to a file."""
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": stage.url}
    settings.configure(
        INSTALLED_APPS=["django_redis_messaging"],
        CACHES={"default": entry, "messaging": entry},
        REDIS_MESSAGING=stage.messaging,
        USE_TZ=True,
        **more,
    )
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    django.setup()


def begin(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function once all processes have started."""
    _barriers[0].wait(PATIENCE)
    return function(*arguments)


def read(chat: Chat, user: str, received: Received, *, limit: int = 100, position: int = 0) -> int:
    """Fetch pending messages once and acknowledge them; the new position."""
    for pending in Inbox(user).pending(limit=limit):
        if pending.chat_id != chat.id:
            continue
        first = pending.messages[0].id
        if pending.gap or [message.id - first for message in pending.messages] != list(
            range(len(pending.messages))
        ):
            received.out_of_order.append(first)
        if first <= position:
            received.repeated.append(first)
        for message in pending.messages:
            received.receive(message)
        return chat.ack(user, pending.messages[-1].cursor)
    return position


def converse(chat_id: str, user: str, count: int, total: int, seed: int) -> Received:
    """Send messages, some twice with the same request ID, and read in between, until all were received."""
    chat, chance, received = Chat(chat_id), random.Random(seed), Received()
    position, deadline = 0, time.monotonic() + PATIENCE
    for number in range(count):
        for _ in range(chance.choice([1, 1, 2])):
            received.receive(chat.send(user, f"{user} {number}", request_id=f"{user}-{number}"))
        if chance.random() < 0.4:
            position = read(chat, user, received, limit=chance.choice([1, 5, 100]), position=position)
    while len(received.bodies) < total and time.monotonic() < deadline:
        position = read(chat, user, received, position=position)
    # The last message may be this user's own, sent while others were unread: it is not acknowledged yet.
    read(chat, user, received, position=position)
    return received


def join_and_leave(chat_id: str, host: str, user: str, times: int) -> list[tuple[int, int, int, Received]]:
    """Join, send, read up to that message and leave, several times.

    For each stay: the newest ID before and after joining, the ID of the sent message, and what was received.
    """
    chat, stays = Chat(chat_id), []
    for number in range(times):
        received = Received()
        before = chat.info().last_id
        joined = chat.join(user, by=host)
        after = chat.info().last_id
        sent = chat.send(user, f"{user} {number}")
        received.receive(sent)
        position, deadline = 0, time.monotonic() + PATIENCE
        while position < sent.id and time.monotonic() < deadline:
            position = read(chat, user, received, limit=7, position=position)
            position = max(position, next(member.read_id for member in chat.members() if member.user == user))
        left = chat.leave(user)
        stays.append((before if joined and left else -1, after, sent.id, received))
    return stays


def send_many(chat_id: str, user: str, count: int) -> list[int]:
    """Send messages; their IDs."""
    return [Chat(chat_id).send(user, f"{user} {number}").id for number in range(count)]


def send_through_failures(chat_id: str, user: str, count: int) -> dict[str, list[str]]:
    """Send messages despite server failures; the bodies by outcome: sent, unknown, or refused."""
    outcomes: dict[str, list[str]] = {"sent": [], "unknown": [], "refused": []}
    for number in range(count):
        body = f"{user} {number}"
        try:
            Chat(chat_id).send(user, body)
        except OutcomeUnknown:
            outcomes["unknown"].append(body)
        except Unavailable:
            outcomes["refused"].append(body)
        else:
            outcomes["sent"].append(body)
    return outcomes


def fetch_and_hang(stage: Stage, user: str, connection: Any) -> None:
    """Fetch messages, send their IDs to the parent and never acknowledge them."""
    enter(stage)
    connection.send([message.id for pending in Inbox(user).pending() for message in pending.messages])
    connection.recv()
