"""What a user has chosen: what others see of them, and whether they want digests."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse
from pytest_django import Settings

from django_redis_messaging import Choices, live
from django_redis_messaging.web.identity import Identity

from .conftest import Room


def feed(room: Room, **query: Any) -> Any:
    """The feed of the member, whose message is the newest."""
    address = reverse("messaging:room_feed", args=[room.chat.id])
    return room.client("member", json=True).get(address, {"after": 0, **query}).json()


@pytest.fixture
def read_room(room: Room) -> Room:
    room.chat.ack(room.id("owner"), 2)
    return room


class TestReceipts:
    def test_everybody_sees_them(self, read_room: Room) -> None:
        assert feed(read_room)["seen"] == feed(read_room, at="newest")["seen"] == "Seen by owner"
        assert feed(read_room)["read"] == {read_room.id("member"): 0, read_room.id("owner"): 2}

    def test_not_of_who_hides_them(self, read_room: Room) -> None:
        Choices().choose(read_room.id("owner"), receipts=False)
        assert feed(read_room)["seen"] == feed(read_room, at="newest")["seen"] == ""
        assert feed(read_room)["read"] == {read_room.id("member"): 0}
        page = read_room.client("member").get(reverse("messaging:room", args=[read_room.chat.id]))
        assert "Seen by" not in page.content.decode()

    @pytest.mark.parametrize("hidden_by", ["member", "site"])
    def test_nothing_changes_for_others(self, room: Room, settings: Settings, hidden_by: str) -> None:
        if hidden_by == "site":
            settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "READ_RECEIPTS": False}
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

    def test_not_where_the_site_has_none(self, read_room: Room, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "READ_RECEIPTS": False}
        assert feed(read_room)["seen"] == feed(read_room, at="newest")["seen"] == ""
        assert feed(read_room)["read"] == {}


def details(room: Room) -> str:
    address = reverse("messaging:details", args=[room.chat.id])
    return room.client("member").get(address).content.decode()


class TestOnline:
    def test_the_details_show_it(self, room: Room) -> None:
        assert "drm-online" not in details(room)
        live.Presence().enter(room.id("owner"), "one")
        assert details(room).count("drm-online") == 1
        Choices().choose(room.id("owner"), online=False)
        assert "drm-online" not in details(room)

    @pytest.mark.parametrize("off", [{"PRESENCE_MAX_MEMBERS": 1}, {"LIVE": False}])
    def test_not_where_it_is_off(self, room: Room, settings: Settings, off: dict[str, Any]) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, **off}
        live.Presence().enter(room.id("owner"), "one")
        assert "drm-online" not in details(room)


class TestPage:
    def test_what_is_not_checked_is_hidden(self, room: Room) -> None:
        client, choices = room.client("member"), Choices()
        page = client.get(reverse("messaging:blocks")).content.decode()
        assert page.count('type="checkbox"') == page.count(" checked") == 2
        answer = client.post(reverse("messaging:choices"), {"receipts": "on"})
        assert (answer.status_code, answer["Location"]) == (302, reverse("messaging:blocks"))
        assert choices.get(room.id("member")) == (False, True, True)
        assert client.get(reverse("messaging:blocks")).content.decode().count(" checked") == 1
        answer = room.client("member", json=True).post(reverse("messaging:choices"))
        assert answer.json() == {"online": False, "receipts": False, "digests": True}

    def test_only_what_the_site_shows(self, room: Room, settings: Settings) -> None:
        client, choices = room.client("member"), Choices()
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "READ_RECEIPTS": False}
        client.post(reverse("messaging:choices"))
        assert choices.get(room.id("member")) == (False, True, True)
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "PRESENCE_MAX_MEMBERS": 0}
        page = client.get(reverse("messaging:blocks")).content.decode()
        assert 'type="checkbox"' not in page
        assert "What others see" not in page

    def test_digests_are_a_choice_if_the_site_mails_them_to_the_user(
        self, room: Room, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "DIGEST_BASE_URL": "https://example.com"}
        client, choices = room.client("member"), Choices()
        choices.choose(room.id("member"), online=False, digests=False)
        page = client.get(reverse("messaging:blocks")).content.decode()
        assert page.count('type="checkbox"') == 3
        assert page.count(" checked") == 1
        client.post(reverse("messaging:choices"), {"digests": "on"})
        assert choices.get(room.id("member")) == (False, False, True)
        monkeypatch.setattr(Identity, "wants_digest", lambda self, user: user.username != "member")
        assert 'name="digests"' not in client.get(reverse("messaging:blocks")).content.decode()
        client.post(reverse("messaging:choices"), {"online": "on"})
        assert choices.get(room.id("member")) == (True, False, True)
