"""The list of chats in a real browser: rooms open in place, without loading a page; its filter and keys."""

from __future__ import annotations

import os
import re

from playwright.sync_api import Page, expect

from django_redis_messaging import Chat
from django_redis_messaging.web.views.chats import CHATS_PER_PAGE

from ..support.browser import (
    IN_SIGHT,
    MODULES,
    SCROLL,
    TIMEOUT,
    Visit,
    expect_message,
    expect_title,
    filled,
    hold,
    many_chats,
    open_account,
    open_page,
    reload,
    row,
    send,
    titled,
    violations_now,
    wait_until,
)
from ..support.people import Member

#: switches after which the memory is compared
SWITCHES = 200 if os.environ.get("MESSAGING_LONG") else 30
#: opens rooms of the list one after another, each once the one before is there
SWITCH = """async ([start, times]) => {
  for (let number = start; number < start + times; number += 1) {
    const link = document.querySelectorAll(".drm-row > a")[1 + number % 10];
    const title = link.querySelector("bdi").textContent;
    const opened = new Promise(resolve => document.addEventListener("drm:room", resolve, { once: true }));
    link.click();
    await opened;
    if (document.querySelector("#drm-title bdi").textContent !== title) return false;
  }
  return true;
}"""
#: marks the rows and the messages that the server has rendered
MARK = """document.addEventListener("DOMContentLoaded", () => {
  for (const one of document.querySelectorAll(".drm-message, .drm-row")) one.kept = true;
})"""


def expect_room(page: Page, title: str) -> None:
    """The room is there as if its page had been loaded, but the page is still the same."""
    expect_title(page, title)
    expect(page).to_have_title(titled(title))
    expect(page.locator(".drm-row > a[aria-current]")).to_have_count(1)
    expect(row(page, title)).to_have_attribute("aria-current", "page")
    assert page.evaluate("window.isSame") is True


class TestSwitching:
    def test_and_going_back(self, visit: Visit, alone: None, ann: Member, bob: Member) -> None:
        many_chats(ann, bob, 49)
        long = filled(bob, ann, 500)
        long.ack(ann, 500)
        page = visit(ann, "room", long.id)
        page.evaluate("window.isSame = true")
        field = page.get_by_label("Message", exact=True)
        field.fill("A draft")
        expect(page.locator("#m500")).to_be_in_viewport()
        page.evaluate(SCROLL, -0.6)
        wait_until(page, lambda: 500 not in page.evaluate(IN_SIGHT))
        in_sight = page.evaluate(IN_SIGHT)

        row(page, "Room 7").click()
        expect_room(page, "Room 7")
        expect(page.locator("#drm")).to_have_attribute("data-sign-in", titled(page.url.rsplit("/", 2)[1]))
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
        expect_title(opened.value, "Long")
        expect_room(page, "Room 7")

        page.reload()
        expect_title(page, "Room 7")
        page.go_back()
        expect_title(page, "Long")

    def test_a_room_that_was_left_loads_nothing_more(self, visit: Visit, ann: Member, bob: Member) -> None:
        """Also if answers are still to come when it is left."""
        [other] = many_chats(ann, bob, 1)
        long = filled(bob, ann, 400)
        page = visit(ann, "room", other.id)
        held = hold(page, f"**/{long.id}/ack/**")
        row(page, "Long").click()
        wait_until(page, lambda: len(held) == 1)
        row(page, "Room 0").click()
        expect_title(page, "Room 0")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        with page.expect_response(f"**/{long.id}/ack/**"):
            held.pop().continue_()
        for _ in range(2):  # polls of the other room
            page.wait_for_event("response", lambda response: f"{other.id}/feed" in response.url)
        assert [url for url in asked if f"{long.id}/feed" in url] == []

    def test_going_back_and_at_once_forward(self, visit: Visit, ann: Member, bob: Member) -> None:
        first, second = many_chats(ann, bob, 2)
        page = visit(ann, "room", first.id)
        row(page, "Room 0").click()
        expect_title(page, "Room 0")
        held = hold(page, f"**/chats/{first.id}/")
        page.evaluate("history.back()")
        wait_until(page, lambda: len(held) == 1)
        page.evaluate("history.forward()")
        wait_until(page, lambda: second.id in page.url)
        with page.expect_response(f"**/chats/{first.id}/"):
            held.pop().continue_()
        with page.expect_response(f"**/{second.id}/feed/**"):  # the room goes on
            pass
        expect_title(page, "Room 0")
        assert second.id in page.url

    def test_a_page_is_loaded_if_the_scripts_of_rooms_are_not(
        self, visit: Visit, ann: Member, bob: Member
    ) -> None:
        """Because a new version of the site has others."""
        many_chats(ann, bob, 1)
        page = visit(ann)
        page.route("**/room.js", lambda route: route.abort(), times=1)
        with page.expect_event("load"):
            row(page, "Room 0").click()
        send(page, "Hello to you")
        expect_message(page, "Hello to you")
        expect(page.locator(".drm-pending")).to_have_count(0)

    def test_rooms_that_were_left_take_no_memory(self, visit: Visit, ann: Member, bob: Member) -> None:
        page = visit(ann, "room", many_chats(ann, bob, 20)[0].id)
        devtools = page.context.new_cdp_session(page)

        def counted() -> tuple[int, int]:
            devtools.send("HeapProfiler.collectGarbage")
            counters = devtools.send("Memory.getDOMCounters")
            return counters["nodes"], counters["jsEventListeners"]

        assert page.evaluate(SWITCH, [0, 20])
        before = counted()
        assert page.evaluate(SWITCH, [0, SWITCHES])
        # Timers that have not ended yet keep the latest rooms.
        wait_until(page, lambda: all(now <= 1.1 * then for now, then in zip(counted(), before, strict=True)))


