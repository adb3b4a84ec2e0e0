"""The JSON answers, the answers to requests that fail, and the signal for messages."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from django.http import HttpRequest
from django.test import RequestFactory
from django.urls import reverse
from django_redis import get_redis_connection
from pytest_django import Settings

from django_redis_messaging import (
    Chat,
    ChatExists,
    ChatNotFound,
    ConfigurationError,
    Inbox,
    InvalidArgument,
    LimitExceeded,
    Message,
    MessagingError,
    NotAMember,
    NotPermitted,
    OutcomeUnknown,
    RateExceeded,
    Unavailable,
    conf,
)
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.chats.chat import MAX_POSITIONS
from django_redis_messaging.signals import message_sent
from django_redis_messaging.web import problems
from django_redis_messaging.web.views import NewChatView, SendView
from django_redis_messaging.web.views.chats import CHATS_PER_PAGE

from ..support.server import change
from .conftest import Room, code, get, post

T = TypeVar("T")


def feed(room: Room, role: str = "owner", **query: Any) -> dict[str, Any]:
    answer = room.get(role, "room_feed", **query)
    assert answer.status_code == 200
    data: dict[str, Any] = answer.json()
    return data


class TestFeed:
    def test_new_messages_after_a_cursor(self, room: Room) -> None:
        first = feed(room)
        assert [message["body"] for message in first["messages"]] == ["From the owner", "From the member"]
        cursor = first["messages"][-1]["cursor"]
        assert feed(room, after=cursor)["messages"] == []
        room.chat.send(room.id("member"), "News")
        (news,) = feed(room, after=cursor)["messages"]
        assert (news["id"], news["body"], news["label"], news["mine"]) == (3, "News", "member", False)

    def test_more_than_a_page(self, room: Room) -> None:
        for number in range(130):
            room.chat.send(room.id("member"), str(number))
        cursor, bodies, more = "2", [], True
        while more:
            page = feed(room, after=cursor)
            bodies += [message["body"] for message in page["messages"]]
            cursor, more = page["messages"][-1]["cursor"], page["has_more"]
        assert bodies == [str(number) for number in range(130)]

    def test_older_and_newer_messages(self, room: Room) -> None:
        for query, number in (({"before": "2"}, 1), ({"newer": "1"}, 2)):
            page = feed(room, **query)
            assert ([message["id"] for message in page["messages"]], page["has_more"]) == ([number], False)

    @pytest.mark.parametrize(
        ("at", "first", "last", "older", "newer"),
        [("newest", 81, 130, True, False), ("unread", 1, 50, False, True), ("70", 60, 109, True, True)],
    )
    def test_the_state_around_a_position(
        self, room: Room, at: str, first: int, last: int, older: bool, newer: bool
    ) -> None:
        for number in range(3, 131):
            room.chat.send(room.id("member"), str(number))
        room.chat.ack(room.id("owner"), 1)
        page = feed(room, at=at)
        ids = [message["id"] for message in page["messages"]]
        assert (ids, page["older"], page["newer"]) == (list(range(first, last + 1)), older, newer)
        assert (page["read_id"], page["unread"], page["newest"]) == (1, 129, 130)
        assert page["divider"] == "129 new messages"
        assert feed(room, after=page["cursor"])["messages"] == []

    def test_quiet_entries_since_an_answer(self, room: Room) -> None:
        first = feed(room, after="2")
        assert [event["text"] for event in first["events"]] == ["former left."]
        room.chat.rename(room.id("member"), "Trip")
        (event,) = feed(room, after="2", events=first["event"])["events"]
        assert (event["after"], event["text"]) == (2, "member renamed the chat to “Trip”.")

    def test_who_is_typing(self, room: Room) -> None:
        assert feed(room, after="2")["typing"] == ""
        assert room.post("member", "typing").status_code == 200
        assert feed(room, after="2")["typing"] == "member is typing…"

    def test_edits_and_deletions_are_reported_once(self, room: Room) -> None:
        edits = feed(room)["edits"]
        assert "changed" not in feed(room, after="2", edits=edits)
        room.chat.edit(room.id("member"), 2, "Better")
        room.chat.delete_message(room.id("owner"), 1)
        page = feed(room, after="2", edits=edits)
        changed = [(one["id"], one["body"], one["deleted"]) for one in page["changed"]]
        assert changed == [(1, "", True), (2, "Better", False)]
        assert "changed" not in feed(room, after="2", edits=page["edits"])
        unknown = feed(room, after="2", edits="7")  # edits that are no longer listed
        assert (unknown["edits_missed"], "changed" in unknown) == (True, False)

    def test_read_positions_of_the_members(self, room: Room) -> None:
        room.chat.ack(room.id("member"), 1)
        page = feed(room)
        assert page["read"] == {room.id("owner"): 1, room.id("member"): 1}

    def test_a_cursor_of_lost_data_resets(self, room: Room) -> None:
        cursor = feed(room)["messages"][-1]["cursor"]
        room.chat.delete(room.id("owner"))
        Chat.create(room.id("owner"), [], "Anew", chat_id=room.chat.id)
        assert feed(room, after=cursor)["reset"]

    def test_invalid_positions(self, room: Room) -> None:
        for name, value in (
            ("after", "x"), ("after", "-1"), ("before", "1.5"), ("after", "9" * 99), ("edits", "x"),
            ("moved", "9" * 16), ("events", "x"), ("newer", "x"), ("at", "x"),
        ):  # fmt: skip
            assert code(room.get("owner", "room_feed", **{name: value})) == (400, "invalid"), (name, value)

    def test_the_list(self, room: Room) -> None:
        data = get(room.client("owner"), "chats_feed").json()
        (chat,) = data["chats"]
        assert data["unread"] == chat["unread"] == 1
        assert (chat["id"], chat["title"], chat["excerpt"]) == (room.chat.id, "Room", "From the member")

    def test_an_unchanged_list_is_not_sent_again(self, room: Room) -> None:
        client, url = room.client("owner"), reverse("messaging:chats_feed") + "?html=1"
        first = client.get(url)
        (chat,) = first.json()["chats"]
        assert "From the member" in chat["html"] and not {"title", "excerpt"} & set(chat)
        unchanged = {"If-None-Match": first["ETag"]}
        again = client.get(url, headers=unchanged)
        assert (again.status_code, again.content, again["ETag"]) == (304, b"", first["ETag"])
        room.chat.send(room.id("member"), "News")
        assert client.get(url, headers=unchanged).json()["chats"][0]["unread"] == 2

    def test_the_list_is_bounded_in_bytes(self, room: Room) -> None:
        owner, member = room.id("owner"), room.id("member")
        for _ in range(CHATS_PER_PAGE + 1):
            Chat.create(owner, [member], "'" * 64 * 1024, title="'" * 512)
        answer = get(room.client("owner"), "chats_feed", html=1)
        assert len(answer.json()["chats"]) == CHATS_PER_PAGE and answer.json()["has_more"]
        assert len(answer.content) < 300 * 1024


def redis_bytes(act: Callable[[], T]) -> tuple[T, int]:
    """The result of a call, and the bytes that Redis sent for it."""
    client = get_redis_connection(conf.alias())

    def sent() -> int:
        return int(client.info("stats")["total_net_output_bytes"])

    first, second = sent(), sent()
    result = act()
    return result, sent() - second - (second - first)


class TestPolls:
    """A poll costs what is new, and every answer is bounded."""

    @pytest.fixture
    def known(self, room: Room) -> dict[str, str]:
        """The query of a poll that knows everything in a room of large messages, some of them edited."""
        for number in range(20):
            room.chat.send(room.id("member"), f"{number}" + "x" * 60_000)
        for number in range(3, 13):
            room.chat.edit(room.id("member"), number, "y" * 60_000)
        page = feed(room, after="22", html="1")
        return {"after": page["cursor"], "edits": page["edits"], "moved": page["moved"], "html": "1"}

    def test_an_idle_poll(self, room: Room, known: dict[str, str], operations: list[str]) -> None:
        client, url = room.client("owner"), reverse("messaging:room_feed", args=[room.chat.id])
        operations.clear()
        answer, sent = redis_bytes(lambda: client.get(url, known))
        assert operations == ["Chat.changes"]
        assert answer.json()["messages"] == []
        assert (len(answer.content) <= 512, sent <= 512) == (True, True), (len(answer.content), sent)
        again = client.get(url, known, headers={"If-None-Match": answer["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
        room.chat.ack(room.id("member"), 22)
        changed = client.get(url, known, headers={"If-None-Match": answer["ETag"]})
        assert changed.json()["read"] == {room.id("owner"): 1, room.id("member"): 22}
        room.chat.send(room.id("owner"), "Mine")
        room.chat.ack(room.id("member"), 23)
        assert feed(room, **known)["seen"] == "Seen by member"

    @pytest.mark.parametrize("text", ["'", "&", "😀", 'http://e.io/"&q '])
    def test_answers_are_bounded(self, room: Room, text: str) -> None:
        client, body = room.client("owner"), text * (65_000 // len(text.encode()))
        for _ in range(16):
            room.chat.send(room.id("owner"), body)
        for number in range(3, 19):
            room.chat.edit(room.id("owner"), number, body)
        url, wanted = reverse("messaging:room_feed", args=[room.chat.id]), list(range(3, 19))
        for html in ({}, {"html": "1"}):
            for start, key in (({"after": "2"}, "messages"), ({"after": "18", "edits": "0"}, "changed")):
                query, ids, more = {**start, **html}, [], True
                while more:
                    answer = client.get(url, query)
                    assert len(answer.content) <= 300 * 1024
                    page = answer.json()
                    ids += [message["id"] for message in page[key]]
                    assert all(("body" in message) is not bool(html) for message in page[key])
                    query |= {"after": page["cursor"], "edits": str(page["edits"])}
                    more = page["has_more"]
                assert ids == wanted
            ids, more = [19], True
            while more:
                answer = client.get(url, {"before": str(ids[0]), **html})
                assert len(answer.content) <= 300 * 1024
                ids[:0] = [message["id"] for message in answer.json()["messages"]]
                more = answer.json()["has_more"]
            assert ids == list(range(1, 20))
        room.chat.ack(room.id("owner"), 2)
        answer = client.get(reverse("messaging:room", args=[room.chat.id]))
        assert len(answer.content) <= 300 * 1024
        shown = [int(number) for number in re.findall(rb' data-id="(\d+)"', answer.content)]
        assert shown == wanted[-len(shown) :]
        assert f'href="?before={shown[0]}"' in answer.content.decode()


class TestOwnersBeyondTheFirstMembers:
    def test_only_the_owner_may_delete_messages_of_others(self, room: Room) -> None:
        """The owner handed the chat to the outsider, who joined after more members than a poll describes."""
        for number in range(MAX_POSITIONS):
            room.chat.join(f"member {number}", by=room.id("owner"))
        room.chat.join(room.id("outsider"), by=room.id("owner"))
        room.chat.set_role(room.id("owner"), room.id("outsider"), "owner")
        room.chat.set_role(room.id("outsider"), room.id("owner"), "member")
        room.chat.send(room.id("member"), "Can be deleted by the new owner")
        listed = [member.user for member in room.chat.members(limit=MAX_POSITIONS)]
        assert room.id("outsider") not in listed and room.id("owner") in listed
        for role, is_owner in (("outsider", True), ("owner", False)):
            permitted = f'data-sender="{room.id("member")}" data-can="{"delete" if is_owner else ""}"'
            (message,) = feed(room, role, after="2", html="1")["messages"]
            assert permitted in message["html"]
            assert permitted in room.page(role)
            details = room.page(role, "details")
            for name in ("delete", "remove"):
                assert (reverse(f"messaging:{name}", args=[room.chat.id]) in details) is is_owner


class TestChanges:
    def test_sending_again_with_the_same_request_id(self, room: Room) -> None:
        answers = [room.post("owner", "send", body="Hi", request_id="r").json() for _ in range(2)]
        assert answers[0] == answers[1]
        assert room.chat.info().last_id == 3

    @pytest.mark.parametrize("query", ["", "?html=1"])
    @pytest.mark.parametrize("role", ["owner", "member"])
    def test_sending_takes_two_operations(
        self, room: Room, operations: list[str], role: str, query: str
    ) -> None:
        client = room.client(role, json=True)
        operations.clear()
        answer = client.post(reverse("messaging:send", args=[room.chat.id]) + query, {"body": "Hi"})
        assert answer.status_code == 200
        assert operations == ["Chat.admit", "Chat.send"]
        message = answer.json()["message"]
        (stored,) = room.chat.history(room.id(role), limit=1).messages
        text = message.pop("html" if query else "body")
        assert "Hi" in text if query else text == "Hi"
        assert message == {
            "id": 3, "cursor": stored.cursor, "nonce": stored.nonce, "sender": room.id(role), "label": role,
            "mine": True, "data": None, "reply_to": None, "mentions": [],
            "sent_at": stored.sent_at.isoformat(), "edited_at": None, "deleted": False,
        }  # fmt: skip

    def test_the_html_of_a_sent_message_is_that_of_the_feed(self, room: Room) -> None:
        for role in ("owner", "member"):
            client = room.client(role, json=True)
            sent = client.post(reverse("messaging:send", args=[room.chat.id]) + "?html=1", {"body": "Hi"})
            shown = feed(room, role, html="1")["messages"][-1]
            assert sent.json()["message"]["html"] == shown["html"]
            assert 'data-can="edit delete"' in shown["html"]

    def test_acking_by_cursor_and_by_id(self, room: Room) -> None:
        cursor = feed(room, "member")["messages"][0]["cursor"]
        assert room.post("member", "ack", up_to=cursor).json() == {"read_id": 1}
        assert room.post("member", "ack", up_to="2").json() == {"read_id": 2}
        assert room.post("member", "ack", up_to="x").status_code == 400

    def test_editing_and_deleting(self, room: Room) -> None:
        edited = room.post("member", "edit", "2", body="Better").json()["message"]
        assert (edited["body"], edited["deleted"]) == ("Better", False)
        deleted = room.post("member", "delete_message", "2").json()["message"]
        assert (deleted["body"], deleted["deleted"]) == ("", True)
        assert room.post("member", "edit", "2", body="Again").status_code == 410

    @pytest.mark.parametrize(
        ("name", "args", "data"),
        [
            ("send", (), {}),
            ("send", (), {"body": "  "}),
            ("send", (), {"body": "NUL \0"}),
            ("send", (), {"body": "x", "reply_to": "-1"}),
            ("send", (), {"body": "x", "reply_to": "99"}),
            ("send", (), {"body": "x", "request_id": "r" * 300}),
            *(("edit", (number,), {"body": "x"}) for number in ("0", "-1", "x", "9" * 40)),
            *(("delete_message", (number,), {}) for number in ("0", "-1", "x", "9" * 40)),
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
        assert code(room.post("owner", name, *args, **data)) == (400, "invalid")
        assert room.chat.info() == before


class TestLimits:
    def test_too_long(self, room: Room, settings: Settings) -> None:
        change(settings, MESSAGE_MAX_BYTES=20, TITLE_MAX_BYTES=9)
        client = room.client("owner", json=True)
        for name, data in (
            ("send", {"body": "ü" * 11}),
            ("send", {"body": "x" * 21}),
            ("rename", {"title": "x" * 10}),
        ):
            assert code(room.post("owner", name, **data)) == (413, "too_long")
        assert post(client, "new", to=room.id("member"), body="x" * 21).status_code == 413
        assert room.post("owner", "send", body="short").status_code == 200
        # a page shows the text again
        answer = room.post("owner", "send", json=False, body="much " * 9, request_id="r1")
        assert answer.status_code == 413
        text = answer.content.decode()
        assert "much much" in text and 'name="request_id" value="r1"' in text

    def test_too_fast(self, room: Room, settings: Settings) -> None:
        change(settings, SEND_RATE=2, CREATE_RATE=1)
        client = room.client("owner", json=True)
        answers = [room.post("owner", "send", body="x") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert 1 <= int(answers[2]["Retry-After"]) <= 60
        answers = [post(client, "new", to=room.id("member"), title="x") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert room.post("member", "send", body="x").status_code == 200

    def test_too_many_members(self, room: Room, settings: Settings) -> None:
        change(settings, CHAT_MAX_MEMBERS=2)
        outsider = room.id("outsider")
        answers = [
            post(room.client("owner", json=True), "new", to=[outsider, room.id("member")]),
            room.post("owner", "add", to=outsider),
        ]
        error = {"code": "too_many_members", "message": "A chat can't have this many members."}
        assert [(answer.status_code, answer.json()["error"]) for answer in answers] == [(413, error)] * 2
        answer = room.post("owner", "add", json=False, to=outsider)
        assert answer.status_code == 413
        assert "A chat can&#x27;t have this many members." in answer.content.decode()
        assert Inbox(outsider).chats() == []

    def test_too_many_chats(self, room: Room, settings: Settings) -> None:
        change(settings, USER_MAX_CHATS=1)
        Chat.create(room.id("staff"), [])
        answers = [
            post(room.client("owner", json=True), "new", to=room.id("outsider")),
            room.post("owner", "add", to=room.id("staff")),
        ]
        for answer in answers:
            assert code(answer) == (429, "too_many_chats")
            assert int(answer["Retry-After"]) > 0
        assert Inbox(room.id("outsider")).chats() == []
        assert len(room.chat.members()) == 2


class TestServerDown:
    def test_pages_and_json(self, room: Room, away: None) -> None:
        """A page shows the text of a message again."""
        for name, *args in (("chats",), ("room", room.chat.id), ("contacts",), ("new",), ("notifications",)):
            answer = get(room.client("owner"), name, *args)
            assert answer.status_code == 503
            assert answer["Retry-After"] == "5"
            assert "Temporarily unavailable" in answer.content.decode()
        for name, *args in (("send",), ("edit", "1")):
            answer = room.post("owner", name, *args, json=False, body="My words", request_id="r1")
            assert answer.status_code == 503
            assert "My words" in answer.content.decode()
        answer = room.post("owner", "send", body="x")
        assert code(answer) == (503, "unavailable")
        assert answer["Retry-After"] == "5"

    @pytest.mark.timing
    def test_a_frozen_server_does_not_hold_a_page(self, room: Room, settings: Settings) -> None:
        with EmbeddedServer() as server:
            frozen = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
            settings.CACHES = {**settings.CACHES, "frozen": frozen}
            change(settings, ALIAS="frozen", WEB_DEADLINE=0.5)
            client = room.client("owner")
            assert client.get(reverse("messaging:chats")).status_code == 200
            server.freeze()
            began = time.monotonic()
            assert client.get(reverse("messaging:chats")).status_code == 503
            # the rest of the page, with the bell, takes its time, too; COMMAND_DEADLINE is 10 s
            assert 0.5 <= time.monotonic() - began < 3


class Hanging(Chat):
    """A chat whose server receives messages but never replies."""

    def send(self, *args: Any, **kwargs: Any) -> Any:
        raise OutcomeUnknown("no reply")


def test_a_lost_reply_has_its_own_code(room: Room, rf: RequestFactory) -> None:
    request = rf.post("/", {"body": "x"}, headers={"Accept": "application/json"})
    request.user = room.people["owner"]
    request._dont_enforce_csrf_checks = True  # type: ignore[attr-defined]
    answer: Any = SendView.as_view(service=Hanging)(request, chat_id=room.chat.id)
    assert (answer.status_code, json.loads(answer.content)["error"]["code"]) == (503, "outcome_unknown")


def exceeded(setting: str) -> LimitExceeded:
    return LimitExceeded("something", limit=1, actual=2, setting=setting)


class Slow(Unavailable):
    """An error of a site, derived from one of the services."""


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (InvalidArgument("x"), 400, "invalid", None),
        (NotPermitted("x"), 403, "not_permitted", None),
        (NotAMember("x"), 404, "not_found", None),
        (ChatNotFound("x"), 404, "not_found", None),
        (exceeded("MESSAGE_MAX_BYTES"), 413, "too_long", None),
        (exceeded("TITLE_MAX_BYTES"), 413, "too_long", None),
        (exceeded(""), 413, "too_long", None),
        (exceeded("CHAT_MAX_MEMBERS"), 413, "too_many_members", None),
        (exceeded("INVITE_RATE"), 413, "too_many_people", None),
        (exceeded("USER_MAX_BLOCKS"), 413, "too_many_blocks", None),
        (ChatExists("x"), 409, "exists", None),
        # rounded up
        (RateExceeded("x", limit=1, retry_after=0.2), 429, "too_fast", 1),
        (exceeded("USER_MAX_CHATS"), 429, "too_many_chats", 3600),
        (Unavailable("x"), 503, "unavailable", 5),
        (Slow("x"), 503, "unavailable", 5),
        (OutcomeUnknown("x"), 503, "outcome_unknown", 5),
    ],
    ids=repr,
)
def test_answers(error: MessagingError, status: int, code: str, retry_after: int | None) -> None:
    answer = problems.answer_to(error)
    assert answer is not None
    assert (answer.status, answer.code, answer.retry_after) == (status, code, retry_after)
    assert str(answer.message)


def test_other_errors_have_no_answer_and_only_invalid_data_has_specific_texts() -> None:
    for error in (MessagingError("x"), ConfigurationError("x")):
        assert problems.answer_to(error) is None
    answer = problems.invalid("Choose a number.").answer
    assert (answer.status, answer.code, answer.message) == (400, "invalid", "Choose a number.")


class TestSignals:
    """`message_sent` is sent for messages that are sent by pages."""

    @pytest.fixture
    def received(self) -> Iterator[list[tuple[Any, Any, Message]]]:
        """The view, the user and the message of each signal."""
        signals = []

        def receive(sender: Any, request: HttpRequest, message: Message, **_: object) -> None:
            signals.append((sender, request.user, message))

        message_sent.connect(receive)
        yield signals
        message_sent.disconnect(receive)

    def test_only_messages_sent_by_pages(self, room: Room, received: list[tuple[Any, Any, Message]]) -> None:
        for _ in range(2):  # a repeat signals the same message
            assert room.post("member", "send", body="Pizza?", request_id="r").status_code == 200
        sent = room.chat.history(room.id("member")).messages[-1]
        assert received == [(SendView, room.people["member"], sent)] * 2
        assert sent.body == "Pizza?"
        client = room.client("owner", json=True)
        assert post(client, "send", "another", body="x").status_code == 404
        assert room.post("owner", "send", body="").status_code == 400
        room.chat.send(room.id("owner"), "by code")
        assert len(received) == 2

    @pytest.mark.parametrize("body", ["Hello", ""])
    def test_the_first_message_of_a_new_chat(
        self, room: Room, body: str, received: list[tuple[Any, Any, Message]]
    ) -> None:
        answer = post(room.client("owner", json=True), "new", to=room.id("staff"), body=body)
        assert answer.status_code == 200
        expected = [(NewChatView, room.people["owner"], "Hello")] if body else []
        assert [(view, user, message.body) for view, user, message in received] == expected

    def test_a_failing_receiver_is_logged_and_the_message_is_sent(
        self, room: Room, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(**_: object) -> None:
            raise RuntimeError("out of order")

        message_sent.connect(fail)
        try:
            assert room.post("member", "send", body="Pizza?").status_code == 200
        finally:
            message_sent.disconnect(fail)
        assert Inbox(room.id("owner")).chats()[0].last_message.body == "Pizza?"  # type: ignore[union-attr]
        assert "out of order" in caplog.text
