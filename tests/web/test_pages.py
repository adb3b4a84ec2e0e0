"""The pages without JavaScript."""

from __future__ import annotations

import html
import logging
import re
import urllib.parse
import zoneinfo
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.template import Context, Template
from django.test import RequestFactory
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from django_redis_messaging import Blocks, Chat, Inbox, RecentContacts, notify
from django_redis_messaging.services.directories import Directory
from django_redis_messaging.web.identity import Identity
from django_redis_messaging.web.people import MAX_SUGGESTION_PAGES, SUGGESTIONS_PER_PAGE
from django_redis_messaging.web.views.chats import CHATS_PER_PAGE
from django_redis_messaging.web.views.details import MEMBERS_PER_PAGE

from ..support.people import Member
from ..support.server import change
from .conftest import Members, Room, client_of, code, get, page, post

RLO, PDI = "\u202e", "\u2069"
#: bytes of the largest page
MAX_PAGE_BYTES = 300 * 1024

HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>"
ESCAPED = "&lt;img src=x onerror=alert(1)&gt;"


class Guilds(Identity):
    """Puts users into a guild named after the first letter of their user name."""

    def directories(self, user: Any) -> list[str]:
        return [f"guild-{user.get_username()[0]}"]


class NobodyNew(Identity):
    def may_create(self, user: Any, recipients: Any) -> bool:
        return False

    def may_add(self, user: Any, chat_id: str, member: str) -> bool:
        return False


@pytest.mark.versions
class TestList:
    def test_unread_count_and_newest_message(self, room: Room) -> None:
        text = page(room.client("owner"), "chats")
        assert "Room" in text and "<bdi>From the member</bdi>" in text
        assert re.search(r'class="drm-badge">1<', text)
        room.chat.ack(room.id("member"), 1)
        assert "drm-badge" not in page(room.client("member"), "chats"), "one's own"

    def test_a_chat_without_a_title_shows_its_members(self, member: Members) -> None:
        ann, *others = (member(name) for name in ("ann", "bob", "cat", "dan", "eva"))
        Chat.create(ann, others[:1])
        Chat.create(ann, others[:2], title="\u200b \u2800\u3164")
        Chat.create(ann, others)
        text = page(client_of(ann), "chats")
        for shown in ("bob", "bob, cat", "bob, cat, dan and 1 other"):
            assert f"<bdi>{shown}</bdi>" in text

    def test_more_than_a_page(self, ann: Member) -> None:
        for number in range(CHATS_PER_PAGE + 1):
            Chat.create(ann, [], title=f"Chat no {number}.")
        client = client_of(ann)

        def titles(**query: str) -> set[str]:
            return set(re.findall(r"Chat no \d+\.", page(client, "chats", **query)))

        further = re.search(r'href="\?after=([^"]+)"', page(client, "chats"))
        assert further
        cursor = urllib.parse.unquote(further[1])
        first, second = titles(), titles(after=cursor)
        assert (len(first), len(second), len(first | second)) == (CHATS_PER_PAGE, 1, CHATS_PER_PAGE + 1)
        assert "?after=" in page(client, "chats", after="gone")
        # The next page continues, although the chat that its link names has moved or is gone.
        last = Chat(cursor.partition("-")[2])
        for move in (lambda: last.send(ann, "up"), lambda: last.delete(ann)):
            move()
            assert titles(after=cursor) == second


