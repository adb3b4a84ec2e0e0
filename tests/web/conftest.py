"""People, a chat they are in, and a real browser."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_redis_messaging import Chat
from django_redis_messaging.services.directories import Directory

#: arguments of a Chromium that starts anywhere and talks to nobody
CHROMIUM = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(autouse=True)
def database(db: None) -> None:
    """Users are in the database."""


@pytest.fixture
def person() -> Callable[..., User]:
    """Makes a user who is in the directory."""

    def make(name: str, **fields: Any) -> User:
        user = User.objects.create(username=name, **fields)
        Directory("everyone").add(str(user.pk), user.get_full_name() or name)
        return user

    return make


def client_of(user: User | None, *, json: bool = False, **options: Any) -> Client:
    """A client signed in as `user`; with `json` it accepts nothing else."""
    headers = {"Accept": "application/json"} if json else {}
    client = Client(headers=headers, **options)
    if user is not None:
        client.force_login(user)
    return client


@dataclasses.dataclass
class Room:
    """A chat, and people in each possible relation to it."""

    chat: Chat
    people: dict[str, User]

    def id(self, role: str) -> str:
        return str(self.people[role].pk)

    def client(self, role: str, *, json: bool = False) -> Client:
        return client_of(self.people.get(role), json=json)


@pytest.fixture
def room(person: Callable[..., User]) -> Room:
    """One message by the owner, then one by the member; the former member has left since."""
    people = {name: person(name) for name in ("outsider", "former", "member", "owner")}
    people["staff"] = person("staff", is_staff=True)
    ids = {name: str(user.pk) for name, user in people.items()}
    chat = Chat.create(ids["owner"], [ids["member"], ids["former"]], "From the owner", title="Room")
    chat.send(ids["member"], "From the member")
    chat.leave(ids["former"])
    return Room(chat, people)


@pytest.fixture(scope="session")
def browser_type_launch_args() -> dict[str, Any]:
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    return {"executable_path": os.environ.get("CHROMIUM", "/usr/bin/chromium"), "args": CHROMIUM}
