"""The frame of the pages in a real browser: colours, sizes, the list of chats, the account menu."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Page, expect
from pytest_django import Settings

from django_redis_messaging import Chat
from django_redis_messaging.web.views.chats import CHATS_PER_PAGE

from ..support.page_states import KEEP, build_world
from .test_browser import MODULES, TIMEOUT, Visit, choose, send, violations, visit
from .test_room_browser import filled, many_chats
from .test_site import Alone

__all__ = ["visit"]  # the fixture

WEB_DOCS = Path(__file__).parents[2] / "docs" / "web.md"
#: width and height of phones (upright, and on their side), a tablet, and a desktop: px
SIZES = [(360, 740), (740, 360), (768, 1024), (1440, 900)]
#: counts how far the layout has shifted
SHIFTS = """
window.shifted = 0;
new PerformanceObserver(list => { for (const { value } of list.getEntries()) window.shifted += value; })
  .observe({ type: "layout-shift", buffered: true });
"""
#: the buttons that are narrower than their text
CUT_BUTTONS = """[...document.querySelectorAll(".drm button, .drm-button")]
  .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent)"""
#: what is stored of what was typed
TEXTS = """() => Object.entries(localStorage).filter(([key]) => key.startsWith("drm:"))
  .map(([, value]) => JSON.parse(value).text).sort()"""
#: how visible an element is: {x, y, width, height} and those of the window
BOX = "item => { const box = item.getBoundingClientRect(); return [box.x, box.y, box.right, box.bottom]; }"


def fits(page: Page, selector: str) -> bool:
    """Whether an element is inside the window."""
    left, top, right, bottom = page.locator(selector).first.evaluate(BOX)
    size = page.viewport_size
    assert size
    return bool(left >= 0 and top >= 0 and right <= size["width"] + 1 and bottom <= size["height"] + 1)


@pytest.mark.parametrize("is_staff", [True, False])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_room_fits_into_the_window(
    visit: Visit, person: Callable[..., User], width: int, height: int, is_staff: bool
) -> None:
    ann = person("ann", is_staff=is_staff)
    chat = Chat.create(str(ann.pk), [str(person("bob").pk)], "First", title="Lunch")
    page = visit(ann, "room", chat.id, viewport={"width": width, "height": height})
    page.evaluate(MODULES)
    room = page.locator(".drm-room").evaluate(BOX)
    assert room[2] - room[0] >= min(340, width)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if height >= 500:
        assert fits(page, ".drm-composer")
    page.locator("#m1").hover()
    page.locator("#m1 .drm-dots").click()
    page.get_by_role("menuitem", name="Delete").scroll_into_view_if_needed()
    assert fits(page, "#drm-menu")


@pytest.mark.parametrize("frame", ["own", "staff"])
def test_no_page_scrolls_to_blank(
    visit: Visit, person: Callable[..., User], settings: Settings, frame: str
) -> None:
    """Only the list and the room scroll, even if they are long."""
    if frame == "own":
        settings.ROOT_URLCONF, settings.LOGIN_URL = Alone, "/login/"
    ann, bob = person("ann", is_staff=frame == "staff"), person("bob")
    many_chats(ann, bob)
    room = filled(bob, ann, 500)
    page = visit(ann)
    for name, *args in (("chats",), ("room", room.id)):
        page.goto(reverse(f"messaging:{name}", args=args))
        page.evaluate(MODULES)
        for width, height in ((1440, 900), (768, 1024), (360, 740)):
            page.set_viewport_size({"width": width, "height": height})
            page.evaluate("for (const one of document.querySelectorAll('.drm *')) one.scrollTop = 1e6")
            fits = page.evaluate("document.documentElement.scrollHeight <= innerHeight")
            assert fits and page.evaluate("scrollY") == 0, (name, width)


#: px between the menu and what it acts on, horizontally and vertically
GAPS = """() => {
  const [menu, dots] = ["#drm-menu", ".drm-dots[aria-expanded=true]"].map(
    selector => document.querySelector(selector).getBoundingClientRect());
  const gap = (start, end) => Math.max(0, menu[start] - dots[end], dots[start] - menu[end]);
  return [gap("left", "right"), gap("top", "bottom")];
}"""


def test_options_are_beside_their_message_and_inside_the_window(
    visit: Visit, person: Callable[..., User]
) -> None:
    ann, bob = person("ann"), person("bob")
    chat = Chat.create(str(ann.pk), [str(bob.pk)], title="Lunch")
    for number in range(1, 13):
        chat.send(str((bob, ann)[number % 2].pk), "A line.\n" * (60 if number == 10 else 1))
    chat.ack(str(ann.pk), 12)
    page = visit(ann, "room", chat.id)
    page.evaluate(MODULES)
    for width, height in [*SIZES, (600, 900), (320, 400)]:
        page.set_viewport_size({"width": width, "height": height})
        for number in (12, 11, 10, 1):
            page.locator(f"#m{number}").scroll_into_view_if_needed()
            page.locator(f"#m{number}").focus()
            page.keyboard.press("Enter")
            assert fits(page, "#drm-menu"), (width, height, number)
            assert max(page.evaluate(GAPS)) <= 1, (width, height, number)
            expect(page.get_by_role("menuitem").first).to_be_focused()
            page.keyboard.press("Escape")
            expect(page.locator(f"#m{number}")).to_be_focused()
            expect(page.locator("#drm-menu")).to_be_hidden()
    # The menu follows the message, and closes when that is out of sight.
    page.keyboard.press("Enter")
    chat.send(str(bob.pk), "Another line.")
    expect(page.locator("#m13")).to_be_attached(timeout=TIMEOUT)
    assert max(page.evaluate(GAPS)) <= 1
    page.locator("#drm-scroll").evaluate("one => { one.scrollTop = one.scrollHeight }")
    expect(page.locator("#drm-menu")).to_be_hidden()


def test_a_long_press_opens_the_options(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann"), person("bob")
    text = "One\nTwo\nThree\nFour\nFive https://example.org/"
    chat = Chat.create(str(bob.pk), [str(ann.pk)], text, title="Lunch")
    page = visit(ann, "room", chat.id, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate(MODULES)
    touch = page.context.new_cdp_session(page).send
    menu = page.locator("#drm-menu")

    def press(selector: str, *moves: int) -> None:
        box = page.locator(selector).bounding_box()
        assert box
        for index, move in enumerate((0, *moves)):
            point = {"x": box["x"] + 10, "y": box["y"] + box["height"] / 2 + move}
            kind = "touchMove" if index else "touchStart"
            touch("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [point]})
        page.wait_for_timeout(200)  # longer than LONG_PRESS
        touch("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    press("#m1 .drm-body", 10, 30)
    press("#m1 .drm-body a")
    expect(menu).to_be_hidden()
    press("#m1 .drm-body")
    expect(menu).to_be_visible()
    assert fits(page, "#drm-menu")
    page.get_by_role("menuitem", name="Copy text").tap()
    expect(page.locator("#drm-status")).to_have_text("Text copied.")
    assert page.evaluate("navigator.clipboard.readText()") == text
    press("#m1 .drm-body")
    page.locator("#drm-title").tap()
    expect(menu).to_be_hidden()


@pytest.mark.parametrize("name", ["room", "chats"])
def test_targets_are_large_enough_for_fingers(visit: Visit, person: Callable[..., User], name: str) -> None:
    ann = person("ann")
    chat = Chat.create(str(ann.pk), [str(person("bob").pk)], "First", title="Lunch")
    args = [chat.id] if name == "room" else []
    page = visit(ann, name, *args, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page.evaluate(MODULES)
    targets = page.locator(
        ".drm :is(a, button, summary):visible:not(.drm-skip, .drm-author a, .drm-head-text a)"
    )
    sizes: dict[str, Any] = {}
    for target in targets.all():
        box = target.bounding_box()
        assert box
        if min(box["width"], box["height"]) < 44:
            sizes[target.evaluate("item => item.outerHTML")[:120]] = (box["width"], box["height"])
    assert {text: size for text, size in sizes.items() if "drm-button" not in text or size[1] < 43} == {}


@pytest.mark.parametrize(("width", "text_size"), [(360, "100%"), (320, "100%"), (360, "200%")])
def test_nothing_is_wider_than_a_phone(
    visit: Visit, person: Callable[..., User], settings: Settings, width: int, text_size: str
) -> None:
    """In German, which has longer words, with a long line of code, and with large text."""
    settings.LANGUAGE_CODE = "de"
    world = build_world(person, staff=False)
    world.crew.send(str(world.bob.pk), f"```\n{'a_long_line ' * 20}\n```")
    page = visit(world.alice, viewport={"width": width, "height": 740}, has_touch=True, is_mobile=True)
    room = [world.crew.id]
    pages = {"room": room, "details": room, "notifications": [], "blocks": [], "contacts": []}
    for name, args in pages.items():
        page.goto(reverse(f"messaging:{name}", args=args))
        page.evaluate(MODULES)
        page.evaluate(
            """size => {
                const sheet = new CSSStyleSheet();
                sheet.replaceSync(`html { font-size: ${size} !important }`);
                document.adoptedStyleSheets = [sheet];
            }""",
            text_size,
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT_BUTTONS) == []
        if name == "room":
            scroll = page.locator("#drm-scroll")
            assert scroll.evaluate("item => item.scrollWidth <= item.clientWidth")
            # One bar: the title and the way back are its own.
            assert page.locator(".drm-head").evaluate(BOX)[1] == 0
            expect(page.locator(".drm-nav, #header").locator("visible=true")).to_have_count(0)
        else:
            assert page.locator("h1").evaluate("item => item.scrollWidth <= item.clientWidth")


@pytest.mark.parametrize(("width", "height"), [(360, 740), (1440, 900)])
def test_the_layout_does_not_shift(
    visit: Visit, person: Callable[..., User], width: int, height: int
) -> None:
    """For staff, who have the sidebar of the admin, and with a note about text of another user."""
    world = build_world(person, staff=True)
    page = visit(world.alice, viewport={"width": width, "height": height})
    page.add_init_script(SHIFTS)
    page.evaluate(KEEP)
    room = [world.crew.id]
    pages: dict[str, list[Any]] = {
        name: [] for name in ("chats", "new", "contacts", "notifications", "blocks")
    }
    pages |= dict.fromkeys(("room", "details", "add", "search"), room) | {"message": [*room, 6]}
    urls = {name: reverse(f"messaging:{name}", args=args) for name, args in pages.items()}
    urls["person"] = f"{reverse('messaging:person')}?id={world.bob.pk}&chat={world.crew.id}"
    shifted = {}
    for name, url in urls.items():
        page.goto(url)
        page.evaluate(MODULES)
        page.wait_for_load_state("networkidle")
        expect(page.locator("#drm-kept")).to_be_visible()
        shifted[name] = page.evaluate("window.shifted")
    assert {name: value for name, value in shifted.items() if value > 0.05} == {}


def test_enter_makes_a_new_line_on_a_touch_screen(visit: Visit, person: Callable[..., User]) -> None:
    ann = person("ann")
    chat = Chat.create(str(ann.pk), [], title="Notes")
    page = visit(ann, "room", chat.id, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page.evaluate(MODULES)
    field = page.locator("#drm-body")
    field.fill("One")
    field.press("Enter")
    page.keyboard.type("Two")
    expect(field).to_have_value("One\nTwo")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#m1 .drm-body")).to_have_text("One\nTwo")


class TestColours:
    def background(self, page: Page) -> str:
        return str(page.locator(".drm").evaluate("item => getComputedStyle(item).backgroundColor"))

    def test_a_site_with_a_light_base_stays_light(
        self, visit: Visit, person: Callable[..., User], settings: Settings
    ) -> None:
        page = visit(person("ann"), color_scheme="dark")
        assert self.background(page) == "rgb(18, 18, 18)"  # the admin's
        page.evaluate("document.body.classList.remove('drm-themed')")
        page.evaluate("document.documentElement.dataset.theme = 'light'")  # the admin's colours
        assert self.background(page) == "rgb(255, 255, 255)"
        assert violations_now(page) == []

    def test_our_own_frame_follows_the_system_and_the_choice(
        self, visit: Visit, person: Callable[..., User], settings: Settings
    ) -> None:
        settings.ROOT_URLCONF = Alone
        page = visit(person("ann"), color_scheme="dark")
        assert self.background(page) == "rgb(18, 20, 23)"
        page.get_by_text("Account").locator("..").click()
        page.get_by_role("button", name="Light").click()
        assert self.background(page) == "rgb(255, 255, 255)"
        page.reload()
        assert self.background(page) == "rgb(255, 255, 255)"
        assert violations(page) == {}


def test_the_example_of_a_restyled_site(
    visit: Visit, person: Callable[..., User], settings: Settings
) -> None:
    settings.ROOT_URLCONF = Alone
    world = build_world(person, staff=False)
    page = visit(world.alice, "room", world.crew.id, viewport={"width": 1280, "height": 640})
    page.evaluate(MODULES)
    style = re.findall(r"```css\n(.*?)```", WEB_DOCS.read_text(), re.DOTALL)[0]
    page.evaluate(
        "text => {const s = new CSSStyleSheet(); s.replaceSync(text); document.adoptedStyleSheets = [s]}",
        style,
    )
    for scheme, mine in (("light", "rgb(246, 223, 233)"), ("dark", "rgb(74, 31, 52)")):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert (
            page.locator("#m1 .drm-bubble").evaluate("one => getComputedStyle(one).backgroundColor") == mine
        )
        assert violations_now(page) == []
    if path := os.environ.get("SCREENSHOTS"):
        page.emulate_media(color_scheme="light")
        page.screenshot(path=Path(path) / "restyled.png")


def violations_now(page: Page) -> list[str]:
    """The elements that violate rules of accessibility, as the page is."""
    # Or colours would be measured while they change.
    page.evaluate("Promise.allSettled(document.getAnimations().map(one => one.finished))")
    found = Axe().run(page).response["violations"]
    return [node["html"] + node["failureSummary"] for one in found for node in one["nodes"]]


class TestList:
    def test_a_long_list_does_not_make_the_page_scroll(
        self, visit: Visit, person: Callable[..., User]
    ) -> None:
        """Texts for screen readers are positioned: they stay inside of the list."""
        ann, bob = person("ann"), person("bob")
        for number in range(60):
            chat = Chat.create(str(bob.pk), [str(ann.pk)], "Text", title=f"Chat {number}")
        page = visit(ann, "room", chat.id)
        page.evaluate(MODULES)
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            assert page.evaluate("document.documentElement.scrollHeight <= Math.max(innerHeight, 420)")

    def test_the_second_page_stays_as_it_is(self, visit: Visit, person: Callable[..., User]) -> None:
        ann = person("ann")
        for number in range(CHATS_PER_PAGE + 5):
            Chat.create(str(ann.pk), [], title=f"Chat {number}")
        page = visit(ann)
        page.get_by_role("link", name="More chats").click()
        page.evaluate(MODULES)
        expect(page.locator(".drm-row")).to_have_count(5)
        page.wait_for_event("response", lambda response: "/bell/" in response.url)  # polled later than a list
        expect(page.locator(".drm-row")).to_have_count(5)

    def test_the_first_poll_replaces_no_row(self, visit: Visit, person: Callable[..., User]) -> None:
        ann = person("ann")
        for number in range(3):
            Chat.create(str(ann.pk), [], "Text", title=f"Chat {number}")
        page = visit(ann)
        page.evaluate("document.querySelectorAll('.drm-row').forEach(row => { row.kept = true })")
        with page.expect_response(re.compile("/feed/")):
            page.evaluate(MODULES)
        page.wait_for_load_state("networkidle")
        assert page.locator(".drm-row").evaluate_all("rows => rows.map(row => row.kept)") == [True] * 3

    def test_the_filter(self, visit: Visit, person: Callable[..., User]) -> None:
        ann = person("ann")
        for title in ("Lunch", "Release"):
            Chat.create(str(ann.pk), [], title=title)
        page = visit(ann)
        page.evaluate(MODULES)
        page.get_by_label("Filter chats").fill("lUN")
        expect(page.locator(".drm-row:visible")).to_have_text(re.compile("Lunch"))


def test_signing_out_removes_drafts_after_a_warning(visit: Visit, person: Callable[..., User]) -> None:
    ann = person("ann")
    chat = Chat.create(str(ann.pk), [], title="Notes")
    page = visit(ann, "room", chat.id)
    page.evaluate(MODULES)
    page.locator("#drm-body").fill("A secret")
    assert page.evaluate("Object.keys(localStorage).some(key => key.startsWith('drm:'))")
    page.evaluate(KEEP)
    page.evaluate("window.confirm = (text) => { window.asked = text; return false; }")
    page.get_by_text("Account").locator("..").click()
    sign_out = page.get_by_role("button", name="Sign out")
    sign_out.click()
    assert "will be removed from this browser" in page.evaluate("window.asked")
    assert page.evaluate(TEXTS) == ["A secret", "Kept"]
    page.evaluate("window.confirm = () => true")
    with page.expect_navigation():
        sign_out.click()
    page.goto("/static/django_redis_messaging/frame.js")
    assert page.evaluate(TEXTS) == ["Kept"]


def test_states_of_a_room_are_accessible(visit: Visit, person: Callable[..., User]) -> None:
    """Deleted, failed, quoted, found and pending messages, a menu, the settings, and a dialog."""
    ann, bob = person("ann"), person("bob")
    chat = Chat.create(str(ann.pk), [str(bob.pk)], "First", title="Lunch")
    chat.send(str(bob.pk), "Second", reply_to=1)
    chat.delete_message(str(bob.pk), 2)
    chat.send(str(bob.pk), "Third `code`", reply_to=1)
    page = visit(ann, "room", chat.id)
    page.route("**/send/**", lambda route: route.fulfill(status=413, json={"error": {"message": "Too long"}}))
    send(page, "Refused")
    expect(page.locator(".drm-failed")).to_be_visible(timeout=TIMEOUT)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert violations_now(page) == []
    choose(page, 1, "Delete")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert violations_now(page) == []
    page.get_by_role("button", name="Cancel").click()
    page.locator(".drm-settings summary").click()
    assert violations_now(page) == []
    page.goto(reverse("messaging:details", args=[chat.id]))
    assert violations_now(page) == []
    page.goto(f"{reverse('messaging:search', args=[chat.id])}?q=first")
    assert violations_now(page) == []
    page.goto(f"{reverse('messaging:person')}?id={bob.pk}&chat={chat.id}")
    assert violations_now(page) == []