@pytest.mark.versions
class TestHistory:
    def write(self, room: Room, count: int) -> None:
        for number in range(3, 3 + count):
            room.chat.send(room.id("owner"), f"no {number}.")

    def test_it_has_older_pages(self, room: Room) -> None:
        self.write(room, 120)
        room.chat.ack(room.id("owner"), 2)
        text = room.page("owner")
        assert "no 122." in text and "no 92." not in text
        seen = set(re.findall(r"no \d+\.", text))
        while older := re.search(r'href="\?before=(\d+)" id="drm-older">', text):
            text = room.page("owner", before=older[1])
            seen |= set(re.findall(r"no \d+\.", text))
        assert len(seen) == 120

    def test_it_opens_before_the_first_unread_message(self, room: Room) -> None:
        self.write(room, 201)
        room.chat.ack(room.id("member"), 52)
        text = room.page("member")
        ids = re.findall(r' data-id="(\d+)" data-cursor', text)
        assert (ids[0], ids[-1]) == ("43", "72")
        assert "151 new messages" in text
        assert text.index("no 52.") < text.index('id="drm-unread"') < text.index("no 53.")
        assert '<a class="drm-button" href="?after=72" id="drm-newer">' in text
        later = room.page("member", after="72")
        assert "no 73." in later and "no 72." not in later
        assert "no 100." in room.page("member", at="100")
        # The divider is only where everything before it is read.
        text = room.page("member", before="204")
        assert "no 203." in text and "drm-unread" not in text

    def test_a_gap_is_shown(self, room: Room, settings: Settings) -> None:
        change(settings, CHAT_MAX_LENGTH=10)
        self.write(room, 13)
        assert "5 older messages were removed." in room.page("owner")

    def test_days_the_first_unread_message_and_marking_as_read(self, room: Room) -> None:
        text = room.page("owner")
        assert text.count('class="drm-day ') == 1
        log = text[text.index('id="drm-log"') :]
        assert log.index("From the owner") < log.index('id="drm-unread"') < log.index("From the member")
        form = re.search(r'id="drm-mark".*?name="up_to" value="([^"]+)"', text, re.DOTALL)
        assert form
        assert Inbox(room.id("owner")).unread() == 1
        room.post("owner", "ack", json=False, up_to=form[1])
        assert Inbox(room.id("owner")).unread() == 0
        assert 'id="drm-mark" hidden>' in room.page("owner")

    def test_times_without_time_zones(self, room: Room, settings: Settings) -> None:
        settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Kolkata"
        notify(room.id("owner"), "Hello")
        (message, _) = room.chat.history(room.id("owner")).messages
        local = message.sent_at.astimezone(zoneinfo.ZoneInfo("Asia/Kolkata"))
        written = f'datetime="{local:%Y-%m-%dT%H:%M:%S}'
        for name, *args in (("room", room.chat.id), ("chats",), ("notifications",)):
            text = page(room.client("owner"), name, *args)
            assert written[:-2] in text and "+05:30" in text

    def test_search(self, room: Room) -> None:
        text = room.page("owner", "search", q="MEMBER")
        assert "From the member" in text and "From the owner" not in text
        assert f"{reverse('messaging:room', args=[room.chat.id])}?at=2#m2" in text
        assert "Nothing found." in room.page("owner", "search", q="nowhere")

    def test_seen_by(self, room: Room) -> None:
        """Who joins later has not seen what came before."""
        member, former = room.id("member"), room.id("former")
        room.chat.join(former, by=room.id("owner"))
        room.chat.ack(former, 2)  # the page acks what it shows: nothing
        assert "Seen by" not in room.page("member")
        room.chat.ack(room.id("owner"), 2)
        assert "Seen by owner<" in room.page("member")
        room.chat.ack(former, room.chat.send(member, "For all").id)
        assert "Seen by former<" in room.page("member")

    def test_invalid_positions_and_chat_ids(self, room: Room) -> None:
        for name, value in (("before", "x"), ("before", "9" * 40), ("edit", "x")):
            assert room.get("owner", "room", json=False, **{name: value}).status_code == 400
        for path in ("~!", "~_w", "~AA", "~" + "A" * 400, "%00"):
            assert room.client("owner").get(f"{reverse('messaging:chats')}chats/{path}/").status_code == 404

    def test_any_chat_id_has_a_url(self, ann: Member) -> None:
        client = client_of(ann)
        for number, chat_id in enumerate(["a/b", "..", "line\nbreak", "~tilde", "ü{}%:", "a?b#c"]):
            Chat.create(ann, [], f"Hello {number}", chat_id=chat_id, title=f"Odd {number}")
            assert f"Odd {number}" in page(client, "chats")
            assert f"Hello {number}" in page(client, "room", chat_id)

    def test_a_room_without_messages(self, room: Room) -> None:
        chat = Chat.create(room.id("owner"), [room.id("member")])
        answer = get(room.client("owner"), "room_feed", chat.id).json()
        assert (answer["messages"], answer["gap"], answer["has_more"], answer["seen"]) == ([], 0, False, "")
        assert "No messages yet." in page(room.client("owner"), "room", chat.id)


