"""Fixtures: users, a chat, the site, and pages in a browser."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.management import create_permissions
from django.contrib.auth.models import User
from django.db.models.signals import post_migrate
from django.test import Client
from django.urls import include, path, reverse
from playwright.sync_api import Page
from pytest_django import Settings

from django_redis_messaging import Chat, observe
from django_redis_messaging.core.operations import unobserve
from django_redis_messaging.services.directories import Directory

from ..support import browser as chromium
from ..support import content_policies
from ..support.asgi_site import Site, serving
from ..support.browser import FAST, MODULES, Contexts, Visit, sign_in
from ..support.people import Member, user_of
from ..support.programs import program

Person = Callable[..., User]
Members = Callable[..., Member]


@pytest.fixture(autouse=True)
def database(db: None) -> None:
    """Users need the database."""


@pytest.fixture(scope="package", autouse=True)
def no_permissions() -> Iterator[None]:
    """Tests with transactions don't make the permissions of all models anew at their end."""
    uid = "django.contrib.auth.management.create_permissions"
    assert post_migrate.disconnect(dispatch_uid=uid)
    yield
    post_migrate.connect(create_permissions, dispatch_uid=uid)


@pytest.fixture
def person() -> Person:
    """Creates users who are in the directory."""

    def make(name: str, **fields: Any) -> User:
        user = User.objects.create(username=name, **fields)
        Directory("everyone").add(str(user.pk), user.get_full_name() or name)
        return user

    return make


@pytest.fixture
def member(person: Person) -> Members:
    """Creates users who are in the directory, as members of chats."""
    return lambda name, **fields: Member(person(name, **fields))


@pytest.fixture
def ann(person: Person) -> Member:
    return Member(person("ann", first_name="Ann"))


@pytest.fixture
def bob(person: Person) -> Member:
    return Member(person("bob", first_name="Bob"))


@pytest.fixture
def cat(person: Person) -> Member:
    return Member(person("cat", first_name="Cat"))


def client_of(user: User | Member | None, *, json: bool = False, **options: Any) -> Client:
    """A client signed in as `user`; with `json` it accepts only JSON."""
    headers = {"Accept": "application/json"} if json else {}
    client = Client(headers=headers, **options)
    if user is not None:
        client.force_login(user_of(user))
    return client


def get(client: Client, name: str, /, *args: Any, **query: Any) -> Any:
    return client.get(reverse(f"messaging:{name}", args=args), query)


def page(client: Client, name: str, /, *args: Any, **query: Any) -> str:
    """The text of a page."""
    answer = get(client, name, *args, **query)
    assert answer.status_code == 200
    return str(answer.content.decode())


def post(client: Client, name: str, /, *args: Any, **data: Any) -> Any:
    return client.post(reverse(f"messaging:{name}", args=args), data)


def code(answer: Any) -> tuple[int, str]:
    """The status and the code of an error."""
    return answer.status_code, answer.json()["error"]["code"]


@dataclasses.dataclass
class Room:
    """A chat, and a user for each role."""

    chat: Chat
    people: dict[str, User]
    _clients: dict[tuple[str, bool], Client] = dataclasses.field(default_factory=dict)

    def id(self, role: str) -> str:
        return str(self.people[role].pk)

    def client(self, role: str, *, json: bool = False) -> Client:
        """The client of a role: one for pages, and one for JSON."""
        if (role, json) not in self._clients:
            self._clients[role, json] = client_of(self.people.get(role), json=json)
        return self._clients[role, json]

    def get(self, role: str, name: str, /, *args: Any, json: bool = True, **query: Any) -> Any:
        """The answer to a GET about the chat."""
        return get(self.client(role, json=json), name, self.chat.id, *args, **query)

    def page(self, role: str, name: str = "room", /, *args: Any, **query: Any) -> str:
        """The text of a page about the chat."""
        return page(self.client(role), name, self.chat.id, *args, **query)

    def post(self, role: str, name: str, /, *args: Any, json: bool = True, **data: Any) -> Any:
        return post(self.client(role, json=json), name, self.chat.id, *args, **data)


@pytest.fixture
def room(person: Person) -> Room:
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
def away(settings: Settings) -> None:
    """Redis can't be reached."""
    gone = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/redis.sock"}
    settings.CACHES = {**settings.CACHES, "gone": gone}
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "gone", "COMMAND_DEADLINE": 0.1}


class Alone:
    """URLs of a site without an admin."""

    app_name = None
    urlpatterns = (path("messages/", include("django_redis_messaging.urls")),)


@pytest.fixture
def alone(settings: Settings) -> None:
    """The site has no admin."""
    settings.ROOT_URLCONF, settings.LOGIN_URL = Alone, "/login/"


@pytest.fixture(scope="session")
def asgi_server() -> Iterator[Site]:
    with serving() as found:
        yield found


@pytest.fixture
def site(asgi_server: Site) -> Iterator[Site]:
    """The site under an ASGI server."""
    yield asgi_server
    if not asgi_server.is_running:
        asgi_server.start()


@pytest.fixture(scope="session")
def browser_type_launch_args() -> dict[str, Any]:
    return {"executable_path": program(*chromium.PROGRAMS), "args": chromium.ARGUMENTS}


@pytest.fixture
def visit(contexts: Contexts, settings: Settings) -> Iterator[Visit]:
    """Opens a page in a context of its own, signed in as a user, with a strict Content-Security-Policy.

    Its clocks run fast, unless `fast` is False. `script` runs before those of each page.
    """
    settings.TEST_POLICY = content_policies.SELF

    def open_(
        user: User | Member, name: str = "chats", *args: Any, query: str = "", fast: bool = True,
        script: str = "", **options: Any,
    ) -> Page:  # fmt: skip
        page = contexts.new_page((FAST if fast else "") + script, **options)
        sign_in(page.context, user, contexts.url)
        response = page.goto(reverse(f"messaging:{name}", args=args) + query)
        assert response and response.headers["content-security-policy"]
        if options.get("java_script_enabled", True):
            page.evaluate(MODULES)
        return page

    yield open_
    contexts.end()
