"""The pages without JavaScript."""

from __future__ import annotations

import re
import urllib.parse
import zoneinfo
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from django_redis_messaging import Chat, Inbox, notify
from django_redis_messaging.services.directories import Directory
from django_redis_messaging.services.directories.recent import RecentContacts
from django_redis_messaging.services.users.privacy import Blocks
from django_redis_messaging.web.identity import Identity
from django_redis_messaging.web.views.chats import CHATS_PER_PAGE
from django_redis_messaging.web.views.details import MEMBERS_PER_PAGE

from .conftest import Room, client_of

pytestmark = pytest.mark.versions

HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>"
ESCAPED = "&lt;img src=x onerror=alert(1)&gt;"


def page(client: Client, name: str, *args: str, **query: str) -> str:
    answer = client.get(reverse(f"messaging:{name}", args=args), query)
    assert answer.status_code == 200
    return answer.content.decode()


class Guilds(Identity):
    """Puts users into a guild named after the first letter of their user name."""

    def directories(self, user: Any) -> list[str]:
        return [f"guild-{user.get_username()[0]}"]


class NobodyNew(Identity):
    def may_create(self, user: Any, recipients: Any) -> bool:
        return False

    def may_add(self, user: Any, chat_id: str, member: str) -> bool:
        return False


class TestList:
    def test_unread_count_and_newest_message(self, room: Room) -> None:
        text = page(room.client("owner"), "chats")
        assert "Room" in text
        assert "<bdi>From the member</bdi>" in text
        assert re.search(r'class="drm-badge">1<', text)

    def test_own_messages_are_not_unread(self, room: Room) -> None:
        room.chat.ack(room.id("member"), 1)
        assert "drm-badge" not in page(room.client("member"), "chats")

    def test_a_chat_without_a_title_shows_its_members(self, person: Callable[..., User]) -> None:
        ann, *others = (person(name) for name in ("ann", "bob", "cat", "dan", "eva"))
        ids = [str(user.pk) for user in others]
        Chat.create(str(ann.pk), ids[:1])
        Chat.create(str(ann.pk), ids)
        text = page(client_of(ann), "chats")
        assert "<bdi>bob</bdi>" in text
        assert "<bdi>bob, cat, dan and 1 other</bdi>" in text

    def test_a_title_of_blanks_is_none(self, person: Callable[..., User]) -> None:
        ann, bob, cat = person("ann"), person("bob"), person("cat")
        Chat.create(str(ann.pk), [str(bob.pk), str(cat.pk)], title="\u200b \u2800\u3164")
        assert "<bdi>bob, cat</bdi>" in page(client_of(ann), "chats")

    def test_more_than_a_page(self, person: Callable[..., User]) -> None:
        ann = person("ann")
        for number in range(CHATS_PER_PAGE + 1):
            Chat.create(str(ann.pk), [], title=f"Chat no {number}.")
        client = client_of(ann)
        first = page(client, "chats")
        further = re.search(r'href="\?after=([^"]+)"', first)
        assert further
        second = page(client, "chats", after=further[1])
        listed = [set(re.findall(r"Chat no \d+\.", text)) for text in (first, second)]
        assert [len(titles) for titles in listed] == [CHATS_PER_PAGE, 1]
        assert len(listed[0] | listed[1]) == CHATS_PER_PAGE + 1
        assert "?after=" in page(client, "chats", after="gone")

    def test_the_next_page_continues_although_its_link_has_moved(self, person: Callable[..., User]) -> None:
        ann = person("ann")
        for number in range(CHATS_PER_PAGE + 1):
            Chat.create(str(ann.pk), [], title=f"Chat no {number}.")
        client = client_of(ann)
        further = re.search(r'href="\?after=([^"]+)"', page(client, "chats"))
        assert further
        cursor = urllib.parse.unquote(further[1])
        last = Chat(cursor.partition("-")[2])
        (title,) = re.findall(r"Chat no \d+\.", page(client, "chats", after=cursor))
        for change in (lambda: last.send(str(ann.pk), "up"), lambda: last.delete(str(ann.pk))):
            change()
            assert re.findall(r"Chat no \d+\.", page(client, "chats", after=cursor)) == [title]


