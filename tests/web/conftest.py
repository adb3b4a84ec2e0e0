"""Fixtures: users, a chat, and the options of the browser."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django.live_server_helper import LiveServer

from django_redis_messaging import Chat, observe
from django_redis_messaging.core.operations import unobserve
from django_redis_messaging.services.directories import Directory

from ..support.asgi_site import Site, serving

#: arguments for a Chromium that starts in containers and sends no requests of its own
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
    """Users need the database."""


@pytest.fixture
def person() -> Callable[..., User]:
    """Creates users who are in the directory."""

    def make(name: str, **fields: Any) -> User:
        user = User.objects.create(username=name, **fields)
        Directory("everyone").add(str(user.pk), user.get_full_name() or name)
        return user

    return make


def client_of(user: User | None, *, json: bool = False, **options: Any) -> Client:
    """A client signed in as `user`; with `json` it accepts only JSON."""
    headers = {"Accept": "application/json"} if json else {}
    client = Client(headers=headers, **options)
    if user is not None:
        client.force_login(user)
    return client


@pytest.fixture
def site() -> Iterator[Site]:
    """The site under an ASGI server."""
    with serving() as found:
        yield found


@pytest.fixture
def people(person: Callable[..., User]) -> tuple[User, User]:
    """Ann and Bob."""
    return person("ann", first_name="Ann"), person("bob", first_name="Bob")


@dataclasses.dataclass
class Room:
    """A chat, and a user for each role."""

    chat: Chat
    people: dict[str, User]

    def id(self, role: str) -> str:
        return str(self.people[role].pk)

    def client(self, role: str, *, json: bool = False) -> Client:
        return client_of(self.people.get(role), json=json)


@pytest.fixture
def room(person: Callable[..., User]) -> Room:
    """A chat with a message by the owner, then one by the member. The former member has left."""
    people = {name: person(name) for name in ("outsider", "former", "member", "owner")}
    people["staff"] = person("staff", is_staff=True)
    ids = {name: str(user.pk) for name, user in people.items()}
    chat = Chat.create(ids["owner"], [ids["member"], ids["former"]], "From the owner", title="Room")
    chat.send(ids["member"], "From the member")
    chat.leave(ids["former"])
    return Room(chat, people)


@pytest.fixture
def operations() -> Iterator[list[str]]:
    """The operations on Redis from here on."""
    names: list[str] = []

    def record(operation: str, seconds: float, outcome: str) -> None:
        names.append(operation)

    observe(record)
    yield names
    unobserve(record)


@pytest.fixture
def server_url(live_server: LiveServer) -> str:
    """Where browsers find the site."""
    return live_server.url


@pytest.fixture(scope="session")
def browser_type_launch_args() -> dict[str, Any]:
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    return {"executable_path": os.environ.get("CHROMIUM", "/usr/bin/chromium"), "args": CHROMIUM}