@pytest.mark.versions
class TestForms:
    """What users do in a room without JavaScript."""

    def test_one_that_is_submitted_twice_sends_once(self, room: Room) -> None:
        for _ in range(2):
            answer = room.post("owner", "send", json=False, body="Once\r\nonly", request_id="r1")
            assert answer.status_code == 302
        bodies = [message.body for message in room.chat.history(room.id("owner")).messages]
        assert bodies == ["From the owner", "From the member", "Once\nonly"]

    def test_replying_quotes(self, room: Room) -> None:
        assert '<input type="hidden" name="reply_to" value="1">' in room.page("member", reply="1")
        room.post("member", "send", json=False, body="Indeed", reply_to="1")
        text = room.page("member")
        quote = text[text.index('class="drm-quote ') :]
        assert "owner" in quote and "From the owner" in quote[: quote.index("Indeed")]

    def test_editing_and_deleting_own_messages(self, room: Room) -> None:
        assert ">From the member</textarea>" not in room.page("owner", edit="2")
        text = room.page("member", edit="2")
        assert ">From the member</textarea>" in text
        assert reverse("messaging:edit", args=[room.chat.id, "2"]) in text
        room.post("member", "edit", "2", json=False, body="Better")
        text = room.page("member")
        assert "Better" in text and "edited" in text and "From the member" not in text
        room.post("member", "delete_message", "2", json=False)
        text = room.page("member")
        assert "Message deleted" in text and "Better" not in text

    @pytest.mark.parametrize(("role", "numbers"), [("owner", [1, 2]), ("member", [2])])
    def test_deletion_is_offered_where_it_works(self, room: Room, role: str, numbers: list[int]) -> None:
        """Message 1 is by the owner, message 2 by the member."""

        def offered() -> list[int]:
            options = re.findall(r'data-id="(\d+)"[^>]* data-can="([^"]*)"', room.page(role))
            return [int(number) for number, can in options if "delete" in can]

        assert offered() == numbers
        for number in (1, 2):
            delete = reverse("messaging:delete_message", args=[room.chat.id, number])
            assert (delete in room.page(role, "message", number)) is (number in numbers)
        room.post("owner", "delete_message", "2")
        assert offered() == [number for number in numbers if number == 1]

    def test_errors_are_shown(self, room: Room) -> None:
        for name, *args in (("send",), ("edit", "2")):
            answer = room.post("member", name, *args, json=False, body=" ")
            assert answer.status_code == 400
            assert "This field is required." in answer.content.decode()

    def test_renaming_muting_and_leaving(self, room: Room) -> None:
        room.post("member", "rename", json=False, title="Another")
        assert "Another" in room.page("owner")
        for hours, muted in (("0", False), ("8", True)):
            room.post("owner", "mute", json=False, hours=hours)
            assert [chat.muted for chat in Inbox(room.id("owner")).chats()] == [muted]
        text = room.page("owner")
        until = room.chat.changes(room.id("owner"), after=2).muted_until
        assert until and f'datetime="{timezone.localtime(until):%Y-%m-%dT%H:%M}' in text
        assert "Unmute" in text and "Unmute" not in room.page("member")
        room.post("owner", "mute", json=False, hours="0")
        assert "Unmute" not in room.page("owner")
        assert room.post("owner", "mute", json=False, hours="7").status_code == 400
        assert room.post("member", "leave", json=False)["Location"] == reverse("messaging:chats")
        assert "No chats yet." in page(room.client("member"), "chats")

    def test_roles_and_removing(self, room: Room) -> None:
        remove = reverse("messaging:remove", args=[room.chat.id])
        assert remove in room.page("owner", "details")
        assert remove not in room.page("member", "details")
        for role in ("owner", "member"):
            room.post("owner", "role", json=False, member=room.id("member"), role=role)
            assert room.chat.role(room.id("member")) == role
            assert ("Make a member" in room.page("owner", "details")) is (role == "owner")

    def test_members_are_listed_in_pages(self, room: Room) -> None:
        room.chat.add([f"other {number}" for number in range(MEMBERS_PER_PAGE)], by=room.id("owner"))
        text = room.page("owner", "details")
        more = re.search(r'href="\?after=([^"]+)">More members', text)
        assert more
        text += room.page("owner", "details", after=urllib.parse.unquote(more[1]))
        names = re.findall(r"<bdi>(other \d+)</bdi>", text)
        assert len(names) == len(set(names)) == MEMBERS_PER_PAGE