class TestRoom:
    def test_history_and_its_older_pages(self, room: Room) -> None:
        for number in range(120):
            room.chat.send(room.id("owner"), f"no {number}.")
        room.chat.ack(room.id("owner"), 2)
        client = room.client("owner")
        text = page(client, "room", room.chat.id)
        assert "no 119." in text and "no 89." not in text
        seen = set(re.findall(r"no \d+\.", text))
        while older := re.search(r'href="\?before=(\d+)" id="drm-older">', text):
            text = page(client, "room", room.chat.id, before=older[1])
            seen |= set(re.findall(r"no \d+\.", text))
        assert len(seen) == 120

    def test_a_gap_is_shown(self, person: Callable[..., User], settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "CHAT_MAX_LENGTH": 10}
        ann = person("ann")
        chat = Chat.create(str(ann.pk), [])
        for number in range(15):
            chat.send(str(ann.pk), f"no {number}")
        assert "5 older messages were removed." in page(client_of(ann), "room", chat.id)

    def test_days_and_the_first_unread_message_are_marked(self, room: Room) -> None:
        text = page(room.client("owner"), "room", room.chat.id)
        assert text.count('class="drm-day ') == 1
        text = text[text.index('id="drm-log"') :]
        assert text.index("From the owner") < text.index('id="drm-unread"') < text.index("From the member")

    def test_marking_as_read_is_a_post(self, room: Room) -> None:
        client = room.client("owner")
        text = page(client, "room", room.chat.id)
        form = re.search(r'id="drm-mark".*?name="up_to" value="([^"]+)"', text, re.DOTALL)
        assert form
        assert Inbox(room.id("owner")).unread() == 1
        client.post(reverse("messaging:ack", args=[room.chat.id]), {"up_to": form[1]})
        assert Inbox(room.id("owner")).unread() == 0
        assert 'id="drm-mark" hidden>' in page(client, "room", room.chat.id)

    def test_times_without_time_zones(self, room: Room, settings: Settings) -> None:
        settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Kolkata"
        notify(room.id("owner"), "Hello")
        (message, _) = room.chat.history(room.id("owner")).messages
        local = message.sent_at.astimezone(zoneinfo.ZoneInfo("Asia/Kolkata"))
        written = f'datetime="{local:%Y-%m-%dT%H:%M:%S}'
        for name, args in (("room", [room.chat.id]), ("chats", []), ("notifications", [])):
            text = page(room.client("owner"), name, *args)
            assert written[:-2] in text and "+05:30" in text

    def test_the_divider_is_only_where_everything_before_is_read(self, room: Room) -> None:
        for number in range(3, 204):
            room.chat.send(room.id("owner"), f"no {number}.")
        text = page(room.client("member"), "room", room.chat.id, before="204")
        assert "no 203." in text and "drm-unread" not in text

    def test_opens_before_the_first_unread_message(self, room: Room) -> None:
        for number in range(3, 204):
            room.chat.send(room.id("owner"), f"no {number}.")
        room.chat.ack(room.id("member"), 52)
        text = page(room.client("member"), "room", room.chat.id)
        ids = re.findall(r' data-id="(\d+)" data-cursor', text)
        assert (ids[0], ids[-1]) == ("43", "72")
        assert "151 new messages" in text
        assert text.index("no 52.") < text.index('id="drm-unread"') < text.index("no 53.")
        assert '<a class="drm-button" href="?after=72" id="drm-newer">' in text
        later = page(room.client("member"), "room", room.chat.id, after="72")
        assert "no 73." in later and "no 72." not in later
        assert "no 100." in page(room.client("member"), "room", room.chat.id, at="100")

    def test_replying_quotes(self, room: Room) -> None:
        client = room.client("member")
        text = page(client, "room", room.chat.id, reply="1")
        assert '<input type="hidden" name="reply_to" value="1">' in text
        client.post(reverse("messaging:send", args=[room.chat.id]), {"body": "Indeed", "reply_to": "1"})
        text = page(client, "room", room.chat.id)
        quote = text[text.index('class="drm-quote ') :]
        assert "owner" in quote and "From the owner" in quote[: quote.index("Indeed")]

    def test_search(self, room: Room) -> None:
        text = page(room.client("owner"), "search", room.chat.id, q="MEMBER")
        assert "From the member" in text and "From the owner" not in text
        assert f"{reverse('messaging:room', args=[room.chat.id])}?at=2#m2" in text
        assert "Nothing found." in page(room.client("owner"), "search", room.chat.id, q="nowhere")

    def test_the_mute_says_until_when(self, room: Room) -> None:
        room.client("owner").post(reverse("messaging:mute", args=[room.chat.id]), {"hours": "8"})
        text = page(room.client("owner"), "room", room.chat.id)
        until = room.chat.changes(room.id("owner"), after=2).muted_until
        assert until and f'datetime="{timezone.localtime(until):%Y-%m-%dT%H:%M}' in text
        assert "Unmute" in text and "Unmute" not in page(room.client("member"), "room", room.chat.id)

    def test_roles(self, room: Room) -> None:
        address = reverse("messaging:role", args=[room.chat.id])
        room.client("owner").post(address, {"member": room.id("member"), "role": "owner"})
        assert room.chat.role(room.id("member")) == "owner"
        assert "Make a member" in page(room.client("owner"), "details", room.chat.id)
        room.client("owner").post(address, {"member": room.id("member"), "role": "member"})
        assert room.chat.role(room.id("member")) == "member"

    def test_members_are_listed_in_pages(self, room: Room) -> None:
        room.chat.add([f"other {number}" for number in range(MEMBERS_PER_PAGE)], by=room.id("owner"))
        client = room.client("owner")
        text, names = page(client, "details", room.chat.id), []
        names += re.findall(r"<bdi>(other \d+)</bdi>", text)
        more = re.search(r'href="\?after=([^"]+)">More members', text)
        assert more
        names += re.findall(
            r"<bdi>(other \d+)</bdi>",
            page(client, "details", room.chat.id, after=urllib.parse.unquote(more[1])),
        )
        assert len(names) == len(set(names)) == MEMBERS_PER_PAGE

    def test_a_form_submitted_twice_sends_once(self, room: Room) -> None:
        client = room.client("owner")
        form = {"body": "Once\r\nonly", "request_id": "r1"}
        for _ in range(2):
            answer = client.post(reverse("messaging:send", args=[room.chat.id]), form)
            assert answer.status_code == 302
        bodies = [message.body for message in room.chat.history(room.id("owner")).messages]
        assert bodies == ["From the owner", "From the member", "Once\nonly"]

    def test_editing(self, room: Room) -> None:
        client = room.client("member")
        text = page(client, "room", room.chat.id, edit="2")
        assert ">From the member</textarea>" in text
        assert reverse("messaging:edit", args=[room.chat.id, "2"]) in text
        client.post(reverse("messaging:edit", args=[room.chat.id, "2"]), {"body": "Better"})
        text = page(client, "room", room.chat.id)
        assert "Better" in text and "edited" in text and "From the member" not in text

    def test_messages_of_others_can_not_be_edited(self, room: Room) -> None:
        text = page(room.client("owner"), "room", room.chat.id, edit="2")
        assert ">From the member</textarea>" not in text

    def test_deleting(self, room: Room) -> None:
        client = room.client("member")
        client.post(reverse("messaging:delete_message", args=[room.chat.id, "2"]))
        text = page(client, "room", room.chat.id)
        assert "Message deleted" in text and "From the member" not in text

    def test_only_owners_may_remove_members(self, room: Room) -> None:
        remove = reverse("messaging:remove", args=[room.chat.id])
        assert remove in page(room.client("owner"), "details", room.chat.id)
        assert remove not in page(room.client("member"), "details", room.chat.id)

    def test_seen_by(self, room: Room) -> None:
        assert "Seen by" not in page(room.client("member"), "room", room.chat.id)
        room.chat.ack(room.id("owner"), 2)
        assert "Seen by owner" in page(room.client("member"), "room", room.chat.id)

    def test_who_joins_later_has_not_seen_it(self, room: Room) -> None:
        member, former = room.id("member"), room.id("former")
        room.chat.join(former, by=room.id("owner"))
        room.chat.ack(former, 2)  # the page acks what it shows: nothing
        assert "Seen by" not in page(room.client("member"), "room", room.chat.id)
        room.chat.ack(room.id("owner"), 2)
        assert "Seen by owner<" in page(room.client("member"), "room", room.chat.id)
        room.chat.ack(former, room.chat.send(member, "For all").id)
        assert "Seen by former<" in page(room.client("member"), "room", room.chat.id)

    def test_renaming(self, room: Room) -> None:
        room.client("member").post(reverse("messaging:rename", args=[room.chat.id]), {"title": "Another"})
        assert "Another" in page(room.client("owner"), "room", room.chat.id)

    def test_leaving(self, room: Room) -> None:
        client = room.client("member")
        answer = client.post(reverse("messaging:leave", args=[room.chat.id]))
        assert answer["Location"] == reverse("messaging:chats")
        assert "No chats yet." in page(client, "chats")

    def test_muting(self, room: Room) -> None:
        client = room.client("owner")
        for hours, muted in (("8", True), ("0", False)):
            client.post(reverse("messaging:mute", args=[room.chat.id]), {"hours": hours})
            assert [chat.muted for chat in Inbox(room.id("owner")).chats()] == [muted]
        answer = client.post(reverse("messaging:mute", args=[room.chat.id]), {"hours": "7"})
        assert answer.status_code == 400

    @pytest.mark.parametrize("query", [{"before": "x"}, {"before": "9" * 40}, {"edit": "x"}])
    def test_invalid_positions(self, room: Room, query: dict[str, str]) -> None:
        answer = room.client("owner").get(reverse("messaging:room", args=[room.chat.id]), query)
        assert answer.status_code == 400

    @pytest.mark.parametrize("chat_id", ["a/b", "..", "line\nbreak", "~tilde", "ü{}%:", "a?b#c"])
    def test_any_chat_id_has_a_url(self, person: Callable[..., User], chat_id: str) -> None:
        ann = person("ann")
        Chat.create(str(ann.pk), [], "Hello", chat_id=chat_id, title="Odd")
        client = client_of(ann)
        assert "Odd" in page(client, "chats")
        assert "Hello" in page(client, "room", chat_id)

    @pytest.mark.parametrize("path", ["~!", "~_w", "~AA", "~" + "A" * 400, "%00"])
    def test_invalid_chat_ids_in_urls(self, room: Room, path: str) -> None:
        chats = reverse("messaging:chats")
        assert room.client("owner").get(f"{chats}chats/{path}/").status_code == 404


