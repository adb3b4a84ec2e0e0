"""Members who are mentioned by name in a message."""

from __future__ import annotations

import logging
import re
from html import unescape

import pytest
from django.urls import reverse

from django_redis_messaging import Blocks, Chat, Mailbox, Unavailable
from django_redis_messaging.web.identity import Identity
from django_redis_messaging.web.texts import MAX_PLACES, markup
from django_redis_messaging.web.views import messages
from django_redis_messaging.web.views.messages import find_mentions

from ..support.people import Member
from .conftest import Members, client_of, get, page, post

People = dict[str, Member]


@pytest.fixture
def people(member: Members) -> People:
    names = {"ann": ("Ann", ""), "bob": ("Bob", ""), "lee": ("Bob", "Lee"), "zoe": ("Zoë", "Å.")}
    return {key: member(key, first_name=first, last_name=last) for key, (first, last) in names.items()}


@pytest.fixture
def chat(people: People) -> Chat:
    ids = list(people.values())
    return Chat.create(ids[0], ids[1:], title="Trip")


def send(chat: Chat, user: Member, body: str, **data: str) -> None:
    answer = post(client_of(user, json=True), "send", chat.id, body=body, **data)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("@Bob", ["bob"]),
        ("Ask @bob lee, or @BOB.", ["lee", "bob"]),
        ("@Bobby", []),
        ("mail@bob", []),
        ("@zoë å.: hi", ["zoe"]),
        ("@Zoe\u0308 A\u030a.", ["zoe"]),
        ("`@Bob`", []),
        ("```\n@Bob\n```", []),
        ("@Ann", []),
        ("@Nobody @", []),
        ("@Bob @Bob", ["bob"]),
    ],
)
def test_names_after_an_at(chat: Chat, people: People, body: str, found: list[str]) -> None:
    ids = find_mentions(Identity(), chat, people["ann"], body)
    assert ids == [people[key] for key in found]


@pytest.mark.parametrize(
    ("name", "body", "marked"),
    [
        ("Bob Straße", "@bob strasse!", "@bob strasse"),
        ("Bob Straße", "@BOB STRASSE, @Bob", "@BOB STRASSE"),
        ("Zoë Å.", "<@Zoe\u0308 A\u030a.>", "@Zoe\u0308 A\u030a."),
        ("ﷺ", "@صلى الله عليه وسلم", "@صلى الله عليه وسلم"),
        ("@home", "@@HOME", "@@HOME"),
        ("—", "@—", "@—"),
        ("A @B", "@a @b", "@a @b"),
        ("B", "@a @b", "@b"),
        ("Bob", "@Bob_x @Bobby x@Bob `@Bob` @bob\u0335", "@bob"),
        ("Bob", "@`x`Bob", None),
        ("Bob", "@x " * MAX_PLACES + "@Bob", None),
        ("Bob", "`x`" + "@x `x`" * (MAX_PLACES - 1) + "@Bob", "@Bob"),
    ],
)
def test_names_are_highlighted_where_they_notify(
    member: Members, name: str, body: str, marked: str | None
) -> None:
    ann, member = member("ann"), member("member", first_name=name)
    chat = Chat.create(ann, [member])
    send(chat, ann, body)
    (message,) = chat.history(ann).messages
    assert message.mentions == ((member,) if marked else ())
    assert Mailbox(member).unread() == bool(marked)
    html = markup(body, mentions=[name])
    shown = re.findall(r'<span class="drm-mention">(.*?)</span>', html)
    assert shown == ([marked] if marked else [])
    assert unescape(re.sub(r"</?(span|code)[^>]*>", "", html)) == body.replace("`", "")