@pytest.mark.versions
class TestNew:
    def test_creating_a_chat_with_forms_only(self, member: Members) -> None:
        ann, bob, cat = member("ann"), member("bob"), member("cat")
        client = client_of(ann)
        text = post(client, "new", search="1", q="bo", title="Plans").content.decode()
        assert f'name="to" value="{bob}">' in text and f'value="{cat}"' not in text
        text = post(client, "new", search="1", q="ca", to=bob, title="Plans").content.decode()
        assert f'value="{bob}" checked>' in text and f'value="{cat}">' in text
        assert 'value="Plans"' in text
        both = {"to": [bob, cat], "title": "Plans", "body": "Hello", "request_id": "r"}
        answers = [post(client, "new", **both) for _ in range(2)]
        assert answers[0]["Location"] == answers[1]["Location"]
        (chat,) = Inbox(cat).chats()
        assert (chat.title, chat.unread, chat.member_count) == ("Plans", 1, 3)
        assert RecentContacts(ann).list() == [bob, cat]

    def test_one_person_without_a_title_is_the_direct_chat(self, member: Members) -> None:
        ann, bob = member("ann"), member("bob")
        data = {"to": bob, "body": "Hello", "request_id": "r"}
        answers = [post(client_of(ann), "new", **data) for _ in range(2)]  # the second one is a repeat
        answers += [post(client_of(bob), "new", to=ann)]
        chat = Chat.direct(ann, bob)
        assert {answer["Location"] for answer in answers} == {reverse("messaging:room", args=[chat.id])}
        assert [message.body for message in chat.history(bob).messages] == ["Hello"]
        assert len(Inbox(ann).chats()) == len(Inbox(bob).chats()) == 1
        chat.leave(bob)
        post(client_of(ann), "new", to=bob, body="Still there?")
        assert [one.unread for one in Inbox(bob).chats()] == [1]

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
        self, member: Members, settings: Settings, given: dict[str, Any], status: int, field: str
    ) -> None:
        change(settings, CHAT_MAX_MEMBERS=3)
        me, *others = (member(name) for name in ("me", "ann", "bob", "cat"))
        chosen = [user for user in others if user.user.username in given.get("to", [])]
        data = {"title": "Plans", "body": "My words", **given, "to": chosen}
        answer = post(client_of(me), "new", **data)
        assert answer.status_code == status
        text = answer.content.decode()
        marked = r' name="(\w+)"[^>]* aria-invalid="true" aria-describedby="drm-problem"'
        assert re.findall(marked, text) == [field]
        assert 'id="drm-problem" role="alert"' in text
        assert all(typed in text for typed in {"Plans", "My words"} & {data["title"], data["body"]})
        for member in chosen:
            assert f'value="{member}" checked' in text
        assert Inbox(me).chats() == []

    def test_what_was_typed_for_somebody_who_has_blocked_the_user(self, member: Members) -> None:
        ann, bob = member("ann"), member("bob")
        Blocks(bob).block(ann)
        answer = post(client_of(ann), "new", to=bob, body="My words")
        text = answer.content.decode()
        assert answer.status_code == 403
        assert "My words" in text and f'value="{bob}" checked' in text
        assert 'role="alert" tabindex="-1"' in text

    def test_a_typed_name_is_not_left_out(self, member: Members) -> None:
        ann, cat = member("ann"), member("cat", first_name="Cat Ono")
        bobs = [member(f"bob{at}", first_name="Bob", last_name=name) for at, name in enumerate("RL")]
        chat = Chat.create(ann, [], title="Trip")
        for name, *args in (("new",), ("add", chat.id)):
            address = reverse(f"messaging:{name}", args=args)
            for json in (True, False):
                client = client_of(ann, json=json)
                for typed, text in (("bob", "Several people match “bob”"), ("zoe", "is called “zoe”")):
                    answer = client.post(address, {"to": cat, "q": typed, "title": "Lunch"})
                    shown = answer.json()["error"]["message"] if json else answer.content.decode()
                    assert answer.status_code == 400 and text in shown
            refused = client.post(address, {"to": cat, "q": "bob"}).content.decode()
            assert f'name="to" value="{cat}" checked' in refused and 'name="q" value="bob"' in refused
            found = re.findall(r'name="to-found" value="(\w+)"', refused)
            assert sorted(found) == sorted(bobs)
        assert len(chat.members()) == len(Inbox(ann).chats()) == 1
        data = {"to": [cat, bobs[0]], "to-found": found, "q": "bob"}  # chosen from those found
        assert client.post(address, data).status_code == 302
        assert client.post(address, {"q": "BOB l"}).status_code == 302  # only one
        assert {member.user for member in chat.members()} == {ann, cat, *bobs}

    def test_recipients_must_be_in_the_guild(self, member: Members, settings: Settings) -> None:
        change(settings, IDENTITY=f"{__name__}.Guilds")
        ann, abe, bob = member("ann"), member("abe"), member("bob")
        for user in (ann, abe):
            Directory("guild-a").add(user, user.user.username)
        Directory("guild-b").add(bob, "bob")
        client = client_of(ann, json=True)
        for to in ([bob], [abe, bob], ["nobody"]):
            assert code(post(client, "new", to=to)) == (403, "not_in_directory")
        assert Inbox(bob).chats() == []
        chat_id = post(client, "new", to=abe).json()["id"]
        assert post(client, "add", chat_id, to=bob).status_code == 403
        assert "bob" not in page(client_of(ann), "new", to=bob)

    def test_the_identity_may_refuse(self, room: Room, settings: Settings) -> None:
        change(settings, IDENTITY=f"{__name__}.NobodyNew")
        to = room.id("outsider")
        assert post(room.client("owner", json=True), "new", to=to).status_code == 403
        assert room.post("owner", "add", to=to).status_code == 403
        assert len(room.chat.members()) == 2

    def test_adding_people(self, room: Room) -> None:
        assert "outsider" in room.page("member", "add")
        answer = room.post("member", "add", to=[room.id("outsider"), room.id("owner")])
        assert answer.json() == {"added": [room.id("outsider")]}
        assert len(room.chat.members()) == 3


