"""Rooms that open in place, without loading a page, in a real browser."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from django.contrib.auth.models import User
from playwright.sync_api import Locator, Page, expect
from pytest_django import Settings

from django_redis_messaging import Chat

from .test_browser import MODULES, Visit, expect_message, visit
from .test_room_browser import IN_SIGHT, SCROLL, filled, many_chats, wait_until
from .test_site import Alone

__all__ = ["visit"]  # the fixture

#: switches after which the memory is compared
SWITCHES = 200 if os.environ.get("MESSAGING_LONG") else 30
#: opens the room of a row of the list, and waits until it is there
SWITCH = """async index => {
  const link = document.querySelectorAll(".drm-row > a")[index];
  const title = link.querySelector("bdi").textContent;
  const opened = new Promise(resolve => document.addEventListener("drm:room", resolve, { once: true }));
  link.click();
  await opened;
  return document.querySelector("#drm-title bdi").textContent === title;
}"""


def row(page: Page, title: str) -> Locator:
    """The link of a chat in the list."""
    return page.locator(".drm-row > a", has=page.get_by_text(title, exact=True))


def expect_room(page: Page, title: str) -> None:
    """The room is there as if its page had been loaded, but the page is still the same."""
    expect(page.locator("#drm-title bdi")).to_have_text(title)
    expect(page).to_have_title(re.compile(re.escape(title)))
    expect(page.locator(".drm-row > a[aria-current]")).to_have_count(1)
    expect(row(page, title)).to_have_attribute("aria-current", "page")
    assert page.evaluate("window.isSame") is True


def test_switching_and_going_back(visit: Visit, person: Callable[..., User], settings: Settings) -> None:
    settings.ROOT_URLCONF, settings.LOGIN_URL = Alone, "/login/"
    ann, bob = person("ann"), person("bob")
    many_chats(ann, bob, 49)
    long = filled(bob, ann, 500)
    long.ack(str(ann.pk), 500)
    page = visit(ann, "room", long.id)
    page.evaluate(MODULES)
    page.evaluate("window.isSame = true")
    field = page.get_by_label("Message", exact=True)
    field.fill("A draft")
    expect(page.locator("#m500")).to_be_in_viewport()
    page.evaluate(SCROLL, -0.6)
    wait_until(page, lambda: 500 not in page.evaluate(IN_SIGHT))
    in_sight = page.evaluate(IN_SIGHT)

    row(page, "Room 7").click()
    expect_room(page, "Room 7")
    expect_message(page, "Hello 7")
    expect(field).to_be_focused()
    expect(field).to_have_value("")
    row(page, "Room 8").focus()
    page.keyboard.press("Enter")
    expect_room(page, "Room 8")
    page.go_back()
    expect_room(page, "Room 7")
    page.go_back()
    expect_room(page, "Long")
    wait_until(page, lambda: in_sight[0] in page.evaluate(IN_SIGHT))
    assert page.evaluate(IN_SIGHT) == in_sight
    expect(field).to_have_value("A draft")
    page.go_forward()
    expect_room(page, "Room 7")

    with page.context.expect_page() as opened:
        row(page, "Long").click(modifiers=["ControlOrMeta"])
    expect(opened.value.locator("#drm-title bdi")).to_have_text("Long")
    expect_room(page, "Room 7")

    page.reload()
    expect(page.locator("#drm-title bdi")).to_have_text("Room 7")
    page.go_back()
    expect(page.locator("#drm-title bdi")).to_have_text("Long")


def test_unsent_messages_are_sent_from_another_room(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann"), person("bob")
    left, other = many_chats(ann, bob, 2)
    page = visit(ann, "room", left.id)
    page.evaluate(MODULES)
    page.route(f"**/{left.id}/send/**", lambda route: route.abort())
    page.get_by_label("Message", exact=True).fill("Sent later")
    page.keyboard.press("Enter")
    expect(page.locator(".drm-pending")).to_contain_text("Sent later")
    row(page, "Room 0").click()
    expect(page.locator("#drm-title bdi")).to_have_text("Room 0")
    expect(page.locator(".drm-pending")).to_have_count(0)
    page.unroute(f"**/{left.id}/send/**")
    wait_until(page, lambda: texts(left, bob) == ["Hello 1", "Sent later"], seconds=30)
    assert texts(other, bob) == ["Hello 0"]
    page.go_back()
    expect(page.locator("#drm-log .drm-body")).to_have_text(["Hello 1", "Sent later"])
    expect(page.locator(".drm-pending")).to_have_count(0)


def texts(chat: Chat, user: User) -> list[str]:
    return [message.body for message in chat.history(str(user.pk)).messages]


def test_rooms_that_were_left_take_no_memory(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann"), person("bob")
    chats = many_chats(ann, bob, 20)
    page = visit(ann, "room", chats[0].id, fast=False)
    page.evaluate(MODULES)
    devtools = page.context.new_cdp_session(page)

    def counted() -> tuple[int, int]:
        devtools.send("HeapProfiler.collectGarbage")
        counters = devtools.send("Memory.getDOMCounters")
        return counters["nodes"], counters["jsEventListeners"]

    def switch(times: int) -> None:
        for number in range(times):
            assert page.evaluate(SWITCH, 1 + number % 10)

    switch(20)
    before = counted()
    switch(SWITCHES)
    # Timers that have not ended yet keep the latest rooms.
    wait_until(page, lambda: all(now <= 1.1 * then for now, then in zip(counted(), before, strict=True)))
