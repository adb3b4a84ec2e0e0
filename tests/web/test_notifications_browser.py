"""Notifications in a real browser: their page, the bell, and what the browser tells of, with a sound."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.urls import reverse
from playwright.sync_api import Locator, Page, expect

from django_redis_messaging import Chat, Mailbox, notify
from django_redis_messaging.services.mailboxes.notifications import LEVELS
from django_redis_messaging.web.bell import Bell

from ..support.browser import (
    TIMEOUT,
    Visit,
    fits_in_width,
    open_account,
    open_page,
    violations,
    violations_now,
    wait_until,
)
from ..support.people import Member

#: ms between loading the script of the bell and its first request
FIRST_REQUEST = """() => {
  const of = (text) => performance.getEntriesByType("resource").find(({ name }) => name.includes(text));
  return of(document.querySelector(".drm-bell").dataset.feed).startTime - of("bell.").responseEnd;
}"""
#: contrast ratios of elements hidden from assistive technology, which axe-core does not check
CONTRASTS = """() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map((c) => c / 255)
      .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return [...document.querySelectorAll(".drm-level, .drm-bell-count")].map((sign) => {
    const { color, backgroundColor } = getComputedStyle(sign);
    return (light(color) + 0.05) / (light(backgroundColor) + 0.05);
  });
}"""
#: records the notifications and the sounds of a page, which is in the foreground or not
RECORD = """
window.told = [];
window.Notification = class extends EventTarget {
  static requestPermission = async () => window.permission ?? "granted";
  constructor(title, { body, tag }) {
    super();
    told.push([title, body ?? "", tag]);
    window.latest = this;
  }
  close() {}
};
const { start } = OscillatorNode.prototype;
OscillatorNode.prototype.start = function (...args) { told.push("sound"); return start.apply(this, args); };
document.hasFocus = () => window.inForeground ?? true;
"""


@pytest.fixture
def box(ann: Member) -> Mailbox:
    return Mailbox(ann)


def send(user: Member, *texts: str) -> None:
    for text in texts:
        notify(user, text, url=reverse("messaging:contacts"))


def bell(page: Page, count: int) -> Locator:
    """The bell, once it shows this count."""
    name = f"Notifications: {count or 'none'} unread"
    found = page.get_by_role("link", name=name, exact=True)
    expect(found).to_be_visible(timeout=TIMEOUT)
    return found


def notice(page: Page, text: str) -> Locator:
    return page.locator(".drm-notice", has_text=text)


class TestPage:
    def test_what_is_read_in_one_tab_is_read_in_the_other(
        self, visit: Visit, ann: Member, box: Mailbox
    ) -> None:
        send(ann, "Look", "Another", "one", "two", "three")
        first = visit(ann, "notifications")
        second = open_page(first.context.new_page(), "chats")
        bell(first, 5)
        expect(bell(second, 5)).to_have_text("5")
        # Who follows a link has read it.
        target = re.compile(reverse("messaging:contacts"))
        notice(first, "Look").get_by_role("button", name="Look", exact=True).click()
        expect(first).to_have_url(target)
        assert 'aria-label="Notifications: 4 unread"' in first.content()
        bell(second, 4)
        first.go_back()
        expect(notice(first, "Look").get_by_role("link", name="Look")).to_be_visible(timeout=TIMEOUT)
        with first.context.expect_page() as opened:
            link = notice(first, "Another").get_by_role("button", name="Another", exact=True)
            link.click(modifiers=["Control"])
        expect(opened.value).to_have_url(target)
        bell(first, 3)
        expect(notice(first, "Another").get_by_role("link", name="Another")).to_be_visible()

        notice(first, "two").get_by_role("button", name="Mark as read").click()
        bell(first, 2)
        bell(second, 2)
        expect(first.locator(".drm-notice").nth(2)).to_have_text(re.compile(r"^\s*two"))
        first.get_by_role("button", name="Mark all as read").click()
        expect(bell(second, 0)).to_have_text("")
        expect(second.locator(".drm-bell-count")).to_be_hidden()
        expect(first.get_by_role("heading", name="New")).to_have_count(0)
        assert box.unread() == 0

    def test_new_notifications_appear_on_all_devices(self, visit: Visit, ann: Member) -> None:
        at_home, at_work = visit(ann, "notifications"), visit(ann, "contacts")
        expect(at_home.get_by_text("No notifications yet.")).to_be_visible()
        send(ann, "News")
        expect(notice(at_home, "News")).to_be_visible(timeout=TIMEOUT)
        bell(at_work, 1).click()
        notice(at_work, "News").get_by_role("button", name="Discard").click()
        expect(at_work.get_by_text("No notifications yet.")).to_be_visible()
        expect(notice(at_home, "News")).to_have_count(0, timeout=TIMEOUT)

    def test_the_focus_stays_near_what_changes(self, visit: Visit, ann: Member, box: Mailbox) -> None:
        """Near a removed notification, and on a link when the list is refreshed."""
        send(ann, "one", "two", "three")
        page = visit(ann, "notifications")
        notice(page, "two").get_by_role("button", name="Discard").focus()
        page.keyboard.press("Enter")
        expect(notice(page, "two")).to_have_count(0)
        expect(notice(page, "one")).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(notice(page, "one").get_by_role("button", name="Mark as read")).to_have_count(0)
        expect(notice(page, "one").locator(":focus")).to_have_count(0)
        expect(notice(page, "one")).to_be_focused()
        assert [mail.payload["text"] for mail in box.fetch(unread=True).messages] == ["three"]

        said = notice(page, "three").locator(".drm-notice-said")
        said.get_by_role("button").focus()
        send(ann, "four")
        expect(notice(page, "four")).to_be_visible()
        expect(said.get_by_role("button")).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")  # mark as read
        said.get_by_role("link").focus()
        send(ann, "five")
        expect(notice(page, "five")).to_be_visible()
        expect(said.get_by_role("link")).to_be_focused()

    def test_without_javascript(self, visit: Visit, ann: Member, box: Mailbox) -> None:
        send(ann, "Look", "one", "two")
        page = visit(ann, "chats", java_script_enabled=False)
        bell(page, 3).click()
        notice(page, "Look").get_by_role("button", name="Look", exact=True).click()
        expect(page).to_have_url(re.compile(reverse("messaging:contacts")))
        assert 'aria-label="Notifications: 2 unread"' in page.content()
        page.go_back()
        expect(notice(page, "Look").get_by_role("link", name="Look")).to_be_visible(timeout=TIMEOUT)
        page.get_by_role("link", name="Unread only").click()
        notice(page, "one").get_by_role("button", name="Mark as read").click()
        expect(notice(page, "one")).to_have_count(0)
        expect(page.get_by_role("link", name="Unread only")).to_have_attribute("aria-current", "page")
        notice(page, "two").get_by_role("button", name="Discard").click()
        expect(page.get_by_text("You're all caught up.")).to_be_visible()
        page.get_by_role("link", name="By time").click()
        expect(notice(page, "one")).to_be_visible()
        bell(page, 0)
        assert box.unread() == 0

    def test_it_is_accessible(self, visit: Visit, ann: Member, box: Mailbox) -> None:
        page = visit(ann, "notifications", viewport={"width": 360, "height": 740})
        assert violations(page) == []
        for level in LEVELS:
            notify(ann, f"Some {level}", level=level, url="/", group=level, sender="shop")
            notify(ann, f"More {level} " + "x" * 100, level=level, url="/", group=level, sender="shop")
            notify(ann, f"Other {level}", level=level)
        box.mark_read([2, 3])
        for show in ("", "?show=time", "?show=unread"):
            open_page(page, "notifications", query=show)
            bell(page, 6)
            assert violations(page) == []
            for scheme in ("dark", "light"):
                page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                assert min(contrasts := page.evaluate(CONTRASTS)) >= 4.5, contrasts
            assert fits_in_width(page)


class TestBell:
    def test_without_a_count_it_fetches_it_soon(
        self, visit: Visit, ann: Member, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        send(ann, "one")
        with monkeypatch.context() as away:
            away.setattr(Bell, "_status", None)
            page = visit(ann, "contacts", fast=False)
        expect(page.get_by_role("link", name="Notifications", exact=True)).to_be_visible()
        bell(page, 1)
        assert page.evaluate(FIRST_REQUEST) < 4000, "as late as a bell with a count"

    def test_a_high_count_does_not_cover_it(self, visit: Visit, ann: Member) -> None:
        send(ann, *("x" for _ in range(100)))
        page = visit(ann, "notifications", viewport={"width": 360, "height": 740})
        box, count = bell(page, 100).bounding_box(), page.locator(".drm-bell-count").bounding_box()
        button = page.get_by_role("link", name="New chat").bounding_box()
        assert box and count and button
        assert count["x"] >= box["x"] + box["width"] / 2
        assert count["x"] + count["width"] <= button["x"]


class TestAlerts:
    """Notifications of the browser, and a sound, for messages."""

    @pytest.fixture
    def loud(self, ann: Member, bob: Member) -> Chat:
        return Chat.create(bob, [ann], "Old", title="Loud")

    def test_notifications_and_sound(self, visit: Visit, ann: Member, bob: Member, loud: Chat) -> None:
        muted = Chat.create(bob, [ann], "Old", title="Muted")
        muted.mute(ann, datetime.now(UTC) + timedelta(hours=1))
        page = visit(ann, script=RECORD)
        open_account(page)
        assert violations_now(page) == []
        notifications = page.get_by_role("switch", name="Browser notifications")
        expect(notifications).to_have_attribute("aria-checked", "false")
        notifications.click()
        expect(notifications).to_be_checked()
        page.get_by_role("switch", name="Sound").click()
        expect(page.get_by_role("switch", name="Sound")).to_be_checked()
        trial = ["This is how new messages are announced.", "", "drm-trial"]
        assert page.evaluate("told") == [trial, "sound"]
        page.evaluate("told = []; inForeground = false")
        muted.send(bob, "Nothing of this")
        loud.send(bob, "Hello <b>Ann</b>")
        wait_until(page, lambda: page.evaluate("told.length") > 1)
        expect(page.locator(f'[data-id="{muted.id}"] .drm-badge')).to_contain_text("2")
        assert page.evaluate("told") == ["sound", ["Loud · Group with Bob", "Hello <b>Ann</b>", loud.id]]
        # Neither what was there before, nor what another tab has told of, is told again.
        with page.expect_response(re.compile("/feed/")):
            page.reload()
        assert page.evaluate("told") == []
        page.evaluate("latest = null; inForeground = false")
        loud.send(bob, "Again")
        wait_until(page, lambda: page.evaluate("latest !== null"))
        with page.expect_navigation(url=re.compile(loud.id)):
            page.evaluate("latest.dispatchEvent(new Event('click'))")

    def test_two_tabs_tell_once_and_a_shown_chat_is_not_told_of(
        self, visit: Visit, ann: Member, bob: Member, loud: Chat
    ) -> None:
        key, choices = f"drm-choices:{ann}", '{"sound": true}'
        keep = f"if (origin.startsWith('http')) localStorage.setItem('{key}', '{choices}');"
        page = visit(ann, "room", loud.id, script=RECORD + keep)
        other = open_page(page.context.new_page(), "chats")
        quiet = Chat.create(bob, [ann], "For both tabs", title="Third")
        for tab in (page, other):
            expect(tab.locator(f'[data-id="{quiet.id}"]')).to_be_visible(timeout=TIMEOUT)
        expect(page.locator("#m1")).to_be_visible()
        assert len(page.evaluate("told") + other.evaluate("told")) == 1
        other.close()
        page.evaluate("told = []")
        loud.send(bob, "Seen at once")
        text = page.locator(f'[data-id="{loud.id}"] .drm-row-text')
        expect(text).to_have_text("Seen at once", timeout=TIMEOUT)
        quiet.send(bob, "Heard")
        wait_until(page, lambda: page.evaluate("told.length") > 0)
        assert page.evaluate("told") == ["sound"]

    def test_the_browser_refuses(self, visit: Visit, ann: Member, loud: Chat) -> None:
        page = visit(ann, script=RECORD)
        page.evaluate("permission = 'denied'")
        open_account(page)
        page.get_by_role("switch", name="Browser notifications").click()
        expect(page.locator("#drm-choice-status")).to_contain_text("does not allow")
        expect(page.get_by_role("switch", name="Browser notifications")).not_to_be_checked()