class TestNew:
    def test_creating_a_chat_with_forms_only(self, person: Callable[..., User]) -> None:
        ann, bob, cat = person("ann"), person("bob"), person("cat")
        client = client_of(ann)
        address = reverse("messaging:new")
        text = client.post(address, {"search": "1", "q": "bo", "title": "Plans"}).content.decode()
        assert f'name="to" value="{bob.pk}">' in text and f'value="{cat.pk}"' not in text
        found = {"search": "1", "q": "ca", "to": str(bob.pk), "title": "Plans"}
        text = client.post(address, found).content.decode()
        assert f'value="{bob.pk}" checked>' in text and f'value="{cat.pk}">' in text
        assert 'value="Plans"' in text
        both = {"to": [str(bob.pk), str(cat.pk)], "title": "Plans", "body": "Hello", "request_id": "r"}
        answers = [client.post(address, both) for _ in range(2)]
        assert answers[0]["Location"] == answers[1]["Location"]
        (chat,) = Inbox(str(cat.pk)).chats()
        assert (chat.title, chat.unread, chat.member_count) == ("Plans", 1, 3)
        assert RecentContacts(str(ann.pk)).list() == [str(bob.pk), str(cat.pk)]

    def test_one_person_without_a_title_is_the_direct_chat(self, person: Callable[..., User]) -> None:
        ann, bob = person("ann"), person("bob")
        address, data = reverse("messaging:new"), {"to": str(bob.pk), "body": "Hello", "request_id": "r"}
        answers = [client_of(ann).post(address, data) for _ in range(2)]  # the second one is a repeat
        answers += [client_of(bob).post(address, {"to": str(ann.pk)})]
        chat = Chat.direct(str(ann.pk), str(bob.pk))
        assert {answer["Location"] for answer in answers} == {reverse("messaging:room", args=[chat.id])}
        assert [message.body for message in chat.history(str(bob.pk)).messages] == ["Hello"]
        assert len(Inbox(str(ann.pk)).chats()) == len(Inbox(str(bob.pk)).chats()) == 1
        chat.leave(str(bob.pk))
        client_of(ann).post(address, {"to": str(bob.pk), "body": "Still there?"})
        assert [one.unread for one in Inbox(str(bob.pk)).chats()] == [1]

    @pytest.mark.parametrize(
        ("given", "status", "field"),
        [
            ({}, 400, "q"),
            ({"to": ["ann"], "title": "x" * 5000}, 413, "title"),
            ({"to": ["ann"], "body": "\0"}, 400, "body"),
            ({"to": ["ann", "bob", "cat"]}, 413, "q"),
        ],
    )
    def test_the_field_to_correct_is_marked_and_the_input_stays(
        self, person: Callable[..., User], settings: Settings, given: dict[str, Any], status: int, field: str
    ) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "CHAT_MAX_MEMBERS": 3}
        me, *others = (person(name) for name in ("me", "ann", "bob", "cat"))
        chosen = [str(user.pk) for user in others if user.username in given.get("to", [])]
        data = {"title": "Plans", "body": "My words", **given, "to": chosen}
        answer = client_of(me).post(reverse("messaging:new"), data)
        assert answer.status_code == status
        text = answer.content.decode()
        marked = r' name="(\w+)"[^>]* aria-invalid="true" aria-describedby="drm-problem"'
        assert re.findall(marked, text) == [field]
        assert 'id="drm-problem" role="alert"' in text
        assert all(
            typed in text for typed in {"Plans", "My words"}.intersection([data["title"], data["body"]])
        )
        for member in chosen:
            assert f'value="{member}" checked' in text

    def test_what_was_typed_for_somebody_who_has_blocked_the_user(self, person: Callable[..., User]) -> None:
        ann, bob = person("ann"), person("bob")
        Blocks(str(bob.pk)).block(str(ann.pk))
        data = {"to": str(bob.pk), "body": "My words"}
        answer = client_of(ann).post(reverse("messaging:new"), data)
        text = answer.content.decode()
        assert answer.status_code == 403
        assert "My words" in text and f'value="{bob.pk}" checked' in text
        assert 'role="alert" tabindex="-1"' in text

    def test_at_least_one_recipient_is_required(self, person: Callable[..., User]) -> None:
        ann = person("ann")
        answer = client_of(ann).post(reverse("messaging:new"), {"body": "Kept"})
        assert answer.status_code == 400
        assert "Kept" in answer.content.decode()
        assert Inbox(str(ann.pk)).chats() == []

    def test_a_typed_name_is_not_left_out(self, person: Callable[..., User]) -> None:
        ann, cat = person("ann"), person("cat", first_name="Cat Ono")
        bobs = [str(person(f"bob{at}", first_name="Bob", last_name=name).pk) for at, name in enumerate("RL")]
        chat = Chat.create(str(ann.pk), [], title="Trip")
        for name, *args in (("new",), ("add", chat.id)):
            address = reverse(f"messaging:{name}", args=args)
            for json in (True, False):
                client = client_of(ann, json=json)
                for typed, text in (("bob", "Several people match “bob”"), ("zoe", "is called “zoe”")):
                    answer = client.post(address, {"to": str(cat.pk), "q": typed, "title": "Lunch"})
                    shown = answer.json()["error"]["message"] if json else answer.content.decode()
                    assert answer.status_code == 400 and text in shown
            refused = client.post(address, {"to": str(cat.pk), "q": "bob"}).content.decode()
            assert f'name="to" value="{cat.pk}" checked' in refused and 'name="q" value="bob"' in refused
            found = re.findall(r'name="to-found" value="(\w+)"', refused)
            assert sorted(found) == sorted(bobs)
        assert len(chat.members()) == len(Inbox(str(ann.pk)).chats()) == 1
        data = {"to": [str(cat.pk), bobs[0]], "to-found": found, "q": "bob"}  # chosen from those found
        assert client.post(address, data).status_code == 302
        assert client.post(address, {"q": "BOB l"}).status_code == 302  # only one
        members = {member.user for member in chat.members()}
        assert members == {str(ann.pk), str(cat.pk), *bobs}

    def test_recipients_must_be_in_the_guild(self, person: Callable[..., User], settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "IDENTITY": f"{__name__}.Guilds"}
        ann, abe, bob = person("ann"), person("abe"), person("bob")
        for user in (ann, abe):
            Directory("guild-a").add(str(user.pk), user.username)
        Directory("guild-b").add(str(bob.pk), "bob")
        client = client_of(ann, json=True)
        for to in ([str(bob.pk)], [str(abe.pk), str(bob.pk)], ["nobody"]):
            answer = client.post(reverse("messaging:new"), {"to": to})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_in_directory")
        assert Inbox(str(bob.pk)).chats() == []
        chat_id = client.post(reverse("messaging:new"), {"to": [str(abe.pk)]}).json()["id"]
        answer = client.post(reverse("messaging:add", args=[chat_id]), {"to": [str(bob.pk)]})
        assert answer.status_code == 403
        assert "bob" not in page(client_of(ann), "new", to=str(bob.pk))

    def test_the_identity_may_refuse(self, room: Room, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "IDENTITY": f"{__name__}.NobodyNew"}
        client, to = room.client("owner", json=True), {"to": room.id("outsider")}
        assert client.post(reverse("messaging:new"), to).status_code == 403
        assert client.post(reverse("messaging:add", args=[room.chat.id]), to).status_code == 403
        assert len(room.chat.members()) == 2

    def test_adding_people(self, room: Room) -> None:
        text = page(room.client("member"), "add", room.chat.id)
        assert "outsider" in text
        added = {"to": [room.id("outsider"), room.id("owner")]}
        answer = room.client("member", json=True).post(reverse("messaging:add", args=[room.chat.id]), added)
        assert answer.json() == {"added": [room.id("outsider")]}
        assert len(room.chat.members()) == 3


