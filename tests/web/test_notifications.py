"""The notifications page, its JSON, and the bell, without JavaScript."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest
from django.template import Context, RequestContext, Template
from django.test import Client, RequestFactory
from django.urls import reverse
from pytest_django import Settings

from django_redis_messaging import Mailbox, notify
from django_redis_messaging.context_processors import bell
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.mailboxes.notifications import LEVELS

from ..support.people import Member, user_of
from ..support.server import change
from .conftest import Person, client_of, code, get, page, post
from .test_pages import ESCAPED, HOSTILE

BELL = "{% load messaging %}{% messaging_bell %}"


@pytest.fixture
def box(ann: Member) -> Mailbox:
    return Mailbox(ann)


def send(user: Member, *texts: str, **options: Any) -> list[int]:
    return [notify(user, text, **options).id for text in texts]


def page_of(user: Member, **query: str) -> str:
    return page(client_of(user), "notifications", **query)


def shown(text: str) -> list[int]:
    return [int(found) for found in re.findall(r'<li class="drm-notice[^>]* id="n(\d+)"', text)]


def further(text: str) -> list[str]:
    """The query strings of the links to further pages."""
    return re.findall(r'href="[^"?]*(\?(?:show=\w+&amp;)?after=[^"]+)"', text)


def feed(user: Member, **query: str) -> dict[str, Any]:
    data: dict[str, Any] = get(client_of(user), "notifications_feed", **query).json()
    return data


def post_as(user: Member, name: str, *, json: bool = True, **data: Any) -> Any:
    return post(client_of(user, json=json), name, **data)


def request_of(user: Any, rf: RequestFactory) -> HttpRequest:
    request = rf.get("/")
    request.user = user_of(user)
    return request


def rendered(template: str, request: HttpRequest) -> str:
    return Template(template).render(RequestContext(request)).strip()


class TestPage:
    def test_unread_notifications_first_or_newest_first(self, ann: Member, box: Mailbox) -> None:
        assert "No notifications yet." in page_of(ann)
        assert "You're all caught up." in page_of(ann, show="unread")
        ids = send(ann, *"abcd")
        box.mark_read([ids[1], ids[3]])
        text = page_of(ann)
        assert shown(text) == [3, 1, 4, 2]
        places = [text.index(part) for part in ("New</h2>", 'id="n3"', "Earlier</h2>", 'id="n4"')]
        assert places == sorted(places)
        assert shown(page_of(ann, show="unread")) == [3, 1]
        text = page_of(ann, show="time")
        assert shown(text) == [4, 3, 2, 1]
        assert "Newest first</h2>" in text and "Mark all as read" in text
        assert re.findall(r'<a [^>]*aria-current="page">(.*?)</a>', text)[-1] == "By time"
        box.ack(ids[3])
        assert "Mark all as read" not in page_of(ann, show="time")

    def test_the_content_of_a_notification(self, ann: Member, bob: Member) -> None:
        send(ann, "Disk full", level="error", url="/disks/?a=1&b", group="disks", sender=bob)
        send(ann, "Disk full again", level="error", group="disks", sender=bob, url="/disks/?a=1&b")
        text = page_of(ann)
        assert shown(text) == [2]
        assert '<input type="hidden" name="next" value="/disks/?a=1&amp;b">' in text
        assert ">Disk full again</button>" in text
        assert '<span class="drm-level-word">Error</span>' in text
        assert "<bdi>Bob</bdi>" in text and "2 in total" in text and "<strong>unread</strong>" in text
        assert shown(page_of(bob)) == []
        Mailbox(ann).mark_read([2])
        assert ' href="/disks/?a=1&amp;b">Disk full again</a>' in page_of(ann), "a plain link"

    def test_levels_as_words(self, ann: Member) -> None:
        for level in LEVELS:
            send(ann, "x", level=level)
        words = re.findall(r'<span class="drm-level-word">(\w+)</span>', page_of(ann))
        assert words == ["Error", "Warning", "Success", "Information"]

    def test_html_is_escaped(self, ann: Member, box: Mailbox) -> None:
        send(ann, HOSTILE, group=HOSTILE, sender=HOSTILE)
        box.send({"text": HOSTILE, "url": "javascript:alert(1)", "level": HOSTILE})
        box.send(HOSTILE)
        text = page_of(ann)
        assert len(shown(text)) == 3
        assert "<img src=x" not in text and "javascript:" not in text
        assert ESCAPED in text

    def test_showing_notifications_changes_nothing(self, ann: Member, box: Mailbox) -> None:
        send(ann, *"ab")
        page_of(ann)
        page_of(ann, show="unread")
        feed(ann)
        assert (box.unread(), box.status().acked_id) == (2, 0)

    def test_more_than_a_page(self, ann: Member, box: Mailbox) -> None:
        send(ann, *map(str, range(120)))
        box.ack(60)
        first = page_of(ann)
        assert shown(first) == [*range(120, 70, -1), *range(60, 10, -1)]
        unread, read = further(first)
        address = reverse("messaging:notifications")
        rest = client_of(ann).get(address + unread.replace("&amp;", "&")).content.decode()
        assert shown(rest) == list(range(70, 60, -1)) and "Mark all as read" not in rest
        rest = client_of(ann).get(address + read).content.decode()
        assert shown(rest) == list(range(10, 0, -1)) and "Newest notifications" in rest
        assert shown(page_of(ann, after="gone")) == list(range(60, 10, -1))
        [older] = further(page_of(ann, show="time"))
        rest = client_of(ann).get(address + older.replace("&amp;", "&")).content.decode()
        assert shown(rest) == list(range(70, 20, -1)) and "Mark all as read" not in rest
        assert 'notifications/?show=time">Newest notifications' in rest

    def test_a_gap_is_shown(self, ann: Member, settings: Settings) -> None:
        change(settings, MAILBOX_MAX_LENGTH=2)
        send(ann, *"abc")
        assert "1 older notification was removed" in page_of(ann)
        send(ann, "d")
        assert "2 older notifications were removed" in page_of(ann, show="unread")
        assert (feed(ann)["gap"], feed(ann)["gap_text"][:2]) == (2, "2 ")

    def test_redis_unavailable(
        self, ann: Member, away: None, operations: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Following a link works."""
        answer = get(client_of(ann), "notifications")
        assert operations == ["Mailbox.fetch"], "the bell of the problem page must not read Redis"
        assert answer.status_code == 503
        text = answer.content.decode()
        assert "Temporarily unavailable" in text and "drm-bell" in text
        assert code(get(client_of(ann), "bell")) == (503, "unavailable")
        answer = post_as(ann, "read_notifications", json=False, id="1", next="/orders/")
        assert (answer.status_code, answer["Location"]) == (302, "/orders/")
        assert "stays unread" in caplog.text