class TestList:
    def test_polls_do_not_replace_unchanged_elements(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = Chat.create(ann, [bob], "Kept", title="One")
        for title in ("Two", "Three"):
            Chat.create(ann, [bob], "Other", title=title)
        page = visit(ann, "room", chat.id, script=MARK)
        kept = "rows => rows.map(row => row.kept)"
        for path in (f"{chat.id}/feed/", "/messages/feed/"):
            with page.expect_response(lambda response, end=path: response.url.split("?")[0].endswith(end)):  # type: ignore[misc]
                pass
        assert page.locator(".drm-row").evaluate_all(kept) == [True] * 3
        chat.send(bob, "New")
        expect_message(page, "New")
        expect(page.locator(".drm-row", has_text="One")).to_contain_text("New", timeout=TIMEOUT)
        assert page.locator("#m1").evaluate("item => item.kept")
        assert page.locator(".drm-row", has_text="Two").evaluate("item => item.kept")

    def test_the_second_page_stays_as_it_is_and_the_filter(self, visit: Visit, ann: Member) -> None:
        for number in range(CHATS_PER_PAGE + 5):
            Chat.create(ann, [], title=f"Chat {number}")
        page = visit(ann)
        page.get_by_label("Filter chats").fill("cHAT 7")
        expect(page.locator(".drm-row:visible")).to_have_text(re.compile("Chat 7"))
        page.get_by_role("link", name="More chats").click()
        expect(page.locator(".drm-row")).to_have_count(5)
        page.wait_for_event("response", lambda response: "/bell/" in response.url)  # polled later than a list
        expect(page.locator(".drm-row")).to_have_count(5)


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


class TestKeys:
    def test_they_lead_through_the_pages(self, visit: Visit, ann: Member, bob: Member) -> None:
        chats = [Chat.create(bob, [ann], "Text", title=title) for title in ("One", "Two", "Three")]
        page = visit(ann)
        first, second, third = page.locator(".drm-row-title > bdi").all_inner_texts()
        for key, title in [("j", first), ("j", second), ("k", first), ("j", second)]:
            with page.expect_navigation():
                press(page, key)
            expect_title(page, title)
            expect(page.locator("#drm-body")).to_be_focused()
            press(page, "Escape")
        press(page, "m")
        expect(page.locator("#drm-body")).to_be_focused()
        press(page, "n", "j")  # typed
        expect(page.locator("#drm-body")).to_have_value("nj")
        page.locator("#drm-scroll").focus()
        press(page, "/")
        expect(page.get_by_label("Filter chats")).to_be_focused()
        expect(page.get_by_label("Filter chats")).to_have_value("")
        page.locator("#drm-scroll").focus()
        for chat in chats:
            if chat.info().title != third:
                chat.ack(ann, 1)
        open_page(page, "chats")
        with page.expect_navigation():
            press(page, "u")  # the next unread chat
        expect_title(page, third)
        for key, path in [("s", "/search/"), ("p", "/contacts/"), ("b", "/notifications/"), ("n", "/new/")]:
            page.locator(".drm-nav a").first.focus()
            with page.expect_navigation(url=re.compile(path)):
                press(page, key)
            page.evaluate(MODULES)

    def test_the_list_of_keys_and_the_switch(self, visit: Visit, ann: Member) -> None:
        page = visit(ann)
        press(page, "?")
        dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
        expect(dialog).to_contain_text("Next unread chat")
        assert violations_now(page) == []
        page.get_by_role("switch", name="Use single keys").click()
        expect(page.get_by_role("switch", name="Use single keys")).not_to_be_checked()
        press(page, "n", "Escape")
        expect(dialog).to_be_hidden()
        reload(page)
        press(page, "?", "n")
        expect(dialog).to_be_hidden()
        # Keys are off, but the menu leads to the switch.
        open_account(page)
        page.get_by_role("button", name="Keyboard shortcuts").click()
        page.get_by_role("switch", name="Use single keys").click()
        page.get_by_role("button", name="Close").click()
        with page.expect_navigation(url=re.compile("/new/")):
            press(page, "n")