class TestContacts:
    def test_recent_contacts_come_before_the_directory(self, person: Callable[..., User]) -> None:
        ann, *_ = (person(name) for name in ("ann", "bea", "ben", "bob"))
        bob = User.objects.get(username="bob")
        RecentContacts(str(ann.pk)).touch(str(bob.pk))
        answer = client_of(ann).get(reverse("messaging:suggest"), {"q": "B"}).json()
        assert [result["text"] for result in answer["results"]] == ["bob", "bea", "ben"]
        assert answer["pagination"] == {"more": False}

    def test_chinese_names_are_found_by_pinyin(self, person: Callable[..., User]) -> None:
        ann, recent, other = person("ann"), person("u1", last_name="王小明"), person("u2", last_name="王莉")
        RecentContacts(str(ann.pk)).touch(str(recent.pk))
        chat = Chat.create(str(ann.pk), [str(recent.pk), str(other.pk)])
        for path in (reverse("messaging:suggest"), reverse("messaging:member_suggest", args=[chat.id])):
            for prefix, found in {
                "wang": ["王小明", "王莉"],
                "wang xiao": ["王小明"],
                "wl": ["王莉"],
            }.items():
                results = client_of(ann, json=True).get(path, {"q": prefix}).json()["results"]
                assert [result["text"] for result in results] == found

    def test_pages_of_suggestions(self, person: Callable[..., User]) -> None:
        ann = person("ann")
        Directory("everyone").add_many((f"x{number}", f"Xenia {number:02}") for number in range(45))
        seen: list[str] = []
        client = client_of(ann)
        for number, more in ((1, True), (2, True), (3, False)):
            answer = client.get(reverse("messaging:suggest"), {"q": "xen", "page": str(number)}).json()
            assert answer["pagination"] == {"more": more}
            seen += [result["id"] for result in answer["results"]]
        assert seen == [f"x{number}" for number in range(45)]

    @pytest.mark.parametrize("number", ["0", "-1", "x", "99999", "²"])
    def test_invalid_pages(self, person: Callable[..., User], number: str) -> None:
        answer = client_of(person("ann")).get(reverse("messaging:suggest"), {"page": number})
        assert answer.status_code == 400

    def test_users_are_not_suggested_to_themselves(self, person: Callable[..., User]) -> None:
        answer = client_of(person("ann")).get(reverse("messaging:suggest"), {"q": "an\0n"}).json()
        assert answer["results"] == []

    def test_recent_contacts_can_be_removed(self, person: Callable[..., User]) -> None:
        ann, bob = person("ann"), person("bob")
        RecentContacts(str(ann.pk)).touch(str(bob.pk))
        client = client_of(ann)
        assert f'name="contact" value="{bob.pk}"' in page(client, "contacts")
        client.post(reverse("messaging:forget_contact"), {"contact": str(bob.pk)})
        assert "People you message appear here." in page(client, "contacts")

    def test_contacts_outside_the_directory_are_not_suggested(self, person: Callable[..., User]) -> None:
        ann, bob = person("ann"), person("bob")
        RecentContacts(str(ann.pk)).touch(str(bob.pk))
        Directory("everyone").remove(str(bob.pk))
        assert client_of(ann).get(reverse("messaging:suggest"), {"q": "b"}).json()["results"] == []


