"""Long and misleading texts in a real browser, and the pages under the strictest Content-Security-Policy."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import expect
from pytest_django import Settings

from django_redis_messaging import Chat, notify

from ..support import content_policies
from .test_browser import TIMEOUT, Visit, choose, expect_message, send, visit

__all__ = ["visit"]  # the fixture

RLO, PDI = "\u202e", "\u2069"
#: the positions of the first and the last character of a link's text
ENDS = """link => [0, link.firstChild.length - 1].map(index => {
  const range = document.createRange();
  range.setStart(link.firstChild, index);
  range.setEnd(link.firstChild, index + 1);
  return range.getBoundingClientRect().x;
})"""
#: paints the text far above and below its line, as fonts do that stack marks (not the font of every machine)
SPILL = """selectors => selectors.forEach(selector => [-40, 40].forEach(top => {
  const copy = document.createElement("span");
  Object.assign(copy.style, { position: "relative", top: `${top}px`, marginInlineStart: "-9px" });
  copy.textContent = "ZZZ";
  document.querySelector(selector).append(copy);
}))"""


def test_scripts_with_a_nonce_and_trusted_types(
    visit: Visit, person: Callable[..., User], settings: Settings
) -> None:
    settings.TEST_POLICY = content_policies.STRICT
    ann, bob = person("ann"), person("bob")
    chat = Chat.create(str(ann.pk), [str(bob.pk)], "First", title="Strict")
    page = visit(ann, "room", chat.id)
    send(page, "Sent")
    expect_message(page, "Sent")
    expect(page.locator(".drm-row")).to_contain_text("Sent", timeout=TIMEOUT)
    page.goto(reverse("messaging:contacts"))
    page.get_by_label("Search people").press_sequentially("bo")
    expect(page.locator("#drm-results .drm-person")).to_have_text("bob")
    page.goto(reverse("messaging:new"))
    page.get_by_role("combobox").fill("bob")
    expect(page.get_by_role("option")).to_have_text(re.compile("bob"))
    notify(str(ann.pk), "Hello")
    page.goto(reverse("messaging:notifications"))
    page.get_by_role("button", name="Mark as read").click()
    expect(page.locator(".drm-notice-new")).to_have_count(0)


def test_long_texts_unfold(visit: Visit, person: Callable[..., User]) -> None:
    ann = person("ann")
    body = "\n".join(f"line {number} https://example.com/{number}" for number in range(30))
    chat = Chat.create(str(ann.pk), [], body)
    chat.send(str(ann.pk), "word " * 5_000)
    page = visit(ann, "room", chat.id)
    last = page.get_by_role("link", name="https://example.com/29")
    expect(last).to_be_hidden()
    toggle = page.locator("#m1 .drm-fold > summary")
    toggle.press("Enter")
    expect(last).to_be_visible()
    expect(toggle).to_have_text(re.compile("Show less"), use_inner_text=True)
    toggle.press("Enter")
    expect(last).to_be_hidden()
    choose(page, 1, "Edit")
    expect(page.get_by_label("Message", exact=True)).to_have_value(body)
    page.locator("#m2").get_by_role("link", name="Show all").click()
    page.get_by_role("link", name="Next part").click()
    expect(page.get_by_text("Part 2 of 2")).to_be_visible()


def test_marks_and_direction_controls_change_no_other_text(visit: Visit, person: Callable[..., User]) -> None:
    ann = person("ann", first_name=f"Ann{PDI}{RLO}")
    chat = Chat.create(str(ann.pk), [], "Before")
    chat.send(str(ann.pk), f"{PDI}{RLO}https://example.com/gpj {RLO}")
    chat.send(str(ann.pk), "Z" + "\u0310\u0323\u0489" * 60)
    chat.send(str(ann.pk), "After")
    page = visit(ann, "room", chat.id, viewport={"width": 680, "height": 800})
    first, last = page.locator("#m2 .drm-body a").evaluate(ENDS)
    assert first < last
    neighbours = [page.locator(selector) for selector in ("#m2", "#m4", ".drm-crumbs", ".drm-head-text p")]
    before = [one.screenshot(animations="disabled") for one in neighbours]
    page.evaluate(SPILL, ["#m3 .drm-body", "#drm-title bdi"])
    assert [one.screenshot(animations="disabled") for one in neighbours] == before
