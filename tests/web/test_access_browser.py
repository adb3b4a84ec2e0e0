"""Rooms by keyboard, with a screen reader, with large text and forced colours, in a real browser."""

from __future__ import annotations

import itertools
import re
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Page, Response, expect
from pytest_django import Settings

from django_redis_messaging import Chat

from ..support.page_states import build_world
from .test_browser import MODULES, TIMEOUT, Visit, choose, send, visit
from .test_frame_browser import violations_now
from .test_room_browser import IDS, wait_until
from .test_site import Alone

__all__ = ["visit"]  # the fixture

#: counts how often a text enters the log, which a screen reader announces
COUNT = """
window.announced = 0;
new MutationObserver((changes) => {
  for (const { addedNodes } of changes) {
    for (const node of addedNodes) if (node.textContent.includes("Hello")) window.announced += 1;
  }
}).observe(document.querySelector("[role=log]"), { childList: true, subtree: true });
"""


def test_the_message_field_is_near(visit: Visit, person: Callable[..., User]) -> None:
    """It has the focus on a desktop; elsewhere, a link skips the list of chats."""
    ann = person("ann")
    chats = [Chat.create(str(ann.pk), [], title=f"Chat {number}") for number in range(10)]
    page = visit(ann, "room", chats[0].id)
    page.evaluate(MODULES)
    expect(page.locator("#drm-body")).to_be_focused()
    page.locator(".drm-skip").focus()
    expect(page.locator(".drm-skip")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#drm-body")).to_be_focused()
    touch = visit(ann, "room", chats[0].id, has_touch=True, is_mobile=True)
    touch.evaluate(MODULES)
    expect(touch.locator("#drm-body")).not_to_be_focused()


def test_the_chats_and_the_messages_have_one_tab_stop_each(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann"), person("bob", first_name="Bob")
    for number in range(8):
        Chat.create(str(ann.pk), [], title=f"Chat {number}")
    chat = Chat.create(str(bob.pk), [str(ann.pk)], "First https://example.org/", title="Lunch")
    for number in range(2, 61):
        chat.send(str((ann, bob)[number % 2].pk), f"Message {number}")
    chat.send(str(bob.pk), "A line.\n" * 19 + "```\n" + "code\n" * 60 + "```\n")
    chat.send(str(bob.pk), "Last https://example.org/")
    chat.ack(str(ann.pk), 62)
    page = visit(ann, "room", chat.id, has_touch=True)  # where the message field has no focus at first
    page.evaluate(MODULES)
    press = page.keyboard.press
    stops = list(stops_until(page, "#drm-body"))
    assert len(stops) <= 6, stops
    page.locator("#drm-find-chat").focus()
    press("Tab")
    row = page.locator(".drm-row > a")
    expect(row.first).to_be_focused()
    press("ArrowDown")
    expect(row.nth(1)).to_be_focused()
    press("End")
    expect(row.nth(8)).to_be_focused()
    page.locator("#drm-title").focus()
    while not page.evaluate("document.activeElement.matches('.drm-message')"):
        press("Tab")
    expect(page.locator("#m62")).to_be_focused()
    expect(page.locator("#m62")).to_have_accessible_name(re.compile("^Bob, Last https://example.org/, "))
    press("ArrowRight")
    expect(page.locator("#m62 .drm-body a")).to_be_focused()
    press("ArrowRight")
    expect(page.locator("#m62 .drm-dots")).to_be_focused()
    press("ArrowUp")
    expect(page.locator("#m61")).to_be_focused()
    press("ArrowUp")  # its beginning is out of sight
    expect(page.locator("#m61")).to_be_focused()
    number = page.evaluate(IDS)[0]
    press("Home")  # and older ones are loaded
    expect(page.locator(f"#m{number}")).to_be_focused()
    # A message that is replaced does not take the focus with it.
    chat.edit(str((ann, bob)[number % 2].pk), number, "Edited")
    expect(page.locator(f"#m{number}")).to_contain_text("Edited", timeout=TIMEOUT)
    expect(page.locator(f"#m{number}")).to_be_focused()
    assert page.locator("#drm-log [tabindex='0'], #drm-scroll[tabindex='0']").count() == 1
    press("Enter")
    expect(page.get_by_role("menuitem", name="Reply")).to_be_focused()
    press("Enter")
    expect(page.locator("#drm-body")).to_be_focused()
    expect(page.locator("#drm-body")).to_have_accessible_description(re.compile("Reply to .* Edited Cancel"))


def stops_until(page: Page, selector: str) -> Iterator[str]:
    """Press Tab until an element has the focus, and name where it stops."""
    for _ in range(60):
        page.keyboard.press("Tab")
        yield str(page.evaluate("document.activeElement.outerHTML.slice(0, 80)"))
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab never reaches {selector}.")


def test_an_own_message_enters_the_log_once(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann"), person("bob")
    chat = Chat.create(str(ann.pk), [str(bob.pk)], "First")
    page = visit(ann, "room", chat.id)
    page.evaluate(MODULES)
    page.evaluate(COUNT)
    send(page, "Hello")
    expect(page.locator("#m2")).to_be_visible()
    expect(page.locator(".drm-pending")).to_have_count(0, timeout=TIMEOUT)
    with page.expect_response("**/feed/**"):
        chat.send(str(bob.pk), "Next")
    expect(page.locator("#m3")).to_be_visible(timeout=TIMEOUT)
    assert page.evaluate("announced") == 1


def test_a_form_that_is_refused_leads_to_the_reason(visit: Visit, person: Callable[..., User]) -> None:
    page = visit(person("ann"), "new")
    page.get_by_role("button", name="Start chat").click()
    expect(page.get_by_role("alert")).to_have_text("Choose at least one person.")
    expect(page.get_by_role("alert")).to_be_focused()
    expect(page.get_by_role("combobox")).to_have_attribute("aria-invalid", "true")


def test_large_text_and_forced_colours(visit: Visit, person: Callable[..., User]) -> None:
    ann = person("ann")
    chat = Chat.create(str(ann.pk), [], "Text")
    page = visit(ann, "room", chat.id, forced_colors="active")
    bubble = page.locator("#m1 .drm-bubble")
    size = "one => parseFloat(getComputedStyle(one).fontSize)"
    before = bubble.evaluate(size)
    page.evaluate("document.adoptedStyleSheets = [new CSSStyleSheet()]")
    page.evaluate("document.adoptedStyleSheets[0].replaceSync('html { font-size: 200% }')")
    assert bubble.evaluate(size) == 2 * before
    border = bubble.evaluate(
        "one => [getComputedStyle(one).borderTopStyle, getComputedStyle(one).borderTopColor]"
    )
    assert border == ["solid", bubble.evaluate("one => getComputedStyle(one).color")]
    knob = "one => getComputedStyle(one, '::after').borderTopStyle"
    assert page.locator(".drm-switch").first.evaluate(knob) == "solid"


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("condition", ["right to left", "forced colours"])
def test_a_conversation_under_conditions(
    visit: Visit, person: Callable[..., User], settings: Settings, condition: str, width: int
) -> None:
    settings.ROOT_URLCONF, settings.LOGIN_URL = Alone, "/login/"
    colours: dict[str, Any] = {}
    if condition == "right to left":
        settings.LANGUAGE_CODE = "ar"  # in which the pages have no texts of their own
    else:
        colours = {"forced_colors": "active"}
    world = build_world(person, staff=False)
    page = visit(world.alice, "new", viewport={"width": width, "height": 900}, **colours)
    page.evaluate(MODULES)
    page.get_by_role("combobox").press_sequentially("car")
    expect(page.get_by_role("option")).to_have_text("COCarol Okafor carol")
    expect_accessible(page)
    page.get_by_role("combobox").press("Enter")
    page.get_by_label("First message").fill("Hello")
    page.get_by_role("button", name="Start chat").click()
    send(page, "Shall we?")
    expect(page.locator(".drm-pending")).to_have_count(0)
    expect_accessible(page)
    choose(page, page.evaluate(IDS)[-1], "Edit")
    expect_accessible(page)
    page.locator("#drm-body").fill("Shall we go?")
    page.keyboard.press("Enter")
    expect(page.locator("#drm-log .drm-body").last).to_have_text("Shall we go?")
    if condition == "right to left":
        of_field, of_button = (
            page.locator(name).bounding_box() for name in ("#drm-body", "#drm-composer button:visible")
        )
        assert of_field and of_button and of_button["x"] < of_field["x"]
    page.goto(reverse("messaging:chats"))
    expect_accessible(page)


def expect_accessible(page: Page) -> None:
    """The page isn't wider than the window and violates no rule, as it is."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth && scrollX === 0")
    assert violations_now(page) == []


def test_an_idle_room_polls_every_few_seconds(visit: Visit, person: Callable[..., User]) -> None:
    ann = person("ann")
    chat = Chat.create(str(ann.pk), [], "Text")
    page = visit(ann, "room", chat.id)
    polled: list[float] = []
    feed = reverse("messaging:room_feed", args=[chat.id])

    def note(response: Response) -> None:
        if feed in response.url:
            polled.append(time.monotonic())

    page.on("response", note)
    wait_until(page, lambda: len(polled) >= 9)
    gaps = [after - before for before, after in itertools.pairwise(polled)]
    assert 4 * statistics.median(gaps[-4:]) < 5.5  # s: the clocks of pages run four times as fast
