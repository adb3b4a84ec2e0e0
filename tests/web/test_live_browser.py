"""Live pages in a real browser, served by uvicorn: what one user does, the others see at once."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

import pytest
from django.urls import reverse
from playwright.sync_api import Browser, Page, Request, expect
from pytest_django import Settings

from django_redis_messaging import Chat, notify
from django_redis_messaging.services.live import hub, presence
from django_redis_messaging.web import live

from ..support import content_policies
from ..support.asgi_site import CuttingProxy, Site
from ..support.browser import (
    TIMEOUT,
    Contexts,
    Visit,
    expect_message,
    expect_title,
    filled,
    open_account,
    open_page,
    row,
    send,
    shown_bodies,
    sign_in,
    violations,
    wait_until,
)
from ..support.people import Member
from .test_room_browser import receive_while_jumping

pytestmark = pytest.mark.django_db(transaction=True)

#: notes when the pages begin and cease to be live, and when messages come
RECORD = """
window.live = false;
window.seen = {};
document.addEventListener("drm:live", ({ detail }) => { window.live = detail; });
const observe = () => new MutationObserver(() => {
  for (const item of document.querySelectorAll("#drm-log .drm-message")) {
    const text = item.querySelector(".drm-body")?.textContent.trim();
    window.seen[text] ??= performance.timeOrigin + performance.now();
  }
}).observe(document.getElementById("drm-log"), { childList: true, subtree: true });
document.addEventListener("DOMContentLoaded", () => document.getElementById("drm-log") && observe());
"""
#: messages that two people send each other
MESSAGES = 16
#: times that a stream is cut, and bytes after which it is cut at the latest
CUTS, MAX_BYTES = 6, 2500


@pytest.fixture(scope="module")
def contexts(browser: Browser, asgi_server: Site) -> Iterator[Contexts]:
    """`visit` opens the site under the ASGI server."""
    with closing(Contexts(browser, asgi_server.url)) as found:
        yield found


@pytest.fixture
def chat(ann: Member, bob: Member) -> Chat:
    return Chat.create(ann, [bob], "Hello", title="Trip")


def watch(visit: Visit, user: Member, *args: str, fast: bool = False, **options: object) -> Page:
    """Open a page with RECORD, and wait until it is live."""
    page = visit(user, *args, fast=fast, script=RECORD, **options)
    wait_until_live(page)
    return page


#: resolves with a value of `window` once it is true
VALUE = """([name, part]) => new Promise(resolve => {
  const look = () => {
    const value = part === null ? window[name] : window[name]?.[part];
    value ? resolve(value) : setTimeout(look, 10);
  };
  look();
})"""


def wait_until_live(page: Page) -> None:
    page.evaluate(VALUE, ["live", None])


def wait_until_seen(page: Page, text: str) -> float:
    """Wait until a message is in the log; returns when it came: ms."""
    return float(page.evaluate(VALUE, ["seen", text]))


class Requests:
    """The requests of pages, by the end of their path."""

    def __init__(self, *pages: Page) -> None:
        self.paths: list[str] = []
        for page in pages:
            page.on("request", self._record)

    def _record(self, request: Request) -> None:
        self.paths.append(unquote(request.url.partition("?")[0]).rstrip("/").rpartition("/")[2])


class TestPushed:
    def test_two_people(
        self, visit: Visit, ann: Member, bob: Member, chat: Chat, capsys: pytest.CaptureFixture[str]
    ) -> None:
        chat.ack(bob, 1)  # see test_everything
        at_anns, at_bobs = (watch(visit, one, "room", chat.id) for one in (ann, bob))
        requests = Requests(at_anns, at_bobs)
        delays = []
        for number in range(MESSAGES):
            sender, reader = (at_anns, at_bobs) if number % 2 else (at_bobs, at_anns)
            sender.get_by_label("Message", exact=True).fill(f"Message {number}")
            sender.evaluate("window.sent = performance.timeOrigin + performance.now()")
            sender.keyboard.press("Enter")
            delays.append(wait_until_seen(reader, f"Message {number}") - sender.evaluate("window.sent"))
        delays.sort()
        with capsys.disabled():
            figures = f"median {statistics.median(delays):.0f} ms, worst {delays[-1]:.0f} ms"
            print(f"\nto the other's screen: {figures}")  # noqa: T201
        assert "feed" not in requests.paths  # nobody polled
        expected = ["Hello", *(f"Message {number}" for number in range(MESSAGES))]
        wait_until(at_anns, lambda: shown_bodies(at_anns) == shown_bodies(at_bobs) == expected)
        expect(at_anns.locator("#drm-seen")).to_have_text("Seen by Bob")
        expect(at_bobs.locator(".drm-row .drm-row-text")).to_contain_text(expected[-1])

    def test_everything(self, visit: Visit, ann: Member, bob: Member, cat: Member, chat: Chat) -> None:
        chat.ack(bob, 1)  # or the page does it, and reads the list again if the stream opens at that moment
        page = watch(visit, bob, "room", chat.id)
        requests = Requests(page)
        chat.typing(ann)
        expect(page.locator("#drm-typing")).to_contain_text("Ann")
        chat.send(ann, "Written")
        expect_message(page, "Written")
        expect(page.locator("#drm-typing")).to_be_empty()
        chat.edit(ann, 1, "Hello!")
        expect(page.locator("#m1 .drm-body")).to_have_text("Hello!")
        chat.delete_message(ann, 1)
        expect(page.locator("#m1")).to_contain_text("deleted")
        chat.rename(ann, "Journey")
        expect(page.locator("#drm-title")).to_have_text("Journey")
        expect(page.locator(".drm-event").last).to_contain_text("Journey")
        expect(page.locator("#drm-companion")).to_have_text("with Ann · ")
        chat.join(cat, by=ann)
        expect(page.locator("#drm-members")).to_have_text("Group · 3 members")
        expect(page.locator("#drm-companion")).to_be_hidden()
        chat.leave(cat)
        expect(page.locator("#drm-members")).to_have_text("Group · 2 members")
        expect(page.locator("#drm-companion")).to_have_text("with Ann · ")
        notify(bob, "News")
        expect(page.locator(".drm-bell-count")).to_have_text("1")
        other = Chat.create(ann, [bob], "Another", title="Other")
        first = page.locator(".drm-row").first
        expect(first).to_contain_text("Other")
        expect(first.locator(".drm-badge")).to_contain_text("1")
        expect(page).to_have_title(re.compile(r"^\(1\)"))
        other.ack(bob, 1)
        expect(first.locator(".drm-badge")).to_have_count(0)
        chat.send(ann, "New")
        expect(first).to_contain_text("Journey")  # the newest first
        other.leave(bob)
        expect(page.locator(".drm-row")).to_have_count(1)
        chat.leave(bob, by=ann)
        expect(page.locator("#drm-status")).to_contain_text("no longer in this chat")
        chat.send(ann, "Secret")
        expect(page.locator(".drm-row")).to_have_count(0)
        assert "Secret" not in page.content()
        assert requests.paths.count("feed") <= 1  # of the room after the end

    def test_a_message_that_is_pushed_while_the_page_jumps(
        self, visit: Visit, ann: Member, bob: Member
    ) -> None:
        chat = filled(bob, ann, 120)
        chat.ack(ann, 120)
        page = watch(visit, ann, "room", chat.id, query="?at=1")  # the poll every 45 s would be too late
        receive_while_jumping(page, chat, bob, polls=False)

    def test_the_list_of_chats(self, visit: Visit, ann: Member, bob: Member, chat: Chat) -> None:
        old = Chat.create(ann, [], title="Old")
        loud = Chat.create(ann, [bob], "Hi", title="Loud")
        while loud.info().active_at == old.info().active_at:
            loud.send(ann, "Hi")  # later than the other chat
        loud.mute(bob, datetime.now(UTC) + timedelta(hours=1))
        page = watch(visit, bob, "room", chat.id)

        def titles_with(new: str) -> list[str]:
            """The titles as soon as there is a new one, in the order of the server: by activity."""
            titles = page.locator(".drm-row-title > bdi")
            expect(titles.filter(has_text=new)).to_be_visible()
            return titles.all_inner_texts()

        assert titles_with("Loud") == ["Loud", "Trip"]
        expect(page).to_have_title(re.compile("^Group: Trip"))  # what is muted doesn't count
        old.join(bob, by=ann)
        assert titles_with("Old") == ["Loud", "Old", "Trip"]
        Chat.create(ann, [bob], title="Empty")
        assert titles_with("Empty") == ["Empty", "Loud", "Old", "Trip"]
        page.get_by_role("link", name="Empty").click()
        current = page.locator(".drm-row", has=page.locator("[aria-current=page]"))
        expect(current).to_have_text(re.compile("Empty"))
        expect_title(page, "Empty")
        chat.send(ann, "In the other room")
        expect(page.locator(".drm-row").first).to_contain_text("In the other room")
        assert titles_with("Trip") == ["Trip", "Empty", "Loud", "Old"]
        expect(current).to_have_text(re.compile("Empty"))
        expect(page).to_have_title(re.compile(r"^\(1\) Group: Empty"))
        page.reload()
        assert titles_with("Trip") == ["Trip", "Empty", "Loud", "Old"]
        expect(page).to_have_title(re.compile(r"^\(1\) Group: Empty"))

    def test_who_is_online(
        self, visit: Visit, ann: Member, bob: Member, chat: Chat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(presence, "GRACE", 100)
        monkeypatch.setattr(hub, "INTERVAL", 0.2)
        at_anns, at_bobs = (watch(visit, one, "room", chat.id) for one in (ann, bob))
        expect(at_anns.locator("#drm-online")).to_have_text("1 online")
        expect(at_bobs.locator("#drm-online")).to_have_text("1 online")
        line = at_anns.locator(".drm-head-text p")
        assert line.inner_text() == "with Bob · Group · 2 members · 1 online"
        at_bobs.goto("about:blank")
        expect(at_anns.locator("#drm-online")).to_be_empty()
        assert line.inner_text() == "with Bob · Group · 2 members"
        at_bobs.go_back()
        expect(at_anns.locator("#drm-online")).to_have_text("1 online")
        at_bobs.locator("#drm-account summary").click()
        at_bobs.get_by_role("link", name="Privacy").click()
        at_bobs.get_by_label("Others see that I am online").uncheck()
        at_bobs.get_by_role("button", name="Save").click()
        expect(at_anns.locator("#drm-online")).to_be_empty()

    def test_by_keyboard(self, visit: Visit, ann: Member, bob: Member, chat: Chat) -> None:
        """What is pushed does not take the focus away from what is typed, or from the list."""
        page = watch(visit, bob, "room", chat.id)
        page.get_by_label("Message", exact=True).focus()
        page.keyboard.type("Half a ")
        chat.send(ann, "Pushed")
        expect_message(page, "Pushed")
        page.keyboard.type("sentence")
        page.keyboard.press("Enter")
        expect(page.locator("#drm-log .drm-body", has_text="Half a sentence")).to_be_visible()
        other = Chat.create(ann, [bob], "Hi", title="Other")
        row(page, "Trip").focus()
        for one, text in ((chat, "Again"), (other, "Newer")):
            one.send(ann, text)
            expect(page.locator(".drm-row").first).to_contain_text(text)
            expect(row(page, "Trip")).to_be_focused()
        assert violations(page) == []

    def test_under_a_policy(
        self, visit: Visit, ann: Member, bob: Member, chat: Chat, settings: Settings
    ) -> None:
        page = visit(bob, "contacts", fast=False, script=RECORD)
        for policy in ("default-src 'self'", content_policies.STRICT):
            settings.TEST_POLICY = policy
            open_page(page, "room", chat.id)
            wait_until_live(page)
            chat.send(ann, f"Within {policy}")
            expect_message(page, f"Within {policy}")

    def test_without_javascript(self, visit: Visit, bob: Member, chat: Chat, site: Site) -> None:
        page = visit(bob, "room", chat.id, java_script_enabled=False)
        page.get_by_label("Message", exact=True).fill("By hand")
        page.get_by_role("button", name="Send").click()
        expect_message(page, "By hand")
        assert site.streams() == 0


class TestTabs:
    def test_six_tabs_share_a_stream(self, visit: Visit, ann: Member, bob: Member, site: Site) -> None:
        chats = [Chat.create(ann, [bob], "Hello", title=f"Chat {number}") for number in range(6)]
        tabs = [watch(visit, bob, "room", chats[0].id)]
        for one in chats[1:]:
            tabs.append(tabs[0].context.new_page())
            tabs[-1].goto(site.url + reverse("messaging:room", args=[one.id]))
        for round_number in range(3):
            for tab in tabs:
                wait_until_live(tab)
            wait_until(tabs[-1], lambda: site.streams() == 1)
            for tab, one in zip(tabs, chats[-len(tabs) :], strict=True):
                one.send(ann, f"Round {round_number}")
                wait_until_seen(tab, f"Round {round_number}")
            notify(bob, "News")
            for tab in tabs:
                expect(tab.locator(".drm-bell-count")).to_have_text(str(round_number + 1))
            assert site.streams() == 1
            tabs.pop(0).close()  # the one with the stream

    def test_a_room_that_was_left_is_not_in_the_stream(
        self, visit: Visit, bob: Member, chat: Chat, site: Site
    ) -> None:
        page = watch(visit, bob, "chats", viewport={"width": 360, "height": 740})
        with page.expect_request("**/live/**") as opened:
            row(page, "Trip").click()
        assert chat.id in unquote(opened.value.url)
        page.locator(".drm-back").click()
        expect(page.locator("#drm-title")).to_have_count(0)
        with page.expect_request("**/live/**") as opened:
            page.context.new_page().goto(site.url + reverse("messaging:chats"))
        assert chat.id not in unquote(opened.value.url)

    def test_a_frozen_tab_loses_the_stream(
        self, visit: Visit, ann: Member, bob: Member, chat: Chat, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live, "HEARTBEAT", 0.5)
        impatient = (
            "const wait = setTimeout; window.setTimeout = (act, ms, ...rest) => wait(act, ms / 20, ...rest);"
        )
        first = visit(bob, "room", chat.id, fast=False, script=RECORD + impatient)
        wait_until_live(first)
        second = first.context.new_page()
        second.goto(first.url)
        wait_until_live(second)
        session = first.context.new_cdp_session(first)
        session.send("Page.setWebLifecycleState", {"state": "frozen"})
        chat.send(ann, "Still here?")
        expect_message(second, "Still here?")
        wait_until(second, lambda: site.streams() >= 1)
        session.send("Page.setWebLifecycleState", {"state": "active"})
        chat.send(ann, "Awake?")
        for page in (first, second):
            expect_message(page, "Awake?")
        wait_until(second, lambda: site.streams() == 1)

    def test_without_locks_pages_poll(
        self, visit: Visit, ann: Member, bob: Member, chat: Chat, site: Site
    ) -> None:
        script = "Object.defineProperty(Navigator.prototype, 'locks', { value: undefined });"
        page = visit(bob, "room", chat.id, script=script)
        chat.send(ann, "Polled")
        expect_message(page, "Polled")
        wait_until(page, lambda: site.streams() == 0)

    def test_signing_out_ends_the_stream(self, visit: Visit, bob: Member, chat: Chat, site: Site) -> None:
        page = watch(visit, bob, "room", chat.id, fast=True)
        other = open_page(page.context.new_page(), "chats")
        open_account(other)
        other.get_by_role("button", name="Sign out").click()
        expect(page.locator("#drm-status")).to_contain_text("Sign in", timeout=TIMEOUT)
        wait_until(page, lambda: site.streams() == 0)


class TestCuts:
    def test_a_server_that_restarts(
        self, visit: Visit, ann: Member, bob: Member, chat: Chat, site: Site
    ) -> None:
        page = watch(visit, bob, "room", chat.id, fast=True)
        for number in range(3):
            chat.send(ann, f"Before {number}")
            expect_message(page, f"Before {number}")
            site.stop()
            chat.send(ann, f"While down {number}")
            chat.edit(ann, 1, f"Hello {number}")
            site.start()
            expect_message(page, f"While down {number}")
            expect(page.locator("#m1 .drm-body")).to_have_text(f"Hello {number}")
            wait_until_live(page)
        texts = [f"{when} {number}" for number in range(3) for when in ("Before", "While down")]
        assert shown_bodies(page) == ["Hello 2", *texts]

    def test_a_proxy_that_cuts_events(
        self, visit: Visit, ann: Member, bob: Member, chat: Chat, site: Site
    ) -> None:
        with CuttingProxy(site, max_bytes=MAX_BYTES) as proxy:
            page = visit(bob, "contacts", script=RECORD)
            sign_in(page.context, bob, proxy.url)
            page.goto(proxy.url + reverse("messaging:room", args=[chat.id]))
            wait_until_live(page)
            proxy.cutting.set()
            sent = 0
            while proxy.cuts < CUTS:
                sent += 1
                chat.send(ann, f"Message {sent}")
                wait_until_seen(page, f"Message {sent}")
            proxy.cutting.clear()
            chat.send(ann, "The end")
            expect_message(page, "The end")
            wait_until_live(page)
            expected = ["Hello", *(f"Message {number}" for number in range(1, sent + 1)), "The end"]
            assert set(expected) <= page.evaluate("seen").keys()
            found = shown_bodies(page)  # those that are still loaded
            assert found == expected[-len(found) :]

    def test_someone_who_is_away(
        self, visit: Visit, ann: Member, bob: Member, cat: Member, chat: Chat
    ) -> None:
        chat.join(cat, by=ann)
        at_cats, at_anns, at_bobs = (watch(visit, one, "room", chat.id, fast=True) for one in (cat, ann, bob))
        at_cats.context.set_offline(True)
        for page, text in ((at_anns, "One"), (at_bobs, "Two"), (at_anns, "Three")):
            send(page, text)
        for page in (at_anns, at_bobs):
            expect_message(page, "Three")
        at_cats.context.set_offline(False)
        expect_message(at_cats, "Three")
        wait_until_live(at_cats)
        send(at_cats, "Back")
        for page in (at_anns, at_bobs, at_cats):
            expect_message(page, "Back")
            assert sorted(set(shown_bodies(page)) - {"Hello"}) == ["Back", "One", "Three", "Two"]
