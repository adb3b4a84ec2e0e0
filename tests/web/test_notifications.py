"""The page of notifications, its JSON, and the bell: without JavaScript."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest
from django.template import Context, RequestContext, Template
from django.test import Client, RequestFactory
from django.urls import reverse
from pytest_django import Settings

from django_redis_messaging import Mailbox, notify, observe, unobserve
from django_redis_messaging.context_processors import bell
from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.services.notifications import LEVELS

from .conftest import client_of
from .test_pages import ESCAPED, HOSTILE

BELL = "{% load messaging %}{% messaging_bell %}"


@pytest.fixture
def ann(person: Callable[..., User]) -> User:
    return person("ann")


@pytest.fixture
def box(ann: User) -> Mailbox:
    return Mailbox(str(ann.pk))


@pytest.fixture
def operations() -> Iterator[list[str]]:
    """What is asked of Redis from here on."""
    found: list[str] = []

    def note(operation: str, seconds: float, outcome: str) -> None:
        found.append(operation)

    observe(note)
    yield found
    unobserve(note)


@pytest.fixture
def away(settings: Settings) -> None:
    gone = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/redis.sock"}
    settings.CACHES = {**settings.CACHES, "gone": gone}
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "gone", "COMMAND_DEADLINE": 30}


def told(user: User, *texts: str, **options: Any) -> list[int]:
    return [notify(str(user.pk), text, **options).id for text in texts]


def page(user: User, **query: str) -> str:
    answer = client_of(user).get(reverse("messaging:notifications"), query)
    assert answer.status_code == 200
    return answer.content.decode()


def shown(text: str) -> list[int]:
    return [int(found) for found in re.findall(r'<li class="drm-notice[^>]* id="n(\d+)"', text)]


def further(text: str) -> list[str]:
    """The queries of the links to further pages."""
    return re.findall(r'href="[^"?]*(\?(?:show=\w+&amp;)?after=[^"]+)"', text)


def feed(user: User, **query: str) -> dict[str, Any]:
    data: dict[str, Any] = client_of(user).get(reverse("messaging:notifications_feed"), query).json()
    return data


def post(user: User, name: str, *, json: bool = True, **data: Any) -> Any:
    return client_of(user, json=json).post(reverse(f"messaging:{name}"), data)


def request_of(user: Any, rf: RequestFactory) -> HttpRequest:
    request = rf.get("/")
    request.user = user
    return request


def rendered(template: str, request: HttpRequest) -> str:
    return Template(template).render(RequestContext(request)).strip()


class TestPage:
    def test_unread_ones_first_and_newest_first(self, ann: User, box: Mailbox) -> None:
        ids = told(ann, *"abcd")
        box.mark_read([ids[1], ids[3]])
        text = page(ann)
        assert shown(text) == [3, 1, 4, 2]
        assert (
            text.index("New</h2>")
            < text.index('id="n3"')
            < text.index("Earlier</h2>")
            < text.index('id="n4"')
        )
        assert shown(page(ann, show="unread")) == [3, 1]

    def test_what_one_says(self, ann: User, person: Callable[..., User]) -> None:
        bob = person("bob", first_name="Bob")
        told(ann, "Disk full", level="error", url="/disks/?a=1&b", group="disks", sender=str(bob.pk))
        told(ann, "Disk full again", level="error", group="disks", sender=str(bob.pk), url="/disks/?a=1&b")
        text = page(ann)
        assert shown(text) == [2]
        assert '<input type="hidden" name="next" value="/disks/?a=1&amp;b">' in text
        assert ">Disk full again</button>" in text
        assert '<span class="drm-level-word">Error</span>' in text
        assert "<bdi>Bob</bdi>" in text and "2 in all" in text and "<strong>unread</strong>" in text

    def test_by_time(self, ann: User, box: Mailbox) -> None:
        ids = told(ann, *"abcd")
        box.mark_read([ids[1], ids[3]])
        text = page(ann, show="time")
        assert shown(text) == [4, 3, 2, 1]
        assert "Newest first</h2>" in text and "Mark all as read" in text
        assert re.findall(r'<a [^>]*aria-current="page">(.*?)</a>', text)[-1] == "By time"
        box.ack(ids[3])
        assert "Mark all as read" not in page(ann, show="time")

    def test_the_levels_in_words(self, ann: User) -> None:
        for level in LEVELS:
            told(ann, "x", level=level)
        words = re.findall(r'<span class="drm-level-word">(\w+)</span>', page(ann))
        assert words == ["Error", "Warning", "Success", "Information"]

    def test_what_was_read_is_a_link(self, ann: User, box: Mailbox) -> None:
        box.mark_read(told(ann, "Disk full", url="/disks/?a=1&b"))
        assert '<a href="/disks/?a=1&amp;b">Disk full</a>' in page(ann)

    def test_nothing_of_it_is_markup(self, ann: User, box: Mailbox) -> None:
        told(ann, HOSTILE, group=HOSTILE, sender=HOSTILE)
        box.send({"text": HOSTILE, "url": "javascript:alert(1)", "level": HOSTILE})
        box.send(HOSTILE)
        text = page(ann)
        assert len(shown(text)) == 3
        assert "<img src=x" not in text and "javascript:" not in text
        assert ESCAPED in text

    def test_showing_changes_nothing(self, ann: User, box: Mailbox) -> None:
        told(ann, *"ab")
        page(ann)
        page(ann, show="unread")
        feed(ann)
        assert (box.unread(), box.status().acked_id) == (2, 0)

    def test_nothing_yet_and_nothing_unread(self, ann: User) -> None:
        assert "No notifications yet." in page(ann)
        assert "You have read everything." in page(ann, show="unread")

    def test_more_than_a_page(self, ann: User, box: Mailbox) -> None:
        told(ann, *map(str, range(120)))
        box.ack(60)
        first = page(ann)
        assert shown(first) == [*range(120, 70, -1), *range(60, 10, -1)]
        unread, read = further(first)
        address = reverse("messaging:notifications")
        rest = client_of(ann).get(address + unread.replace("&amp;", "&")).content.decode()
        assert shown(rest) == list(range(70, 60, -1)) and "Mark all as read" not in rest
        rest = client_of(ann).get(address + read).content.decode()
        assert shown(rest) == list(range(10, 0, -1)) and "Newest notifications" in rest
        assert shown(page(ann, after="gone")) == list(range(60, 10, -1))
        [older] = further(page(ann, show="time"))
        rest = client_of(ann).get(address + older.replace("&amp;", "&")).content.decode()
        assert shown(rest) == list(range(70, 20, -1)) and "Mark all as read" not in rest
        assert 'notifications/?show=time">Newest notifications' in rest

    def test_a_gap_is_told(self, ann: User, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "MAILBOX_MAX_LENGTH": 2}
        told(ann, *"abc")
        assert "1 older notification was removed" in page(ann)
        told(ann, "d")
        assert "2 older notifications were removed" in page(ann, show="unread")
        assert (feed(ann)["gap"], feed(ann)["gap_text"][:2]) == (2, "2 ")

    def test_of_ones_own_only(self, ann: User, person: Callable[..., User]) -> None:
        told(ann, "a")
        assert shown(page(person("bob"))) == []

    def test_down(self, ann: User, away: None, settings: Settings, operations: list[str]) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 0.1}
        answer = client_of(ann).get(reverse("messaging:notifications"))
        assert operations == ["Mailbox.fetch"], "the bell of the page that says so asks again"
        assert answer.status_code == 503
        text = answer.content.decode()
        assert "Away for a moment" in text and "drm-bell" in text
        answer = client_of(ann).get(reverse("messaging:bell"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


class TestChanges:
    def test_one(self, ann: User, box: Mailbox) -> None:
        told(ann, *"abc")
        assert post(ann, "read_notifications", id="2").json() == {"unread": 2}
        assert post(ann, "read_notifications", id=["1", "2", "99"]).json() == {"unread": 1}
        assert box.status().acked_id == 0

    def test_all_of_those_that_were_shown(self, ann: User, box: Mailbox) -> None:
        told(ann, *"ab")
        found = re.search(r'name="up_to" value="([^"]+)"', page(ann))
        assert found
        told(ann, "c")
        assert post(ann, "read_notifications", up_to=found[1]).json() == {"unread": 1}
        assert post(ann, "read_notifications", up_to="3").json() == {"unread": 0}

    def test_discarding(self, ann: User, box: Mailbox) -> None:
        told(ann, *"ab")
        assert post(ann, "discard_notification", id="1").json() == {"unread": 1}
        assert post(ann, "discard_notification", id="1").json() == {"unread": 1}
        assert [mail.id for mail in box.fetch().messages] == [2]

    def test_following_one(self, ann: User, box: Mailbox) -> None:
        told(ann, *"ab", url="/orders/?a=1#b")
        answer = post(ann, "read_notifications", json=False, id="2", next="/orders/?a=1#b")
        assert (answer.status_code, answer["Location"]) == (302, "/orders/?a=1#b")
        assert [mail.id for mail in box.fetch(unread=True).messages] == [1]
        answer = post(ann, "read_notifications", json=False, id="1", next="../chats/")
        assert answer["Location"] == reverse("messaging:chats") + "chats/"

    @pytest.mark.versions
    def test_following_a_long_one(self, ann: User, box: Mailbox) -> None:
        for url in ("/" + "a" * 1999, "/" + "ü" * 333, "a" * 2000):
            [sent] = told(ann, "a", url=url)
            answer = post(ann, "read_notifications", json=False, id=str(sent), next=url)
            assert (answer.status_code, len(answer["Location"]) >= 1999) == (302, True)
        assert box.unread() == 0

    def test_following_leads_on_without_redis(
        self, ann: User, away: None, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 0.1}
        answer = post(ann, "read_notifications", json=False, id="1", next="/orders/")
        assert (answer.status_code, answer["Location"]) == (302, "/orders/")
        assert "stays unread" in caplog.text

    @pytest.mark.parametrize(
        "url", ["https://elsewhere.example/", "//elsewhere.example", "javascript:alert(1)", "/\\a", "/a b"]
    )
    def test_following_leads_nowhere_else(self, ann: User, box: Mailbox, url: str) -> None:
        told(ann, "a")
        answer = post(ann, "read_notifications", id="1", next=url)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid")
        assert box.unread() == 1

    @pytest.mark.parametrize("show", ["", "unread", "time", "else"])
    def test_a_form_leads_back_to_where_it_was(self, ann: User, box: Mailbox, show: str) -> None:
        told(ann, *"ab")
        for name, data in (("read_notifications", {"id": "1"}), ("discard_notification", {"id": "2"})):
            answer = post(ann, name, json=False, show=show, **data)
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
            ("discard_notification", {}),
            ("discard_notification", {"id": "-1"}),
            ("discard_notification", {"id": ["1", "2"]}),
        ],
    )
    def test_bad_input_changes_nothing(
        self, ann: User, box: Mailbox, name: str, data: dict[str, Any]
    ) -> None:
        told(ann, *"ab")
        answer = post(ann, name, **data)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid")
        assert (box.unread(), len(box.fetch().messages)) == (2, 2)

    @pytest.mark.parametrize("field", ["id", "up_to", "next"])
    def test_lone_surrogates_change_nothing(self, ann: User, box: Mailbox, field: str) -> None:
        told(ann, "a")
        body = f'--x\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n1+3IA-\r\n--x--\r\n'
        answer = client_of(ann, json=True).post(
            reverse("messaging:read_notifications"), body, "multipart/form-data; boundary=x; charset=utf-7"
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid")
        assert box.unread() == 1

    def test_a_cursor_of_another_mailbox_changes_nothing(
        self, ann: User, box: Mailbox, person: Callable[..., User]
    ) -> None:
        bob = person("bob")
        told(bob, *"abc")
        told(ann, *"de")
        cursor = Mailbox(str(bob.pk)).fetch().cursor
        assert post(ann, "read_notifications", up_to=cursor).json() == {"unread": 2}
        assert feed(ann, after=cursor)["reset"]
        assert shown(page(ann, after=cursor, show="time")) == [2, 1]


class TestJson:
    def test_the_list(self, ann: User, box: Mailbox) -> None:
        told(ann, "a", url="/a/", level="warning", group="g", sender="backup")
        told(ann, "b")
        box.mark_read([2])
        data = feed(ann)
        newest, oldest = data.pop("notifications")
        mail = box.fetch().messages[0]
        assert oldest == {
            "id": 1, "cursor": mail.cursor, "text": "a", "url": "/a/", "level": "warning", "sender": "backup",
            "label": "backup", "group": "g", "count": 1, "read": False, "sent_at": mail.sent_at.isoformat(),
        }  # fmt: skip
        assert (newest["id"], newest["read"], newest["sender"], newest["label"]) == (2, True, None, "")
        assert data == {
            "cursor": mail.cursor, "has_more": False, "gap": 0, "gap_text": "", "reset": False, "unread": 1,
        }  # fmt: skip
        assert [one["id"] for one in feed(ann, show="unread")["notifications"]] == [1]
        assert [one["id"] for one in feed(ann, after=newest["cursor"])["notifications"]] == [1]
        assert feed(ann, after="1-1-1")["reset"]

    def test_the_bell(self, ann: User, operations: list[str]) -> None:
        told(ann, *"ab")
        client = client_of(ann)
        operations.clear()
        answer = client.get(reverse("messaging:bell"))
        assert answer.json() == {
            "unread": 2, "label": "Notifications: 2 unread", "text": "2", "state": "2-2",
        }  # fmt: skip
        assert operations == ["Mailbox.status"]


class TestBell:
    def test_it_is_a_link_with_the_count(self, ann: User, rf: RequestFactory) -> None:
        told(ann, *"abc")
        request = request_of(ann, rf)
        text = rendered(BELL, request)
        assert f'href="{reverse("messaging:notifications")}"' in text
        assert 'aria-label="Notifications: 3 unread"' in text
        assert '<span class="drm-bell-count" aria-hidden="true">3</span>' in text
        assert "bell.css" in text and "bell.js" in text

    def test_a_fragment_does_the_same(self, ann: User, rf: RequestFactory) -> None:
        told(ann, "a")
        request = request_of(ann, rf)
        included = '{% include "django_redis_messaging/bell.html" %}'
        assert rendered(included, request) == rendered(BELL, request)

    @pytest.mark.parametrize(("count", "shown"), [(0, ""), (99, "99"), (100, "99+")])
    def test_few_and_many(self, ann: User, rf: RequestFactory, count: int, shown: str) -> None:
        told(ann, *["x"] * count)
        text = rendered(BELL, request_of(ann, rf))
        hidden = "" if shown else " hidden"
        assert f'<span class="drm-bell-count" aria-hidden="true"{hidden}>{shown}</span>' in text
        assert ("none unread" in text) is (count == 0)

    @pytest.mark.parametrize("who", ["anonymous", "inactive"])
    def test_none_for_who_may_not_use_it(
        self, who: str, person: Callable[..., User], rf: RequestFactory, operations: list[str]
    ) -> None:
        user = AnonymousUser() if who == "anonymous" else person("eve", is_active=False)
        operations.clear()
        assert rendered(BELL, request_of(user, rf)) == ""
        assert Template("{{ messaging_bell.unread }}").render(Context(bell(request_of(user, rf)))) == "None"
        assert operations == []

    def test_none_where_there_is_no_request_or_no_user(self, rf: RequestFactory) -> None:
        assert Template(BELL).render(Context()).strip() == ""
        assert rendered(BELL, rf.get("/")) == ""

    @pytest.mark.timing
    def test_redis_down_leaves_the_page_as_it_is_and_is_not_waited_for(
        self,
        ann: User,
        rf: RequestFactory,
        away: None,
        operations: list[str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        began = time.monotonic()
        text = rendered("before " + BELL + " after", request_of(ann, rf))
        assert text.startswith("before <link") and text.endswith("</script>\n after")
        assert 'aria-label="Notifications"' in text and 'data-state=""' in text and "hidden></span>" in text
        assert operations == ["Mailbox.status"]
        assert time.monotonic() - began < 5, "it was tried again"
        assert "The bell has no count" in caplog.text

    @pytest.mark.timing
    def test_redis_that_hangs_is_hardly_waited_for(
        self, ann: User, rf: RequestFactory, settings: Settings
    ) -> None:
        with EmbeddedServer() as hanging:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": hanging.url}
            settings.CACHES = {**settings.CACHES, "hanging": entry}
            settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "hanging"}
            told(ann, "a")
            assert "1 unread" in rendered(BELL, request_of(ann, rf))
            hanging.freeze()
            for _ in range(2):  # on a connection that was open, and on a new one
                began = time.monotonic()
                assert 'data-state=""' in rendered(BELL, request_of(ann, rf))
                assert time.monotonic() - began < 5
            hanging.thaw()
            assert "1 unread" in rendered(BELL, request_of(ann, rf))
            told(ann, "b")  # patiently, by connections of its own

    def test_without_a_count_nothing_is_asked(
        self, ann: User, rf: RequestFactory, operations: list[str]
    ) -> None:
        told(ann, "a")
        operations.clear()
        text = Template("{% load messaging %}{% messaging_bell count=False %}").render(
            RequestContext(request_of(ann, rf))
        )
        assert 'aria-label="Notifications"' in text and "hidden></span>" in text
        assert operations == []

    def test_on_every_page_of_ours(self, ann: User) -> None:
        told(ann, "a")
        for name in ("chats", "new", "contacts", "notifications"):
            text = client_of(ann).get(reverse(f"messaging:{name}")).content.decode()
            assert text.count('aria-label="Notifications: 1 unread"') == 1


class TestContextProcessor:
    @pytest.fixture(autouse=True)
    def installed(self, settings: Settings) -> None:
        name = "django_redis_messaging.context_processors.bell"
        [engine] = settings.TEMPLATES
        options = {
            **engine["OPTIONS"],
            "context_processors": [*engine["OPTIONS"]["context_processors"], name],
        }
        settings.TEMPLATES = [{**engine, "OPTIONS": options}]

    def test_a_page_without_a_bell_asks_nothing_of_redis(
        self, ann: User, operations: list[str], django_assert_num_queries: Any
    ) -> None:
        client = client_of(ann)
        with django_assert_num_queries(0):
            assert Client().get(reverse("admin:login")).status_code == 200
        assert client.get(reverse("admin:login")).status_code == 200
        assert operations == []

    def test_it_is_asked_once_a_page(self, ann: User, rf: RequestFactory, operations: list[str]) -> None:
        told(ann, *"ab")
        operations.clear()
        context = RequestContext(request_of(ann, rf))
        template = "{{ messaging_bell.unread }} {{ messaging_bell.text }} {{ messaging_bell.label }}"
        text = Template(template + BELL * 2).render(context)
        assert text.startswith("2 2 Notifications: 2 unread")
        assert text.count('aria-label="Notifications: 2 unread"') == 2
        assert operations == ["Mailbox.status"]
