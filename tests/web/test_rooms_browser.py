"""Rooms that open in place, without loading a page, in a real browser."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from django.contrib.auth.models import User
from playwright.sync_api import Locator, Page, Route, expect
from pytest_django import Settings

from django_redis_messaging import Chat

from .test_browser import MODULES, Visit, choose, expect_message, send, visit
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
    expect(page.locator("#drm")).to_have_attribute("data-sign-in", re.compile(page.url.rsplit("/", 2)[1]))
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
    held: list[Route] = []
    page.route(f"**/{left.id}/send/**", lambda route: held.append(route))
    page.get_by_label("Message", exact=True).fill("Sent later")
    page.keyboard.press("Enter")
    expect(page.locator(".drm-pending")).to_contain_text("Sent later")
    row(page, "Room 0").click()
    expect(page.locator("#drm-title bdi")).to_have_text("Room 0")
    expect(page.locator(".drm-pending")).to_have_count(0)
    page.go_back()
    expect(page.locator(".drm-pending")).to_contain_text("Sent later")
    page.go_forward()
    expect(page.locator("#drm-title bdi")).to_have_text("Room 0")
    held.pop().continue_()
    wait_until(page, lambda: texts(left, bob) == ["Hello 1", "Sent later"], seconds=30)
    assert texts(other, bob) == ["Hello 0"]
    page.go_back()
    expect(page.locator("#drm-log .drm-body")).to_have_text(["Hello 1", "Sent later"])
    expect(page.locator(".drm-pending")).to_have_count(0)


def test_a_room_that_was_left_loads_nothing_more(visit: Visit, person: Callable[..., User]) -> None:
    """Also if answers are still to come when it is left."""
    ann, bob = person("ann"), person("bob")
    [other] = many_chats(ann, bob, 1)
    long = filled(bob, ann, 400)
    page = visit(ann, "room", other.id)
    page.evaluate(MODULES)
    held: list[Route] = []
    page.route(f"**/{long.id}/ack/**", lambda route: held.append(route))
    row(page, "Long").click()
    wait_until(page, lambda: len(held) == 1)
    row(page, "Room 0").click()
    expect(page.locator("#drm-title bdi")).to_have_text("Room 0")
    asked: list[str] = []
    page.on(
        "request", lambda request: asked.append(request.url) if f"{long.id}/feed" in request.url else None
    )
    with page.expect_response(f"**/{long.id}/ack/**"):
        held.pop().continue_()
    for _ in range(2):  # polls of the other room
        page.wait_for_event("response", lambda response: f"{other.id}/feed" in response.url)
    assert [url for url in asked if f"{long.id}/feed" in url] == []


def test_an_edit_that_is_saved_late_leaves_the_draft_alone(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann"), person("bob")
    [chat, _] = many_chats(ann, bob, 2)
    chat.send(str(ann.pk), "Second")
    page = visit(ann, "room", chat.id)
    held: list[Route] = []
    page.route("**/edit/**", lambda route: held.append(route))
    choose(page, 2, "Edit")
    field = page.get_by_label("Message", exact=True)
    expect(field).to_have_value("Second")
    field.fill("Second, edited")
    field.press("Enter")
    wait_until(page, lambda: len(held) == 1)
    row(page, "Room 0").click()
    expect(page.locator("#drm-title bdi")).to_have_text("Room 0")
    page.go_back()
    expect(page.locator("#drm-title bdi")).to_have_text("Room 1")
    field.fill("A draft")
    with page.expect_response("**/edit/**"):
        held.pop().continue_()
    expect(page.locator("#m2")).to_contain_text("Second, edited")
    page.reload()
    page.evaluate(MODULES)
    expect(field).to_have_value("A draft")
    choose(page, 2, "Edit")
    expect(field).to_have_value("Second, edited")


def test_drafts_without_storage(visit: Visit, person: Callable[..., User], settings: Settings) -> None:
    settings.ROOT_URLCONF = Alone  # the admin's script needs localStorage
    ann, bob = person("ann"), person("bob")
    many_chats(ann, bob, 2)
    page = visit(ann)
    page.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no'); } });"
    )
    page.reload()
    page.evaluate(MODULES)
    field = page.get_by_label("Message", exact=True)
    row(page, "Room 1").click()
    expect(page.locator("#drm-title bdi")).to_have_text("Room 1")
    field.fill("A draft")
    row(page, "Room 0").click()
    expect(page.locator("#drm-title bdi")).to_have_text("Room 0")
    expect(field).to_have_value("")
    row(page, "Room 1").click()
    expect(field).to_have_value("A draft")


def test_going_back_and_at_once_forward(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann"), person("bob")
    first, second = many_chats(ann, bob, 2)
    page = visit(ann, "room", first.id)
    page.evaluate(MODULES)
    row(page, "Room 0").click()
    expect(page.locator("#drm-title bdi")).to_have_text("Room 0")
    held: list[Route] = []
    page.route(f"**/chats/{first.id}/", lambda route: held.append(route))
    page.evaluate("history.back()")
    wait_until(page, lambda: len(held) == 1)
    page.evaluate("history.forward()")
    wait_until(page, lambda: second.id in page.url)
    with page.expect_response(f"**/chats/{first.id}/"):
        held.pop().continue_()
    with page.expect_response(f"**/{second.id}/feed/**"):  # the room goes on
        pass
    expect(page.locator("#drm-title bdi")).to_have_text("Room 0")
    assert second.id in page.url


def test_a_page_is_loaded_if_the_scripts_of_rooms_are_not(visit: Visit, person: Callable[..., User]) -> None:
    """Because a new version of the site has others."""
    ann, bob = person("ann"), person("bob")
    many_chats(ann, bob, 1)
    page = visit(ann)
    page.evaluate(MODULES)
    page.route("**/room.js", lambda route: route.abort(), times=1)
    with page.expect_event("load"):
        row(page, "Room 0").click()
    send(page, "Hello to you")
    expect_message(page, "Hello to you")
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