class TestChanges:
    def test_marking_some_as_read(self, ann: Member, box: Mailbox) -> None:
        send(ann, *"abc")
        assert post_as(ann, "read_notifications", id="2").json() == {"unread": 2}
        assert post_as(ann, "read_notifications", id=["1", "2", "99"]).json() == {"unread": 1}
        assert box.status().acked_id == 0

    def test_marking_all_on_the_page_as_read(self, ann: Member, box: Mailbox) -> None:
        send(ann, *"ab")
        found = re.search(r'name="up_to" value="([^"]+)"', page_of(ann))
        assert found
        send(ann, "c")
        assert post_as(ann, "read_notifications", up_to=found[1]).json() == {"unread": 1}
        assert post_as(ann, "read_notifications", up_to="3").json() == {"unread": 0}

    def test_discarding(self, ann: Member, box: Mailbox) -> None:
        send(ann, *"ab")
        assert post_as(ann, "discard_notification", id="1").json() == {"unread": 1}
        assert post_as(ann, "discard_notification", id="1").json() == {"unread": 1}
        assert [mail.id for mail in box.fetch().messages] == [2]

    def test_following_a_link(self, ann: Member, box: Mailbox) -> None:
        send(ann, *"ab", url="/orders/?a=1#b")
        answer = post_as(ann, "read_notifications", json=False, id="2", next="/orders/?a=1#b")
        assert (answer.status_code, answer["Location"]) == (302, "/orders/?a=1#b")
        assert [mail.id for mail in box.fetch(unread=True).messages] == [1]
        answer = post_as(ann, "read_notifications", json=False, id="1", next="../chats/")
        assert answer["Location"] == reverse("messaging:chats") + "chats/"

    @pytest.mark.versions
    def test_following_a_long_link(self, ann: Member, box: Mailbox) -> None:
        for url in ("/" + "a" * 1999, "/" + "ü" * 333, "a" * 2000):
            [sent] = send(ann, "a", url=url)
            answer = post_as(ann, "read_notifications", json=False, id=str(sent), next=url)
            assert (answer.status_code, len(answer["Location"]) >= 1999) == (302, True)
        assert box.unread() == 0

    @pytest.mark.parametrize("show", ["", "unread", "time", "else"])
    def test_a_form_redirects_to_the_page_with_its_filter(self, ann: Member, box: Mailbox, show: str) -> None:
        send(ann, *"ab")
        for name, data in (("read_notifications", {"id": "1"}), ("discard_notification", {"id": "2"})):
            answer = post_as(ann, name, json=False, show=show, **data)
            assert answer.status_code == 302
            kept = f"?show={show}" if show in {"unread", "time"} else ""
            assert answer["Location"] == reverse("messaging:notifications") + kept
        assert (box.unread(), len(box.fetch().messages)) == (0, 1)

    @pytest.mark.parametrize(
        ("name", "data"),
        [
            ("read_notifications", {}),
            ("read_notifications", {"id": "x"}),
            ("read_notifications", {"id": "0"}),
            ("read_notifications", {"id": "9" * 16}),
            ("read_notifications", {"id": ["1"] * 101}),
            ("read_notifications", {"up_to": "x"}),
            ("read_notifications", {"up_to": "9" * 16}),
            ("read_notifications", {"id": "²"}),
            ("read_notifications", {"id": "1", "next": "https://elsewhere.example/"}),
            ("read_notifications", {"id": "1", "next": "//elsewhere.example"}),
            ("read_notifications", {"id": "1", "next": "javascript:alert(1)"}),
            ("read_notifications", {"id": "1", "next": "/\\a"}),
            ("read_notifications", {"id": "1", "next": "/a b"}),
            ("discard_notification", {}),
            ("discard_notification", {"id": "-1"}),
            ("discard_notification", {"id": ["1", "2"]}),
        ],
    )
    def test_bad_input_changes_nothing(
        self, ann: Member, box: Mailbox, name: str, data: dict[str, Any]
    ) -> None:
        send(ann, *"ab")
        assert code(post_as(ann, name, **data)) == (400, "invalid")
        assert (box.unread(), len(box.fetch().messages)) == (2, 2)

    @pytest.mark.parametrize("field", ["id", "up_to", "next"])
    def test_lone_surrogates_change_nothing(self, ann: Member, box: Mailbox, field: str) -> None:
        send(ann, "a")
        body = f'--x\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n1+3IA-\r\n--x--\r\n'
        answer = client_of(ann, json=True).post(
            reverse("messaging:read_notifications"), body, "multipart/form-data; boundary=x; charset=utf-7"
        )
        assert code(answer) == (400, "invalid")
        assert box.unread() == 1

    def test_a_cursor_of_another_mailbox_changes_nothing(
        self, ann: Member, box: Mailbox, bob: Member
    ) -> None:
        send(bob, *"abc")
        send(ann, *"de")
        cursor = Mailbox(bob).fetch().cursor
        assert post_as(ann, "read_notifications", up_to=cursor).json() == {"unread": 2}
        assert feed(ann, after=cursor)["reset"]
        assert shown(page_of(ann, after=cursor, show="time")) == [2, 1]


