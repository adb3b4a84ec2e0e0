"""People are told apart by name and picture wherever they are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from django.template.loader import render_to_string
from pytest_django import Settings

from django_redis_messaging import Blocks, Chat, Mailbox, RecentContacts, notify
from django_redis_messaging.web.digest_mailing import Site, find_digest
from django_redis_messaging.web.identity import Identity
from django_redis_messaging.web.people import People, Person

from ..support.people import Member
from ..support.server import change
from .conftest import Members, client_of, get, post

#: how often each hook was called
calls: Counter[str] = Counter()


class Faces(Identity):
    """People with pictures. Counts how often each hook is called."""

    def labels(self, ids: Iterable[str]) -> dict[str, str]:
        calls["labels"] += 1
        return super().labels(ids)

    def descriptions(self, ids: Iterable[str]) -> dict[str, str]:
        calls["descriptions"] += 1
        return super().descriptions(ids)

    def pictures(self, ids: Iterable[str]) -> dict[str, str]:
        calls["pictures"] += 1
        return {member: f"/faces/{member}.png" for member in ids}


class Others(Identity):
    """Descriptions and pictures as a site's code may return them."""

    def descriptions(self, ids: Iterable[str]) -> dict[str, str]:
        return dict.fromkeys(ids, " Sales\n\u202e<b> ") | {"3": "", "4": "Sales"}

    def pictures(self, ids: Iterable[str]) -> dict[str, str]:
        return {"1": '/a"onerror="b.png', "2": "javascript:alert(1)", "3": "https://cdn.example/3.png"}


@pytest.fixture
def annas(member: Members, settings: Settings) -> list[Member]:
    """Two people called Ann Lee, and Bob."""
    change(settings, IDENTITY=f"{__name__}.Faces")
    names = [("ann1", "Ann", "Lee"), ("ann2", "ANN", "LEE"), ("bob", "Bob", "")]
    return [member(name, first_name=first, last_name=last) for name, first, last in names]


@pytest.fixture
def group(annas: list[Member]) -> Chat:
    """A group without title of the three, in which each has written."""
    chat = Chat.create(annas[2], annas[:2], "One")
    for member in annas[:2]:
        chat.send(member, "Two", reply_to=1)
    chat.send(annas[2], "Three", reply_to=2)
    return chat


def page_of(user: Member, name: str, *args: Any, **query: str) -> str:
    """The text of a page."""
    return str(answer_to(user, name, *args, **query).content.decode())


def json_of(user: Member, name: str, *args: Any, **query: Any) -> Any:
    return answer_to(user, name, *args, json=True, **query).json()


def answer_to(user: Member, name: str, *args: Any, json: bool = False, **query: Any) -> Any:
    """An answer, for which each hook is called at most once."""
    client = client_of(user, json=json)
    calls.clear()
    answer = get(client, name, *args, **query)
    assert answer.status_code == 200
    assert calls <= Counter(labels=1, descriptions=1, pictures=1), name
    return answer


DISTINCT = [f'<bdi>{name}</bdi> <small class="drm-distinction">({told})</small>'
            for name, told in (("Ann Lee", "ann1"), ("ANN LEE", "ann2"))]  # fmt: skip


