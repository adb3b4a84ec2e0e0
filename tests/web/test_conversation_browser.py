"""Conversations in a real browser: by mouse, by keyboard, without JavaScript, and while much goes wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.urls import reverse
from playwright.sync_api import Page, expect

from django_redis_messaging import Chat, Inbox, RecentContacts

from ..support import browser, firefox
from ..support.asgi_site import Site
from ..support.browser import (
    DESKTOP,
    PHONE,
    TIMEOUT,
    Visit,
    bodies,
    choose,
    expect_message,
    expect_sent,
    open_page,
    row,
    send,
    shown_bodies,
    wait_for_messages,
    wait_until,
)
from ..support.firefox import Firefox
from ..support.people import Member
from .conftest import Members, client_of
from .test_pages import HOSTILE

#: attempts to send without a network; six take a minute by the clocks of the pages
ATTEMPTS = 6 if os.environ.get("MESSAGING_LONG") else 3


def test_two_users_chat(visit: Visit, ann: Member, bob: Member) -> None:
    at_bobs, at_anns = visit(bob), visit(ann, "new")
    at_anns.get_by_role("combobox", name="Search people").fill("bo")
    at_anns.get_by_role("option", name="Bob").click()
    at_anns.get_by_label("Title").fill("Lunch")
    at_anns.get_by_label("First message").fill("Pizza?")
    at_anns.get_by_role("button", name="Start chat").click()
    lunch = at_bobs.locator(".drm-row", has_text="Lunch")
    expect(lunch.locator(".drm-badge")).to_contain_text("1", timeout=TIMEOUT)
    expect(at_bobs).to_have_title(re.compile(r"^\(1\)"))
    lunch.get_by_role("link").click()
    expect_message(at_bobs, "Pizza?")
    send(at_bobs, "Pasta!")
    expect_message(at_anns, "Pasta!")
    send(at_anns, "Two lines:\nsee https://example.org/menu.")
    expect_message(at_bobs, "Two lines:\nsee https://example.org/menu.")
    expect(at_bobs.get_by_role("link", name="https://example.org/menu", exact=True)).to_be_visible()
    expect(at_anns.locator("#drm-seen")).to_have_text("Seen by Bob", timeout=TIMEOUT)
    expect(at_anns.locator(".drm-pending")).to_have_count(0)
    assert Inbox(ann).unread() == Inbox(bob).unread() == 0

    # Edits and deletions reach the other one.
    choose(at_anns, 1, "Edit")
    expect(at_anns.get_by_label("Message", exact=True)).to_have_value("Pizza?")
    send(at_anns, "Pizza, or soup?")
    for page in (at_anns, at_bobs):
        expect_message(page, "Pizza, or soup?")
    choose(at_anns, 3, "Delete")
    at_anns.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    choose(at_anns, 3, "Delete")
    at_anns.get_by_role("dialog").get_by_role("button", name="Delete").click()
    for page in (at_anns, at_bobs):
        expect(page.locator("#m3")).to_contain_text("Message deleted", timeout=TIMEOUT)
        expect(page.locator(".drm-message[data-id]")).to_have_count(3)


def test_without_javascript(visit: Visit, ann: Member, bob: Member, cat: Member) -> None:
    page = visit(ann, "new", java_script_enabled=False)
    for name in ("Bob", "Cat"):
        page.get_by_label("Search people").fill(name)
        page.get_by_role("button", name="Search").click()
        page.get_by_role("checkbox", name=name).last.check()
    page.get_by_label("Title").fill("Plain")
    page.get_by_role("button", name="Start chat").click()
    page.get_by_label("Message", exact=True).fill("By form")
    page.get_by_role("button", name="Send").click()
    assert page.url.endswith("?at=1#m1")  # what was sent is in sight
    expect_message(page, "By form")
    assert [chat.unread for user in (bob, cat) for chat in Inbox(user).chats()] == [1, 1]
    page.get_by_role("link", name="Message options").click()
    page.get_by_role("link", name="Edit").click()
    page.get_by_label("Message", exact=True).fill("Edited by form")
    page.get_by_role("button", name="Save").click()
    expect_message(page, "Edited by form")
    (chat,) = Inbox(bob).chats()
    Chat(chat.chat_id).send(bob, "An answer")
    page.reload()
    expect_message(page, "An answer")
    page.get_by_role("button", name="Mark as read").click()
    assert Inbox(ann).unread() == 0
    page.get_by_role("link", name="Message options").first.click()
    page.get_by_role("link", name="Reply").click()
    page.get_by_label("Message", exact=True).fill("A reply")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".drm-quote")).to_contain_text("Edited by form")
    page.get_by_role("link", name="Message options").last.click()
    page.get_by_text("Delete this message", exact=True).click()
    page.get_by_role("button", name="Delete").click()
    expect_message(page, "Message deleted")
    page.get_by_role("link", name="3 members").click()
    page.get_by_role("button", name="Remove Cat").click()
    assert Inbox(cat).chats() == []
    page.get_by_text("Leave this chat").click()
    page.get_by_role("button", name="Leave").click()
    expect(page.get_by_text("No chats yet.")).to_be_visible()


def test_keyboard_only(visit: Visit, ann: Member, bob: Member, cat: Member) -> None:
    RecentContacts(ann).touch(cat)
    page = visit(ann)
    press = page.keyboard.press

    def tab_to(role: Any, name: str) -> None:
        wanted = page.get_by_role(role, name=name, exact=True).first
        for _ in range(60):
            press("Tab")
            if wanted.count() and wanted.evaluate("element => element === document.activeElement"):
                return
        raise AssertionError(f"Tab never reaches {name}.")

    tab_to("link", "New chat")
    press("Enter")
    tab_to("combobox", "Search people")
    press("ArrowDown")
    options = page.get_by_role("option")
    expect(options).to_have_text([re.compile("Cat"), re.compile("Bob")])
    box = page.get_by_role("combobox", name="Search people")
    press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    selected = options.nth(1).get_attribute("id")
    assert selected
    expect(box).to_have_attribute("aria-activedescendant", selected)
    press("Enter")
    expect(page.locator(".drm-chip")).to_have_text([re.compile("Bob")])
    page.keyboard.type("ca")
    expect(options).to_have_count(1)
    press("Escape")
    expect(options).to_have_count(0)
    expect(box).to_have_attribute("aria-expanded", "false")
    press("ArrowDown")
    expect(options).to_have_count(1)
    press("Enter")
    press("Backspace")
    expect(page.locator(".drm-chip")).to_have_text([re.compile("Bob")])
    tab_to("textbox", "First message (optional)")
    page.keyboard.type("By keys")
    tab_to("button", "Start chat")
    press("Enter")
    expect_message(page, "By keys")
    tab_to("textbox", "Message")
    page.keyboard.type("One")
    press("Shift+Enter")
    page.keyboard.type("Two")
    press("Enter")
    expect_message(page, "One\nTwo")
    expect(page.locator(".drm-pending")).to_have_count(0)
    (chat,) = Inbox(bob).chats()
    assert (chat.unread, chat.member_count) == (2, 2)
    for _ in range(60):
        press("Shift+Tab")
        if page.evaluate("document.activeElement.matches('.drm-settings > summary')"):
            break
    press("Enter")
    expect(page.get_by_role("button", name="Mute")).to_be_visible()
    press("Escape")
    expect(page.get_by_role("button", name="Mute")).to_be_hidden()


def test_html_in_texts_is_escaped(visit: Visit, member: Members) -> None:
    ann = member("ann", first_name=HOSTILE)
    bob = member("bob", first_name=HOSTILE[:140], last_name="Bob")
    chat = Chat.create(bob, [ann], HOSTILE, title=HOSTILE)
    page = visit(ann, "room", chat.id)
    expect(page.locator("#drm-title")).to_have_text(HOSTILE)
    chat.send(bob, f"Late {HOSTILE}")
    expect_message(page, f"Late {HOSTILE}")
    send(page, f"Own {HOSTILE}")
    expect_message(page, f"Own {HOSTILE}")
    open_page(page, "new")
    page.get_by_role("combobox").fill("bob")
    page.get_by_role("option").click()
    expect(page.locator(".drm-chip bdi")).to_have_text(f"{HOSTILE} Bob")
    for name in ("chats", "contacts"):
        open_page(page, name)
    assert page.locator(".drm img, .drm script:not([src])").count() == 0


class TestStory:
    """The network fails, a session ends, a member is away and returns."""

    @pytest.mark.parametrize("frame", [DESKTOP, PHONE], ids=["desktop", "phone"])
    def test_nothing_is_lost_doubled_or_out_of_order(
        self, visit: Visit, alone: None, ann: Member, bob: Member, cat: Member, frame: dict[str, Any]
    ) -> None:
        chat = Chat.create(ann, [bob, cat], "Who brings what?", title="Picnic")
        at_cats = visit(cat, "room", chat.id, **frame)
        self.send(at_cats, "Me")
        expect_message(at_cats, "Me")
        expect(at_cats.locator(".drm-row")).to_contain_text("Me", timeout=TIMEOUT)
        expect(at_cats.locator(".drm-badge")).to_have_count(0, timeout=TIMEOUT)
        wait_until(at_cats, lambda: Inbox(cat).unread() == 0)
        at_cats.goto("about:blank")  # Cat is away
        at_anns, at_bobs = (visit(user, "room", chat.id, **frame) for user in (ann, bob))
        self.send(at_bobs, "Bread")
        expect_message(at_anns, "Bread")

        self.write_offline(at_anns, at_bobs, ["Salad", "Cheese", "No, no cheese"])
        expected = ["Who brings what?", "Me", "Bread", "And juice", "Salad", "Cheese", "No, no cheese"]
        wait_for_messages(at_anns, chat, bob, expected)
        expect_message(at_bobs, "No, no cheese")

        self.lose_session_with_draft(at_anns)
        self.send(at_bobs, "Who has a blanket?")
        expect_sent(at_bobs, "Who has a blanket?")
        self.sign_in_again(at_anns, ann)
        expected += ["Who has a blanket?", "I have a blanket"]
        wait_for_messages(at_anns, chat, bob, expected)

        open_page(at_cats, "chats")  # Cat is back
        expect(at_cats.locator(".drm-badge")).to_contain_text("7")
        row(at_cats, "Picnic").click()
        expect(at_cats.locator("#drm-unread")).to_have_text("7 new messages")
        expect(at_cats.locator("#drm-unread + .drm-message .drm-body")).to_have_text("Bread")
        assert shown_bodies(at_cats) == expected
        self.send(at_cats, "Here I am")
        expected.append("Here I am")
        wait_for_messages(at_cats, chat, bob, expected)
        for page in (at_anns, at_bobs, at_cats):
            expect(page.locator("#drm-log .drm-body")).to_have_text(expected, timeout=TIMEOUT)
            expect(page.locator("#drm-outbox li")).to_have_count(0)
        wait_until(at_cats, lambda: all(Inbox(user).unread() == 0 for user in (ann, bob, cat)))
        expect(at_cats.locator(".drm-badge")).to_have_count(0, timeout=TIMEOUT)
        at_cats.reload()
        expect(at_cats.locator("#drm-unread")).to_have_count(0)

    def send(self, page: Page, text: str) -> None:
        """As users of a phone do, too: there, Enter is a line break."""
        page.get_by_label("Message", exact=True).fill(text)
        page.get_by_role("button", name="Send", exact=True).click()

    def write_offline(self, at_anns: Page, at_bobs: Page, texts: list[str]) -> None:
        """Ann writes without a network; Bob's message is sent before hers."""
        failed: list[str] = []
        at_anns.on(
            "requestfailed", lambda request: failed.append(request.url) if "/send/" in request.url else None
        )
        at_anns.context.set_offline(True)
        for text in texts:
            self.send(at_anns, text)
        expect(at_anns.locator(".drm-pending .drm-body")).to_have_text(texts)
        expect(at_anns.locator(".drm-pending").first).to_contain_text("Waiting for a connection")
        self.send(at_bobs, "And juice")
        expect_sent(at_bobs, "And juice")
        wait_until(at_anns, lambda: len(failed) >= ATTEMPTS)
        expect(at_anns.locator(".drm-pending .drm-body")).to_have_text(texts)
        at_anns.context.set_offline(False)

    def lose_session_with_draft(self, at_anns: Page) -> None:
        """Ann's session ends while she writes; what she sends, and what she types then, stays."""
        cookies = {one["name"]: one["value"] for one in at_anns.context.cookies()}
        Session.objects.filter(session_key=cookies["sessionid"]).delete()
        self.send(at_anns, "I have a blanket")
        expect(at_anns.locator("#drm-status").get_by_role("link", name="Sign in")).to_be_visible()
        at_anns.get_by_label("Message", exact=True).fill("And a frisb")

    def sign_in_again(self, at_anns: Page, ann: Member) -> None:
        """Ann follows the link, signs in, and is where she was."""
        with at_anns.expect_navigation(url=re.compile("/login/")):
            at_anns.locator("#drm-status").get_by_role("link", name="Sign in").click()
        browser.sign_in(at_anns.context, ann, at_anns.url)
        at_anns.go_back()
        at_anns.evaluate(browser.MODULES)
        expect(at_anns.get_by_label("Message", exact=True)).to_have_value("And a frisb")


