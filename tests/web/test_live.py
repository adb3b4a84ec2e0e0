"""Live streams over HTTP: server-sent events under a real ASGI server."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from inspect import signature
from itertools import count
from time import monotonic
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.http import HttpRequest
from django.test import override_settings
from pytest_django import Settings

from django_redis_messaging import Chat, Choices, notify
from django_redis_messaging.services.live import Known, Presence
from django_redis_messaging.web import identity as identities
from django_redis_messaging.web import live
from django_redis_messaging.web.rendering import MAX_BYTES
from django_redis_messaging.web.stream_access import Access, release_thread

from ..support.asgi_site import EventSource, Site
from ..support.people import Member
from ..support.server import change
from .conftest import Members, client_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def chat(ann: Member, bob: Member) -> Chat:
    return Chat.create(ann, [bob], "One", title="Trip")


class TestEvents:
    def test_the_state_then_changes(self, site: Site, ann: Member, bob: Member, chat: Chat) -> None:
        with EventSource(site, bob, room=chat.id) as source:
            assert source.response.status == 200
            assert source.response.headers["Content-Type"] == "text/event-stream"
            assert source.response.headers["Content-Encoding"] == "identity"
            assert source.response.headers["X-Accel-Buffering"] == "no"
            assert "no-store" in source.response.headers["Cache-Control"]
            room = source.until("room")
            assert (room["chat"], room["unread"], room["messages"]) == (chat.id, 1, [])
            while len(source.seen) < 3:
                source.next()
            assert {name for name, _ in source.seen} == {"room", "chats", "bell"}
            chat.send(ann, "Two <b>")
            room = source.until("room", lambda data: data["messages"])
            assert [(one["body"], one["label"]) for one in room["messages"]] == [("Two <b>", "Ann")]
            row = source.until("chats", lambda data: not data["complete"])["chats"][0]
            assert (row["id"], row["title"], row["unread"]) == (chat.id, "Trip", 2)
            notify(bob, "News")
            assert source.until("bell", lambda data: data["unread"])["text"] == "1"

    def test_html_is_as_in_the_feed(self, site: Site, ann: Member, bob: Member, chat: Chat) -> None:
        with (
            EventSource(site, bob, room=chat.id, html=1) as bobs,
            EventSource(site, ann, room=chat.id, html=1) as anns,
        ):
            for source in (bobs, anns):
                source.until("room")
            chat.send(ann, "Two <b>")
            for user, source in ((bob, bobs), (ann, anns)):
                pushed = source.until("room", lambda data: data["messages"])
                url = f"/messages/chats/{chat.id}/feed/?after=1&html=1"
                polled = client_of(user).get(url).json()
                assert pushed["messages"] == polled["messages"]
                assert pushed["cursor"] == polled["cursor"]
                row = source.until("chats", lambda data: not data["complete"])["chats"][0]
                assert row == client_of(user).get("/messages/feed/?html=1").json()["chats"][0]

    def test_goes_on_after_the_last_event(self, site: Site, ann: Member, bob: Member, chat: Chat) -> None:
        with EventSource(site, bob, room=chat.id, after="0") as source:
            assert source.until("room")["messages"][0]["body"] == "One"
        chat.send(ann, "Two")
        with EventSource(site, bob, room=chat.id, after="0", last_id=source.last_id) as source:
            assert [one["body"] for one in source.until("room")["messages"]] == ["Two"]

    def test_the_last_event_adds_no_rooms(self, site: Site, ann: Member, bob: Member, chat: Chat) -> None:
        other = Chat.create(ann, [bob], "Not followed")
        last_id = urlencode({"room": [other.id, chat.id], "after": ["0", "0"]}, doseq=True)
        with EventSource(site, bob, room=chat.id, last_id=last_id) as source:
            assert source.until("room")["messages"]
            other.send(ann, "Not followed, either")
            chat.send(ann, "Two")
            source.until("room", lambda data: data["messages"])
            assert all(data["chat"] == chat.id for name, data in source.seen if name == "room")
            assert parse_qs(source.last_id)["room"] == [chat.id]

    def test_each_gets_what_its_feed_has(self, site: Site, ann: Member, bob: Member, member: Members) -> None:
        """Whatever is rendered once for several members: an owner may delete messages, who joined later can't
        see what is quoted, and nobody's name is in the title that they see."""
        others = [member(name) for name in ("cat", "dan", "eve")]
        *ids, eve = bob, *others
        titled = Chat.create(ann, ids, "One", title="Trip")
        titled.set_role(ann, ids[1], "owner")
        untitled = Chat.create(ann, [*ids, eve], "One")
        titled.join(eve, by=ann)
        readers = [bob, *others]
        with ExitStack() as stack:
            rooms = [titled.id, untitled.id]
            sources = [stack.enter_context(EventSource(site, one, room=rooms, html=1)) for one in readers]
            for source in sources:
                while len(source.seen) < 4:
                    source.next()
            for chat in (titled, untitled):
                chat.send(ann, "Two", reply_to=1)
                for user, source in zip(readers, sources, strict=True):
                    client = client_of(user)
                    polled = client.get(f"/messages/chats/{chat.id}/feed/?after=1&html=1").json()
                    room = source.until("room", lambda data: data["messages"])
                    assert [room[part] for part in ("messages", "title")] == [
                        polled[part] for part in ("messages", "title")
                    ]
                    [row] = source.until("chats", lambda data: not data["complete"])["chats"]
                    assert row == client.get("/messages/feed/?html=1").json()["chats"][0]

    def test_who_is_removed_gets_nothing_after(
        self, site: Site, ann: Member, bob: Member, chat: Chat
    ) -> None:
        with EventSource(site, bob, room=chat.id) as source:
            source.until("room")
            source.until("chats")
            chat.leave(bob, by=ann)
            chat.send(ann, "Secret")
            assert source.until("closed") == {"chat": chat.id}
            notify(bob, "News")
            source.until("bell", lambda data: data["unread"])
            assert "Secret" not in json.dumps(source.seen)

    def test_unknown_and_foreign_chats_are_alike(self, site: Site, member: Members, chat: Chat) -> None:
        with EventSource(site, member("eve"), room=[chat.id, "nothing"]) as source:
            assert {source.until("closed")["chat"], source.until("closed")["chat"]} == {chat.id, "nothing"}

    def test_each_of_two_sees_the_name_of_the_other(
        self, site: Site, ann: Member, bob: Member, member: Members, chat: Chat
    ) -> None:
        """Also if the newest message is from neither of them."""
        cat = member("cat")
        chat.join(cat, by=ann)
        chat.set_role(ann, bob, "owner")  # the same for both
        chat.send(cat, "Bye")
        chat.leave(cat)
        with EventSource(site, ann, room=chat.id) as anns, EventSource(site, bob, room=chat.id) as bobs:
            for source in (anns, bobs):
                source.until("room")
            chat.rename(ann, "Journey")
            for source, other in ((anns, "Bob"), (bobs, "Ann")):
                head = source.until("room", lambda data: data.get("title") == "Journey")
                assert (head["companion"], head["members"]) == (other, "Group · 2 members")

    def test_the_mentioned_member_sees_that_it_is_they(
        self, site: Site, ann: Member, bob: Member, member: Members, chat: Chat
    ) -> None:
        """By the id: another member has the same name."""
        other = member("other", first_name="Bob")
        chat.join(other, by=ann)
        with (
            EventSource(site, other, room=chat.id, html=1) as others,
            EventSource(site, bob, room=chat.id, html=1) as bobs,
        ):
            for source in (others, bobs):
                source.until("room")
            chat.send(ann, "@Bob", mentions=[bob])
            for source, element in ((others, "span"), (bobs, "mark")):
                (message,) = source.until("room", lambda data: data["messages"])["messages"]
                assert f'<{element} class="drm-mention">@Bob</{element}>' in message["html"]

    @pytest.mark.parametrize("hidden_by", ["user", "site"])
    def test_hidden_positions_are_not_sent(
        self, site: Site, ann: Member, bob: Member, chat: Chat, settings: Settings, hidden_by: str
    ) -> None:
        """Not to the member who hides them, either: others get the same text."""
        if hidden_by == "user":
            Choices().choose(bob, receipts=False)
        else:
            change(settings, READ_RECEIPTS=False)
        with EventSource(site, ann, room=chat.id) as anns, EventSource(site, bob, room=chat.id) as bobs:
            for source in (anns, bobs):
                source.until("room")
            chat.ack(bob, 1)
            chat.send(ann, "Two")
            chat.send(bob, "Three")
            for source in (anns, bobs):
                source.until("room", lambda data: any(one["body"] == "Three" for one in data["messages"]))
                assert all(bob not in data.get("read", {}) for name, data in source.seen if name == "room")

    def test_ends_when_the_user_signs_out(self, site: Site, ann: Member, bob: Member) -> None:
        with EventSource(site, bob) as source, EventSource(site, bob) as other:
            source.until("bell")
            other.until("bell")
            source.session.logout()
            while source.next() is not None:
                pass
            notify(bob, "For the other session")
            other.until("bell", lambda data: data["unread"])

    @pytest.mark.parametrize("what", ["deactivated", "session deleted", "password changed"])
    def test_ends_when_the_user_may_not_go_on(
        self, site: Site, ann: Member, bob: Member, chat: Chat, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        monkeypatch.setattr(live, "ACCESS_INTERVAL", 0.1)
        with EventSource(site, ann) as anns, EventSource(site, bob, room=chat.id) as bobs:
            anns.until("bell")
            bobs.until("room")
            if what == "deactivated":
                User.objects.filter(pk=bob).update(is_active=False)
            elif what == "session deleted":
                Session.objects.filter(pk=bobs.session.session.session_key).delete()
            else:
                bob.user.set_password("another")
                bob.user.save()
            while bobs.next() is not None:
                pass
            notify(ann, "For the other user")
            anns.until("bell", lambda data: data["unread"])

    def test_a_site_that_stops_ends_the_streams(self, site: Site, ann: Member, bob: Member) -> None:
        with EventSource(site, bob) as source:
            source.until("bell")
            site.stop()
            while source.next() is not None:
                pass
            site.start()
        with EventSource(site, bob) as source:
            assert source.until("bell")


class TestBounds:
    """What is rendered at once, in bytes and in time."""

    @pytest.fixture
    def long_chat(self, ann: Member, bob: Member, chat: Chat) -> Chat:
        """20 messages, the first of them edited: together 270 KiB of HTML."""
        links = " ".join(f"https://a.example/{number}" for number in range(100))
        for _ in range(19):
            chat.send(ann, links)
        chat.edit(ann, 1, links)
        return chat

    def test_the_rest_follows(self, site: Site, ann: Member, bob: Member, long_chat: Chat) -> None:
        with EventSource(site, bob, room=long_chat.id, after="0", html=1) as source:
            first, second = source.until("room"), source.until("room")
        for part in (first, second):
            size = len(json.dumps([part["messages"], part["changed"]], ensure_ascii=False).encode())
            assert size <= MAX_BYTES
        assert [one["id"] for one in first["messages"] + second["messages"]] == list(range(1, 21))
        assert (first["has_more"], second["has_more"]) == (True, False)
        assert first["cursor"] == first["messages"][-1]["cursor"]
        assert first["known"].startswith(first["cursor"])
        assert second["since"][0] == first["messages"][-1]["id"]

    def test_the_id_is_that_of_what_was_sent(
        self, site: Site, ann: Member, bob: Member, long_chat: Chat
    ) -> None:
        known = Known(1, edits=0, events=0).encode()
        parameters = {"room": long_chat.id, "after": known, "html": 1}
        with EventSource(site, bob, **parameters) as source:
            first = source.until("room")
            last_id = source.last_id
        with EventSource(site, bob, last_id=last_id, **parameters) as source:
            second = source.until("room")
        received = [one["id"] for part in (first, second) for one in part["messages"]]
        assert received == list(range(2, 21))
        assert [one["id"] for part in (first, second) for one in part["changed"]] == [1]

    @pytest.mark.parametrize("streams", [1, 2])
    def test_a_user_pauses_after_long_rendering(
        self, site: Site, ann: Member, bob: Member, monkeypatch: pytest.MonkeyPatch, streams: int
    ) -> None:
        """As long as it took, times the number of the user's streams."""
        monkeypatch.setattr(live, "thread_time", count(step=0.2).__next__)  # each takes 0.2 s
        rooms = [Chat.create(ann, [bob], "One").id for _ in range(3)]
        begun = monotonic()
        with ExitStack() as stack:
            for _ in range(streams):
                source = stack.enter_context(EventSource(site, bob, room=rooms))
            for _ in rooms:
                source.until("room")
        assert monotonic() - begun >= 2 * 0.2 * streams


class TestAccess:
    def test_the_user_of_the_session_is_read_again(self, ann: Member, bob: Member) -> None:
        request = self.request(ann)
        request.user = request._cached_user = ann.user  # type: ignore[attr-defined]
        User.objects.update(first_name="Anna")
        Access(request, ann, identities.current()).release(request)
        assert request.user.first_name == "Anna"

    def test_a_user_whom_middleware_has_set_stays(self, ann: Member, bob: Member) -> None:
        request = self.request(ann)
        request.user, request._cached_user = bob.user, ann.user  # type: ignore[attr-defined]
        Access(request, bob, identities.current()).release(request)
        assert request.user is bob.user

    @pytest.mark.parametrize("in_task", [False, True], ids=["Django 6.1", "Django 5.2"])
    async def test_the_thread_of_synchronous_code_ends(self, in_task: bool) -> None:
        """Whether Django runs the view in the task that has entered the context, or in another one."""

        async def stream() -> tuple[threading.Thread, threading.Thread]:
            before = await sync_to_async(threading.current_thread)()
            await release_thread()
            await asyncio.to_thread(before.join, 30)
            assert not before.is_alive()
            return before, await sync_to_async(threading.current_thread)()

        async with ThreadSensitiveContext():
            before, after = await (asyncio.create_task(stream()) if in_task else stream())
        await asyncio.to_thread(after.join, 30)
        assert before is not after
        assert not after.is_alive()

    @pytest.mark.skipif(
        "executor" not in signature(ThreadSensitiveContext).parameters, reason="asgiref is older than 3.13"
    )
    async def test_a_thread_of_the_site_goes_on(self) -> None:
        with ThreadPoolExecutor(1) as executor:
            async with ThreadSensitiveContext(executor=executor):
                before = await sync_to_async(threading.current_thread)()
                await release_thread()
                assert await sync_to_async(threading.current_thread)() is before

    def request(self, user: Member) -> HttpRequest:
        request = HttpRequest()
        request.session = client_of(user).session
        return request


class TestRefusals:
    BAD: tuple[dict[str, Any], ...] = (
        {"room": ""},
        {"room": "x", "after": "nonsense"},
        {"room": "x", "after": "1.2.3.4.5"},
        {"room": "x", "after": "1.-2"},
        {"room": "x", "after": "9" * 5000},
        {"room": "x", "after": "1." + "9" * 5000},
        {"room": "x", "last_id": "room=x&after=" + "9" * 5000},
        {"after": "1"},
        {"room": [str(number) for number in range(11)]},
    )

    def test_requests_without_a_stream(self, site: Site, ann: Member, bob: Member) -> None:
        """Of nobody, for another user, by clients that don't accept a stream, and with bad input."""
        refused: list[tuple[Member | None, dict[str, Any], int, str]] = [
            (None, {}, 401, "sign_in"),
            (ann, {"user": bob}, 403, "other_user"),
            *(
                (ann, {"headers": {"Accept": accept}}, 406, "stream_only")
                for accept in ("application/json", "*/*")
            ),
            *((ann, parameters, 400, "invalid") for parameters in self.BAD),
        ]
        for user, parameters, status, code in refused:
            with EventSource(site, user, **parameters) as source:
                assert source.response.status == status, parameters
                error = json.loads(source.response.read())["error"]
            assert error["code"] == code, parameters
            assert ("poll the feeds" in error["message"]) is (code == "stream_only")
        assert site.streams() == 0

    def test_a_user_has_a_number_of_streams(self, site: Site, ann: Member, bob: Member) -> None:
        limited = override_settings(REDIS_MESSAGING={"LIVE_MAX_STREAMS": 2})
        with limited, EventSource(site, ann) as one, EventSource(site, ann) as two:
            one.until("bell")
            two.until("bell")
            with EventSource(site, ann) as three:
                assert three.response.status == 429
                assert three.response.headers["Retry-After"] == "60"
            with EventSource(site, bob) as other:
                assert other.until("bell")

    def test_head_and_options_open_no_stream(self, site: Site, ann: Member, bob: Member) -> None:
        cookie = f"sessionid={client_of(ann).cookies['sessionid'].value}"
        headers = {"Cookie": cookie, "Accept": "text/event-stream"}
        with closing(http.client.HTTPConnection("127.0.0.1", site.port, timeout=5)) as connection:
            for method, query, status in (("HEAD", "", 200), ("HEAD", "?room=", 400), ("OPTIONS", "", 200)):
                connection.request(method, f"/messages/live/{query}", headers=headers)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == status
            connection.request("GET", "/messages/session/", headers=headers)  # nothing is in the way
            assert connection.getresponse().status == 200
        assert (site.streams(), Presence().online([ann])) == (0, set())

    def test_switched_off_and_wsgi(self, site: Site, ann: Member, bob: Member) -> None:
        with override_settings(REDIS_MESSAGING={"LIVE": False}), EventSource(site, ann) as source:
            assert source.response.status == 501
        assert client_of(ann).get("/messages/live/").json()["error"]["code"] == "not_live"
