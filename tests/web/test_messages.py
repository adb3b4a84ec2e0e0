"""How pages show messages and names that are long, or that try to look like others. No browser."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from django_redis_messaging import Chat, notify
from django_redis_messaging.services.directories.recent import RecentContacts

from .conftest import Room, client_of
from .test_pages import page

pytestmark = pytest.mark.versions

RLO, PDI = "\u202e", "\u2069"
#: bytes of the largest page
MAX_PAGE_BYTES = 300 * 1024


class TestSpoofing:
    def test_a_title_does_not_hide_the_other_member(self, person: Callable[..., User]) -> None:
        ann, mallory, cat = person("ann"), person("mallory"), person("cat")
        chat = Chat.create(str(mallory.pk), [str(ann.pk)], title="Bank")
        client = client_of(ann)
        heading = (
            page(client, "room", chat.id).partition('<div class="drm-head-text">')[2].partition("</div>")[0]
        )
        shown = "with <bdi>mallory</bdi>"
        assert "<bdi>Bank</bdi>" in heading and shown in heading
        assert page(client, "chats").count(shown) == 1
        (row,) = client.get(reverse("messaging:chats_feed"), {"html": "1"}).json()["chats"]
        assert "Bank" in row["html"] and shown in row["html"]
        chat.rename(str(mallory.pk), RLO)
        assert "<bdi>mallory</bdi>" in page(client, "chats") and shown not in page(client, "chats")
        chat.rename(str(mallory.pk), "Three")
        chat.join(str(cat.pk), by=str(mallory.pk))
        assert shown not in page(client, "chats") + page(client, "room", chat.id)

    def test_a_group_with_the_name_of_a_person_does_not_look_like_the_direct_chat(
        self, person: Callable[..., User]
    ) -> None:
        ann, mallory, cat = person("ann"), person("mallory"), person("cat", first_name="Cat", last_name="Lee")
        direct = Chat.direct(str(cat.pk), str(ann.pk))
        two = Chat.create(str(mallory.pk), [str(ann.pk)], title="Cat Lee")
        three = Chat.create(str(mallory.pk), [str(ann.pk), str(cat.pk)], title="Cat Lee")
        untitled = Chat.create(str(cat.pk), [str(ann.pk)])
        client = client_of(ann)
        kinds = {
            direct.id: ("Direct chat", None),
            two.id: ("Group · 2 members", "Group with <bdi>mallory</bdi>"),
            three.id: ("Group · 3 members", "Group"),
            untitled.id: ("Group · 2 members", "Group"),
        }
        rows = {
            row["id"]: row
            for row in client.get(reverse("messaging:chats_feed"), {"html": "1"}).json()["chats"]
        }
        for chat_id, (kind, beside) in kinds.items():
            is_group = beside is not None
            html = rows[chat_id]["html"]
            assert rows[chat_id]["group"] is ("drm-group" in html) is is_group
            assert "<bdi>Cat Lee</bdi>" in html
            assert (f'<small class="drm-companion">{beside}</small>' in html) is is_group
            feed = client.get(reverse("messaging:room_feed", args=[chat_id]), {"at": "newest"}).json()
            assert (feed["title"], feed["members"]) == ("Cat Lee", kind)
            for name in ("room", "details", "search", *(["add"] if is_group else [])):
                text = page(client, name, chat_id)
                head = text.rpartition("</h1>")[0].rpartition("<header" if name == "room" else "<h1")[2]
                assert kind in text and ("drm-group" in head) is is_group, name
                title = text.partition("<title>")[2].partition("</title>")[0]
                assert ("Group: Cat Lee" in title) is is_group and "Cat Lee" in title, name

    def test_a_direct_chat_has_the_name_of_the_other_member(self, person: Callable[..., User]) -> None:
        ann, mallory = person("ann"), person("mallory")
        chat = Chat.direct(str(mallory.pk), str(ann.pk))
        chat.rename(str(mallory.pk), "Cat Lee")
        client = client_of(ann)
        for name, *args in (("chats",), ("room", chat.id), ("details", chat.id), ("search", chat.id)):
            text = page(client, name, *args)
            assert "<bdi>mallory</bdi>" in text and "<bdi>Cat Lee</bdi>" not in text, name
        assert reverse("messaging:rename", args=[chat.id]) not in page(client, "room", chat.id)
        answer = client.post(reverse("messaging:rename", args=[chat.id]), {"title": "Cat"})
        assert answer.status_code == 400 and chat.info().title == "Cat Lee"

    def test_direction_controls_stay_inside_the_message(self, person: Callable[..., User]) -> None:
        ann = person("ann", first_name="Ann")
        bob = person("bob", first_name=f"Bob{PDI}{RLO}", last_name="eno")
        chat = Chat.create(str(bob.pk), [str(ann.pk)], f"{PDI}{RLO}body", title=f"Title{PDI}{RLO}eltit")
        Chat.create(str(bob.pk), [str(ann.pk)])
        RecentContacts(str(ann.pk)).touch(str(bob.pk))
        notify(str(ann.pk), "Hello", sender=str(bob.pk))
        client = client_of(ann)
        chat.ack(str(ann.pk), chat.send(str(ann.pk), f"{RLO}Mine").id)
        chat.ack(str(bob.pk), 2)
        for name, *args in (
            ("chats",),
            ("contacts",),
            ("notifications",),
            ("add", chat.id),
            ("room", chat.id),
        ):
            text = page(client, name, *args, q="bob")
            assert "eno" in text or "eltit" in text
            # The field to rename a chat has its title unchanged.
            outside = re.sub(r'<div class="drm-body".*?</div>|<input id="drm-rename"[^>]*>', "", text)
            assert RLO not in outside and PDI not in outside
        assert f'<div class="drm-body" dir="auto">{PDI}{RLO}body</div>' in text
        assert "Seen by Bob eno" in text
        feed = client.get(reverse("messaging:suggest"), {"q": "bob"}).json()
        assert feed["results"][0]["text"] == "Bob eno"


class TestMessagePage:
    @pytest.mark.parametrize("piece", ["&", "\U0001f600", "https://example.com/&&& ", "word\n"])
    def test_it_shows_the_whole_text_in_bounded_parts(self, room: Room, piece: str) -> None:
        body = (piece * 65_536).encode()[:65_000].decode(errors="ignore")
        message = room.chat.send(room.id("member"), body)
        client = room.client("owner")
        address = reverse("messaging:message", args=[room.chat.id, message.id])
        assert (
            f'<a href="{address}">Show all</a>' in page(client, "room", room.chat.id) or len(body) <= 20_000
        )
        shown, query = "", "?from=junk"
        while query:
            text = client.get(address + query).content.decode()
            assert len(text.encode()) <= MAX_PAGE_BYTES
            part = text.partition('<div class="drm-body drm-whole" dir="auto">')[2].partition("</div>")[0]
            shown += html.unescape(re.sub(r"<[^>]*>", "", part))
            following = re.search(r'href="(\?from=\d+)">Next part', text)
            query = following[1] if following else ""
        assert shown == body

    def test_a_cut_message_is_edited_in_the_form_that_has_all_of_it(self, room: Room) -> None:
        body = "x" * 30_000
        message = room.chat.send(room.id("owner"), body)
        client = room.client("owner")
        text = page(client, "room", room.chat.id)
        assert reverse("messaging:message", args=[room.chat.id, message.id]) in text
        address = reverse("messaging:message", args=[room.chat.id, message.id])
        assert f'?edit={message.id}#drm-composer">' in client.get(address).content.decode()
        json = room.client("owner", json=True).get(address).json()
        assert json["message"]["body"] == body
        assert len(text) < 30_000
        for _ in range(6):
            room.chat.send(room.id("member"), "y" * 60_000)
        room.chat.ack(room.id("owner"), message.id + 6)
        text = page(client, "room", room.chat.id, edit=str(message.id))
        assert f'id="m{message.id}"' not in text and body in text

    def test_a_message_that_does_not_exist(self, room: Room) -> None:
        room.chat.delete_message(room.id("member"), 2)
        for message_id in ("0", "2", "3", "x", "-1", "9" * 30):
            address = reverse("messaging:message", args=[room.chat.id, message_id])
            answers = [room.client(role).get(address).status_code for role in ("owner", "outsider", "former")]
            assert answers == [410, 404, 404]
        assert room.client("owner").get(reverse("messaging:message", args=["none", 1])).status_code == 404

    def test_messages_before_the_user_joined(self, room: Room) -> None:
        room.chat.join(room.id("outsider"), by=room.id("owner"))
        address = reverse("messaging:message", args=[room.chat.id, 1])
        assert room.client("outsider").get(address).status_code == 410
