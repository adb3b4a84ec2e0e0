"""The pages of a direct chat in which one has blocked the other."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from django.urls import reverse

from django_redis_messaging import Blocks, Chat, live
from django_redis_messaging.services.chats.keys import direct_id
from django_redis_messaging.web.views import people

from .conftest import Room
from .test_roles import TABLE, address

#: the views of one chat
VIEWS = [(name, method) for name, method in TABLE if "X" in address(name, "X")]


@pytest.fixture
def direct(room: Room) -> Room:
    """The direct chat of the member, who has blocked the owner, and the owner, who wrote last."""
    chat = Chat.direct(room.id("owner"), room.id("member"))
    chat.send(room.id("member"), "From the member")
    chat.send(room.id("owner"), "From the owner")
    chat.ack(room.id("member"), 2)
    return dataclasses.replace(room, chat=chat)


def block(direct: Room) -> None:
    Blocks(direct.id("member")).block(direct.id("owner"))


def shown(answer: Any) -> tuple[int, str | None, str]:
    """What an answer tells, without tokens."""
    text = re.sub(r"\b(\w{64}|[0-9a-f]{32})\b", "…", answer.content.decode())
    return answer.status_code, answer.get("ETag"), text


@pytest.mark.parametrize(("name", "method"), VIEWS)
def test_to_the_blocker_the_chat_is_gone(direct: Room, name: str, method: str) -> None:
    block(direct)
    ask = getattr(direct.client("member", json=True), method)
    data = {
        key: direct.id("owner") if "OTHER" in one else one for key, one in TABLE[name, method].data.items()
    }
    chat_ids = (direct.chat.id, direct_id("some", "other"))
    answers = [ask(address(name, chat_id), data) for chat_id in chat_ids]
    assert shown(answers[0]) == shown(answers[1])
    assert answers[0].status_code == 404


def test_no_page_changes_for_the_blocked_person(direct: Room) -> None:
    """Neither content, nor status, nor ETag of any view that can be read."""
    pages: list[tuple[str, dict[str, Any]]] = [
        (address(name, direct.chat.id), {}) for name, method in TABLE if method == "get" and name != "session"
    ]
    feed = address("room_feed", direct.chat.id)
    pages += [
        (feed, {"at": "newest"}),
        (feed, {"after": 1, "html": 1}),
        (address("search", direct.chat.id), {"q": "From"}),
    ]
    pages += [(address("member_suggest", direct.chat.id), {"q": "m"})]

    def everything() -> list[Any]:
        clients = [direct.client("owner"), direct.client("owner", json=True)]
        return [shown(client.get(path, data)) for client in clients for path, data in pages]

    before = everything()
    block(direct)
    assert everything() == before
    Blocks(direct.id("member")).unblock(direct.id("owner"))
    assert everything() == before


@pytest.mark.parametrize("json", [True, False])
def test_the_blocked_person_can_do_what_they_could(direct: Room, json: bool) -> None:
    block(direct)
    for name in ("send", "ack", "typing", "mute", "edit", "delete_message", "block", "unblock"):
        data = {"to": direct.id("member"), "person": direct.id("member")}
        if name in ("edit", "delete_message"):
            direct.chat.send(direct.id("owner"), "More")
            path = reverse(f"messaging:{name}", args=[direct.chat.id, direct.chat.info().last_id])
        else:
            path = address(name, direct.chat.id)
        answer = direct.client("owner", json=json).post(path, {**TABLE[name, "post"].data, **data})
        assert answer.status_code == (200 if json else 302), name
    answer = direct.client("owner", json=True).post(
        reverse("messaging:new"), {"to": direct.id("member"), "body": "Hello"}
    )
    assert answer.json()["id"] == direct.chat.id


def test_the_blocker_unblocks_on_the_page_of_the_chat(direct: Room) -> None:
    block(direct)
    client, path = direct.client("member"), address("room", direct.chat.id)
    page = client.get(path).content.decode()
    assert "You have blocked this person." in page and "From the owner" not in page
    assert direct.client("former").get(path).status_code == 404
    direct.chat.send(direct.id("owner"), "Not for you")
    assert "Not for you" not in client.get(reverse("messaging:chats")).content.decode()
    answer = client.post(reverse("messaging:new"), {"to": direct.id("owner"), "body": "Hello"})
    assert answer.status_code == 403 and "Unblock them to write to them." in answer.content.decode()
    answer = client.post(
        reverse("messaging:unblock"), {"person": direct.id("owner"), "chat": direct.chat.id}, follow=True
    )
    page = answer.content.decode()
    assert answer.redirect_chain == [(path, 302)]
    assert "You unblocked this person here. Earlier messages are not shown." in page
    assert "From the owner" not in page and "Not for you" not in page
    direct.chat.send(direct.id("owner"), "Hello again")
    page = client.get(path).content.decode()
    assert "You unblocked this person here." in page and "Hello again" in page


def test_unblocking_returns_to_no_other_chat(direct: Room) -> None:
    block(direct)
    data = {"person": direct.id("owner"), "chat": "direct:x/../../evil"}
    answer = direct.client("member").post(reverse("messaging:unblock"), data)
    assert answer.headers["Location"] == reverse("messaging:blocks")


def test_neither_sees_that_the_other_is_online(direct: Room) -> None:
    live.Presence().enter(direct.id("member"), "one")
    live.Presence().enter(direct.id("owner"), "one")
    details = address("details", direct.chat.id)
    assert direct.client("owner").get(details).content.decode().count('"drm-online"') == 2
    block(direct)
    assert direct.client("owner").get(details).content.decode().count('"drm-online"') == 1


def test_the_blocker_is_still_known_from_the_chat(direct: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a person who can find them in no directory, and has them in no contacts."""
    monkeypatch.setattr(people, "reachable_labels", lambda *_: {})
    monkeypatch.setattr(people.RecentContacts, "list", lambda *_: [])
    data = {"person": direct.id("member"), "chat": direct.chat.id}
    client = direct.client("owner", json=True)
    assert client.post(reverse("messaging:block"), data).status_code == 200
    client.post(reverse("messaging:unblock"), data)
    block(direct)
    assert client.post(reverse("messaging:block"), data).status_code == 200