class TestJson:
    def test_the_list(self, ann: Member, box: Mailbox) -> None:
        send(ann, "a", url="/a/", level="warning", group="g", sender="backup")
        send(ann, "b")
        box.mark_read([2])
        data = feed(ann)
        newest, oldest = data.pop("notifications")
        mail = box.fetch().messages[0]
        assert oldest == {
            "id": 1, "cursor": mail.cursor, "text": "a", "url": "/a/", "level": "warning", "sender": "backup",
            "label": "backup", "description": "", "picture": "", "group": "g", "count": 1, "read": False,
            "sent_at": mail.sent_at.isoformat(),
        }  # fmt: skip
        assert (newest["id"], newest["read"], newest["sender"], newest["label"]) == (2, True, None, "")
        assert data == {
            "cursor": mail.cursor, "has_more": False, "gap": 0, "gap_text": "", "reset": False, "unread": 1,
        }  # fmt: skip
        assert [one["id"] for one in feed(ann, show="unread")["notifications"]] == [1]
        assert [one["id"] for one in feed(ann, after=newest["cursor"])["notifications"]] == [1]
        assert feed(ann, after="1-1-1")["reset"]

    def test_the_bell(self, ann: Member, operations: list[str]) -> None:
        send(ann, *"ab")
        client = client_of(ann)
        operations.clear()
        answer = client.get(reverse("messaging:bell"))
        assert answer.json() == {
            "unread": 2, "label": "Notifications: 2 unread", "text": "2", "state": "2-2",
        }  # fmt: skip
        assert operations == ["Mailbox.status"]