@pytest.mark.versions
class TestContacts:
    def suggestions(self, user: Member, prefix: str) -> list[str]:
        results = get(client_of(user), "suggest", q=prefix).json()["results"]
        return [result["text"] for result in results]

    def test_recent_contacts_come_first_and_can_be_removed(self, member: Members) -> None:
        """Only people in the directory are suggested, and not the user."""
        ann, _, _, bob = (member(name) for name in ("ann", "bea", "ben", "bob"))
        client = client_of(ann)
        RecentContacts(ann).touch(bob)
        assert self.suggestions(ann, "B") == ["bob", "bea", "ben"]
        assert self.suggestions(ann, "an\0n") == []
        assert f'name="contact" value="{bob}"' in page(client, "contacts")
        post(client, "forget_contact", contact=bob)
        assert "People you message appear here." in page(client, "contacts")
        RecentContacts(ann).touch(bob)
        Directory("everyone").remove(bob)
        assert self.suggestions(ann, "B") == ["bea", "ben"]

    def test_chinese_names_are_found_by_pinyin(self, member: Members) -> None:
        ann, recent, other = member("ann"), member("u1", last_name="王小明"), member("u2", last_name="王莉")
        RecentContacts(ann).touch(recent)
        chat = Chat.create(ann, [recent, other])
        for name, *args in (("suggest",), ("member_suggest", chat.id)):
            for prefix, found in (("wang", ["王小明", "王莉"]), ("wang xiao", ["王小明"]), ("wl", ["王莉"])):
                results = get(client_of(ann), name, *args, q=prefix).json()["results"]
                assert [result["text"] for result in results] == found

    def test_pages_of_suggestions(self, ann: Member) -> None:
        """Their number is bounded."""
        total = SUGGESTIONS_PER_PAGE * MAX_SUGGESTION_PAGES + 5
        Directory("everyone").add_many((f"x{number}", f"Xenia {number:03}") for number in range(total))
        client, seen = client_of(ann), []
        for number in range(1, MAX_SUGGESTION_PAGES + 1):
            answer = get(client, "suggest", q="xen", page=number).json()
            assert answer["pagination"] == {"more": number < MAX_SUGGESTION_PAGES}
            seen += [result["id"] for result in answer["results"]]
        assert seen == [f"x{number}" for number in range(total - 5)]
        assert get(client, "suggest", q="xen", page=9999).json() == answer
        few = get(client, "suggest", q="xenia 00").json()
        assert ([result["id"] for result in few["results"]], few["pagination"]) == (
            [f"x{number}" for number in range(10)], {"more": False},
        )  # fmt: skip
        for invalid in ("0", "-1", "x", "99999", "²"):
            assert get(client, "suggest", page=invalid).status_code == 400


