"""What users choose in a real browser: keyboard shortcuts, notifications, and a sound."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from django_redis_messaging import Chat

from .test_browser import MODULES, TIMEOUT, Visit, visit
from .test_frame_browser import violations_now
from .test_room_browser import wait_until

__all__ = ["visit"]  # the fixture

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


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


class TestKeys:
    def test_they_lead_through_the_pages(self, visit: Visit, person: Callable[..., User]) -> None:
        ann, bob = person("ann"), person("bob")
        for title in ("One", "Two", "Three"):
            Chat.create(str(bob.pk), [str(ann.pk)], "Text", title=title)
        page = visit(ann)
        page.evaluate(MODULES)
        first, second, _ = page.locator(".drm-row-title > bdi").all_inner_texts()
        for key, title in [("j", first), ("j", second), ("k", first), ("j", second)]:
            with page.expect_navigation():
                press(page, key)
            page.evaluate(MODULES)
            expect(page.locator("#drm-title")).to_have_text(title)
            expect(page.locator("#drm-body")).to_be_focused()
            press(page, "Escape")
        press(page, "m")
        expect(page.locator("#drm-body")).to_be_focused()
        press(page, "n", "j")  # typed
        expect(page.locator("#drm-body")).to_have_value("nj")
        page.locator("#drm-scroll").focus()
        press(page, "/")
        expect(page.get_by_label("Filter chats")).to_be_focused()
        expect(page.get_by_label("Filter chats")).to_have_value("")
        page.locator("#drm-scroll").focus()
        for key, path in [("s", "/search/"), ("p", "/contacts/"), ("b", "/notifications/"), ("n", "/new/")]:
            page.locator(".drm-nav a").first.focus()
            with page.expect_navigation(url=re.compile(path)):
                press(page, key)
            page.evaluate(MODULES)

    def test_u_opens_the_next_unread_chat(self, visit: Visit, person: Callable[..., User]) -> None:
        ann, bob = person("ann"), person("bob")
        Chat.create(str(bob.pk), [str(ann.pk)], "Unread", title="Below")
        Chat.create(str(ann.pk), [], title="Above")
        page = visit(ann)
        page.evaluate(MODULES)
        with page.expect_navigation():
            press(page, "u")
        expect(page.locator("#drm-title")).to_have_text("Below")

    def test_the_list_of_keys_and_the_switch(self, visit: Visit, person: Callable[..., User]) -> None:
        page = visit(person("ann"))
        page.evaluate(MODULES)
        press(page, "?")
        dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
        expect(dialog).to_contain_text("Next unread chat")
        assert violations_now(page) == []
        page.get_by_role("switch", name="Use single keys").click()
        expect(page.get_by_role("switch", name="Use single keys")).not_to_be_checked()
        press(page, "n", "Escape")
        expect(dialog).to_be_hidden()
        page.reload()
        page.evaluate(MODULES)
        press(page, "?", "n")
        expect(dialog).to_be_hidden()
        # Keys are off, but the menu leads to the switch.
        page.get_by_text("Account").locator("..").click()
        page.get_by_role("button", name="Keyboard shortcuts").click()
        page.get_by_role("switch", name="Use single keys").click()
        page.get_by_role("button", name="Close").click()
        with page.expect_navigation(url=re.compile("/new/")):
            press(page, "n")


class TestAlerts:
    @pytest.fixture
    def chats(self, person: Callable[..., User]) -> tuple[User, User, Chat, Chat]:
        ann, bob = person("ann"), person("bob", first_name="Bob")
        loud = Chat.create(str(bob.pk), [str(ann.pk)], "Old", title="Loud")
        muted = Chat.create(str(bob.pk), [str(ann.pk)], "Old", title="Muted")
        muted.mute(str(ann.pk), datetime.now(UTC) + timedelta(hours=1))
        return ann, bob, loud, muted

    def open_menu(self, page: Page) -> None:
        page.evaluate(MODULES)
        page.get_by_text("Account").locator("..").click()

    def test_notifications_and_sound(self, visit: Visit, chats: tuple[User, User, Chat, Chat]) -> None:
        ann, bob, loud, muted = chats
        page = visit(ann)
        page.context.add_init_script(RECORD)
        page.reload()
        self.open_menu(page)
        assert violations_now(page) == []
        expect(page.get_by_role("switch", name="Browser notifications")).to_have_attribute(
            "aria-checked", "false"
        )
        page.get_by_role("switch", name="Browser notifications").click()
        expect(page.get_by_role("switch", name="Browser notifications")).to_be_checked()
        page.get_by_role("switch", name="Sound").click()
        expect(page.get_by_role("switch", name="Sound")).to_be_checked()
        assert page.evaluate("told") == [
            ["This is how new messages are announced.", "", "drm-trial"],
            "sound",
        ]
        page.evaluate("told = []; inForeground = false")
        muted.send(str(bob.pk), "Nothing of this")
        loud.send(str(bob.pk), "Hello <b>Ann</b>")
        wait_until(page, lambda: page.evaluate("told.length") > 1)
        expect(page.locator(f'[data-id="{muted.id}"] .drm-badge')).to_contain_text("2")
        assert page.evaluate("told") == ["sound", ["Loud · Group with Bob", "Hello <b>Ann</b>", loud.id]]
        # Neither what was there before, nor what another tab has told of, is told again.
        with page.expect_response(re.compile("/feed/")):
            page.reload()
        assert page.evaluate("told") == []
        page.evaluate("latest = null; inForeground = false")
        loud.send(str(bob.pk), "Again")
        wait_until(page, lambda: page.evaluate("latest !== null"))
        with page.expect_navigation(url=re.compile(loud.id)):
            page.evaluate("latest.dispatchEvent(new Event('click'))")

    def test_two_tabs_tell_once_and_a_shown_chat_is_not_told_of(
        self, visit: Visit, chats: tuple[User, User, Chat, Chat]
    ) -> None:
        ann, bob, loud, _ = chats
        page = visit(ann, "room", loud.id)
        page.context.add_init_script(RECORD)
        page.evaluate("localStorage.setItem(`drm-choices:${drm.dataset.user}`, '{\"sound\": true}')")
        page.reload()
        page.evaluate(MODULES)
        other = page.context.new_page()
        other.goto("/messages/")
        other.evaluate(MODULES)
        quiet = Chat.create(str(bob.pk), [str(ann.pk)], "For both tabs", title="Third")
        for tab in (page, other):
            expect(tab.locator(f'[data-id="{quiet.id}"]')).to_be_visible(timeout=TIMEOUT)
        expect(page.locator("#m1")).to_be_visible()
        assert len(page.evaluate("told") + other.evaluate("told")) == 1
        other.close()
        page.evaluate("told = []")
        loud.send(str(bob.pk), "Seen at once")
        expect(page.locator(f'[data-id="{loud.id}"] .drm-row-text')).to_have_text(
            "Seen at once", timeout=TIMEOUT
        )
        quiet.send(str(bob.pk), "Heard")
        wait_until(page, lambda: page.evaluate("told.length") > 0)
        assert page.evaluate("told") == ["sound"]

    def test_the_browser_refuses(self, visit: Visit, chats: tuple[User, User, Chat, Chat]) -> None:
        page = visit(chats[0])
        page.context.add_init_script(RECORD)
        page.reload()
        page.evaluate("permission = 'denied'")
        self.open_menu(page)
        page.get_by_role("switch", name="Browser notifications").click()
        expect(page.locator("#drm-choice-status")).to_contain_text("does not allow")
        expect(page.get_by_role("switch", name="Browser notifications")).not_to_be_checked()