class TestBell:
    def test_it_is_a_link_with_the_count(self, ann: Member, rf: RequestFactory) -> None:
        send(ann, *"abc")
        request = request_of(ann, rf)
        text = rendered(BELL, request)
        assert rendered('{% include "django_redis_messaging/bell.html" %}', request) == text
        assert f'href="{reverse("messaging:notifications")}"' in text
        assert 'aria-label="Notifications: 3 unread"' in text
        assert '<span class="drm-bell-count" aria-hidden="true">3</span>' in text
        assert "bell.css" in text and "bell.js" in text

    @pytest.mark.parametrize(("count", "shown"), [(0, ""), (99, "99"), (100, "99+")])
    def test_low_and_high_counts(self, ann: Member, rf: RequestFactory, count: int, shown: str) -> None:
        send(ann, *["x"] * count)
        text = rendered(BELL, request_of(ann, rf))
        hidden = "" if shown else " hidden"
        assert f'<span class="drm-bell-count" aria-hidden="true"{hidden}>{shown}</span>' in text
        assert ("none unread" in text) is (count == 0)

    def test_no_bell_for_users_who_may_not_use_the_pages(
        self, person: Person, rf: RequestFactory, operations: list[str]
    ) -> None:
        users = AnonymousUser(), person("eve", is_active=False)
        operations.clear()
        for user in users:
            request = request_of(user, rf)
            assert rendered(BELL, request) == ""
            assert Template("{{ messaging_bell.unread }}").render(Context(bell(request))) == "None"
        assert Template(BELL).render(Context()).strip() == rendered(BELL, rf.get("/")) == ""
        assert operations == []

    @pytest.mark.timing
    def test_the_page_does_not_wait_if_redis_is_unavailable(
        self, ann: Member, rf: RequestFactory, away: None, settings: Settings, operations: list[str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        change(settings, COMMAND_DEADLINE=30)
        began = time.monotonic()
        text = rendered("before " + BELL + " after", request_of(ann, rf))
        assert text.startswith("before <link") and text.endswith("</script>\n after")
        assert 'aria-label="Notifications"' in text and 'data-state=""' in text and "hidden></span>" in text
        assert operations == ["Mailbox.status"]
        assert time.monotonic() - began < 5, "it was retried"
        assert "Reading the number of unread notifications failed" in caplog.text

    @pytest.mark.timing
    def test_the_page_hardly_waits_if_redis_hangs(
        self, ann: Member, rf: RequestFactory, settings: Settings
    ) -> None:
        with EmbeddedServer() as hanging:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": hanging.url}
            settings.CACHES = {**settings.CACHES, "hanging": entry}
            change(settings, ALIAS="hanging")
            send(ann, "a")
            assert "1 unread" in rendered(BELL, request_of(ann, rf))
            hanging.freeze()
            for _ in range(2):  # on a connection that was open, and on a new one
                began = time.monotonic()
                assert 'data-state=""' in rendered(BELL, request_of(ann, rf))
                assert time.monotonic() - began < 5
            hanging.thaw()
            assert "1 unread" in rendered(BELL, request_of(ann, rf))
            send(ann, "b")  # with the normal deadline, on other connections

    def test_without_a_count_redis_is_not_read(
        self, ann: Member, rf: RequestFactory, operations: list[str]
    ) -> None:
        send(ann, "a")
        operations.clear()
        text = Template("{% load messaging %}{% messaging_bell count=False %}").render(
            RequestContext(request_of(ann, rf))
        )
        assert 'aria-label="Notifications"' in text and "hidden></span>" in text
        assert operations == []

    def test_all_pages_have_a_bell(self, ann: Member) -> None:
        send(ann, "a")
        for name in ("chats", "new", "contacts", "notifications"):
            text = page(client_of(ann), name)
            assert text.count('aria-label="Notifications: 1 unread"') == 1


class TestContextProcessor:
    @pytest.fixture(autouse=True)
    def installed(self, settings: Settings) -> None:
        name = "django_redis_messaging.context_processors.bell"
        [engine] = settings.TEMPLATES
        processors = [*engine["OPTIONS"]["context_processors"], name]
        settings.TEMPLATES = [{**engine, "OPTIONS": {**engine["OPTIONS"], "context_processors": processors}}]

    def test_redis_is_not_read_for_a_page_without_a_bell(
        self, ann: Member, operations: list[str], django_assert_num_queries: Any
    ) -> None:
        client = client_of(ann)
        with django_assert_num_queries(0):
            assert Client().get(reverse("admin:login")).status_code == 200
        assert client.get(reverse("admin:login")).status_code == 200
        assert operations == []

    def test_the_count_is_read_once_per_page(
        self, ann: Member, rf: RequestFactory, operations: list[str]
    ) -> None:
        send(ann, *"ab")
        operations.clear()
        context = RequestContext(request_of(ann, rf))
        template = "{{ messaging_bell.unread }} {{ messaging_bell.text }} {{ messaging_bell.label }}"
        text = Template(template + BELL * 2).render(context)
        assert text.startswith("2 2 Notifications: 2 unread")
        assert text.count('aria-label="Notifications: 2 unread"') == 2
        assert operations == ["Mailbox.status"]