class TestNamesakes:
    """Two members are called Ann Lee."""

    @pytest.fixture
    def annas(self, member: Members) -> list[Member]:
        return [member(name, first_name="Ann", last_name="Lee") for name in ("ann1", "ann2", "x@y.example")]

    @pytest.fixture
    def room(self, people: People, annas: list[Member]) -> Chat:
        return Chat.create(people["bob"], annas, title="Trip")

    def test_the_chosen_one_is_notified_or_all(self, room: Chat, people: People, annas: list[Member]) -> None:
        second = annas[1]
        send(room, annas[0], "Hello")
        send(room, people["bob"], "@Ann Lee?", mentions=second)
        assert [Mailbox(one).unread() for one in annas] == [0, 1, 0]
        pages = [page(client_of(one), "room", room.id) for one in annas[:2]]
        marks = ['<mark class="drm-mention">@Ann Lee</mark>' in text for text in pages]
        assert marks == [False, True] and all(">@Ann Lee</" in text for text in pages)
        feed = get(client_of(annas[0]), "room_feed", room.id).json()
        assert feed["messages"][-1]["mentions"] == [second]
        send(room, people["bob"], "@ann lee?")  # typed
        assert [Mailbox(one).fetch().messages[0].count for one in annas] == [1, 2, 1]

    @pytest.mark.parametrize("chosen", ["ann", "bob", "nobody", "\0", ""])
    def test_who_is_no_namesake_can_not_be_chosen(
        self, room: Chat, people: People, annas: list[Member], chosen: str
    ) -> None:
        mentions = people.get(chosen, chosen)
        send(room, people["bob"], "@Ann Lee and mail@ann", mentions=mentions)
        (message,) = room.history(people["bob"]).messages
        assert message.mentions == tuple(annas)

    def test_suggestions_tell_them_apart(self, room: Chat, people: People, annas: list[Member]) -> None:
        client = client_of(people["bob"])
        hints = ["ann1", "ann2", annas[2]]
        for name, *args in (("member_suggest", room.id), ("suggest",)):
            found = get(client, name, *args, q="ann l").json()["results"]
            assert sorted(one["description"] for one in found) == sorted(hints)
        details = page(client, "details", room.id)
        assert all(f"<bdi>{hint}</bdi></small>" in details for hint in hints)


def test_an_edit_notifies_nobody_and_keeps_the_mentions(chat: Chat, people: People) -> None:
    ann, bob, lee = (people[key] for key in ("ann", "bob", "lee"))
    send(chat, ann, "@Bob")
    edited = post(client_of(ann, json=True), "edit", chat.id, "1", body="@Bob Lee, @Bob").json()
    assert edited["message"]["mentions"] == [bob]
    assert [Mailbox(one).unread() for one in (bob, lee)] == [1, 0]


def test_notifying_takes_one_operation_and_members_are_read_only_for_an_at(
    chat: Chat, people: People, operations: list[str]
) -> None:
    send(chat, people["ann"], "@Bob, @Bob Lee, @Zoë Å.")
    assert operations[operations.index("Chat.send") + 1 :] == ["Chat.changes", "Mailing.send"]
    operations.clear()
    find_mentions(Identity(), chat, people["ann"], "Hello `@`")
    assert operations == []


def test_the_mentioned_member_is_notified_once_and_the_name_is_highlighted(
    chat: Chat, people: People
) -> None:
    for _ in range(2):
        send(chat, people["ann"], "Hi @Bob", request_id="r")
    (mail,) = Mailbox(people["bob"]).fetch().messages
    assert mail.payload["text"] == "Ann mentioned you in the group “Trip”."
    assert mail.payload["url"] == f"{reverse('messaging:room', args=[chat.id])}?at=1"
    assert mail.count == 1
    assert Mailbox(people["lee"]).unread() == 0
    text = page(client_of(people["lee"]), "room", chat.id)
    assert 'Hi <span class="drm-mention">@Bob</span>' in text
    chat.rename(people["ann"], "")
    send(chat, people["ann"], "@Bob")
    assert Mailbox(people["bob"]).fetch().messages[-1].payload["text"] == "Ann mentioned you in a group."
    direct = Chat.direct(people["ann"], people["bob"])
    send(direct, people["ann"], "@Bob")
    assert Mailbox(people["bob"]).fetch().messages[-1].payload["text"] == "Ann mentioned you."
    long = Chat.create(people["ann"], [people["bob"]], chat_id="é" * 127)
    send(long, people["ann"], "@Bob")
    assert Mailbox(people["bob"]).unread() == 3
    Blocks(people["bob"]).block(people["ann"])
    send(chat, people["ann"], "Hi @Bob")
    assert [mail.count for mail in Mailbox(people["bob"]).fetch().messages] == [2, 1, 1], (
        "not by somebody whom they have blocked"
    )


def test_a_failing_notification_does_not_fail_the_message(
    chat: Chat, people: People, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Unavailable("gone")

    monkeypatch.setattr(messages, "notify_many", fail)
    with caplog.at_level(logging.WARNING):
        send(chat, people["ann"], "Hi @Bob")
    assert "Notifying" in caplog.text and "Hi" not in caplog.text
    assert chat.info().last_id == 1
