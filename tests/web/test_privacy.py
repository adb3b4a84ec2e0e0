"""What others see of a user: people who are blocked, receipts, who is online; and the choice of digests."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from pytest_django import Settings

from django_redis_messaging import Blocks, Chat, Choices, live
from django_redis_messaging.services.chats.keys import direct_id
from django_redis_messaging.web.identity import Identity
from django_redis_messaging.web.views import people
from django_redis_messaging.web.views.people import BLOCKS_PER_PAGE

from ..support.server import change
from .conftest import Room, code, get, page, post
from .test_access import TABLE, address, each_view_of_a_chat


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


@each_view_of_a_chat
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


#: views that show for how long something has lasted
TIMES = {"session"}


def test_no_page_changes_for_the_blocked_person(direct: Room) -> None:
    """Neither content, nor status, nor ETag of any view that can be read."""
    pages: list[tuple[str, dict[str, Any]]] = [
        (address(name, direct.chat.id), {}) for name, method in TABLE if method == "get" and name not in TIMES
    ]
    for name, query in (
        ("room_feed", {"at": "newest"}), ("room_feed", {"after": 1, "html": 1}), ("search", {"q": "From"}),
        ("member_suggest", {"q": "m"}),
    ):  # fmt: skip
        pages.append((address(name, direct.chat.id), query))

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
    answer = post(direct.client("owner", json=True), "new", to=direct.id("member"), body="Hello")
    assert answer.json()["id"] == direct.chat.id


def test_the_blocker_unblocks_on_the_page_of_the_chat(direct: Room) -> None:
    block(direct)
    client, owner = direct.client("member"), direct.id("owner")
    text = direct.page("member")
    assert "You have blocked this person." in text and "From the owner" not in text
    assert direct.get("former", "room", json=False).status_code == 404
    direct.chat.send(owner, "Not for you")
    assert "Not for you" not in page(client, "chats")
    answer = post(client, "new", to=owner, body="Hello")
    assert answer.status_code == 403 and "Unblock them to write to them." in answer.content.decode()
    answer = post(client, "unblock", person=owner, chat=direct.chat.id)
    assert answer["Location"] == address("room", direct.chat.id)
    text = direct.page("member")
    assert "You unblocked this person here. Earlier messages are not shown." in text
    assert "From the owner" not in text and "Not for you" not in text
    direct.chat.send(owner, "Hello again")
    text = direct.page("member")
    assert "You unblocked this person here." in text and "Hello again" in text
    answer = post(client, "unblock", person=owner, chat="direct:x/../../evil")
    assert answer["Location"] == reverse("messaging:blocks"), "to no other chat"


def test_neither_sees_that_the_other_is_online(direct: Room) -> None:
    live.Presence().enter(direct.id("member"), "one")
    live.Presence().enter(direct.id("owner"), "one")
    assert direct.page("owner", "details").count('"drm-online"') == 2
    block(direct)
    assert direct.page("owner", "details").count('"drm-online"') == 1


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


class TestBlocks:
    def test_blocking_with_forms_only(self, room: Room) -> None:
        client, other = room.client("owner"), room.id("member")
        card = page(client, "person", id=other, chat=room.chat.id)
        assert f'action="{reverse("messaging:block")}"' in card
        answer = post(client, "block", person=other, chat=room.chat.id)
        assert answer["Location"] == reverse("messaging:blocks")
        assert "member" in page(client, "blocks")
        assert Blocks(room.id("owner")).list() == [other]
        refused = post(room.client("member", json=True), "new", to=[room.id("owner"), room.id("staff")])
        assert refused.json()["error"] == {
            "code": "not_permitted", "message": "You don't have permission to do this."
        }  # fmt: skip
        post(client, "unblock", person=other)
        assert "You have blocked nobody." in page(client, "blocks")

    def test_the_list_has_pages(self, room: Room) -> None:
        client, blocks = room.client("owner"), Blocks(room.id("owner"))
        for number in range(BLOCKS_PER_PAGE + 2):
            blocks.block(f"person {number}")
        pages = [page(client, "blocks"), page(client, "blocks", **{"from": 50})]
        assert [text.count('name="person"') for text in pages] == [BLOCKS_PER_PAGE, 2]
        assert ["?from=50" in text for text in pages] == [True, False]
        assert get(client, "blocks", **{"from": "x"}).status_code == 400

    def test_blocking_reveals_no_names(self, room: Room) -> None:
        """The page of blocked people shows names: strangers must not be put there."""
        stranger = str(User.objects.create(username="stranger").pk)
        client = room.client("owner", json=True)
        assert code(post(client, "block", person=stranger)) == (403, "not_in_directory")
        assert code(post(client, "block", person=stranger, chat=room.chat.id))[0] == 403
        room.chat.join(stranger, by=room.id("owner"))
        assert post(client, "block", person=stranger, chat=room.chat.id).status_code == 200
        for person in (room.id("owner"), "", "\0"):
            assert post(client, "block", person=person, chat=room.chat.id).status_code in (400, 403)

    def test_leaving_for_good(self, room: Room) -> None:
        post(room.client("member"), "leave", room.chat.id, never_again="1")
        again = post(room.client("owner", json=True), "add", room.chat.id, to=room.id("member"))
        assert code(again) == (403, "not_permitted")


def feed(room: Room, **query: Any) -> Any:
    """The feed of the member, whose message is the newest."""
    return room.get("member", "room_feed", **{"after": 0, **query}).json()


class TestReceipts:
    def test_everybody_sees_them_unless_somebody_or_the_site_hides_them(
        self, room: Room, settings: Settings
    ) -> None:
        member, owner = room.id("member"), room.id("owner")
        room.chat.ack(owner, 2)
        assert feed(room)["seen"] == feed(room, at="newest")["seen"] == "Seen by owner"
        assert feed(room)["read"] == {member: 0, owner: 2}
        Choices().choose(owner, receipts=False)
        assert feed(room)["seen"] == feed(room, at="newest")["seen"] == ""
        assert feed(room)["read"] == {member: 0}
        assert "Seen by" not in room.page("member")
        Choices().choose(owner, receipts=True)
        change(settings, READ_RECEIPTS=False)
        assert feed(room)["seen"] == feed(room, at="newest")["seen"] == ""
        assert feed(room)["read"] == {}

    @pytest.mark.parametrize("hidden_by", ["member", "site"])
    def test_nothing_changes_for_others(self, room: Room, settings: Settings, hidden_by: str) -> None:
        if hidden_by == "site":
            change(settings, READ_RECEIPTS=False)
        else:
            Choices().choose(room.id("owner"), receipts=False)
        room.chat.rename(room.id("owner"), "")
        first = feed(room)
        known = {"after": first["cursor"], "moved": first["moved"], "edits": 0, "events": first["event"]}
        queries: list[dict[str, Any]] = [{"after": 0}, {"at": "newest"}, {"before": 3}, known]
        asked = [(reverse("messaging:room_feed", args=[room.chat.id]), query) for query in queries]
        asked += [(reverse("messaging:chats_feed"), {"html": 1}), (reverse("messaging:bell"), {})]

        def answers() -> list[tuple[int, bytes, str | None]]:
            clients = [room.client(role, json=True) for role in ("member", "former", "outsider", "staff")]
            found = [client.get(address, query) for client in clients for address, query in asked]
            return [(one.status_code, one.content, one.get("ETag")) for one in found]

        before = answers()
        room.chat.ack(room.id("owner"), 2)
        assert answers() == before
        assert first["title"] == "owner"  # the name is not hidden


def test_the_details_show_who_is_online_unless_it_is_hidden_or_off(room: Room, settings: Settings) -> None:
    assert "drm-online" not in room.page("member", "details")
    live.Presence().enter(room.id("owner"), "one")
    assert room.page("member", "details").count("drm-online") == 1
    for setting, off, on in (("PRESENCE_MAX_MEMBERS", 1, 2), ("LIVE", False, True)):
        change(settings, **{setting: off})
        assert "drm-online" not in room.page("member", "details")
        change(settings, **{setting: on})
        assert room.page("member", "details").count("drm-online") == 1
    Choices().choose(room.id("owner"), online=False)
    assert "drm-online" not in room.page("member", "details")


class TestChoices:
    def test_what_is_not_checked_is_hidden(self, room: Room) -> None:
        client, choices = room.client("member"), Choices()
        text = page(client, "blocks")
        assert text.count('type="checkbox"') == text.count(" checked") == 2
        answer = post(client, "choices", receipts="on")
        assert (answer.status_code, answer["Location"]) == (302, reverse("messaging:blocks"))
        assert choices.get(room.id("member")) == (False, True, True)
        assert page(client, "blocks").count(" checked") == 1
        answer = post(room.client("member", json=True), "choices")
        assert answer.json() == {"online": False, "receipts": False, "digests": True}

    def test_only_what_the_site_shows(self, room: Room, settings: Settings) -> None:
        client, choices = room.client("member"), Choices()
        change(settings, READ_RECEIPTS=False)
        post(client, "choices")
        assert choices.get(room.id("member")) == (False, True, True)
        change(settings, PRESENCE_MAX_MEMBERS=0)
        text = page(client, "blocks")
        assert 'type="checkbox"' not in text
        assert "What others see" not in text

    def test_digests_are_a_choice_if_the_site_mails_them_to_the_user(
        self, room: Room, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        change(settings, DIGEST_BASE_URL="https://example.com")
        client, choices = room.client("member"), Choices()
        choices.choose(room.id("member"), online=False, digests=False)
        text = page(client, "blocks")
        assert text.count('type="checkbox"') == 3
        assert text.count(" checked") == 1
        post(client, "choices", digests="on")
        assert choices.get(room.id("member")) == (False, False, True)
        monkeypatch.setattr(Identity, "wants_digest", lambda self, user: user.username != "member")
        assert 'name="digests"' not in page(client, "blocks")
        post(client, "choices", online="on")
        assert choices.get(room.id("member")) == (True, False, True)