@pytest.mark.versions
class TestEscaping:
    def test_in_pages_and_in_json(self, member: Members) -> None:
        ann = member("ann", first_name=HOSTILE)
        bob = member("bob", first_name=HOSTILE, last_name="B")
        chat = Chat.create(bob, [ann], HOSTILE, title=HOSTILE)
        Chat.create(bob, [ann], HOSTILE, chat_id=HOSTILE)
        RecentContacts(ann).touch(bob)
        client = client_of(ann)
        for name, *args in (("chats",), ("room", chat.id), ("add", chat.id), ("new",), ("contacts",)):
            text = page(client, name, *args, q=HOSTILE)
            assert ESCAPED in text
            assert "<img" not in text and "<script>" not in text
        for name, *args in (("chats_feed",), ("room_feed", chat.id)):
            data = get(client, name, *args, html=1).json()
            for item in data.get("chats") or data["messages"]:
                assert ESCAPED in item["html"]
                assert "<img" not in item["html"] and "<script" not in item["html"]


@pytest.mark.versions
@pytest.mark.parametrize("to", ["NUL \0", "x" * 300, " "])
def test_invalid_member_ids_are_refused(room: Room, to: str) -> None:
    client, data = room.client("owner", json=True), {"to": to, "member": to, "contact": to}
    answers = [post(client, name, **data) for name in ("new", "forget_contact")]
    answers += [post(client, name, room.chat.id, **data) for name in ("add", "remove")]
    answers.append(post(client, "new", **data, search="1"))
    assert {answer.status_code for answer in answers} <= {200, 400, 403}
    assert len(room.chat.members()) == 2
    assert get(room.client("owner"), "new", to=to).status_code == 200