#: whether the last message of the room has this text, and is sent
LAST = """
const [text] = arguments;
const bodies = [...document.querySelectorAll("#drm-log .drm-body")];
return bodies.at(-1)?.textContent.trim() === text && !document.querySelector(".drm-pending");
"""
#: whether the room with this title is open
OPEN = """
const [title] = arguments;
return document.querySelector("#drm-title bdi")?.textContent === title && document.title.includes(title);
"""
WATCH = "window.isSame = true; window.errors = []; addEventListener('error', e => errors.push(e.message))"


@pytest.mark.browser
@pytest.mark.timing
@pytest.mark.django_db(transaction=True)
class TestFirefox:
    """All other tests of the pages run in Chromium."""

    @pytest.fixture
    def window(self, tmp_path: Path, site: Site) -> Iterator[Firefox]:
        """A window, closed before the site stops."""
        with firefox.open_firefox(tmp_path) as found:
            yield found

    def test_a_conversation(self, window: Firefox, site: Site, ann: Member, bob: Member) -> None:
        lunch, trip = (Chat.create(bob, [ann], f"{title}?", title=title) for title in ("Lunch", "Trip"))
        window.goto(site.url + "/static/django_redis_messaging/common.js")
        cookie = {"name": "sessionid", "value": client_of(ann).cookies["sessionid"].value}
        window.do("WebDriver:AddCookie", cookie=cookie)
        window.goto(site.url + reverse("messaging:room", args=[lunch.id]))
        window.until(LAST, "Lunch?")
        window.run(WATCH)
        window.until("return document.activeElement.id === 'drm-body'")
        window.type("#drm-body", "Pasta!\ue007")  # Enter
        window.until(LAST, "Pasta!")
        lunch.send(bob, "At noon")
        window.until(LAST, "At noon")
        assert bodies(lunch, bob) == ["Lunch?", "Pasta!", "At noon"]
        window.type("#drm-body", "A draft")
        window.click(f'.drm-row[data-id="{trip.id}"] > a')
        window.until(OPEN, "Trip")
        window.until(LAST, "Trip?")
        window.back()
        window.until(OPEN, "Lunch")
        window.until("return document.getElementById('drm-body').value === 'A draft'")
        assert window.run("return [window.isSame, errors]") == [True, []]
        window.until("return !document.querySelector('.drm-row [aria-current] .drm-badge')")
        assert lunch.changes(ann, after=0).unread == 0
