"""What other processes do. Django is set up there by `enter`, for one server and one prefix."""

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

#: seconds an act may wait for something
PATIENCE = 60.0
_together: list[Barrier] = []


@dataclass(frozen=True)
class Stage:
    """Where to act."""

    url: str
    messaging: dict[str, Any]


@dataclass
class Heard:
    """What a member got to know."""

    bodies: dict[int, str] = field(default_factory=dict)
    #: ids that came again after they were acked
    again: list[int] = field(default_factory=list)
    #: ids that came out of turn
    holes: list[int] = field(default_factory=list)

    def hear(self, message: Message) -> None:
        if self.bodies.setdefault(message.id, message.body) != message.body:
            self.again.append(message.id)


def enter(stage: Stage, barrier: Barrier) -> None:
    """Set this process up."""
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": stage.url}
    settings.configure(CACHES={"default": entry, "messaging": entry}, REDIS_MESSAGING=stage.messaging)
    _together.append(barrier)


def serve(stage: Stage, log: str, **more: Any) -> None:
    """Set this process up as one of a site that runs a command; what it says is appended to a file."""
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


def begin(act: Callable[..., Any], *arguments: Any) -> Any:
    """Begin when all are there."""
    _together[0].wait(PATIENCE)
    return act(*arguments)


def read(chat: Chat, user: str, heard: Heard, *, limit: int = 100, position: int = 0) -> int:
    """One look, and an ack of what was found; the position after it."""
    for pending in Inbox(user).pending(limit=limit):
        if pending.chat_id != chat.id:
            continue
        first = pending.messages[0].id
        if pending.gap or [message.id - first for message in pending.messages] != list(
            range(len(pending.messages))
        ):
            heard.holes.append(first)
        if first <= position:
            heard.again.append(first)
        for message in pending.messages:
            heard.hear(message)
        return chat.ack(user, pending.messages[-1].cursor)
    return position


def converse(chat_id: str, user: str, count: int, total: int, seed: int) -> Heard:
    """Send, some twice by the same request; read and ack in between; go on until all was heard."""
    chat, chance, heard = Chat(chat_id), random.Random(seed), Heard()
    position, ends = 0, time.monotonic() + PATIENCE
    for number in range(count):
        for _ in range(chance.choice([1, 1, 2])):
            heard.hear(chat.send(user, f"{user} {number}", request_id=f"{user}-{number}"))
        if chance.random() < 0.4:
            position = read(chat, user, heard, limit=chance.choice([1, 5, 100]), position=position)
    while len(heard.bodies) < total and time.monotonic() < ends:
        position = read(chat, user, heard, position=position)
    # What was said last may have been said by this one, who was behind then: that is not acked yet.
    read(chat, user, heard, position=position)
    return heard


def come_and_go(chat_id: str, host: str, user: str, times: int) -> list[tuple[int, int, int, Heard]]:
    """Join, say something, read up to that, leave: of each stay, the newest id before and after joining,
    the id of what was said, and what was heard."""
    chat, stays = Chat(chat_id), []
    for number in range(times):
        heard = Heard()
        before = chat.info().last_id
        joined = chat.join(user, by=host)
        after = chat.info().last_id
        said = chat.send(user, f"{user} {number}")
        heard.hear(said)
        position, ends = 0, time.monotonic() + PATIENCE
        while position < said.id and time.monotonic() < ends:
            position = read(chat, user, heard, limit=7, position=position)
            position = max(position, next(one.read_id for one in chat.members() if one.user == user))
        left = chat.leave(user)
        stays.append((before if joined and left else -1, after, said.id, heard))
    return stays


def chatter(chat_id: str, user: str, count: int) -> list[int]:
    """Send; the ids."""
    return [Chat(chat_id).send(user, f"{user} {number}").id for number in range(count)]


def persist(chat_id: str, user: str, count: int) -> dict[str, list[str]]:
    """Send whatever happens to the server: what was acknowledged, unknown, refused."""
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
    """Fetch, tell the ids, and never ack."""
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": stage.url}
    settings.configure(CACHES={"default": entry, "messaging": entry}, REDIS_MESSAGING=stage.messaging)
    connection.send([message.id for pending in Inbox(user).pending() for message in pending.messages])
    connection.recv()