@pytest.mark.versions
class TestSpoofing:
    def test_a_title_does_not_hide_the_other_member(self, member: Members) -> None:
        ann, mallory, cat = member("ann"), member("mallory"), member("cat")
        chat = Chat.create(mallory, [ann], title="Bank")
        client = client_of(ann)
        text = page(client, "room", chat.id)
        heading = text.partition('<div class="drm-head-text">')[2].partition("</div>")[0]
        shown = "with <bdi>mallory</bdi>"
        assert "<bdi>Bank</bdi>" in heading and shown in heading
        assert page(client, "chats").count(shown) == 1
        (row,) = get(client, "chats_feed", html=1).json()["chats"]
        assert "Bank" in row["html"] and shown in row["html"]
        chat.rename(mallory, RLO)
        assert "<bdi>mallory</bdi>" in page(client, "chats") and shown not in page(client, "chats")
        chat.rename(mallory, "Three")
        chat.join(cat, by=mallory)
        assert shown not in page(client, "chats") + page(client, "room", chat.id)

    def test_a_group_with_the_name_of_a_person_does_not_look_like_the_direct_chat(
        self, member: Members
    ) -> None:
        ann, mallory, cat = member("ann"), member("mallory"), member("cat", first_name="Cat", last_name="Lee")
        direct = Chat.direct(cat, ann)
        two = Chat.create(mallory, [ann], title="Cat Lee")
        three = Chat.create(mallory, [ann, cat], title="Cat Lee")
        untitled = Chat.create(cat, [ann])
        client = client_of(ann)
        kinds = {
            direct.id: ("Direct chat", None),
            two.id: ("Group · 2 members", "Group with <bdi>mallory</bdi>"),
            three.id: ("Group · 3 members", "Group"),
            untitled.id: ("Group · 2 members", "Group"),
        }
        rows = {row["id"]: row for row in get(client, "chats_feed", html=1).json()["chats"]}
        for chat_id, (kind, beside) in kinds.items():
            is_group = beside is not None
            html = rows[chat_id]["html"]
            assert rows[chat_id]["group"] is ("drm-group" in html) is is_group
            assert "<bdi>Cat Lee</bdi>" in html
            assert (f'<small class="drm-companion">{beside}</small>' in html) is is_group
            feed = get(client, "room_feed", chat_id, at="newest").json()
            assert (feed["title"], feed["members"]) == ("Cat Lee", kind)
            for name in ("room", "details", "search", *(["add"] if is_group else [])):
                text = page(client, name, chat_id)
                head = text.rpartition("</h1>")[0].rpartition("<header" if name == "room" else "<h1")[2]
                assert kind in text and ("drm-group" in head) is is_group, name
                title = text.partition("<title>")[2].partition("</title>")[0]
                assert ("Group: Cat Lee" in title) is is_group and "Cat Lee" in title, name

    def test_a_direct_chat_has_the_name_of_the_other_member(self, member: Members) -> None:
        ann, mallory = member("ann"), member("mallory")
        chat = Chat.direct(mallory, ann)
        chat.rename(mallory, "Cat Lee")
        client = client_of(ann)
        for name, *args in (("chats",), ("room", chat.id), ("details", chat.id), ("search", chat.id)):
            text = page(client, name, *args)
            assert "<bdi>mallory</bdi>" in text and "<bdi>Cat Lee</bdi>" not in text, name
        assert reverse("messaging:rename", args=[chat.id]) not in page(client, "room", chat.id)
        answer = post(client, "rename", chat.id, title="Cat")
        assert answer.status_code == 400 and chat.info().title == "Cat Lee"

    def test_direction_controls_stay_inside_the_message(self, member: Members) -> None:
        ann = member("ann", first_name="Ann")
        bob = member("bob", first_name=f"Bob{PDI}{RLO}", last_name="eno")
        chat = Chat.create(bob, [ann], f"{PDI}{RLO}body", title=f"Title{PDI}{RLO}eltit")
        Chat.create(bob, [ann])
        RecentContacts(ann).touch(bob)
        notify(ann, "Hello", sender=bob)
        client = client_of(ann)
        chat.ack(ann, chat.send(ann, f"{RLO}Mine").id)
        chat.ack(bob, 2)
        pages = (("chats",), ("contacts",), ("notifications",), ("add", chat.id), ("room", chat.id))
        for name, *args in pages:
            text = page(client, name, *args, q="bob")
            assert "eno" in text or "eltit" in text
            # The field to rename a chat has its title unchanged.
            outside = re.sub(r'<div class="drm-body".*?</div>|<input id="drm-rename"[^>]*>', "", text)
            assert RLO not in outside and PDI not in outside
        assert f'<div class="drm-body" dir="auto">{PDI}{RLO}body</div>' in text
        assert "Seen by Bob eno" in text
        feed = get(client, "suggest", q="bob").json()
        assert feed["results"][0]["text"] == "Bob eno"


