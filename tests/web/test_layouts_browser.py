"""The pages in layouts of sites, in a real browser. Templates and excerpts of style sheets: layouts/."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Frame, Page, expect
from pytest_django import Settings

from ..support import content_policies
from .test_browser import MODULES, Visit, visit
from .test_frame_browser import SHIFTS
from .test_room_browser import filled, position, wait_for_position, wait_until

__all__ = ["visit"]  # the fixture

LAYOUTS = Path(__file__).parent / "layouts"
SIZES = [(1440, 900), (768, 1024), (360, 740)]
#: the ids of the messages of which the user really sees the end
IN_VIEW = """(() => {
  const frame = window.frameElement?.getBoundingClientRect().top ?? 0;
  return [...document.querySelectorAll("#drm-log .drm-message")].filter(item => {
    const { left, right, bottom } = item.getBoundingClientRect();
    const shown = document.elementFromPoint((left + right) / 2, bottom - 3);
    return shown?.closest(".drm-scroll, .drm-jumps") && frame + bottom <= top.innerHeight;
  }).map(item => Number(item.dataset.id));
})()"""


def use_layout(settings: Settings, name: str) -> None:
    (templates,) = settings.TEMPLATES
    settings.TEMPLATES = [{**templates, "DIRS": [LAYOUTS / name]}]
    settings.STATICFILES_DIRS = [LAYOUTS / "static"]


def put_into_a_frame(page: Page, settings: Settings, url: str) -> Frame:
    """The page in a frame that is taller than the window."""
    settings.TEST_POLICY = content_policies.SELF.replace("frame-ancestors 'none'", "frame-ancestors 'self'")
    settings.X_FRAME_OPTIONS = "SAMEORIGIN"
    text = f'<!doctype html><p>Our site</p><iframe src="{url}" width="600" height="2000"></iframe>'
    page.route("**/site/", lambda route: route.fulfill(body=text, content_type="text/html"))
    page.goto("/site/")
    frame = page.frames[1]
    frame.wait_for_load_state()
    page.mouse.click(400, 200)  # only a frame with the focus is read
    return frame


@pytest.mark.parametrize("layout", ["bare", "bootstrap", "tailwind", "grid", "admin", "frame"])
def test_a_room_in_a_layout_of_the_site(
    visit: Visit, person: Callable[..., User], settings: Settings, layout: str
) -> None:
    use_layout(settings, layout)
    ann, bob = person("ann", is_staff=layout == "admin"), person("bob")
    chat = filled(bob, ann, 120)
    page = visit(ann, viewport={"width": 1440, "height": 900})
    page.add_init_script(SHIFTS)
    url = reverse("messaging:room", args=[chat.id])
    if layout == "frame":
        frame = put_into_a_frame(page, settings, url)
    else:
        page.goto(url)
        frame = page.main_frame
    frame.evaluate(MODULES)
    page.wait_for_load_state("networkidle")
    # Nothing is read that was not in the window.
    expect(frame.locator("#drm-unread")).to_be_in_viewport()
    seen = max(frame.evaluate(IN_VIEW))
    assert 3 < seen < 60
    wait_for_position(page, chat, ann, seen)
    if layout == "frame":
        page.mouse.wheel(0, 400)
        wait_until(page, lambda: position(chat, ann) > seen)
        return
    assert frame.evaluate("window.shifted") <= 0.05
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        expect(page.locator("#drm-composer")).to_be_in_viewport(ratio=1)
        expect(page.locator(".drm-head")).to_be_in_viewport(ratio=1)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        # Neither the list nor the log moves the page.
        page.locator("#drm-scroll").hover()
        page.mouse.wheel(0, 20_000)
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        expect(page.locator("#drm-composer")).to_be_in_viewport(ratio=1)


#: properties of what is visible
LOOK = """() => {
  const names = "display position float box-sizing width height margin padding border-width border-style "
    + "border-radius color background-color box-shadow font-size font-weight font-style font-family "
    + "line-height letter-spacing text-align text-transform text-decoration-line list-style-type";
  window.elements ??= [...document.querySelectorAll(".drm *:not(svg *, script, link)")];
  return window.elements.map(item => {
    const style = getComputedStyle(item);
    const look = Object.fromEntries(names.split(" ").map(name => [name, style.getPropertyValue(name)]));
    return [`${item.localName} ${item.id} ${item.className}`, look];
  });
}"""
BELL = """bell => [
  bell.offsetWidth, bell.offsetHeight, getComputedStyle(bell.querySelector(".drm-bell-count")).position,
]"""
SAME_SIZE = """() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(".drm { width: 700px !important; --drm-pane: 700px !important }");
  document.adoptedStyleSheets = [sheet];
}"""


@pytest.mark.parametrize("layout", ["bootstrap", "tailwind", "grid"])
def test_the_style_sheet_of_a_site_changes_no_page(
    visit: Visit, person: Callable[..., User], settings: Settings, layout: str
) -> None:
    """And ours changes nothing of the site."""
    use_layout(settings, layout)
    ann, bob = person("ann"), person("bob")
    chat = filled(bob, ann, 3)
    chat.send(str(ann.pk), "Look: `code`\n```\nmore\n```\nhttps://example.org", reply_to=2)
    page = visit(ann, viewport={"width": 1440, "height": 900})
    for name, *args in (("room", chat.id), ("notifications",), ("details", chat.id), ("new",)):
        page.goto(reverse(f"messaging:{name}", args=args))
        page.evaluate(MODULES)
        # One bell, that of the header: 36 px, with its count beside it.
        expect(page.locator(".drm-bell")).to_have_count(1)
        assert page.locator(".drm-bell").evaluate(BELL) == [36, 36, "absolute"]
        page.evaluate(SAME_SIZE)
        looks: list[Any] = page.evaluate(LOOK)
        page.locator("link.site").evaluate("link => { link.disabled = true }")
        changed: dict[str, Any] = {}
        for (item, before), (_, after) in zip(looks, page.evaluate(LOOK), strict=True):
            if after["display"]:  # else the list was renewed meanwhile
                different = {key for key in before if before[key] != after[key]}
                changed |= {item: {key: (before[key], after[key]) for key in different}} if different else {}
        assert changed == {}
