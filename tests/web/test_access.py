"""Who may use which view: every role, strangers, users of all kinds; and what all answers have in common."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import pytest
from django.contrib.auth.models import AnonymousUser
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.urls import URLPattern, reverse
from pytest_django import DjangoAssertNumQueries, Settings

from django_redis_messaging import Chat, ConfigurationError
from django_redis_messaging.services.directories import Directory
from django_redis_messaging.urls import urlpatterns
from django_redis_messaging.web import identity, views
from django_redis_messaging.web.identity import Identity

from ..support.server import change
from .accounts import models
from .conftest import Person, Room

#: those who may change something come last
ROLES = ("anonymous", "outsider", "former", "staff", "member", "owner")


class Row(NamedTuple):
    """The status of a view for each role, and the data to post."""

    anonymous: int
    outsider: int
    former: int
    member: int
    owner: int
    staff: int
    data: Mapping[str, str] = MappingProxyType({})


#: for all signed-in users
SIGNED_IN = (401, 200, 200, 200, 200, 200)
#: for members of the chat
MEMBERS = (401, 404, 404, 200, 200, 404)

TABLE: dict[tuple[str, str], Row] = {
    ("chats", "get"): Row(*SIGNED_IN),
    ("chats_feed", "get"): Row(*SIGNED_IN),
    ("new", "get"): Row(*SIGNED_IN),
    ("new", "post"): Row(*SIGNED_IN, {"to": "OTHER_USER", "body": "Hello"}),
    ("contacts", "get"): Row(*SIGNED_IN),
    ("suggest", "get"): Row(*SIGNED_IN),
    ("forget_contact", "post"): Row(*SIGNED_IN, {"contact": "OTHER_USER"}),
    ("notifications", "get"): Row(*SIGNED_IN),
    ("notifications_feed", "get"): Row(*SIGNED_IN),
    ("bell", "get"): Row(*SIGNED_IN),
    ("read_notifications", "post"): Row(*SIGNED_IN, {"id": "1"}),
    ("discard_notification", "post"): Row(*SIGNED_IN, {"id": "1"}),
    ("blocks", "get"): Row(*SIGNED_IN),
    ("choices", "post"): Row(*SIGNED_IN, {"online": "on"}),
    ("person", "get"): Row(*SIGNED_IN, {"id": "OTHER_USER"}),
    ("session", "get"): Row(*SIGNED_IN),
    ("live", "get"): Row(401, 501, 501, 501, 501, 501),  # the test client is no ASGI server
    ("details", "get"): Row(*MEMBERS),
    ("search", "get"): Row(*MEMBERS, {"q": "From"}),
    ("member_suggest", "get"): Row(*MEMBERS, {"q": "o"}),
    ("typing", "post"): Row(*MEMBERS),
    ("role", "post"): Row(401, 404, 404, 403, 200, 404, {"member": "OTHER_MEMBER", "role": "owner"}),
    ("block", "post"): Row(*SIGNED_IN, {"person": "OTHER_USER"}),
    ("unblock", "post"): Row(*SIGNED_IN, {"person": "OTHER_USER"}),
    ("room", "get"): Row(*MEMBERS),
    ("room_feed", "get"): Row(*MEMBERS, {"after": "1"}),
    ("message", "get"): Row(*MEMBERS),
    ("send", "post"): Row(*MEMBERS, {"body": "Hello"}),
    ("ack", "post"): Row(*MEMBERS, {"up_to": "1"}),
    ("rename", "post"): Row(*MEMBERS, {"title": "Another"}),
    ("mute", "post"): Row(*MEMBERS, {"hours": "8"}),
    ("add", "get"): Row(*MEMBERS),
    ("add", "post"): Row(*MEMBERS, {"to": "OTHER_USER"}),
    ("leave", "post"): Row(*MEMBERS),
    ("remove", "post"): Row(401, 404, 404, 403, 200, 404, {"member": "OTHER_MEMBER"}),
    ("delete", "post"): Row(401, 404, 404, 403, 200, 404),
    # the member is the author
    ("edit", "post"): Row(401, 404, 404, 200, 403, 404, {"body": "Better"}),
    ("delete_message", "post"): Row(401, 404, 404, 200, 200, 404),
}

#: the views that have no page
JSON_ONLY = {
    "bell", "chats_feed", "live", "member_suggest", "notifications_feed", "room_feed", "session", "suggest",
}  # fmt: skip

#: views for whoever has a link that was mailed: see test_digests.py
BY_LINK = {("unsubscribe", "get"), ("unsubscribe", "post")}

METHODS = ("get", "post", "put", "patch", "delete")
#: the views of one chat
OF_A_CHAT = [row for row in TABLE if TABLE[row].outsider == 404]
#: arguments that are refused for some reason, for any of the views
BAD: list[dict[str, Any]] = [
    {"body": "x" * 70_000, "title": "x" * 1000, "up_to": "%", "member": "", "to": "nobody", "hours": "-1"},
    {"body": "\x07", "title": "\x07", "up_to": "9" * 30, "member": "no\0body", "to": ["a\0", "b"]},
]
#: parameters of views that are read
POSITIONS = ("before", "after", "newer", "at", "edit", "edits", "events")
each_view = pytest.mark.parametrize(("name", "method"), TABLE)
each_view_of_a_chat = pytest.mark.parametrize(("name", "method"), OF_A_CHAT)


def all_views() -> Iterator[tuple[str, str]]:
    for pattern in urlpatterns:
        assert isinstance(pattern, URLPattern)
        view: Any = pattern.callback
        yield from ((str(pattern.name), method) for method in METHODS if hasattr(view.view_class, method))


def address(name: str, chat_id: str) -> str:
    pattern = next(pattern for pattern in urlpatterns if pattern.name == name)
    route = str(pattern.pattern)
    values = {"chat_id": chat_id, "message_id": "2"}
    used = {key: value for key, value in values.items() if f":{key}>" in route}
    return reverse(f"messaging:{name}", kwargs=used)


def ask(room: Room, role: str, name: str, method: str, *, json: bool, chat_id: str = "") -> HttpResponse:
    third, owner = room.id("former"), room.id("owner")
    if name in ("remove", "role"):
        if role == "former":
            room.chat.leave(third)
        else:
            room.chat.join(third, by=owner)
    stand_ins = {"OTHER_USER": owner if role == "former" else third, "OTHER_MEMBER": third}
    data = {key: stand_ins.get(value, value) for key, value in TABLE[name, method].data.items()}
    client = room.client(role, json=json)
    answer = getattr(client, method)(address(name, chat_id or room.chat.id), data)
    assert isinstance(answer, HttpResponse)
    return answer


def content(answer: HttpResponse) -> str:
    """The content without the CSRF tokens, which always differ."""
    return re.sub(r'(data-csrf="|name="csrfmiddlewaretoken" value=")\w+', r"\1", answer.content.decode())


def test_every_view_has_a_row() -> None:
    assert set(all_views()) == set(TABLE) | BY_LINK


class TestRoles:
    """First, what changes nothing: requests that the identity refuses, and those without a token."""

    def expect_refused(self, room: Room, name: str, method: str, *, json: bool) -> None:
        with mock.patch.object(Identity, "may_use", return_value=False):
            assert ask(room, "owner", name, method, json=json).status_code == 403
        if method == "post":
            client = Client(enforce_csrf_checks=True, headers={"Accept": "application/json"} if json else {})
            client.force_login(room.people["owner"])
            answer = client.post(address(name, room.chat.id), {"body": "Hello", "up_to": "1"})
            assert answer.status_code == 403
            if (name, "get") not in TABLE:
                got = room.client("owner", json=json).get(address(name, room.chat.id))
                assert got.status_code == 405

    @each_view
    def test_json(self, room: Room, name: str, method: str) -> None:
        self.expect_refused(room, name, method, json=True)
        for role in ROLES:
            expected = getattr(TABLE[name, method], role)
            answer = ask(room, role, name, method, json=True)
            assert answer.status_code == expected, role
            assert "no-store" in answer["Cache-Control"]
            if expected >= 400:
                error = answer.json()["error"]  # type: ignore[attr-defined]
                assert set(error) == {"code", "message"}
                assert error["message"]

    @each_view
    def test_as_a_page(self, room: Room, name: str, method: str) -> None:
        self.expect_refused(room, name, method, json=False)
        for role in ROLES:
            expected = getattr(TABLE[name, method], role)
            answer = ask(room, role, name, method, json=False)
            if name in JSON_ONLY:
                assert answer.status_code == expected, role
            elif expected == 401:
                # Back to a page; a change can't be repeated, so to the list of chats.
                target = address(name, room.chat.id) if method == "get" else reverse("messaging:chats")
                assert answer.status_code == 302
                assert answer["Location"].partition("%3F")[0] == f"/sign-in/?next={target}"
            elif expected == 200 and method == "post":
                assert answer.status_code == 302, role
                assert answer["Location"].startswith("/messages/")
            else:
                assert answer.status_code == expected, role
                assert answer["Content-Type"].startswith("text/html")
            assert {"Accept", "Cookie"} <= {header.strip() for header in answer["Vary"].split(",")}
            assert answer["Referrer-Policy"] == "same-origin"

    def test_a_get_acks_nothing(self, room: Room) -> None:
        for name, method in TABLE:
            if method == "get":
                room.client("member").get(address(name, room.chat.id))
        positions = {member.user: member.read_id for member in room.chat.members()}
        assert positions[room.id("member")] == 0

    def test_inactive_users_must_sign_in_and_a_deleted_chat_is_not_found(self, room: Room) -> None:
        client = room.client("member")
        room.people["member"].is_active = False
        room.people["member"].save()
        assert client.get(reverse("messaging:chats")).status_code == 302
        room.chat.delete(room.id("owner"))
        assert room.get("owner", "room", json=False).status_code == 404


class TestStrangers:
    """Users who are not members can't find out whether a chat exists."""

    @each_view_of_a_chat
    def test_unknown_and_forbidden_chats_have_the_same_answer(
        self, room: Room, name: str, method: str
    ) -> None:
        for role in ("outsider", "former", "staff"):
            for json in (True, False):
                forbidden = ask(room, role, name, method, json=json)
                unknown = ask(room, role, name, method, json=json, chat_id="there-is-none")
                assert forbidden.status_code == unknown.status_code, role
                assert content(forbidden) == content(unknown), role

    @each_view_of_a_chat
    def test_same_answer_and_operations_whatever_is_wrong(
        self, room: Room, operations: list[str], name: str, method: str
    ) -> None:
        client = room.client("outsider", json=True)

        def answer(chat_id: str, data: dict[str, Any]) -> Any:
            args = [chat_id, "0"] if name in ("edit", "delete_message", "message") else [chat_id]
            if method == "get" and data:
                data = {**dict.fromkeys(POSITIONS, "x"), "moved": "9" * 15, "html": "1", **data}
            operations.clear()
            answer = getattr(client, method)(reverse(f"messaging:{name}", args=args), data)
            return answer.status_code, re.sub(chat_id, "", answer.content.decode()), list(operations)

        tried = (dict(TABLE[name, method].data), *BAD, {})
        seen = [answer(chat_id, data) for chat_id in (room.chat.id, "there-is-none") for data in tried]
        assert seen[0][0] == 404
        assert seen == [seen[0]] * len(seen)


