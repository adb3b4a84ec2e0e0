"""Requests that are too many, too long, or broken."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.test.client import encode_multipart
from django.urls import reverse
from django.utils.log import AdminEmailHandler
from pytest_django import Settings

from django_redis_messaging import Chat, conf
from django_redis_messaging.services.rates import user_rates

from ..support.round_trips import round_trips
from ..support.server import change
from .conftest import Members, Room, client_of, code, get, page, post
from .test_access import TABLE, ask

#: the settings of all rates
RATES = tuple({setting for setting, _ in user_rates.RATES.values()})
#: the POSTs without a rate, and why repeating them costs others nothing
CAPPED = {
    "ack": "a position only moves forward",
    "read_notifications": "a notification is marked once",
    "discard_notification": "a notification is discarded once",
    "forget_contact": "a contact is forgotten once",
    "unblock": "who is unblocked was blocked, which is counted",
    "leave": "who left must be invited again, which is counted",
    "remove": "who was removed must be invited again",
    "delete": "a chat is deleted once",
}


class TestRates:
    @pytest.mark.parametrize("in_services", [False, True])
    def test_each_action_has_a_rate(self, room: Room, settings: Settings, in_services: bool) -> None:
        """Two uses pass whoever counts them, so nothing is counted twice."""
        change(settings, RATES_IN_SERVICES=in_services, **dict.fromkeys(RATES, 2))
        client = room.client("owner", json=True)
        sent = [room.chat.send(room.id("member"), "x").id for _ in range(2)]
        assert sent == [3, 4]
        uses: list[Callable[[], Any]] = [
            lambda: room.post("owner", "send", body="x"),
            lambda: room.post("owner", "delete_message", "2"),
            lambda: room.post("owner", "rename", title="x"),
            lambda: room.post("owner", "mute", hours="1"),
            lambda: room.post("owner", "typing"),
            lambda: get(client, "suggest", q="a"),
            lambda: post(client, "new", to=room.id("staff"), title="x"),
        ]
        for use in uses:
            *passed, refused = [use() for _ in range(3)]
            assert all(answer.status_code != 429 for answer in passed)
            assert code(refused) == (429, "too_fast")
            assert int(refused["Retry-After"]) > 0
        # the new chats had a recipient each
        assert code(room.post("owner", "add", to=room.id("outsider"))) == (429, "too_fast")
        # others are not affected
        assert room.post("member", "rename", title="y").status_code == 200

    @pytest.mark.parametrize("name", [name for name, method in TABLE if method == "post"])
    def test_each_post_has_a_rate_or_a_cap(self, room: Room, settings: Settings, name: str) -> None:
        change(settings, **dict.fromkeys(RATES, 1))
        role = "member" if name in ("edit", "delete_message") else "owner"
        answers = [ask(room, role, name, "post", json=True) for _ in range(2)]
        if name in CAPPED:
            assert 429 not in [answer.status_code for answer in answers]
        else:
            assert code(answers[1]) == (429, "too_fast")

    def test_invitations_count_people_and_are_all_or_nothing(self, room: Room, settings: Settings) -> None:
        change(settings, INVITE_RATE=2)
        client = room.client("owner", json=True)
        three = [room.id(role) for role in ("staff", "outsider", "former")]
        assert code(room.post("owner", "add", to=three)) == (413, "too_many_people")
        assert len(room.chat.members()) == 2
        # that used nothing up
        assert post(client, "new", to=three[:2]).status_code == 200
        assert code(post(client, "new", to=three[:1])) == (429, "too_fast")

    def test_what_is_refused_uses_nothing_up(self, room: Room, settings: Settings) -> None:
        change(settings, SEND_RATE=1, INVITE_RATE=1, CREATE_RATE=1)
        client = room.client("owner", json=True)
        assert room.post("owner", "send", body="").status_code == 400
        assert post(client, "send", "there-is-none", body="x").status_code == 404
        assert post(client, "new", to="stranger").status_code == 403
        assert room.post("owner", "send", body="x").status_code == 200
        assert post(client, "new", to=room.id("staff")).status_code == 200

    @pytest.mark.parametrize(
        ("name", "args", "data"),
        [
            ("send", [], {"body": "Hi"}),
            ("edit", ["1"], {"body": "Better"}),
            ("delete_message", ["1"], {}),
            ("rename", [], {"title": "Another"}),
            ("mute", [], {"hours": "8"}),
            ("role", [], {"member": "MEMBER", "role": "owner"}),
        ],
    )
    def test_changes_take_two_round_trips(
        self, room: Room, name: str, args: list[str], data: dict[str, str]
    ) -> None:
        """Membership is checked and the use counted in one round trip; the change is the other one."""
        sent = {key: value.replace("MEMBER", room.id("member")) for key, value in data.items()}
        answers: list[Any] = []

        def use() -> None:
            answers.append(room.post("owner", name, *args, **sent))

        _, trips = [round_trips(use) for _ in range(2)]  # the first one loads the scripts
        assert [answer.status_code for answer in answers] == [200, 200]
        assert trips == 2

    def test_typed_text_is_shown_again_when_no_search_is_left(self, room: Room, settings: Settings) -> None:
        change(settings, SEARCH_RATE=1, CREATE_RATE=1)
        client = room.client("owner")
        data = {"to": room.id("staff"), "title": "x", "body": "typed text"}
        assert post(client, "new", **data).status_code == 302
        for _ in range(2):
            refused = post(client, "new", **data)
            text = refused.content.decode()
            assert refused.status_code == 429
            assert "typed text" in text and f'value="{room.id("staff")}" checked' in text
        both = post(room.client("member", json=True), "new", **data, q="a", search="1")
        assert code(both) == (413, "too_many_people")

    def test_a_direct_chat_that_exists_is_not_created(self, room: Room, settings: Settings) -> None:
        change(settings, CREATE_RATE=1, INVITE_RATE=1)
        client = room.client("owner", json=True)
        answers = [post(client, "new", to=room.id("staff"), body=text) for text in ("One", "Two")]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].json()["id"] == answers[1].json()["id"]
        assert code(post(client, "new", to=room.id("outsider"))) == (429, "too_fast")

    def test_long_texts_are_not_shown_again(self, room: Room) -> None:
        for name, args in (("send", [room.chat.id]), ("new", [])):
            answer = post(room.client("owner"), name, *args, body="'" * 200_000, to=room.id("staff"))
            assert answer.status_code == 413
            assert len(answer.content) < 100_000


class TestSearch:
    def test_length(self, room: Room) -> None:
        refused = [post(room.client("owner"), "new", q="x" * 201, search="1")]
        for name, json in itertools.product(("contacts", "suggest", "new"), (True, False)):
            client = room.client("owner", json=json)
            assert get(client, name, q="\ufdfa" * 200).status_code == 200
            refused.append(get(client, name, q="\ufdfa" * 201))
        for answer in refused:
            assert answer.status_code == 400
            assert "shorter name" in answer.content.decode()

    def test_links_name_few_people_and_count_as_searches(self, member: Members, settings: Settings) -> None:
        change(settings, SEARCH_RATE=3)
        client = client_of(member("ann"))
        others = [member(f"user{number}") for number in range(21)]
        assert get(client, "new", to=others).status_code == 400
        assert "user7" in page(client, "new", to=others[:20])
        # a form that has more people costs as much as several searches
        assert post(client, "new", to=others, search="1").status_code == 200
        assert get(client, "new", to=others[:1]).status_code == 429
        # without people, the page is no search
        assert get(client, "new").status_code == 200


class TestBrokenRequests:
    def test_numbers_of_any_length(self, room: Room) -> None:
        """Python refuses to parse more than 4,300 digits."""
        client, chat = room.client("owner", json=True), room.chat.id
        number = "9" * 5000
        feed = ("after", "before", "newer", "at", "edits", "moved", "events")
        asked = [
            *(("room_feed", [chat], name) for name in feed),
            *(("room", [chat], name) for name in ("after", "before", "at", "edit", "reply")),
            ("message", [chat, "2"], "from"), ("message", [chat, number], "from"),
            ("search", [chat], "before"), ("suggest", [], "page"),
            *((name, [], "after") for name in ("chats", "notifications")), ("blocks", [], "from"),
        ]  # fmt: skip
        for name, args, parameter in asked:
            assert get(client, name, *args, **{"q": "x", parameter: number}).status_code < 500
        posted = {
            "send": ([chat], {"body": "x", "reply_to": number}), "ack": ([chat], {"up_to": number}),
            "edit": ([chat, number], {"body": "x"}), "delete_message": ([chat, number], {}),
            "mute": ([chat], {"hours": number}), "discard_notification": ([], {"id": number}),
        }  # fmt: skip
        for name, (args, data) in posted.items():
            assert code(post(client, name, *args, **data)) == (400, "invalid")
        for field in ("id", "up_to"):
            assert code(post(client, "read_notifications", **{field: number})) == (400, "invalid")

    def test_late_repeat_of_a_new_chat(self, room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
        client = room.client("owner", json=True)
        data = {"to": room.id("staff"), "title": "Two", "request_id": "r1"}
        first = post(client, "new", **data).json()
        module = "django_redis_messaging.services.chats.chat"
        monkeypatch.setattr(f"{module}.request", lambda given: f"late-{given}")
        monkeypatch.setattr(f"{module}._chat_id", lambda *_: first["id"])
        late = post(client, "new", **data)
        assert code(late) == (409, "exists")
        assert (late.json()["id"], late.json()["url"]) == (first["id"], first["url"])
        assert post(room.client("owner"), "new", **data)["Location"] == first["url"]
        # no longer a member
        Chat(first["id"]).leave(room.id("owner"))
        late = post(client, "new", **data)
        assert code(late) == (409, "exists")
        assert "id" not in late.json()

    @pytest.mark.parametrize("json", [True, False])
    @pytest.mark.parametrize(
        ("name", "field"),
        [("send", "body"), ("new", "body"), ("new", "to"), ("rename", "title"), ("ack", "up_to")],
    )
    def test_lone_surrogates(self, room: Room, name: str, field: str, json: bool) -> None:
        args = [] if name == "new" else [room.chat.id]
        body = encode_multipart("limit", {field: "+2AA-", "q": "+2AA-"})
        answer = room.client("owner", json=json).generic(
            "POST",
            reverse(f"messaging:{name}", args=args),
            body,
            content_type="multipart/form-data; boundary=limit; charset=utf-7",
        )
        assert answer.status_code == 400
        assert b"not allowed" in answer.content

    @pytest.mark.parametrize(("name", "field"), [("send", "body"), ("rename", "title")])
    def test_control_characters(self, room: Room, name: str, field: str) -> None:
        for character in "\x00\x01\x08\x0b\x0c\x1b\x1f":
            assert code(room.post("owner", name, **{field: f"a{character}b"})) == (400, "invalid")
        assert room.post("owner", name, **{field: "a\tb\r\nc"}).status_code == 200

    @pytest.mark.parametrize("json", [True, False])
    def test_messages_of_invisible_characters(self, room: Room, json: bool) -> None:
        client, direct = room.client("owner", json=json), {"to": room.id("staff")}
        for name, args, data in (
            ("send", [room.chat.id], {}), ("edit", [room.chat.id, 1], {}), ("new", [], direct),
        ):  # fmt: skip
            answer = post(client, name, *args, body="\u200b\u2800 \u202e\u3164", **data)
            assert answer.status_code == 400
            assert "only invisible characters" in answer.content.decode()
        assert post(client, "send", room.chat.id, body="\u200b!").status_code == (200 if json else 302)
        assert [message.body for message in room.chat.history(room.id("owner")).messages] == [
            "From the owner", "From the member", "\u200b!",
        ]  # fmt: skip

    def test_titles_that_are_too_long_are_named(self, room: Room) -> None:
        for name, args, data in (("rename", [room.chat.id], {}), ("new", [], {"to": room.id("staff")})):
            answer = post(room.client("owner"), name, *args, title="x" * 600, **data)
            assert answer.status_code == 413
            assert "The title is too long" in answer.content.decode()


class Collecting(AdminEmailHandler):
    """Keeps error mail instead of sending it."""

    def __init__(self) -> None:
        super().__init__(include_html=True)
        self.mails: list[str] = []

    def send_mail(self, subject: str, message: str, *args: Any, **kwargs: Any) -> None:
        self.mails.append(f"{subject}\n{message}\n{kwargs['html_message']}")


@contextmanager
def error_mail() -> Iterator[list[str]]:
    """The error mail of the block."""
    handler, logger = Collecting(), logging.getLogger("django.request")
    logger.addHandler(handler)
    try:
        yield handler.mails
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize(("name", "method"), [("send", "send"), ("edit", "edit"), ("new", "direct")])
def test_error_mail_and_logs_contain_no_bodies(
    room: Room, settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str, method: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Chat, method, fail)
    settings.DEBUG = False
    client = Client(raise_request_exception=False)
    client.force_login(room.people["member"])
    args = {"send": [room.chat.id], "edit": [room.chat.id, "2"], "new": []}[name]
    with error_mail() as mails:
        answer = post(client, name, *args, body="confidential words", to=room.id("staff"))
    assert answer.status_code == 500
    (mail,) = mails
    assert "a defect" in mail
    assert "confidential" not in mail
    assert "confidential" not in caplog.text


def test_error_mail_about_a_template_contains_no_bodies(
    room: Room, settings: Settings, tmp_path: Path
) -> None:
    """Pages are rendered when their views have ended."""
    (tmp_path / "base.html").write_text("{% block content %}{% endblock %}{% url 'nowhere' %}")
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    settings.REDIS_MESSAGING = {"LAYOUT": "base.html"}
    settings.DEBUG = False
    room.chat.send(room.id("owner"), "confidential words")
    client = Client(raise_request_exception=False)
    client.force_login(room.people["member"])
    with error_mail() as mails:
        assert client.get(reverse("messaging:room", args=[room.chat.id])).status_code == 500
    (mail,) = mails
    assert "&#x27;nowhere&#x27; not found" in mail
    assert "confidential" not in mail


def test_defaults_are_generous() -> None:
    assert all(getattr(conf.Settings, name) >= 60 for name in RATES)
