"""Notifications at a real browser, under a strict Content-Security-Policy; nothing may go wrong in its
console."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Locator, Page, expect

from django_redis_messaging import Mailbox, notify
from django_redis_messaging.web.bell import Bell

from .test_browser import SOME_TIME, Visit, visit

__all__ = ["visit"]  # the fixture

#: ms between the script of the bell and its first question
ASKED_AFTER = """() => {
  const of = (text) => performance.getEntriesByType("resource").find(({ name }) => name.includes(text));
  return of(document.querySelector(".drm-bell").dataset.feed).startTime - of("bell.").responseEnd;
}"""


@pytest.fixture
def ann(person: Callable[..., User]) -> User:
    return person("ann", first_name="Ann")


@pytest.fixture
def box(ann: User) -> Mailbox:
    return Mailbox(str(ann.pk))


def told(user: User, *texts: str) -> None:
    for text in texts:
        notify(str(user.pk), text, url=reverse("messaging:contacts"))


def bell(page: Page, count: int) -> Locator:
    """The bell, once it says this."""
    name = f"Notifications: {count or 'none'} unread"
    found = page.get_by_role("link", name=name, exact=True)
    expect(found).to_be_visible(timeout=SOME_TIME)
    return found


def notice(page: Page, text: str) -> Locator:
    return page.locator(".drm-notice", has_text=text)


def test_reading_in_one_tab_lowers_the_count_in_the_other(visit: Visit, ann: User, box: Mailbox) -> None:
    told(ann, "one", "two", "three")
    first = visit(ann, "notifications")
    second = first.context.new_page()
    second.goto(reverse("messaging:chats"))
    bell(first, 3)
    expect(bell(second, 3)).to_have_text("3")
    notice(first, "two").get_by_role("button", name="Mark as read").click()
    bell(first, 2)
    bell(second, 2)
    assert first.locator(".drm-notice").all_inner_texts()[2].startswith("two")
    first.get_by_role("button", name="Mark all as read").click()
    expect(bell(second, 0)).to_have_text("")
    expect(second.locator(".drm-bell-count")).to_be_hidden()
    expect(first.get_by_role("heading", name="New")).to_have_count(0)
    assert box.unread() == 0


def test_a_new_one_is_shown_by_itself_and_on_another_device_too(visit: Visit, ann: User) -> None:
    at_home, at_work = visit(ann, "notifications"), visit(ann, "contacts")
    expect(at_home.get_by_text("No notifications yet.")).to_be_visible()
    told(ann, "News")
    expect(notice(at_home, "News")).to_be_visible(timeout=SOME_TIME)
    bell(at_work, 1).click()
    notice(at_work, "News").get_by_role("button", name="Discard").click()
    expect(at_work.get_by_text("No notifications yet.")).to_be_visible()
    expect(notice(at_home, "News")).to_have_count(0, timeout=SOME_TIME)


def test_a_bell_without_a_count_asks_for_it_soon(
    visit: Visit, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(ann, "one")
    with monkeypatch.context() as away:
        away.setattr(Bell, "unread", None)
        page = visit(ann, "contacts", fast=False)
    expect(page.get_by_role("link", name="Notifications", exact=True)).to_be_visible()
    bell(page, 1)
    assert page.evaluate(ASKED_AFTER) < 4000, "that is as late as where it has one"


def test_many_leave_the_bell_to_be_seen(visit: Visit, ann: User) -> None:
    told(ann, *("x" for _ in range(100)))
    page = visit(ann, "notifications", viewport={"width": 360, "height": 740})
    box, count = bell(page, 100).bounding_box(), page.locator(".drm-bell-count").bounding_box()
    button = page.get_by_role("link", name="New chat").bounding_box()
    assert box and count and button
    assert count["x"] >= box["x"] + box["width"] / 2
    assert count["x"] + count["width"] <= button["x"]


def test_whoever_follows_a_link_has_read_it(visit: Visit, ann: User) -> None:
    told(ann, "Look", "Other")
    page = visit(ann, "notifications")
    page.get_by_role("link", name="Look").click()
    expect(page).to_have_url(re.compile(reverse("messaging:contacts")))
    bell(page, 1)


def test_by_keyboard_the_focus_stays_near(visit: Visit, ann: User, box: Mailbox) -> None:
    told(ann, "one", "two", "three")
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


def test_the_focus_stays_on_a_link_when_the_list_comes_anew(visit: Visit, ann: User) -> None:
    told(ann, "one")
    page = visit(ann, "notifications")
    link = notice(page, "one").get_by_role("link")
    link.focus()
    told(ann, "two")
    expect(notice(page, "two")).to_be_visible()
    expect(link).to_be_focused()


def test_without_javascript(visit: Visit, ann: User, box: Mailbox) -> None:
    told(ann, "one", "two")
    page = visit(ann, "chats", java_script_enabled=False)
    bell(page, 2).click()
    page.get_by_role("link", name="Unread", exact=True).click()
    notice(page, "one").get_by_role("button", name="Mark as read").click()
    expect(notice(page, "one")).to_have_count(0)
    expect(page.get_by_role("link", name="Unread", exact=True)).to_have_attribute("aria-current", "page")
    notice(page, "two").get_by_role("button", name="Discard").click()
    expect(page.get_by_text("You have read everything.")).to_be_visible()
    page.get_by_role("link", name="All", exact=True).click()
    expect(notice(page, "one")).to_be_visible()
    bell(page, 0)
    assert box.unread() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read(visit: Visit, ann: User, scheme: str) -> None:
    """Text of every kind has a contrast of 4.5 to 1 against what is behind it."""
    for level in ("info", "success", "warning", "error"):
        notify(str(ann.pk), f"Some {level}", level=level, url="/")  # type: ignore[arg-type]
    Mailbox(str(ann.pk)).mark_read([1])
    page = visit(ann, "notifications", color_scheme=scheme, viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found = page.evaluate(CONTRASTS)
    assert len(found) > 12
    assert {name: ratio for name, ratio in found.items() if ratio < 4.5} == {}


#: the contrast of each element with text of its own, or with a sign before it
CONTRASTS = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = parts(colour).slice(0, 3).map((c) => c / 255)
      .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((parts(colour)[3] ?? 1) === 1) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = {};
  for (const element of document.querySelectorAll(".drm-notices *, .drm-bell-count")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if ((!own && !element.matches(".drm-level")) || element.closest(".drm-hidden")) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort();
    const name = `${element.tagName} ${element.className} ${element.closest("li")?.className ?? ""}`;
    found[name] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }
  return found;
}"""