@pytest.mark.versions
class TestMessagePage:
    @pytest.mark.parametrize("piece", ["&", "\U0001f600", "https://example.com/&&& ", "word\n"])
    def test_it_shows_the_whole_text_in_bounded_parts(self, room: Room, piece: str) -> None:
        body = (piece * 65_536).encode()[:65_000].decode(errors="ignore")
        message = room.chat.send(room.id("member"), body)
        address = reverse("messaging:message", args=[room.chat.id, message.id])
        assert f'<a href="{address}">Show all</a>' in room.page("owner") or len(body) <= 20_000
        shown, query = "", "?from=junk"
        while query:
            text = room.client("owner").get(address + query).content.decode()
            assert len(text.encode()) <= MAX_PAGE_BYTES
            part = text.partition('<div class="drm-body drm-whole" dir="auto">')[2].partition("</div>")[0]
            shown += html.unescape(re.sub(r"<[^>]*>", "", part))
            following = re.search(r'href="(\?from=\d+)">Next part', text)
            query = following[1] if following else ""
        assert shown == body

    def test_a_cut_message_is_edited_in_the_form_that_has_all_of_it(self, room: Room) -> None:
        body = "x" * 30_000
        message = room.chat.send(room.id("owner"), body)
        text = room.page("owner")
        assert reverse("messaging:message", args=[room.chat.id, message.id]) in text
        assert f'?edit={message.id}#drm-composer">' in room.page("owner", "message", message.id)
        assert room.get("owner", "message", message.id).json()["message"]["body"] == body
        assert len(text) < 30_000
        for _ in range(6):
            room.chat.send(room.id("member"), "y" * 60_000)
        room.chat.ack(room.id("owner"), message.id + 6)
        text = room.page("owner", edit=message.id)
        assert f'id="m{message.id}"' not in text and body in text

    def test_a_message_that_does_not_exist_or_came_before_the_user_joined(self, room: Room) -> None:
        room.chat.delete_message(room.id("member"), 2)
        for message_id in ("0", "2", "3", "x", "-1", "9" * 30):
            answers = [
                room.get(role, "message", message_id, json=False).status_code
                for role in ("owner", "outsider", "former")
            ]
            assert answers == [410, 404, 404]
        assert get(room.client("owner"), "message", "none", 1).status_code == 404
        room.chat.join(room.id("outsider"), by=room.id("owner"))
        assert room.get("outsider", "message", 1, json=False).status_code == 410


class TestUnreadTag:
    """The number of unread messages in any template."""

    TEMPLATE = "[{% messaging_unread %}]{% messaging_unread as unread %}{% if unread %}!{% endif %}"

    def render(self, user: object) -> str:
        request = RequestFactory().get("/")
        request.user = user  # type: ignore[assignment]
        return Template("{% load messaging %}" + self.TEMPLATE).render(Context({"request": request}))

    def test_it_is_read_once_for_a_page(self, room: Room, operations: list[str]) -> None:
        assert self.render(room.people["owner"]) == "[1]!"
        assert operations == ["Inbox.unread"]
        Chat(room.chat.id).ack(room.id("owner"), 2)
        assert self.render(room.people["owner"]) == "[]"

    def test_nothing_for_others(self, room: Room, operations: list[str]) -> None:
        assert self.render(AnonymousUser()) == "[]"
        assert Template("{% load messaging %}" + self.TEMPLATE).render(Context()) == "[]"
        assert operations == []

    def test_nothing_without_redis(self, room: Room, away: None, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            assert self.render(room.people["owner"]) == "[]"
        assert "unread messages failed" in caplog.text