class TestEscaping:
    @pytest.mark.parametrize("name", ["chats", "room", "add", "new", "contacts"])
    def test_pages_are_escaped(self, person: Callable[..., User], name: str) -> None:
        ann = person("ann", first_name=HOSTILE)
        bob = person("bob", first_name=HOSTILE, last_name="B")
        chat = Chat.create(str(bob.pk), [str(ann.pk)], HOSTILE, title=HOSTILE)
        Chat.create(str(bob.pk), [str(ann.pk)], HOSTILE, chat_id=HOSTILE)
        RecentContacts(str(ann.pk)).touch(str(bob.pk))
        args = [chat.id] if name in ("room", "add") else []
        text = page(client_of(ann), name, *args, q=HOSTILE)
        assert ESCAPED in text
        assert "<img" not in text and "<script>" not in text

    def test_html_in_json_is_escaped(self, room: Room) -> None:
        room.chat.send(room.id("member"), HOSTILE)
        room.chat.rename(room.id("member"), HOSTILE)
        client = room.client("owner")
        for address in (
            reverse("messaging:chats_feed"),
            reverse("messaging:room_feed", args=[room.chat.id]),
        ):
            data = client.get(address, {"html": "1"}).json()
            for item in data.get("chats") or data["messages"]:
                assert "<img" not in item["html"] and "<script" not in item["html"]

    @pytest.mark.parametrize(
        "body",
        [
            "javascript:alert(1)",
            "<b onmouseover=alert(1)> https://x.example <b onmouseover=alert(2)>",
            'https://x.example/"onmouseover=alert(1)',
            "data:text/html,<script>alert(1)</script>",
        ],
    )
    def test_only_web_addresses_become_links(self, room: Room, body: str) -> None:
        room.chat.send(room.id("member"), body)
        text = page(room.client("owner"), "room", room.chat.id)
        assert not re.search(r'href="(javascript|data):', text)
        assert not re.search(r"<[^>]*onmouseover", text)


class TestInvalidMemberIds:
    @pytest.mark.parametrize("to", ["NUL \0", "x" * 300, " "])
    @pytest.mark.parametrize("how", ["new", "add", "remove", "forget_contact", "search"])
    def test_they_are_refused(self, room: Room, how: str, to: str) -> None:
        name = "new" if how == "search" else how
        args = [room.chat.id] if name in ("add", "remove") else []
        data = {"to": to, "member": to, "contact": to, **({"search": "1"} if how == "search" else {})}
        answer = room.client("owner", json=True).post(reverse(f"messaging:{name}", args=args), data)
        assert answer.status_code in (200, 400, 403)
        assert len(room.chat.members()) == 2
        assert room.client("owner").get(reverse("messaging:new"), {"to": to}).status_code == 200
