"""The pages are accessible in every state. With SCREENSHOTS, makes screenshots: see .ci/screenshots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from pytest_django import Settings

from django_redis_messaging import Chat

from ..support.browser import (
    DESKTOP,
    IDS,
    PHONE,
    Visit,
    choose,
    fits_in_width,
    open_page,
    send,
    violations,
    violations_now,
)
from ..support.page_states import STATES, build_world
from ..support.people import Member
from ..support.site_layouts import examples, use_layout
from .conftest import Alone, Person

#: width and height of the window: px; the third one is that of the small pictures in the README
SIZES = [(360, 740), (768, 1024), (800, 440), (1440, 900)]
#: the states of the gate in each frame: who sees the pages, and whether the site has an admin or a layout of
#: its own. In the large form, each state runs in each frame.
QUICK = {
    "own": "room_menu room_completing new_refused",
    "admin": "chats contacts new message search details person room_settings room_deleting room_refused",
    "staff": "",
    "bootstrap": "room notifications new",
    "tailwind": "chats contacts",
    "plain": "room_menu new",
}


def states() -> Iterator[object]:
    chosen = os.environ.get("STATES", "").split()  # also of the console
    wanted = [name for name in STATES if name in chosen or not chosen]
    for frame, quick in QUICK.items():
        if quick:
            yield pytest.param(frame, quick.split(), id=f"{frame}-quick")
        for name in wanted:
            yield pytest.param(frame, [name], id=f"{frame}-{name}", marks=pytest.mark.long)


@pytest.mark.parametrize(("frame", "names"), list(states()))
def test_states(
    visit: Visit, person: Person, settings: Settings, tmp_path: Path, frame: str, names: list[str]
) -> None:
    if frame not in ("admin", "staff"):
        settings.ROOT_URLCONF, settings.LOGIN_URL = Alone, "/login/"
    if frame in examples():
        use_layout(settings, frame, tmp_path)
    world = build_world(person, staff=frame == "staff")
    page = visit(world.alice, **DESKTOP)
    for name in names:
        page.unroute_all()
        page.goto("/static/django_redis_messaging/frame.js")
        page.evaluate("localStorage.clear()")  # what was typed in the state before
        STATES[name](page, world)
        assert violations(page) == [], name
        if directory := os.environ.get("SCREENSHOTS"):
            take_screenshots(page, Path(directory), f"{name}-{frame}")
        page.set_viewport_size(PHONE["viewport"])
        assert fits_in_width(page), name
        page.set_viewport_size(DESKTOP["viewport"])


def take_screenshots(page: Page, directory: Path, name: str) -> None:
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            path = directory / f"{name}-{scheme}-{width}.png"
            page.screenshot(path=path, animations="disabled")


@pytest.mark.parametrize("condition", ["right to left", "forced colours"])
def test_a_conversation_under_conditions(
    visit: Visit, alone: None, person: Person, settings: Settings, condition: str
) -> None:
    colours: dict[str, Any] = {}
    if condition == "right to left":
        settings.LANGUAGE_CODE = "ar"  # in which the pages have no texts of their own
    else:
        colours = {"forced_colors": "active"}
    page = visit(build_world(person, staff=False).alice, "new", **colours)

    def expect_accessible() -> None:
        """On a phone and on a desktop, the page isn't wider than the window and violates no rule."""
        for width in (360, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            assert fits_in_width(page)
            assert violations_now(page) == []

    page.get_by_role("combobox").press_sequentially("car")
    expect(page.get_by_role("option")).to_have_text("COCarol Okafor carol")
    expect_accessible()
    page.get_by_role("combobox").press("Enter")
    page.get_by_label("First message").fill("Hello")
    page.get_by_role("button", name="Start chat").click()
    send(page, "Shall we?")
    expect(page.locator(".drm-pending")).to_have_count(0)
    expect_accessible()
    choose(page, page.evaluate(IDS)[-1], "Edit")
    expect_accessible()
    page.locator("#drm-body").fill("Shall we go?")
    page.keyboard.press("Enter")
    expect(page.locator("#drm-log .drm-body").last).to_have_text("Shall we go?")
    if condition == "right to left":
        for width in (360, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            of_field, of_button = (
                page.locator(name).bounding_box() for name in ("#drm-body", "#drm-composer button:visible")
            )
            assert of_field and of_button and of_button["x"] < of_field["x"]
    open_page(page, "chats")
    expect_accessible()


def test_a_form_that_is_refused_leads_to_the_reason(visit: Visit, ann: Member) -> None:
    page = visit(ann, "new")
    page.get_by_role("button", name="Start chat").click()
    expect(page.get_by_role("alert")).to_have_text("Choose at least one person.")
    expect(page.get_by_role("alert")).to_be_focused()
    expect(page.get_by_role("combobox")).to_have_attribute("aria-invalid", "true")


def test_large_text_and_forced_colours(visit: Visit, ann: Member) -> None:
    chat = Chat.create(ann, [], "Text")
    page = visit(ann, "room", chat.id, forced_colors="active")
    bubble = page.locator("#m1 .drm-bubble")
    size = "one => parseFloat(getComputedStyle(one).fontSize)"
    before = bubble.evaluate(size)
    page.evaluate("document.adoptedStyleSheets = [new CSSStyleSheet()]")
    page.evaluate("document.adoptedStyleSheets[0].replaceSync('html { font-size: 200% }')")
    assert bubble.evaluate(size) == 2 * before
    style = "one => [getComputedStyle(one).borderTopStyle, getComputedStyle(one).borderTopColor]"
    assert bubble.evaluate(style) == ["solid", bubble.evaluate("one => getComputedStyle(one).color")]
    knob = "one => getComputedStyle(one, '::after').borderTopStyle"
    assert page.locator(".drm-switch").first.evaluate(knob) == "solid"