class TestNamesakesInRooms:
    def test_authors_quotes_and_the_head(self, group: Chat, annas: list[Member]) -> None:
        one, two, bob = annas
        for member in (one, two):
            Chat.direct(bob, member).send(member, "Hi")
            group.ack(member, 4)
        group.typing(one)
        text = page_of(bob, "room", group.id, reply="2")
        assert all(text.count(distinct) >= 2 for distinct in DISTINCT), "as author, and in the list"
        assert "Seen by Ann Lee (ann1), ANN LEE (ann2)" in text
        assert "<bdi>Ann Lee (ann1), ANN LEE (ann2)</bdi>" in text, "the title"
        assert "Ann Lee (ann1) is typing" in text
        assert "Reply to <bdi>Ann Lee (ann1)</bdi>" in text
        assert f'<b data-person="{one}" data-distinction="ann1">{DISTINCT[0]}</b>' in text
        for member in (one, two):
            assert f'<img src="/faces/{member}.png" alt="" width="40" height="40"' in text
        text = page_of(bob, "room", Chat.direct(bob, two).id)
        heading = f'<h1 id="drm-title" tabindex="-1" data-person="{two}" data-distinction="ann2">'
        assert heading + DISTINCT[1] in text
        assert "<title>ANN LEE (ann2) | Messages</title>" in text

    def test_a_name_that_only_one_has_stands_alone(self, group: Chat, annas: list[Member]) -> None:
        group.leave(annas[1])
        chat = Chat.create(annas[2], annas[:1], "Hi")
        chat.send(annas[0], "Hello")
        text = page_of(annas[2], "room", chat.id)
        assert "drm-distinction" not in text
        # for the browser, if another one writes
        assert 'data-distinction="ann1"><bdi>Ann Lee</bdi></a>' in text

    def test_answers(self, group: Chat, annas: list[Member]) -> None:
        one, two, bob = annas

        def feed(**query: Any) -> Any:
            return json_of(bob, "room_feed", group.id, **query)

        first = feed()
        earlier, *others, own = first["messages"]
        assert "description" not in earlier and "description" not in own, "one's own"
        assert [(each["label"], each["description"], each["picture"]) for each in others] == [
            ("Ann Lee", "ann1", f"/faces/{one}.png"),
            ("ANN LEE", "ann2", f"/faces/{two}.png"),
        ]
        known = {"after": first["cursor"], "events": first["event"]}
        known |= {name: first[name] for name in ("edits", "moved")}
        group.typing(two)
        assert feed(**known)["typing"] == "ANN LEE (ann2) is typing…"
        group.set_role(bob, one, "owner")
        (event,) = feed(**known)["events"]
        assert event["text"] == "Ann Lee (ann1) became an owner."
        group.send(one, "Four", reply_to=3)
        html = feed(**known, html="1")["messages"][0]["html"]
        assert all(distinct in html for distinct in DISTINCT), "the author, and who is quoted"
        assert feed(at="newest", html="1")["title"].count("ann") == 2
        assert feed(before="4")["messages"][1]["description"] == "ann1"

    def test_the_search_and_the_page_of_a_message(self, group: Chat, annas: list[Member]) -> None:
        text = page_of(annas[2], "search", group.id, q="Two")
        assert "<bdi>Ann Lee (ann1)</bdi>" in text and "<bdi>ANN LEE (ann2)</bdi>" in text
        assert "<bdi>Ann Lee</bdi>" in page_of(annas[2], "message", group.id, "2")


def test_the_list(group: Chat, annas: list[Member]) -> None:
    for member in annas[:2]:
        Chat.direct(annas[2], member).send(member, "Hi")
    group.send(annas[0], "News")
    text = page_of(annas[2], "chats")
    assert all(text.count(distinct) == 1 for distinct in DISTINCT)
    assert "<bdi>Ann Lee (ann1): News</bdi>" in text
    rows = {row["title"]: row for row in json_of(annas[2], "chats_feed")["chats"]}
    assert rows["ANN LEE"]["description"] == "ann2"
    assert rows["ANN LEE"]["picture"] == f"/faces/{annas[1]}.png"
    assert "picture" not in rows["Ann Lee (ann1), ANN LEE (ann2)"]


