"""Notifications in a real browser, with a strict Content-Security-Policy and no errors in the console."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Locator, Page, expect

from django_redis_messaging import Mailbox, notify
from django_redis_messaging.services.mailboxes.notifications import LEVELS
from django_redis_messaging.web.bell import Bell

from .test_browser import TIMEOUT, Visit, violations, visit

__all__ = ["visit"]  # the fixture

#: ms between loading the script of the bell and its first request
FIRST_REQUEST = """() => {
  const of = (text) => performance.getEntriesByType("resource").find(({ name }) => name.includes(text));
  return of(document.querySelector(".drm-bell").dataset.feed).startTime - of("bell.").responseEnd;
}"""
#: contrast ratios of elements hidden from assistive technology, which axe-core does not check
CONTRASTS = """() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map((c) => c / 255)
      .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return [...document.querySelectorAll(".drm-level, .drm-bell-count")].map((sign) => {
    const { color, backgroundColor } = getComputedStyle(sign);
    return (light(color) + 0.05) / (light(backgroundColor) + 0.05);
  });
}"""


@pytest.fixture
def ann(person: Callable[..., User]) -> User:
    return person("ann", first_name="Ann")


@pytest.fixture
def box(ann: User) -> Mailbox:
    return Mailbox(str(ann.pk))


def send(user: User, *texts: str) -> None:
    for text in texts:
        notify(str(user.pk), text, url=reverse("messaging:contacts"))


def bell(page: Page, count: int) -> Locator:
    """The bell, once it shows this count."""
    name = f"Notifications: {count or 'none'} unread"
    found = page.get_by_role("link", name=name, exact=True)
    expect(found).to_be_visible(timeout=TIMEOUT)
    return found


def notice(page: Page, text: str) -> Locator:
    return page.locator(".drm-notice", has_text=text)


def test_reading_in_one_tab_updates_the_count_in_another(visit: Visit, ann: User, box: Mailbox) -> None:
    send(ann, "one", "two", "three")
    first = visit(ann, "notifications")
    second = first.context.new_page()
    second.goto(reverse("messaging:chats"))
    bell(first, 3)
    expect(bell(second, 3)).to_have_text("3")
    notice(first, "two").get_by_role("button", name="Mark as read").click()
    bell(first, 2)
    bell(second, 2)
    assert first.locator(".drm-notice").all_inner_texts()[2].strip().startswith("two")
    first.get_by_role("button", name="Mark all as read").click()
    expect(bell(second, 0)).to_have_text("")
    expect(second.locator(".drm-bell-count")).to_be_hidden()
    expect(first.get_by_role("heading", name="New")).to_have_count(0)
    assert box.unread() == 0


def test_new_notifications_appear_on_all_devices(visit: Visit, ann: User) -> None:
    at_home, at_work = visit(ann, "notifications"), visit(ann, "contacts")
    expect(at_home.get_by_text("No notifications yet.")).to_be_visible()
    send(ann, "News")
    expect(notice(at_home, "News")).to_be_visible(timeout=TIMEOUT)
    bell(at_work, 1).click()
    notice(at_work, "News").get_by_role("button", name="Discard").click()
    expect(at_work.get_by_text("No notifications yet.")).to_be_visible()
    expect(notice(at_home, "News")).to_have_count(0, timeout=TIMEOUT)


def test_a_bell_without_a_count_fetches_it_soon(
    visit: Visit, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(ann, "one")
    with monkeypatch.context() as away:
        away.setattr(Bell, "_status", None)
        page = visit(ann, "contacts", fast=False)
    expect(page.get_by_role("link", name="Notifications", exact=True)).to_be_visible()
    bell(page, 1)
    assert page.evaluate(FIRST_REQUEST) < 4000, "as late as a bell with a count"


def test_a_high_count_does_not_cover_the_bell(visit: Visit, ann: User) -> None:
    send(ann, *("x" for _ in range(100)))
    page = visit(ann, "notifications", viewport={"width": 360, "height": 740})
    box, count = bell(page, 100).bounding_box(), page.locator(".drm-bell-count").bounding_box()
    button = page.get_by_role("link", name="New chat").bounding_box()
    assert box and count and button
    assert count["x"] >= box["x"] + box["width"] / 2
    assert count["x"] + count["width"] <= button["x"]


@pytest.mark.parametrize("scripts", [True, False])
def test_following_a_link_marks_the_notification_as_read(visit: Visit, ann: User, scripts: bool) -> None:
    send(ann, "Look", "Other")
    page = visit(ann, "notifications", java_script_enabled=scripts)
    other = page.context.new_page()
    other.goto(reverse("messaging:chats"))
    notice(page, "Look").get_by_role("button", name="Look", exact=True).click()
    expect(page).to_have_url(re.compile(reverse("messaging:contacts")))
    assert 'aria-label="Notifications: 1 unread"' in page.content()
    if scripts:
        bell(other, 1)
    page.go_back()
    expect(notice(page, "Look").get_by_role("link", name="Look")).to_be_visible(timeout=TIMEOUT)


def test_a_link_can_be_opened_in_a_new_tab(visit: Visit, ann: User) -> None:
    send(ann, "Look", "Other")
    page = visit(ann, "notifications")
    with page.context.expect_page() as opened:
        notice(page, "Look").get_by_role("button", name="Look", exact=True).click(modifiers=["Control"])
    expect(opened.value).to_have_url(re.compile(reverse("messaging:contacts")))
    bell(page, 1)
    expect(notice(page, "Look").get_by_role("link", name="Look")).to_be_visible()


def test_the_focus_stays_near_a_removed_notification(visit: Visit, ann: User, box: Mailbox) -> None:
    send(ann, "one", "two", "three")
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


def test_the_focus_stays_on_a_link_when_the_list_is_refreshed(visit: Visit, ann: User) -> None:
    send(ann, "one")
    page = visit(ann, "notifications")
    said = notice(page, "one").locator(".drm-notice-said")
    said.get_by_role("button").focus()
    send(ann, "two")
    expect(notice(page, "two")).to_be_visible()
    expect(said.get_by_role("button")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # mark as read
    said.get_by_role("link").focus()
    send(ann, "three")
    expect(notice(page, "three")).to_be_visible()
    expect(said.get_by_role("link")).to_be_focused()


def test_without_javascript(visit: Visit, ann: User, box: Mailbox) -> None:
    send(ann, "one", "two")
    page = visit(ann, "chats", java_script_enabled=False)
    bell(page, 2).click()
    page.get_by_role("link", name="Unread only").click()
    notice(page, "one").get_by_role("button", name="Mark as read").click()
    expect(notice(page, "one")).to_have_count(0)
    expect(page.get_by_role("link", name="Unread only")).to_have_attribute("aria-current", "page")
    notice(page, "two").get_by_role("button", name="Discard").click()
    expect(page.get_by_text("You're all caught up.")).to_be_visible()
    page.get_by_role("link", name="By time").click()
    expect(notice(page, "one")).to_be_visible()
    bell(page, 0)
    assert box.unread() == 0


def test_the_page_is_accessible(visit: Visit, ann: User) -> None:
    page = visit(ann, "notifications", viewport={"width": 360, "height": 740})
    assert violations(page) == {}
    for level in LEVELS:
        notify(str(ann.pk), f"Some {level}", level=level, url="/", group=level, sender="shop")
        notify(str(ann.pk), f"More {level} " + "x" * 100, level=level, url="/", group=level, sender="shop")
        notify(str(ann.pk), f"Other {level}", level=level)
    Mailbox(str(ann.pk)).mark_read([2, 3])
    for show in ("", "?show=time", "?show=unread"):
        page.goto(reverse("messaging:notifications") + show)
        bell(page, 6)
        assert violations(page) == {}
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert min(contrasts := page.evaluate(CONTRASTS)) >= 4.5, contrasts
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
