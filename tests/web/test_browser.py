"""The pages in a real browser, with a strict Content-Security-Policy and no errors in the console."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect
from pytest_django import Settings

from django_redis_messaging import Chat, Inbox
from django_redis_messaging.services.directories.recent import RecentContacts

from ..support import content_policies
from .conftest import client_of
from .test_pages import HOSTILE

#: ms: a page that has been idle for long polls every 15 s
TIMEOUT = 30_000
#: makes all timeouts of the pages four times shorter, in the same proportions
FAST = """
const { setTimeout } = window;
window.setTimeout = (act, ms, ...rest) => setTimeout(act, ms / 4, ...rest);
"""

#: resolves once all modules of the page have run: before, Enter in the message field is a line break
MODULES = (
    "Promise.all([...document.scripts].filter(one => one.type === 'module').map(one => import(one.src)))"
)

Visit = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser, server_url: str, settings: Settings) -> Iterator[Visit]:
    """Opens a page in a separate browser context, signed in as a user."""
    settings.TEST_POLICY = content_policies.SELF
    errors: list[str] = []
    contexts = []

    def record(message: ConsoleMessage) -> None:
        # Requests of the browser itself, and those that a test blocks, may fail.
        if message.type == "error" and "Failed to load resource" not in message.text:
            errors.append(message.text)

    def open_(user: User, name: str = "chats", *args: Any, fast: bool = True, **options: Any) -> Page:
        context = browser.new_context(base_url=server_url, **options)
        contexts.append(context)
        if fast:
            context.add_init_script(FAST)
        session = client_of(user).cookies["sessionid"].value
        context.add_cookies([{"name": "sessionid", "value": session, "url": server_url}])
        page = context.new_page()
        page.set_default_timeout(TIMEOUT)
        page.on("console", record)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(f"a dialog: {dialog.message}"))
        response = page.goto(reverse(f"messaging:{name}", args=args))
        assert response and response.headers["content-security-policy"]
        return page

    yield open_
    for context in contexts:
        context.close()
    assert errors == []


def violations(page: Page) -> dict[str, list[str]]:
    """Accessibility violations of the page in light and dark mode, with their elements."""
    found: dict[str, list[str]] = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.reload()  # or transitions would blend the colours
        for one in Axe().run(page).response["violations"]:
            found.setdefault(one["id"], []).extend(f"{scheme}: {node['html']}" for node in one["nodes"])
    return found


def send(page: Page, text: str) -> None:
    page.evaluate(MODULES)
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def choose(page: Page, message_id: int, option: str) -> None:
    """Choose an option of a message."""
    page.evaluate(MODULES)
    page.locator(f"#m{message_id}").hover()
    page.locator(f"#m{message_id} .drm-dots").click()
    page.get_by_role("menuitem", name=option, exact=True).click()


def expect_message(page: Page, text: str) -> None:
    expect(page.locator(".drm-log .drm-body", has_text=text)).to_be_visible(timeout=TIMEOUT)


def test_two_users_chat(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann", first_name="Ann"), person("bob", first_name="Bob")
    at_bobs = visit(bob)
    at_anns = visit(ann, "new")
    at_anns.get_by_role("combobox", name="Search people").fill("bo")
    at_anns.get_by_role("option", name="Bob").click()
    at_anns.get_by_label("Title").fill("Lunch")
    at_anns.get_by_label("First message").fill("Pizza?")
    at_anns.get_by_role("button", name="Start chat").click()
    row = at_bobs.locator(".drm-row", has_text="Lunch")
    expect(row.locator(".drm-badge")).to_contain_text("1", timeout=TIMEOUT)
    expect(at_bobs).to_have_title(re.compile(r"^\(1\)"))
    row.get_by_role("link").click()
    expect_message(at_bobs, "Pizza?")
    send(at_bobs, "Pasta!")
    expect_message(at_anns, "Pasta!")
    send(at_anns, "Two lines:\nsee https://example.org/menu.")
    expect_message(at_bobs, "Two lines:\nsee https://example.org/menu.")
    expect(at_bobs.get_by_role("link", name="https://example.org/menu", exact=True)).to_be_visible()
    expect(at_anns.locator("#drm-seen")).to_have_text("Seen by Bob", timeout=TIMEOUT)
    expect(at_anns.locator(".drm-pending")).to_have_count(0)
    assert Inbox(str(ann.pk)).unread() == Inbox(str(bob.pk)).unread() == 0


def test_a_third_user_leaves_the_page_and_returns(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob, cat = (person(name) for name in ("ann", "bob", "cat"))
    chat = Chat.create(str(ann.pk), [str(bob.pk), str(cat.pk)], "Who is in?", title="Trip")
    at_cats = visit(cat, "room", chat.id)
    send(at_cats, "Me")
    expect_message(at_cats, "Me")
    expect(at_cats.locator(".drm-row")).to_contain_text("Me", timeout=TIMEOUT)
    expect(at_cats.locator(".drm-badge")).to_have_count(0, timeout=TIMEOUT)
    at_cats.goto("about:blank")
    at_anns, at_bobs = visit(ann, "room", chat.id), visit(bob, "room", chat.id)
    for number in range(3):
        send(at_anns, f"Ann {number}")
        expect_message(at_bobs, f"Ann {number}")
        send(at_bobs, f"Bob {number}")
        expect_message(at_anns, f"Bob {number}")
    at_cats.goto(reverse("messaging:chats"))
    expect(at_cats.locator(".drm-badge")).to_contain_text("6")
    at_cats.get_by_role("link", name="Trip").click()
    expect(at_cats.locator("#drm-unread + .drm-message")).to_contain_text("Ann 0")
    bodies = at_cats.locator(".drm-log .drm-body").all_inner_texts()
    assert bodies == ["Who is in?", "Me", "Ann 0", "Bob 0", "Ann 1", "Bob 1", "Ann 2", "Bob 2"]
    at_cats.locator(".drm-message").last.scroll_into_view_if_needed()
    expect(at_cats.locator(".drm-badge")).to_have_count(0, timeout=TIMEOUT)
    at_cats.reload()
    expect(at_cats.locator("#drm-unread")).to_have_count(0)


def test_pages_are_accessible(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann", first_name="Ann"), person("bob", first_name="Bob")
    chat = Chat.create(str(ann.pk), [str(bob.pk)], "See https://example.org/menu.", title="Lunch")
    chat.send(str(bob.pk), "Yes!")
    page = visit(ann)
    for name, *args in (("chats",), ("contacts",), ("new",), ("room", chat.id), ("message", chat.id, 1)):
        page.goto(reverse(f"messaging:{name}", args=args))
        assert violations(page) == {}


def test_without_javascript(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob, cat = (person(name) for name in ("ann", "bob", "cat"))
    page = visit(ann, "new", java_script_enabled=False)
    for name in ("bob", "cat"):
        page.get_by_label("Search people").fill(name)
        page.get_by_role("button", name="Search").click()
        page.get_by_role("checkbox", name=name).last.check()
    page.get_by_label("Title").fill("Plain")
    page.get_by_role("button", name="Start chat").click()
    page.get_by_label("Message", exact=True).fill("By form")
    page.get_by_role("button", name="Send").click()
    assert page.url.endswith("?at=1#m1")  # what was sent is in sight
    expect_message(page, "By form")
    assert [chat.unread for user in (bob, cat) for chat in Inbox(str(user.pk)).chats()] == [1, 1]
    page.get_by_role("link", name="Message options").click()
    page.get_by_role("link", name="Edit").click()
    page.get_by_label("Message", exact=True).fill("Edited by form")
    page.get_by_role("button", name="Save").click()
    expect_message(page, "Edited by form")
    (chat,) = Inbox(str(bob.pk)).chats()
    Chat(chat.chat_id).send(str(bob.pk), "An answer")
    page.reload()
    expect_message(page, "An answer")
    page.get_by_role("button", name="Mark as read").click()
    assert Inbox(str(ann.pk)).unread() == 0
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
    page.get_by_role("button", name="Remove cat").click()
    assert Inbox(str(cat.pk)).chats() == []
    page.get_by_text("Leave this chat").click()
    page.get_by_role("button", name="Leave").click()
    expect(page.get_by_text("No chats yet.")).to_be_visible()


def test_keyboard_only(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob, cat = (person(name) for name in ("ann", "bob", "cat"))
    RecentContacts(str(ann.pk)).touch(str(cat.pk))
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
    expect(options).to_have_text([re.compile("cat"), re.compile("bob")])
    box = page.get_by_role("combobox", name="Search people")
    press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    selected = options.nth(1).get_attribute("id")
    assert selected
    expect(box).to_have_attribute("aria-activedescendant", selected)
    press("Enter")
    expect(page.locator(".drm-chip")).to_have_text([re.compile("bob")])
    page.keyboard.type("ca")
    expect(options).to_have_count(1)
    press("Escape")
    expect(options).to_have_count(0)
    expect(box).to_have_attribute("aria-expanded", "false")
    press("ArrowDown")
    expect(options).to_have_count(1)
    press("Enter")
    press("Backspace")
    expect(page.locator(".drm-chip")).to_have_text([re.compile("bob")])
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
    (chat,) = Inbox(str(bob.pk)).chats()
    assert (chat.unread, chat.member_count) == (2, 2)
    for _ in range(60):
        press("Shift+Tab")
        if page.evaluate("document.activeElement.matches('.drm-settings > summary')"):
            break
    press("Enter")
    expect(page.get_by_role("button", name="Mute")).to_be_visible()
    press("Escape")
    expect(page.get_by_role("button", name="Mute")).to_be_hidden()


def test_html_in_texts_is_escaped(visit: Visit, person: Callable[..., User]) -> None:
    ann = person("ann", first_name=HOSTILE)
    bob = person("bob", first_name=HOSTILE[:140], last_name="Bob")
    chat = Chat.create(str(bob.pk), [str(ann.pk)], HOSTILE, title=HOSTILE)
    page = visit(ann, "room", chat.id)
    expect(page.locator("#drm-title")).to_have_text(HOSTILE)
    chat.send(str(bob.pk), f"Late {HOSTILE}")
    expect_message(page, f"Late {HOSTILE}")
    send(page, f"Own {HOSTILE}")
    expect_message(page, f"Own {HOSTILE}")
    page.goto(reverse("messaging:new"))
    page.get_by_role("combobox").fill("bob")
    page.get_by_role("option").click()
    expect(page.locator(".drm-chip bdi")).to_have_text(f"{HOSTILE} Bob")
    for name in ("chats", "contacts"):
        page.goto(reverse(f"messaging:{name}"))
    assert page.locator(".drm img, .drm script:not([src])").count() == 0


def test_a_message_is_sent_once_if_replies_are_lost(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann"), person("bob")
    chat = Chat.create(str(ann.pk), [str(bob.pk)])
    page = visit(ann, "room", chat.id)
    lost: list[str] = []

    def lose_twice(route: Route) -> None:
        if len(lost) >= 2:
            route.continue_()
            return
        lost.append(route.request.post_data or "")
        route.fetch()
        route.abort()

    page.route("**/send/**", lose_twice)
    send(page, "Only once")
    expect(page.locator(".drm-pending")).to_have_count(1)
    expect(page.locator(".drm-pending")).to_have_count(0, timeout=TIMEOUT)
    expect_message(page, "Only once")
    assert len(lost) == 2 and lost[0] == lost[1]
    assert [message.body for message in chat.history(str(bob.pk)).messages] == ["Only once"]


def test_a_failed_message_can_be_retried(
    visit: Visit, person: Callable[..., User], settings: Settings
) -> None:
    ann = person("ann")
    chat = Chat.create(str(ann.pk), [])
    page = visit(ann, "room", chat.id)
    page.route(
        "**/send/**",
        lambda route: route.fulfill(status=413, json={"error": {"code": "too_long", "message": "Long"}}),
    )
    send(page, "Later")
    failed = page.locator(".drm-failed")
    expect(failed).to_contain_text("Long")
    page.unroute("**/send/**")
    failed.get_by_role("button", name="Try again").click()
    expect(page.locator(".drm-message[data-id]")).to_contain_text("Later")
    expect(failed).to_have_count(0)


def test_edits_and_deletions_reach_other_users(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann"), person("bob")
    chat = Chat.create(str(ann.pk), [str(bob.pk)], "First")
    chat.send(str(ann.pk), "Second")
    at_anns, at_bobs = visit(ann, "room", chat.id), visit(bob, "room", chat.id)
    choose(at_anns, 1, "Edit")
    expect(at_anns.get_by_label("Message", exact=True)).to_have_value("First")
    send(at_anns, "First, better")
    expect_message(at_anns, "First, better")
    expect_message(at_bobs, "First, better")
    choose(at_anns, 2, "Delete")
    at_anns.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    choose(at_anns, 2, "Delete")
    at_anns.get_by_role("dialog").get_by_role("button", name="Delete").click()
    for page in (at_anns, at_bobs):
        expect(page.locator("#m2")).to_contain_text("Message deleted", timeout=TIMEOUT)
        expect(page.locator(".drm-message[data-id]")).to_have_count(2)


def test_a_failing_update_is_shown_and_polling_continues(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann"), person("bob")
    chat = Chat.create(str(ann.pk), [str(bob.pk)], "One")
    page = visit(ann, "room", chat.id)
    # Coming online makes the page poll soon.
    page.evaluate("setInterval(() => dispatchEvent(new Event('online')), 200)")
    with page.expect_response(lambda response: response.status == 304):
        pass  # an idle poll receives no content
    page.evaluate("console.error = (error) => { window.logged = String(error); }")
    page.route("**/feed/?after=*", lambda route: route.fulfill(json={"messages": 1}), times=1)
    expect(page.locator("#drm-status")).to_have_text("Something went wrong.")
    assert "TypeError" in page.evaluate("window.logged")
    chat.send(str(bob.pk), "Two")
    expect(page.locator(".drm-message")).to_have_count(2)
    expect(page.locator("#drm-status")).to_have_text("")
    chat.edit(str(ann.pk), 1, "Edited")
    missed = {"messages": [], "edits_missed": True}
    page.locator("#drm-body").fill("Typed")
    page.route("**/feed/?after=*", lambda route: route.fulfill(json=missed), times=1)
    expect(page.locator(".drm-message").first).to_contain_text("Edited")
    assert page.locator("#drm-body").input_value() == "Typed"


def test_polls_do_not_replace_unchanged_elements(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann"), person("bob")
    chat = Chat.create(str(ann.pk), [str(bob.pk)], "Kept", title="One")
    Chat.create(str(ann.pk), [str(bob.pk)], "Other", title="Two")
    page = visit(ann, "room", chat.id)
    page.wait_for_event("response", lambda response: "/chats/" in response.url and "feed" in response.url)
    with page.expect_response(lambda response: response.url.split("?")[0].endswith("/messages/feed/")):
        pass
    page.evaluate("document.querySelectorAll('.drm-message, .drm-row').forEach(item => { item.kept = true })")
    chat.send(str(bob.pk), "New")
    expect_message(page, "New")
    expect(page.locator(".drm-row", has_text="One")).to_contain_text("New", timeout=TIMEOUT)
    assert page.locator("#m1").evaluate("item => item.kept")
    assert page.locator(".drm-row", has_text="Two").evaluate("item => item.kept")


def test_a_narrow_screen_shows_one_pane_at_a_time(visit: Visit, person: Callable[..., User]) -> None:
    ann = person("ann")
    chat = Chat.create(str(ann.pk), [], "Hello", title="Small")
    page = visit(ann, viewport={"width": 390, "height": 844})
    expect(page.locator(".drm-room")).to_be_hidden()
    page.get_by_role("link", name="Small").click()
    expect(page.locator(".drm-list")).to_be_hidden()
    expect_message(page, "Hello")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("link", name="All chats").click()
    expect(page).to_have_url(re.compile(re.escape(reverse("messaging:chats")) + "$"))
    assert chat.info().last_id == 1
