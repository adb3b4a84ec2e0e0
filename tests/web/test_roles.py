"""Access control: every view of the URLconf, for every role, as JSON and as a page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from django.http import HttpResponse
from django.urls import URLPattern, reverse

from django_redis_messaging import Chat
from django_redis_messaging.urls import urlpatterns

from .conftest import Room

ROLES = ("anonymous", "outsider", "former", "member", "owner", "staff")


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
    ("room_feed", "get"): Row(*MEMBERS),
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
    "bell",
    "chats_feed",
    "live",
    "member_suggest",
    "notifications_feed",
    "room_feed",
    "session",
    "suggest",
}

#: views for whoever has a link that was mailed: see test_digests.py
BY_LINK = {("unsubscribe", "get"), ("unsubscribe", "post")}

METHODS = ("get", "post", "put", "patch", "delete")


def views() -> Iterator[tuple[str, str]]:
    for pattern in urlpatterns:
        assert isinstance(pattern, URLPattern)
        view: Any = pattern.callback
        yield from ((str(pattern.name), method) for method in METHODS if hasattr(view.view_class, method))


def address(name: str, chat_id: str) -> str:
    pattern = next(pattern for pattern in urlpatterns if pattern.name == name)
    route = str(pattern.pattern)
    values = {"chat_id": chat_id, "message_id": "2"}
    return reverse(
        f"messaging:{name}", kwargs={key: value for key, value in values.items() if f":{key}>" in route}
    )


def ask(room: Room, role: str, name: str, method: str, *, json: bool, chat_id: str = "") -> HttpResponse:
    third = room.id("former")
    if name in ("remove", "role"):
        # another member
        room.chat.join(third, by=room.id("owner"))
    stand_ins = {"OTHER_USER": third, "OTHER_MEMBER": third}
    data = {key: stand_ins.get(value, value) for key, value in TABLE[name, method].data.items()}
    if role == "former" and name == "new":
        data["to"] = room.id("owner")
    if role == "former" and name in ("block", "person"):
        data = {"person": room.id("owner"), "id": room.id("owner")}
    if role == "former" and name in ("remove", "role"):
        room.chat.leave(third)
    client = room.client(role, json=json)
    answer = getattr(client, method)(address(name, chat_id or room.chat.id), data)
    assert isinstance(answer, HttpResponse)
    return answer


def test_every_view_has_a_row() -> None:
    assert set(views()) == set(TABLE) | BY_LINK


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("name", "method"), TABLE)
def test_json(room: Room, name: str, method: str, role: str) -> None:
    answer = ask(room, role, name, method, json=True)

    expected = getattr(TABLE[name, method], role)
    assert answer.status_code == expected
    assert "no-store" in answer["Cache-Control"]
    if expected >= 400:
        error = answer.json()["error"]  # type: ignore[attr-defined]
        assert set(error) == {"code", "message"}
        assert error["message"]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("name", "method"), TABLE)
def test_as_a_page(room: Room, name: str, method: str, role: str) -> None:
    answer = ask(room, role, name, method, json=False)

    expected = getattr(TABLE[name, method], role)
    if name in JSON_ONLY:
        assert answer.status_code == expected
    elif expected == 401:
        assert answer.status_code == 302
        assert answer["Location"].startswith("/admin/login/?next=/messages/")
    elif expected == 200 and method == "post":
        assert answer.status_code == 302
        assert answer["Location"].startswith("/messages/")
    else:
        assert answer.status_code == expected
        assert answer["Content-Type"].startswith("text/html")


@pytest.mark.parametrize("json", [True, False])
@pytest.mark.parametrize("role", ["outsider", "former", "staff"])
@pytest.mark.parametrize(("name", "method"), [row for row in TABLE if TABLE[row].outsider == 404])
def test_unknown_and_forbidden_chats_have_the_same_answer(
    room: Room, name: str, method: str, role: str, json: bool
) -> None:
    forbidden = ask(room, role, name, method, json=json)
    unknown = ask(room, role, name, method, json=json, chat_id="there-is-none")

    assert (forbidden.status_code, content(forbidden)) == (unknown.status_code, content(unknown))


def content(answer: HttpResponse) -> str:
    """The content without the CSRF tokens, which always differ."""
    return re.sub(r'(data-csrf="|name="csrfmiddlewaretoken" value=")\w+', r"\1", answer.content.decode())


@pytest.mark.parametrize("name", [name for name, method in TABLE if (name, "get") not in TABLE])
def test_changes_are_not_possible_by_get(room: Room, name: str) -> None:
    answer = room.client("owner").get(address(name, room.chat.id))

    assert answer.status_code == 405


@pytest.mark.parametrize(("name", "method"), [row for row in TABLE if row[1] == "post"])
def test_csrf(room: Room, name: str, method: str) -> None:
    from django.test import Client

    client = Client(enforce_csrf_checks=True, headers={"Accept": "application/json"})
    client.force_login(room.people["owner"])

    answer = client.post(address(name, room.chat.id), {"body": "Hello", "up_to": "1"})

    assert answer.status_code == 403


def test_a_get_acks_nothing(room: Room) -> None:
    for name, method in TABLE:
        if method == "get":
            room.client("member").get(address(name, room.chat.id))

    positions = {member.user: member.read_id for member in room.chat.members()}
    assert positions[room.id("member")] == 0


def test_inactive_users_must_sign_in(room: Room) -> None:
    client = room.client("member")
    room.people["member"].is_active = False
    room.people["member"].save()

    assert client.get(reverse("messaging:chats")).status_code == 302


def test_a_deleted_chat_is_not_found(room: Room) -> None:
    Chat(room.chat.id).delete(room.id("owner"))

    assert room.client("owner").get(address("room", room.chat.id)).status_code == 404
