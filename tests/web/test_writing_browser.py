"""What is typed in a real browser is not lost, and sent once: drafts, edits, unsent messages."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import APIResponse, Route, expect

from django_redis_messaging import Chat

from ..support.browser import (
    TIMEOUT,
    Visit,
    bodies,
    choose,
    expect_message,
    expect_title,
    hold,
    many_chats,
    open_account,
    open_page,
    reload,
    row,
    send,
    shown_bodies,
    sign_in,
    wait_for_messages,
    wait_until,
)
from ..support.page_states import KEEP
from ..support.people import Member
from ..support.server import keys, server

#: what is stored of what was typed
TEXTS = """() => Object.entries(localStorage).filter(([key]) => key.startsWith("drm:"))
  .map(([, value]) => JSON.parse(value).text).sort()"""
#: lets the clocks run ahead by so many seconds
CLOCKS = """window.clocks = { wall: 0, steady: 0 };
for (const [owner, name] of [[Date, "wall"], [performance, "steady"]]) {
  const now = owner.now.bind(owner);
  owner.now = () => now() + 1000 * clocks[name];
}"""
NO_STORAGE = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no'); } });"
ONLINE = "dispatchEvent(new Event('online'))"


class TestDrafts:
    def test_they_survive_other_pages_and_edits(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = Chat.create(ann, [bob], "First", title="One")
        other = Chat.create(ann, [bob], "Second", title="Two")
        page = visit(ann, "room", chat.id)
        field = page.locator("#drm-body")
        field.fill("A draft")
        open_page(page, "room", other.id)
        expect(field).to_have_value("")
        page.go_back()
        expect(field).to_have_value("A draft")
        field.fill("")
        field.press("ArrowUp")
        expect(field).to_have_value("First")
        field.fill("First, edited")
        field.press("Escape")
        expect(field).to_have_value("")
        field.fill("Another draft")
        reload(page)
        expect(field).to_have_value("Another draft")
        field.fill("")
        field.press("ArrowUp")
        expect(field).to_have_value("First, edited")

    def test_without_storage(self, visit: Visit, alone: None, ann: Member, bob: Member) -> None:
        many_chats(ann, bob, 2)
        page = visit(ann, script=NO_STORAGE)
        field = page.get_by_label("Message", exact=True)
        row(page, "Room 1").click()
        expect_title(page, "Room 1")
        field.fill("A draft")
        row(page, "Room 0").click()
        expect_title(page, "Room 0")
        expect(field).to_have_value("")
        row(page, "Room 1").click()
        expect(field).to_have_value("A draft")

    def test_signing_out_removes_them_after_a_warning(self, visit: Visit, ann: Member) -> None:
        chat = Chat.create(ann, [], title="Notes")
        page = visit(ann, "room", chat.id)
        page.locator("#drm-body").fill("A secret")
        assert page.evaluate("Object.keys(localStorage).some(key => key.startsWith('drm:'))")
        page.evaluate(KEEP)
        page.evaluate("window.confirm = (text) => { window.asked = text; return false; }")
        open_account(page)
        sign_out = page.get_by_role("button", name="Sign out")
        sign_out.click()
        assert "will be removed from this browser" in page.evaluate("window.asked")
        assert page.evaluate(TEXTS) == ["A secret", "Kept"]
        page.evaluate("window.confirm = () => true")
        with page.expect_navigation():
            sign_out.click()
        page.goto("/static/django_redis_messaging/frame.js")
        assert page.evaluate(TEXTS) == ["Kept"]

    def test_who_is_removed_keeps_the_text(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = Chat.create(ann, [bob], "First", title="Trip")
        chat.send(bob, "Second")
        page = visit(bob, "room", chat.id)
        choose(page, 2, "Edit")
        field = page.locator("#drm-body")
        expect(field).to_have_value("Second")
        field.fill("Second, edited")
        field.press("Escape")
        field.fill("A long answer")
        chat.leave(bob, by=ann)
        expect(page.locator("#drm-status")).to_contain_text("you are no longer in this chat", timeout=TIMEOUT)
        expect(page.locator("#drm-composer")).to_be_hidden()
        unsent = page.get_by_label("Your text that was not sent")
        expect(unsent).to_have_value("A long answer\n\nSecond, edited")
        expect(unsent).to_be_focused()
        expect(page.locator(".drm-dots").first).to_be_hidden()
        expect(page.locator("#m1")).to_be_visible()
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy text").click()
        assert page.evaluate("navigator.clipboard.readText()") == "A long answer\n\nSecond, edited"

    def test_enter_while_an_input_method_composes_sends_nothing(
        self, visit: Visit, ann: Member, bob: Member
    ) -> None:
        chat = Chat.create(ann, [bob], title="Trip")
        page = visit(ann, "room", chat.id)
        field = page.locator("#drm-body")
        field.focus()
        method = page.context.new_cdp_session(page).send
        method("Input.imeSetComposition", {"text": "にほん", "selectionStart": 3, "selectionEnd": 3})
        field.press("Enter")
        # Safari ends the composition first; its keyCode is that of an input method.
        safari = "{ key: 'Enter', keyCode: 229, cancelable: true, bubbles: true }"
        assert field.evaluate(f"field => field.dispatchEvent(new KeyboardEvent('keydown', {safari}))")
        expect(field).to_have_value(re.compile("にほん"))
        method("Input.insertText", {"text": "日本"})
        expect(page.locator(".drm-pending")).to_have_count(0)
        field.fill("日本")
        field.press("Enter")
        wait_for_messages(page, chat, bob, ["日本"])


class TestEdits:
    def test_saving_one_leaves_another_one_alone(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = Chat.create(ann, [bob], "One", title="Trip")
        chat.send(ann, "Two")
        page = visit(ann, "room", chat.id)
        held = hold(page, "**/edit/**")
        field, marked = page.locator("#drm-body"), page.locator(".drm-edited")
        choose(page, 1, "Edit")
        expect(marked).to_have_id("m1")
        field.fill("One, edited")
        field.press("Enter")
        field.press("Enter")  # while it is saved
        wait_until(page, lambda: len(held) == 1)
        choose(page, 2, "Edit")
        expect(field).to_have_value("Two")
        expect(marked).to_have_id("m2")
        field.fill("Two, which took minutes")
        held.pop().continue_()
        expect(page.locator("#m1")).to_contain_text("One, edited")
        expect(field).to_have_value("Two, which took minutes")
        expect(marked).to_have_id("m2")
        field.press("Enter")
        field.press("Escape")  # the edit is saved nevertheless
        expect(marked).to_have_count(0)
        wait_until(page, lambda: len(held) == 1)
        held.pop().continue_()
        expect(page.locator("#m2")).to_contain_text("Two, which took minutes")
        expect(field).to_have_value("")
        expect(page.locator("#drm-status")).to_have_text("")
        assert held == []

    def test_one_that_is_saved_late_leaves_the_draft_alone(
        self, visit: Visit, ann: Member, bob: Member
    ) -> None:
        [chat, _] = many_chats(ann, bob, 2)
        chat.send(ann, "Second")
        page = visit(ann, "room", chat.id)
        held = hold(page, "**/edit/**")
        choose(page, 2, "Edit")
        field = page.get_by_label("Message", exact=True)
        expect(field).to_have_value("Second")
        field.fill("Second, edited")
        field.press("Enter")
        wait_until(page, lambda: len(held) == 1)
        row(page, "Room 0").click()
        expect_title(page, "Room 0")
        page.go_back()
        expect_title(page, "Room 1")
        field.fill("A draft")
        with page.expect_response("**/edit/**"):
            held.pop().continue_()
        expect(page.locator("#m2")).to_contain_text("Second, edited")
        reload(page)
        expect(field).to_have_value("A draft")
        choose(page, 2, "Edit")
        expect(field).to_have_value("Second, edited")


class TestUnsentMessages:
    def test_those_written_offline_are_sent_in_order_after_a_reload(
        self, visit: Visit, ann: Member, bob: Member
    ) -> None:
        chat, other = (Chat.create(ann, [bob], title=title) for title in ("Train", "Other"))
        page = visit(ann, "room", chat.id)
        page.route("**/send/**", lambda route: route.abort())
        for number in range(3):
            send(page, f"Tunnel {number}")
        expect(page.locator(".drm-pending")).to_have_count(3)
        expect(page.locator(".drm-pending").first).to_contain_text("Waiting for a connection")
        page.reload()
        expect(page.locator(".drm-pending")).to_have_count(3)
        page.unroute("**/send/**")
        page.evaluate(ONLINE)
        expect(page.locator(".drm-pending")).to_have_count(0, timeout=TIMEOUT)
        assert bodies(chat, bob) == ["Tunnel 0", "Tunnel 1", "Tunnel 2"]
        assert shown_bodies(page) == bodies(chat, bob)
        # What was not sent in one chat is sent from the page of another one.
        page.route("**/send/**", lambda route: route.abort())
        send(page, "Not sent yet")
        expect(page.locator(".drm-pending")).to_contain_text("Waiting for a connection")
        page.unroute("**/send/**")
        open_page(page, "room", other.id)
        wait_for_messages(page, chat, bob, ["Tunnel 0", "Tunnel 1", "Tunnel 2", "Not sent yet"])

    def test_those_of_a_room_that_was_left_are_sent(self, visit: Visit, ann: Member, bob: Member) -> None:
        left, other = many_chats(ann, bob, 2)
        page = visit(ann, "room", left.id)
        held = hold(page, f"**/{left.id}/send/**")
        send(page, "Sent later")
        expect(page.locator(".drm-pending")).to_contain_text("Sent later")
        row(page, "Room 0").click()
        expect_title(page, "Room 0")
        expect(page.locator(".drm-pending")).to_have_count(0)
        page.go_back()
        expect(page.locator(".drm-pending")).to_contain_text("Sent later")
        page.go_forward()
        expect_title(page, "Room 0")
        held.pop().continue_()
        wait_for_messages(page, left, bob, ["Hello 1", "Sent later"])
        assert bodies(other, bob) == ["Hello 0"]
        page.go_back()
        expect(page.locator("#drm-log .drm-body")).to_have_text(["Hello 1", "Sent later"])
        expect(page.locator(".drm-pending")).to_have_count(0)

    def test_one_that_is_refused_can_be_sent_again(self, visit: Visit, ann: Member) -> None:
        page = visit(ann, "room", Chat.create(ann, []).id)
        refusal: Any = {"error": {"code": "too_long", "message": "Long"}}
        page.route("**/send/**", lambda route: route.fulfill(status=413, json=refusal))
        send(page, "Later")
        failed = page.locator(".drm-failed")
        expect(failed).to_contain_text("Long")
        page.unroute("**/send/**")
        failed.get_by_role("button", name="Try again").click()
        expect(page.locator(".drm-message[data-id]")).to_contain_text("Later")
        expect(failed).to_have_count(0)

    def test_they_are_sent_after_signing_in_again(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = Chat.create(ann, [bob], "First")
        page = visit(ann, "room", chat.id)
        page.context.clear_cookies()
        send(page, "Signed out")
        link = page.locator("#drm-status").get_by_role("link", name="Sign in")
        expect(link).to_be_visible()
        assert reverse("messaging:room", args=[chat.id]) in (link.get_attribute("href") or "")
        sign_in(page.context, ann, page.url)  # in another tab: a new session, and a new CSRF token
        page.evaluate("dispatchEvent(new Event('focus'))")
        expect_message(page, "Signed out")
        expect(page.locator(".drm-pending")).to_have_count(0, timeout=TIMEOUT)
        wait_for_messages(page, chat, bob, ["First", "Signed out"])

    def test_nothing_is_sent_in_the_name_of_the_next_user(
        self, visit: Visit, ann: Member, bob: Member
    ) -> None:
        chat = Chat.create(ann, [bob], "First")
        page = visit(ann, "room", chat.id)
        sign_in(page.context, bob, page.url)
        send(page, "By Ann")
        expect(page.locator("#drm-status")).to_contain_text("another user", timeout=TIMEOUT)
        assert bodies(chat, bob) == ["First"]
        expect(page.locator("#drm-status")).to_contain_text("is kept in this browser")
        page.locator("#drm-body").fill("A draft by Ann")
        old = {"text": "Of last year", "at": 0}
        page.evaluate("old => localStorage.setItem('drm:0:draft:1', JSON.stringify(old))", old)
        reload(page)  # as Bob, who sees nothing of it but that it is there
        expect(page.locator("#drm-kept")).to_contain_text("Another user of this browser")
        expect(page.locator(".drm-pending")).to_have_count(0)
        expect(page.locator("#drm-body")).to_have_value("")
        page.get_by_role("button", name="OK").click()
        expect(page.locator("#drm-kept")).to_be_hidden()
        reload(page)
        expect(page.locator("#drm-kept")).to_be_hidden()
        sign_in(page.context, ann, page.url)
        reload(page)
        expect(page.locator("#drm-body")).to_have_value("A draft by Ann")
        wait_for_messages(page, chat, bob, ["First", "By Ann"])
        assert page.evaluate("localStorage.getItem('drm:0:draft:1')") is None


class TestOnce:
    """Each message is sent once, although answers are lost."""

    def test_answers_are_lost(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = Chat.create(ann, [bob])
        page = visit(ann, "room", chat.id)
        lost: list[str] = []

        def lose_twice(route: Route) -> None:
            if len(lost) >= 2:
                route.continue_()
                return
            lost.append(route.request.post_data or "")
            route.fetch()
            route.abort()

        page.route("**/send/**", lose_twice)
        send(page, "Only once")
        expect(page.locator(".drm-pending")).to_have_count(1)
        expect(page.locator(".drm-pending")).to_have_count(0, timeout=TIMEOUT)
        expect_message(page, "Only once")
        assert len(lost) == 2 and lost[0] == lost[1]
        assert bodies(chat, bob) == ["Only once"]

    def test_an_answer_was_lost_long_ago(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = Chat.create(ann, [bob], "First")
        page = visit(ann, "room", chat.id)
        lost: list[str] = []

        def lose(route: Route) -> None:
            if not lost:
                route.fetch()
                lost.append(route.request.post_data or "")
            route.abort()

        page.route("**/send/**", lose)
        send(page, "Only once")
        wait_for_messages(page, chat, bob, ["First", "Only once"])
        page.close()
        # As if REQUEST_WINDOW was over: the server has forgotten the request id, and the time has passed.
        later = page.context.new_page()
        sent: list[str] = []
        later.on("request", lambda request: sent.append(request.url) if "/send/" in request.url else None)
        later.add_init_script("const now = Date.now; Date.now = () => now() + 3_600_000;")
        open_page(later, "room", chat.id)
        expect(later.locator(".drm-pending")).to_have_count(0, timeout=TIMEOUT)
        assert sent == []
        wait_for_messages(later, chat, bob, ["First", "Only once"])

    @pytest.mark.promise
    def test_clocks_were_set(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = Chat.create(ann, [bob])
        page = visit(ann, "room", chat.id, script=CLOCKS)
        changes = {
            "set back": "clocks.wall -= 3600",
            "asleep": "clocks.wall += 200",
            "set back by as much as has passed": "clocks.steady += 200",
            "a new page": "",
        }
        lost: list[APIResponse] = []
        is_online = False

        def answer(route: Route) -> None:
            if is_online:
                return route.continue_()
            if not lost:
                lost.append(route.fetch())
            route.abort()

        page.route("**/send/**", answer)
        for text, change in changes.items():
            is_online = False
            lost.clear()
            send(page, text)
            wait_until(page, lambda: bool(lost))
            page.evaluate(change) if change else page.goto("about:blank")
            server().delete(*keys(chat).requests)  # as after REQUEST_WINDOW
            is_online = True
            page.evaluate(ONLINE) if change else open_page(page, "room", chat.id)
            expect(page.locator(".drm-pending")).to_have_count(0, timeout=TIMEOUT)
            expect_message(page, text)
        assert bodies(chat, bob) == list(changes)

    def test_two_tabs_send_in_order(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = Chat.create(ann, [bob], title="Tabs")
        one = visit(ann, "room", chat.id)
        two = open_page(one.context.new_page(), "room", chat.id)
        for page in (one, two):
            page.route("**/send/**", lambda route: route.abort())
        written = [f"{number} {name}" for number in range(3) for name in ("one", "two")]
        for text in written:
            send(one if text.endswith("one") else two, text)
        for page in (one, two):
            expect(page.locator(".drm-pending")).to_have_count(6)
        # Each has a key of its own: a tab that writes at the same time overwrites no other message.
        stored = one.evaluate("Object.keys(localStorage).filter(key => key.includes(':outbox:'))")
        assert len(stored) == 6
        for page in (one, two):
            page.unroute("**/send/**")
            page.evaluate(ONLINE)
        wait_for_messages(one, chat, bob, written)
        for page in (one, two):
            expect(page.locator(".drm-pending")).to_have_count(0, timeout=TIMEOUT)
            expect(page.locator("#drm-log .drm-message")).to_have_count(6, timeout=TIMEOUT)

    @pytest.mark.parametrize(
        "script",
        [
            NO_STORAGE,
            "Storage.prototype.setItem = () => { throw new DOMException('', 'QuotaExceededError'); }",
            "Object.defineProperty(navigator, 'locks', { value: undefined })",
        ],
        ids=["no storage", "full storage", "no locks"],
    )
    def test_without_storage_or_locks(
        self, visit: Visit, alone: None, ann: Member, bob: Member, script: str
    ) -> None:
        chat = Chat.create(ann, [bob], title="Poor")
        page = visit(ann, "room", chat.id, script=script)
        send(page, "One")
        send(page, "Two")
        wait_for_messages(page, chat, bob, ["One", "Two"])
        expect(page.locator(".drm-pending")).to_have_count(0)
        expect(page.locator("#drm-body")).to_have_value("")