class Shouting(Identity):
    """A custom identity."""

    def label(self, user: Any) -> str:
        return super().label(user).upper()


@pytest.mark.versions
class TestIdentity:
    def test_labels(self, person: Person, django_assert_num_queries: DjangoAssertNumQueries) -> None:
        """The full name or the user name; an id that is not a key is its own label."""
        ann, bob, gone = person("ann", first_name="Ann", last_name="Lee"), person("bob"), person("gone")
        deleted, bot, huge = str(gone.pk), "backup-bot", "9" * 30
        gone.delete()
        assert Identity().member_id(ann) == str(ann.pk)
        assert Identity().labels([str(ann.pk), str(bob.pk), deleted, bot]) == {
            str(ann.pk): "Ann Lee", str(bob.pk): "bob", deleted: f"Former user {deleted}", bot: bot,
        }  # fmt: skip
        assert set(Identity().labels([huge])) == {huge}
        ids = [str(person(f"user{number}").pk) for number in range(30)]
        with django_assert_num_queries(1):
            assert len(Identity().labels(ids * 2)) == 30
        with django_assert_num_queries(0):
            assert Identity().labels([]) == {}

    def test_only_active_users_may_use_the_pages(self, person: Person) -> None:
        assert Identity().may_use(person("ann"))
        assert not Identity().may_use(person("bob", is_active=False))
        assert not Identity().may_use(AnonymousUser())

    def test_uuid_and_email_and_no_full_name(self, settings: Settings) -> None:
        settings.AUTH_USER_MODEL = "accounts.Person"
        ann = models.Person.objects.create(email="ann@example.org")
        inactive = models.Person.objects.create(email="bob@example.org", is_active=False)
        gone, bot = str(uuid.uuid4()), "bot"
        assert identity.current().labels([str(ann.pk), str(inactive.pk), gone, bot]) == {
            str(ann.pk): "ann@example.org", str(inactive.pk): "bob@example.org",
            gone: f"Former user {gone[:8]}", bot: bot,
        }  # fmt: skip
        assert not identity.current().may_use(inactive)

    def test_an_empty_full_name_is_ignored(self, settings: Settings) -> None:
        settings.AUTH_USER_MODEL = "accounts.Named"
        models.Named.objects.create(slug="ann", full_name="  ")
        models.Named.objects.create(slug="bob", full_name="Bob B.")
        assert identity.current().labels(["ann", "bob"]) == {"ann": "ann", "bob": "Bob B."}

    def test_pages_of_users_with_another_model(self, settings: Settings, rf: RequestFactory) -> None:
        settings.AUTH_USER_MODEL = "accounts.Person"
        ann, bob = (models.Person.objects.create(email=f"{name}@example.org") for name in ("ann", "bob"))
        Directory("everyone").add(str(bob.pk), bob.email)
        chat = Chat.create(str(ann.pk), [str(bob.pk)], "Hello")
        request = rf.get("/")
        request.user = ann  # type: ignore[assignment]
        shown = {}
        for view, kwargs in (
            (views.ChatsView, {}), (views.NewChatView, {}), (views.ContactsView, {}),
            (views.RoomView, {"chat_id": chat.id}),
        ):  # fmt: skip
            answer: Any = view.as_view()(request, **kwargs)
            assert answer.render().status_code == 200
            shown[view] = "bob@example.org" in answer.content.decode()
        assert [view for view, found in shown.items() if not found] in ([], [views.ContactsView])

    def test_the_class_in_the_settings_is_used(self, settings: Settings, person: Person) -> None:
        assert identity.current() is identity.current()
        ann = str(person("ann").pk)
        change(settings, IDENTITY=f"{__name__}.Shouting")
        assert identity.current().labels([ann]) == {ann: "ANN"}

    @pytest.mark.parametrize("path", ["nowhere.Identity", "uuid.uuid4", "builtins.memoryview"])
    def test_an_invalid_path_raises(self, settings: Settings, path: str) -> None:
        change(settings, IDENTITY=path)
        with pytest.raises(ConfigurationError, match="IDENTITY"):
            identity.current()
