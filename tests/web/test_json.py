"""The JSON: what it says, and what it answers when something is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client, RequestFactory
from django.urls import reverse
from pytest_django import Settings

from django_redis_messaging import Chat, Inbox, OutcomeUnknown
from django_redis_messaging.web.views import SendView

from .conftest import Room


def feed(client: Client, room: Room, **query: str) -> dict[str, Any]:
    answer = client.get(reverse("messaging:room_feed", args=[room.chat.id]), query)
    assert answer.status_code == 200
    data: dict[str, Any] = answer.json()
    return data


def post(client: Client, name: str, *args: str, **data: Any) -> Any:
    return client.post(reverse(f"messaging:{name}", args=args), data)


class TestFeed:
    def test_what_is_new_after_a_cursor(self, room: Room) -> None:
        client = room.client("owner")
        first = feed(client, room)
        assert [message["body"] for message in first["messages"]] == ["From the owner", "From the member"]
        cursor = first["messages"][-1]["cursor"]
        assert feed(client, room, after=cursor)["messages"] == []
        room.chat.send(room.id("member"), "News")
        (news,) = feed(client, room, after=cursor)["messages"]
        assert (news["id"], news["body"], news["label"], news["mine"]) == (3, "News", "member", False)

    def test_more_than_a_page(self, room: Room) -> None:
        for number in range(130):
            room.chat.send(room.id("member"), str(number))
        client, cursor, bodies, more = room.client("owner"), "2", [], True
        while more:
            page = feed(client, room, after=cursor)
            bodies += [message["body"] for message in page["messages"]]
            cursor, more = page["messages"][-1]["cursor"], page["has_more"]
        assert bodies == [str(number) for number in range(130)]

    def test_older_ones(self, room: Room) -> None:
        page = feed(room.client("owner"), room, before="2")
        assert [message["id"] for message in page["messages"]] == [1]

    def test_edits_and_deletions_are_told_once(self, room: Room) -> None:
        client = room.client("owner")
        edits = str(feed(client, room)["edits"])
        assert "changed" not in feed(client, room, after="2", edits=edits)
        room.chat.edit(room.id("member"), 2, "Better")
        room.chat.delete_message(room.id("owner"), 1)
        page = feed(client, room, after="2", edits=edits)
        assert [(one["id"], one["body"], one["deleted"]) for one in page["changed"]] == [
            (1, "", True),
            (2, "Better", False),
        ]
        assert "changed" not in feed(client, room, after="2", edits=str(page["edits"]))

    def test_how_far_others_have_read(self, room: Room) -> None:
        room.chat.ack(room.id("member"), 1)
        page = feed(room.client("owner"), room)
        assert page["read"] == {room.id("owner"): 1, room.id("member"): 1}

    def test_a_cursor_of_lost_data_is_a_reset(self, room: Room) -> None:
        client = room.client("owner")
        cursor = feed(client, room)["messages"][-1]["cursor"]
        room.chat.delete(room.id("owner"))
        Chat.create(room.id("owner"), [], "Anew", chat_id=room.chat.id)
        assert feed(client, room, after=cursor)["reset"]

    @pytest.mark.parametrize(
        "query", [{"after": "x"}, {"after": "-1"}, {"before": "1.5"}, {"after": "9" * 99}]
    )
    def test_places_that_are_none(self, room: Room, query: dict[str, str]) -> None:
        answer = room.client("owner").get(reverse("messaging:room_feed", args=[room.chat.id]), query)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid")

    def test_the_list(self, room: Room) -> None:
        data = room.client("owner").get(reverse("messaging:chats_feed")).json()
        (chat,) = data["chats"]
        assert data["unread"] == chat["unread"] == 1
        assert (chat["id"], chat["title"], chat["excerpt"]) == (room.chat.id, "Room", "From the member")


class TestChanges:
    def test_sending_again_with_the_same_request_id(self, room: Room) -> None:
        client = room.client("owner", json=True)
        answers = [post(client, "send", room.chat.id, body="Hi", request_id="r").json() for _ in range(2)]
        assert answers[0] == answers[1]
        assert room.chat.info().last_id == 3

    def test_acking_by_cursor_and_by_id(self, room: Room) -> None:
        client = room.client("member", json=True)
        cursor = feed(client, room)["messages"][0]["cursor"]
        assert post(client, "ack", room.chat.id, up_to=cursor).json() == {"read_id": 1}
        assert post(client, "ack", room.chat.id, up_to="2").json() == {"read_id": 2}
        assert post(client, "ack", room.chat.id, up_to="x").status_code == 400

    def test_editing_and_deleting(self, room: Room) -> None:
        client = room.client("member", json=True)
        edited = post(client, "edit", room.chat.id, "2", body="Better").json()["message"]
        assert (edited["body"], edited["deleted"]) == ("Better", False)
        deleted = post(client, "delete_message", room.chat.id, "2").json()["message"]
        assert (deleted["body"], deleted["deleted"]) == ("", True)
        assert post(client, "edit", room.chat.id, "2", body="Again").status_code == 410

    @pytest.mark.parametrize(
        ("name", "args", "data"),
        [
            ("send", (), {}),
            ("send", (), {"body": "  "}),
            ("send", (), {"body": "NUL \0"}),
            ("send", (), {"body": "x", "reply_to": "-1"}),
            ("send", (), {"body": "x", "reply_to": "99"}),
            ("send", (), {"body": "x", "request_id": "r" * 300}),
            ("edit", ("x",), {"body": "x"}),
            ("edit", ("9" * 40,), {"body": "x"}),
            ("rename", (), {"title": "NUL \0"}),
            ("ack", (), {}),
            ("mute", (), {"hours": "-1"}),
            ("remove", (), {}),
            ("add", (), {}),
        ],
    )
    def test_bad_input_changes_nothing(
        self, room: Room, name: str, args: tuple[str, ...], data: dict[str, str]
    ) -> None:
        before = room.chat.info()
        answer = post(room.client("owner", json=True), name, room.chat.id, *args, **data)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid")
        assert room.chat.info() == before


class TestLimits:
    def test_too_long(self, room: Room, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "MESSAGE_MAX_BYTES": 20, "TITLE_MAX_BYTES": 9}
        client = room.client("owner", json=True)
        for name, data in (
            ("send", {"body": "ü" * 11}),
            ("send", {"body": "x" * 21}),
            ("rename", {"title": "x" * 10}),
        ):
            answer = post(client, name, room.chat.id, **data)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_long")
        assert post(client, "new", to=room.id("member"), body="x" * 21).status_code == 413
        assert post(client, "send", room.chat.id, body="short").status_code == 200

    def test_what_was_too_long_is_not_lost(self, room: Room, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "MESSAGE_MAX_BYTES": 20}
        answer = post(room.client("owner"), "send", room.chat.id, body="much " * 9, request_id="r1")
        assert answer.status_code == 413
        text = answer.content.decode()
        assert "much much" in text and 'name="request_id" value="r1"' in text

    def test_too_fast(self, room: Room, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "SEND_RATE": 2, "CREATE_RATE": 1}
        client = room.client("owner", json=True)
        answers = [post(client, "send", room.chat.id, body="x") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert 1 <= int(answers[2]["Retry-After"]) <= 30
        answers = [post(client, "new", to=room.id("member")) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert post(room.client("member", json=True), "send", room.chat.id, body="x").status_code == 200

    def test_too_many_chats_and_people(self, room: Room, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {
            **settings.REDIS_MESSAGING, "USER_MAX_CHATS": 1, "CHAT_MAX_MEMBERS": 2
        }  # fmt: skip
        client = room.client("owner", json=True)
        answer = post(client, "new", to=room.id("outsider"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_chats")
        assert int(answer["Retry-After"]) > 0
        answer = post(client, "new", to=[room.id("outsider"), room.id("member")])
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_many_people")
        assert post(client, "add", room.chat.id, to=room.id("outsider")).status_code == 413
        assert Inbox(room.id("outsider")).chats() == []


class TestServerDown:
    @pytest.fixture
    def away(self, room: Room, settings: Settings) -> None:
        gone = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/redis.sock"}
        settings.CACHES = {**settings.CACHES, "gone": gone}
        settings.REDIS_MESSAGING = {
            **settings.REDIS_MESSAGING, "ALIAS": "gone", "COMMAND_DEADLINE": 0.1
        }  # fmt: skip

    def test_pages_say_so(self, room: Room, away: None) -> None:
        for name in ("chats", "room", "contacts", "new", "notifications"):
            args = [room.chat.id] if name == "room" else []
            answer = room.client("owner").get(reverse(f"messaging:{name}", args=args))
            assert answer.status_code == 503
            assert answer["Retry-After"] == "5"
            assert "Away for a moment" in answer.content.decode()

    def test_json_says_so(self, room: Room, away: None) -> None:
        answer = post(room.client("owner", json=True), "send", room.chat.id, body="x")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert answer["Retry-After"] == "5"

    def test_what_was_written_is_not_lost(self, room: Room, away: None) -> None:
        for name, args in (("send", (room.chat.id,)), ("edit", (room.chat.id, "1"))):
            answer = post(room.client("owner"), name, *args, body="My words", request_id="r1")
            assert answer.status_code == 503
            assert "My words" in answer.content.decode()


class Hanging(Chat):
    """A chat whose server takes what is sent, and never answers."""

    def send(self, *args: Any, **kwargs: Any) -> Any:
        raise OutcomeUnknown("no reply")


def test_a_lost_reply_is_told_apart(room: Room, rf: RequestFactory) -> None:
    request = rf.post("/", {"body": "x"}, headers={"Accept": "application/json"})
    request.user = room.people["owner"]
    request._dont_enforce_csrf_checks = True  # type: ignore[attr-defined]
    answer: Any = SendView.as_view(service=Hanging)(request, chat_id=room.chat.id)
    assert (answer.status_code, json.loads(answer.content)["error"]["code"]) == (503, "outcome_unknown")