class TestLists:
    def test_lists_of_people_have_second_lines(self, group: Chat, annas: list[Member]) -> None:
        bob = annas[2]
        RecentContacts(bob).touch(annas[0])
        Blocks(bob).block(annas[0])
        shown = '<bdi>{}</bdi>{} <small class="drm-detail"><bdi>{}</bdi></small>'
        one, two = shown.format("Ann Lee", "", "ann1"), shown.format("ANN LEE", "", "ann2")
        found = page_of(bob, "contacts", q="ann")
        assert one in found and two in found
        assert 'Message<span class="drm-hidden"> Ann Lee (ann1)</span>' in found
        assert one in page_of(bob, "contacts"), "also if nobody else has this name"
        assert one in page_of(bob, "blocks")
        assert f"/faces/{annas[0]}.png" in page_of(bob, "person", id=annas[0])
        assert shown.format("Ann Lee", "</a>", "ann1") in page_of(bob, "details", group.id)
        picker = page_of(bob, "new", q="ann", to=annas[0])
        assert "<bdi>Ann Lee (ann1)</bdi>" in picker and two in picker
        assert two in page_of(bob, "add", group.id, q="ann")

    def test_suggestions(self, group: Chat, annas: list[Member], member: Members) -> None:
        """What repeats the name is left out."""
        member("carl")
        for name, *args in (("suggest",), ("member_suggest", group.id)):
            found = json_of(annas[2], name, *args, q="ann")["results"]
            assert sorted((one["description"], one["picture"]) for one in found) == [
                ("ann1", f"/faces/{annas[0]}.png"),
                ("ann2", f"/faces/{annas[1]}.png"),
            ]
        (carl,) = json_of(annas[2], "suggest", q="carl")["results"]
        assert (carl["text"], carl["description"]) == ("carl", "")

    def test_a_made_up_id_shows_nothing(self, annas: list[Member], settings: Settings) -> None:
        change(settings, SEARCH_RATE=2)
        client = client_of(annas[2])
        data = {"to": [annas[0]], "q": "x", "search": "1"}
        post(client, "new", **data)
        text = post(client, "new", **data).content.decode()
        assert f"<bdi>{annas[0]}</bdi>" in text
        assert "ann1" not in text and "/faces/" not in text


def test_notifications_and_digests(group: Chat, annas: list[Member], settings: Settings) -> None:
    for member in annas[:2]:
        notify(annas[2], "Look", sender=member)
    assert Mailbox(annas[2]).unread() == 2
    text = page_of(annas[2], "notifications")
    assert "<bdi>Ann Lee (ann1)</bdi>" in text and "<bdi>ANN LEE (ann2)</bdi>" in text
    shown = json_of(annas[2], "notifications_feed")["notifications"]
    assert [one["description"] for one in shown] == ["ann2", "ann1"]
    change(settings, DIGEST_AFTER=0)
    other = Chat.direct(annas[2], annas[1])
    other.send(annas[1], "Hi")
    calls.clear()
    digest = find_digest(Faces(), annas[2], Site("https://example.com"))
    assert digest and calls == Counter(labels=1, descriptions=1, pictures=1)
    names = {excerpt.name for chat in digest.chats for excerpt in chat.excerpts}
    assert names >= {"Ann Lee (ann1)", "ANN LEE (ann2)"}


class TestHooks:
    def test_what_they_return_is_made_safe(self) -> None:
        people = People(Others())
        people.show("12345")
        pictures = {one: picture for one in "12345" if (picture := people[one].picture)}
        assert pictures == {"1": '/a"onerror="b.png', "3": "https://cdn.example/3.png"}
        assert people["1"].description == "Sales <b>"
        face = render_to_string("django_redis_messaging/_avatar.html", {"face": people["1"]})
        assert '<img src="/a&quot;onerror=&quot;b.png" alt=""' in face
        assert "<img" not in render_to_string("django_redis_messaging/_avatar.html", {"face": people["2"]})

    def test_equal_descriptions_get_the_id(self) -> None:
        people = People(Others())
        people.show_all([*(Person(one, "Ann") for one in "34"), Person("5", "Ann"), Person("6", "ann")])
        assert [people[one].name for one in "3456"] == [
            "Ann (3)", "Ann (Sales)", "Ann (Sales <b> · 5)", "ann (Sales <b> · 6)",
        ]  # fmt: skip

    def test_they_are_called_once(self) -> None:
        people = People(Faces())
        people.add("123")
        people.show("234")
        calls.clear()
        assert people.names("12", among="5") and people["4"].picture == "/faces/4.png"
        assert people["3"].name and calls == Counter(labels=1, descriptions=1, pictures=1)
