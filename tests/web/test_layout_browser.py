"""The pages in windows of all sizes, in colours and layouts of sites, and on phones, in a real browser.

The layouts of sites are those of docs/web.md, their style sheets are in layouts/.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import reverse
from playwright.sync_api import Frame, Page, expect
from pytest_django import Settings

from django_redis_messaging import Chat
from django_redis_messaging.web.views.chats import CHATS_PER_PAGE, RoomView

from ..support import content_policies
from ..support.browser import (
    DESKTOP,
    MODULES,
    PAINTED,
    PHONE,
    SHIFTS,
    Visit,
    expect_message,
    filled,
    fits_in_width,
    many_chats,
    open_account,
    open_menu,
    open_page,
    position,
    violations,
    violations_now,
    wait_for_position,
    wait_until,
)
from ..support.page_states import KEEP, build_world
from ..support.people import Member
from ..support.site_layouts import examples, use_layout
from .conftest import Alone, Members, Person

WEB_DOCS = Path(__file__).parents[2] / "docs" / "web.md"
LAYOUTS = Path(__file__).parent / "layouts"
#: width and height of phones (upright, and on their side), a tablet, and a desktop: px
SIZES = [(360, 740), (740, 360), (768, 1024), (1440, 900)]
#: the buttons that are narrower than their text
CUT_BUTTONS = """[...document.querySelectorAll(".drm button, .drm-button")]
  .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent)"""
#: the edges of an element
BOX = "item => { const box = item.getBoundingClientRect(); return [box.x, box.y, box.right, box.bottom]; }"
#: the links and buttons that are smaller than a finger, 44 px; a line below a button belongs to it
SMALL_TARGETS = """() => [...document.querySelectorAll(".drm :is(a, button, summary)")]
  .filter(one => one.checkVisibility({ visibilityProperty: true, opacityProperty: true })
    && one.getBoundingClientRect().width && !one.matches(".drm-skip, .drm-author a, .drm-head-text a"))
  .filter(one => {
    const { width, height } = one.getBoundingClientRect();
    return width < 44 || height < (one.outerHTML.slice(0, 120).includes("drm-button") ? 43 : 44);
  }).map(one => one.outerHTML.slice(0, 120))"""
#: counts only how far the pages have shifted, not the site: where it centres what is as wide as its content
OWN_SHIFTS = SHIFTS.replace(
    "const { value } of list.getEntries()",
    "const { value } of list.getEntries()"
    ".filter(one => one.sources.some(({ node }) => node?.parentElement?.closest('.drm')))",
)
#: changes the style of the page
STYLE = """text => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(text);
  document.adoptedStyleSheets = [sheet];
}"""
#: ms, once it is known
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
#: seconds between the parts of a page that arrives slowly
PART_INTERVAL = 0.05
MAX_HTML = 40_000
MAX_REQUESTS = 7


def fits(page: Page, selector: str) -> bool:
    """Whether an element is inside the window."""
    left, top, right, bottom = page.locator(selector).first.evaluate(BOX)
    size = page.viewport_size
    assert size
    return bool(left >= 0 and top >= 0 and right <= size["width"] + 1 and bottom <= size["height"] + 1)


class TestSizes:
    @pytest.mark.parametrize("is_staff", [True, False])
    def test_a_room_fits_into_the_window(
        self, visit: Visit, member: Members, bob: Member, is_staff: bool
    ) -> None:
        ann = member("ann", is_staff=is_staff)
        chat = Chat.create(ann, [bob], "First", title="Lunch")
        page = visit(ann, "room", chat.id)
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            open_page(page, "room", chat.id)
            room = page.locator(".drm-room").evaluate(BOX)
            assert room[2] - room[0] >= min(340, width)
            assert fits_in_width(page)
            if height >= 500:
                assert fits(page, ".drm-composer")
            open_menu(page, 1)
            page.get_by_role("menuitem", name="Delete").scroll_into_view_if_needed()
            assert fits(page, "#drm-menu")

    @pytest.mark.parametrize("frame", ["own", "staff"])
    def test_no_page_scrolls_to_blank(
        self, visit: Visit, member: Members, bob: Member, settings: Settings, frame: str
    ) -> None:
        """Only the list and the room scroll, even if they are long."""
        if frame == "own":
            settings.ROOT_URLCONF, settings.LOGIN_URL = Alone, "/login/"
        ann = member("ann", is_staff=frame == "staff")
        many_chats(ann, bob)
        room = filled(bob, ann, 500)
        page = visit(ann)
        for name, *args in (("chats",), ("room", room.id)):
            if args:
                open_page(page, name, *args)
            for width, height in SIZES:
                page.set_viewport_size({"width": width, "height": height})
                page.evaluate("for (const one of document.querySelectorAll('.drm *')) one.scrollTop = 1e6")
                assert page.evaluate("document.documentElement.scrollHeight <= Math.max(innerHeight, 420)")
                if height >= 500:
                    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), name
                    assert page.evaluate("scrollY") == 0, (name, width)

    @pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
    def test_the_layout_does_not_shift(self, visit: Visit, person: Person, size: dict[str, Any]) -> None:
        """For staff, who have the sidebar of the admin, and with a note about text of another user."""
        world = build_world(person, staff=True)
        page = visit(world.alice, script=SHIFTS, viewport=size["viewport"])
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
            expect(page.locator("#drm-kept")).to_be_visible()
            if name in ("chats", "room"):
                with page.expect_response("**/feed/**"):
                    pass
            page.evaluate(PAINTED)
            shifted[name] = page.evaluate("window.shifted")
        assert {name: value for name, value in shifted.items() if value > 0.05} == {}


class TestPhone:
    def test_one_pane_at_a_time_and_targets_for_fingers(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = Chat.create(ann, [bob], "First", title="Lunch")
        page = visit(ann, **PHONE)
        expect(page.locator(".drm-room")).to_be_hidden()
        assert page.evaluate(SMALL_TARGETS) == []
        page.get_by_role("link", name="Lunch").click()
        expect(page.locator(".drm-list")).to_be_hidden()
        expect_message(page, "First")
        assert fits_in_width(page)
        assert page.evaluate(SMALL_TARGETS) == []
        # On a touch screen, Enter is a line break.
        field = page.locator("#drm-body")
        field.fill("One")
        field.press("Enter")
        page.keyboard.type("Two")
        expect(field).to_have_value("One\nTwo")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#m2 .drm-body")).to_have_text("One\nTwo")
        page.get_by_role("link", name="All chats").click()
        expect(page).to_have_url(re.compile(re.escape(reverse("messaging:chats")) + "$"))
        assert chat.info().last_id == 2

    def test_nothing_is_too_wide(self, visit: Visit, person: Person, settings: Settings) -> None:
        """In German, which has longer words, with a long line of code, and with large text."""
        settings.LANGUAGE_CODE = "de"
        world = build_world(person, staff=False)
        world.crew.send(str(world.bob.pk), f"```\n{'a_long_line ' * 20}\n```")
        page = visit(world.alice, **PHONE)
        room = [world.crew.id]
        pages = {"room": room, "details": room, "notifications": [], "blocks": [], "contacts": []}
        for name, args in pages.items():
            open_page(page, name, *args)
            for width, text_size in [(360, "100%"), (320, "100%"), (360, "200%")]:
                page.set_viewport_size({"width": width, "height": 740})
                page.evaluate(STYLE, f"html {{ font-size: {text_size} !important }}")
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


class TestColours:
    def background(self, page: Page) -> str:
        return str(page.locator(".drm").evaluate("item => getComputedStyle(item).backgroundColor"))

    def test_a_site_with_a_light_base_stays_light(self, visit: Visit, ann: Member) -> None:
        page = visit(ann, color_scheme="dark")
        assert self.background(page) == "rgb(18, 18, 18)"  # the admin's
        page.evaluate("document.body.classList.remove('drm-themed')")
        page.evaluate("document.documentElement.dataset.theme = 'light'")  # the admin's colours
        assert self.background(page) == "rgb(255, 255, 255)"
        assert violations_now(page) == []

    def test_our_own_frame_follows_the_system_and_the_choice(
        self, visit: Visit, alone: None, ann: Member
    ) -> None:
        page = visit(ann, color_scheme="dark")
        assert self.background(page) == "rgb(18, 20, 23)"
        open_account(page)
        page.get_by_role("button", name="Light").click()
        assert self.background(page) == "rgb(255, 255, 255)"
        page.reload()
        assert self.background(page) == "rgb(255, 255, 255)"
        assert violations(page) == []

    def test_the_example_of_a_restyled_site(self, visit: Visit, alone: None, person: Person) -> None:
        world = build_world(person, staff=False)
        page = visit(world.alice, "room", world.crew.id, viewport={"width": 1280, "height": 640})
        page.evaluate(STYLE, re.findall(r"```css\n(.*?)```", WEB_DOCS.read_text(), re.DOTALL)[0])
        colour = "one => getComputedStyle(one).backgroundColor"
        for scheme, mine in (("light", "rgb(246, 223, 233)"), ("dark", "rgb(74, 31, 52)")):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            assert page.locator("#m1 .drm-bubble").evaluate(colour) == mine
            assert violations_now(page) == []
        if path := os.environ.get("SCREENSHOTS"):
            page.emulate_media(color_scheme="light")
            page.screenshot(path=Path(path) / "restyled.png")


class TestLayoutsOfSites:
    #: the ids of the messages of which the user really sees the end
    IN_VIEW = """(() => {
      const frame = window.frameElement?.getBoundingClientRect().top ?? 0;
      return [...document.querySelectorAll("#drm-log .drm-message")].filter(item => {
        const { left, right, bottom } = item.getBoundingClientRect();
        const shown = document.elementFromPoint((left + right) / 2, bottom - 3);
        return shown?.closest(".drm-scroll, .drm-jumps") && frame + bottom <= top.innerHeight;
      }).map(item => Number(item.dataset.id));
    })()"""
    #: the style sheets of the pages, but that of the bell
    OUR_SHEETS = "link[href*='messaging.css']"
    #: switches style sheets off or on
    SWITCH = "(links, isOff) => { for (const link of links) link.disabled = isOff; }"
    #: the elements of the pages, and those of the site around them
    OURS = ".drm *:not(svg *, script, link)"
    THEIRS = (
        ":is(body > header, body > nav, body > footer, body > :is(header, nav) *):not(.drm-bell, .drm-bell *)"
    )
    #: properties of elements, and what is before and after them
    LOOK = """selector => {
      const names = "display position float box-sizing width height margin padding border-width border-style "
        + "border-radius color background-color box-shadow font-size font-weight font-style font-family "
        + "line-height letter-spacing text-align text-transform text-decoration-line list-style-type";
      window.elements ??= {};
      window.elements[selector] ??= [...document.querySelectorAll(selector)];
      return window.elements[selector].map(item => {
        const style = getComputedStyle(item);
        const look = Object.fromEntries(names.split(" ").map(name => [name, style.getPropertyValue(name)]));
        for (const part of ["::before", "::after"]) look[part] = getComputedStyle(item, part).content;
        return [`${item.localName} ${item.id} ${item.className}`, look];
      });
    }"""
    #: what depends on the site: the size of the pages, and the colours that Bootstrap sets
    FIXED = """.drm {
      width: 700px !important; --drm-pane: 700px !important; --drm-paper: #fff; --drm-ink: #303030;
    }"""
    BELL = """bell => [
      bell.offsetWidth, bell.offsetHeight, getComputedStyle(bell.querySelector(".drm-bell-count")).position,
    ]"""

    def changed_by(self, page: Page, sheets: str, selector: str) -> dict[str, Any]:
        """What these style sheets change of the elements."""
        looks: list[Any] = page.evaluate(self.LOOK, selector)
        page.locator(sheets).evaluate_all(self.SWITCH, True)
        changed: dict[str, Any] = {}
        for (item, before), (_, after) in zip(looks, page.evaluate(self.LOOK, selector), strict=True):
            if after["display"]:  # else the list was renewed meanwhile
                different = {key for key in before if before[key] != after[key]}
                if different:
                    changed[item] = {key: (before[key], after[key]) for key in different}
        page.locator(sheets).evaluate_all(self.SWITCH, False)
        return changed

    def put_into_a_frame(self, page: Page, settings: Settings, url: str) -> Frame:
        """The page in a frame that is taller than the window."""
        settings.TEST_POLICY = content_policies.SELF.replace(
            "frame-ancestors 'none'", "frame-ancestors 'self'"
        )
        settings.X_FRAME_OPTIONS = "SAMEORIGIN"
        text = f'<!doctype html><p>Our site</p><iframe src="{url}" width="600" height="2000"></iframe>'
        page.route("**/site/", lambda route: route.fulfill(body=text, content_type="text/html"))
        page.goto("/site/")
        frame = page.frames[1]
        frame.wait_for_load_state()
        page.mouse.click(400, 200)  # only a frame with the focus is read
        return frame

    @pytest.mark.parametrize("layout", ["bare", "bootstrap", "tailwind", "plain", "admin", "frame"])
    def test_a_room(
        self, visit: Visit, member: Members, bob: Member, settings: Settings, tmp_path: Path, layout: str
    ) -> None:
        if layout in examples():
            use_layout(settings, layout, tmp_path)
        elif layout == "bare":
            settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [LAYOUTS / layout]}]
        ann = member("ann", is_staff=layout == "admin")
        chat = filled(bob, ann, 120)
        if layout == "frame":
            page = visit(ann, "contacts", **DESKTOP)
            frame = self.put_into_a_frame(page, settings, reverse("messaging:room", args=[chat.id]))
        else:
            page = visit(ann, "room", chat.id, script=OWN_SHIFTS, **DESKTOP)
            frame = page.main_frame
        frame.evaluate(MODULES)
        # Nothing is read that was not in the window.
        expect(frame.locator("#drm-unread")).to_be_in_viewport()
        wait_until(page, lambda: position(chat, ann) > 3)
        seen = max(frame.evaluate(self.IN_VIEW))
        assert 3 < seen < 60
        wait_for_position(page, chat, ann, seen)
        if layout == "frame":
            page.mouse.wheel(0, 400)
            wait_until(page, lambda: position(chat, ann) > seen)
            return
        assert frame.evaluate("window.shifted") <= 0.05
        for width, height in ((1440, 900), (768, 1024), (360, 740)):
            page.set_viewport_size({"width": width, "height": height})
            expect(page.locator("#drm-composer")).to_be_in_viewport(ratio=1)
            expect(page.locator(".drm-head")).to_be_in_viewport(ratio=1)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            # Neither the list nor the log moves the page.
            page.locator("#drm-scroll").hover()
            page.mouse.wheel(0, 20_000)
            page.evaluate(PAINTED)
            expect(page.locator("#drm-composer")).to_be_in_viewport(ratio=1)

    def test_a_room_that_arrives_in_parts_does_not_shift(
        self, visit: Visit, ann: Member, bob: Member, settings: Settings, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        """Although the header of the site is shown before the style sheet of the pages is known."""
        use_layout(settings, "plain", tmp_path)
        dispatch = RoomView.dispatch

        def in_parts(view: RoomView, *args: Any, **kwargs: Any) -> HttpResponseBase:
            response = dispatch(view, *args, **kwargs)
            if not isinstance(response, TemplateResponse):
                return response
            text = response.render().content
            size = len(text) // 10
            parts = (text[start : start + size] for start in range(0, len(text), size))
            return StreamingHttpResponse(part for part in parts if not time.sleep(PART_INTERVAL))  # type: ignore[func-returns-value]

        monkeypatch.setattr(RoomView, "dispatch", in_parts)
        page = visit(ann, "room", filled(bob, ann, 120).id, script=OWN_SHIFTS, **DESKTOP)
        assert page.evaluate("window.shifted") <= 0.05

    @pytest.mark.parametrize("layout", list(examples()))
    def test_the_style_sheet_of_a_site_changes_no_page(
        self, visit: Visit, member: Members, bob: Member, settings: Settings, tmp_path: Path, layout: str
    ) -> None:
        """And ours changes nothing of the site."""
        use_layout(settings, layout, tmp_path)
        ann = member("ann")
        chat = filled(bob, ann, 3)
        chat.send(ann, "Look: `code`\n```\nmore\n```\nhttps://example.org", reply_to=2)
        page = visit(ann, "room", chat.id, fast=False, **DESKTOP)
        pages = {"room": [chat.id], "notifications": [], "details": [chat.id], "new": []}
        for name, args in pages.items():
            if name != "room":
                open_page(page, name, *args)
            # One bell, that of the header: 36 px, with its count beside it.
            expect(page.locator(".drm-bell")).to_have_count(1)
            assert page.locator(".drm-bell").evaluate(self.BELL) == [36, 36, "absolute"]
            heading = page.locator(".drm h1").locator("visible=true")
            assert heading.evaluate("item => getComputedStyle(item).fontSize") == "18px"
            assert self.changed_by(page, self.OUR_SHEETS, self.THEIRS) == {}, name
            page.evaluate(STYLE, self.FIXED)
            assert self.changed_by(page, "head > link[href*='/css/']", self.OURS) == {}, name

    def test_a_dark_site(
        self, visit: Visit, ann: Member, bob: Member, settings: Settings, tmp_path: Path
    ) -> None:
        """Its colours are those of the pages, too."""
        use_layout(settings, "bootstrap", tmp_path)
        page = visit(ann, "room", filled(bob, ann, 3).id)
        page.evaluate("document.documentElement.dataset.bsTheme = 'dark'")
        paper = page.locator("#drm").evaluate("one => getComputedStyle(one).backgroundColor")
        assert paper == "rgb(33, 37, 41)"
        assert violations_now(page) == []


def test_what_the_first_page_costs(
    visit: Visit, alone: None, member: Members, ann: Member, capsys: pytest.CaptureFixture[str]
) -> None:
    bob = member("bob", first_name="Bob", last_name="Lindqvist")
    for number in range(CHATS_PER_PAGE + 1):
        text = "A message of some length, as people write them."
        Chat.create(bob, [ann], text, title=f"Chat number {number}")
    page = visit(ann, fast=False)
    page.goto("about:blank")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    response = page.goto(reverse("messaging:chats"))
    assert response
    page.evaluate(MODULES)
    wait_until(page, lambda: page.evaluate(PAINT) is not None)
    with capsys.disabled():
        cost = f"{len(response.body())} bytes, {len(requests)} requests, {page.evaluate(PAINT):.0f} ms"
        print(f"\nfirst page: {cost} to the first paint")  # noqa: T201
    assert len(response.body()) <= MAX_HTML
    assert len(requests) <= MAX_REQUESTS
