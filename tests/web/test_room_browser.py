"""A room in a real browser: nothing unread is skipped, nothing typed is lost."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import APIResponse, Page, Route, expect
from pytest_django import Settings

from django_redis_messaging import Chat, Inbox, Mailbox
from tests.support.server import keys, server

from .conftest import client_of
from .test_browser import MODULES, TIMEOUT, Visit, choose, expect_message, send, visit
from .test_site import Alone

__all__ = ["visit"]  # the fixture

#: the ids of the messages in the DOM
IDS = "[...document.querySelectorAll('#drm-log .drm-message')].map(item => Number(item.dataset.id))"
#: the ids of the messages of which the user sees the end
IN_SIGHT = """(() => {
  const { top, bottom } = document.getElementById("drm-scroll").getBoundingClientRect();
  return [...document.querySelectorAll("#drm-log .drm-message")]
    .map(item => [Number(item.dataset.id), item.getBoundingClientRect().bottom])
    .filter(([id, end]) => end > top && end <= bottom + 2)
    .map(([id]) => id);
})()"""
#: what Safari and site layouts of other kinds do when a keyboard opens: the window keeps its size
COVER = """([height, offsetTop]) => {
  for (const [name, value] of Object.entries({ height, offsetTop })) {
    Object.defineProperty(visualViewport, name, { value, configurable: true });
  }
  visualViewport.dispatchEvent(new Event("resize"));
}"""
#: scrolls by so many pages
SCROLL = """pages => {
  const log = document.getElementById("drm-scroll");
  log.scrollTop += pages * log.clientHeight;
}"""

#: lets the clocks run ahead by so many seconds
CLOCKS = """window.clocks = { wall: 0, steady: 0 };
for (const [owner, name] of [[Date, "wall"], [performance, "steady"]]) {
  const now = owner.now.bind(owner);
  owner.now = () => now() + 1000 * clocks[name];
}"""


def filled(sender: User, reader: User, count: int) -> Chat:
    """A chat with messages that the reader has not read."""
    chat = Chat.create(str(sender.pk), [str(reader.pk)], title="Long")
    for number in range(1, count + 1):
        chat.send(str(sender.pk), f"Message {number}.")
    return chat


def many_chats(reader: User, other: User, count: int = 60) -> list[Chat]:
    """Chats with a message that the reader has not read, the newest first."""
    people = str(other.pk), [str(reader.pk)]
    return [Chat.create(*people, f"Hello {number}", title=f"Room {number}") for number in range(count)][::-1]


def position(chat: Chat, user: User) -> int:
    return chat.changes(str(user.pk), after=0).read_id


class TestUnread:
    def test_opens_at_the_first_unread_and_acks_only_what_was_in_sight(
        self, visit: Visit, person: Callable[..., User]
    ) -> None:
        ann, bob = person("ann"), person("bob")
        chat = filled(ann, bob, 201)
        page = visit(bob, "room", chat.id)
        divider = page.locator("#drm-unread")
        expect(divider).to_have_text("201 new messages")
        expect(page.locator("#m1")).to_be_in_viewport()
        wait_until(page, lambda: len(page.evaluate(IN_SIGHT)) > 3)
        expect(page.locator("#drm-jump")).to_contain_text("new")
        seen = max(page.evaluate(IN_SIGHT))
        wait_for_position(page, chat, bob, seen)
        assert 3 < seen < 40
        # The end of the chat: what is between has not been in sight, and stays unread.
        page.get_by_role("button", name="↓").click()
        expect(page.locator("#m201")).to_be_in_viewport()
        expect(divider).to_have_count(0)  # it is above what has been skipped
        back = page.get_by_role("button", name="↑")
        expect(back).to_have_text(f"↑ {201 - seen} new")
        assert position(chat, bob) == seen
        back.click()
        expect(page.locator(f"#m{seen + 1}")).to_be_in_viewport()
        expect(page.locator("#drm-unread + .drm-message")).to_have_id(f"m{seen + 1}")

    def test_scrolling_reads_everything_in_order(self, visit: Visit, person: Callable[..., User]) -> None:
        ann, bob = person("ann"), person("bob")
        chat = filled(ann, bob, 120)
        page = visit(bob, "room", chat.id)
        page.evaluate(MODULES)
        for _ in range(80):
            page.evaluate(SCROLL, 0.8)
            page.evaluate("new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)))")
            ids = page.evaluate(IDS)
            assert ids == list(range(ids[0], ids[-1] + 1))
            if page.locator("#drm-jump").is_hidden():
                break
            page.wait_for_load_state("networkidle")
        wait_for_position(page, chat, bob, 120)
        assert Inbox(str(bob.pk)).unread() == 0
        expect(page.locator("#drm-jump")).to_be_hidden()

    def test_skipped_messages_can_be_marked_as_read(self, visit: Visit, person: Callable[..., User]) -> None:
        ann, bob = person("ann"), person("bob")
        chat = filled(ann, bob, 100)
        page = visit(bob, "room", chat.id)
        page.get_by_role("button", name="↓").click()
        expect(page.locator("#m100")).to_be_in_viewport()
        page.get_by_role("button", name="Mark as read").click()
        wait_for_position(page, chat, bob, 100)
        expect(page.locator("#drm-jump")).to_be_hidden()
        expect(page.locator("#drm-mark")).to_be_hidden()


def visit_end(visit: Visit, person: Callable[..., User]) -> Page:
    """The end of a room, on a phone."""
    ann, bob = person("ann"), person("bob")
    chat = filled(bob, ann, 30)
    chat.ack(str(ann.pk), 30)
    page = visit(ann, "room", chat.id, viewport={"width": 400, "height": 800})
    page.evaluate(MODULES)
    expect(page.locator("#m30")).to_be_in_viewport(ratio=1)
    return page


def test_the_end_stays_in_sight_when_the_window_shrinks(visit: Visit, person: Callable[..., User]) -> None:
    page = visit_end(visit, person)
    page.set_viewport_size({"width": 400, "height": 450})  # as by the keyboard of a phone
    expect(page.locator("#m30")).to_be_in_viewport(ratio=1)
    page.evaluate(SCROLL, -2)
    expect(page.locator("#m30")).not_to_be_in_viewport()
    page.set_viewport_size({"width": 400, "height": 500})
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(page.locator("#m30")).not_to_be_in_viewport()


def test_the_composer_stays_above_a_keyboard_that_covers_the_window(
    visit: Visit, person: Callable[..., User]
) -> None:
    page = visit_end(visit, person)
    bottom = "selector => document.querySelector(selector).getBoundingClientRect().bottom"
    for height, top in ((450, 0), (450, 120), (800, 0)):
        page.evaluate(COVER, [height, top])
        wait_until(page, lambda: page.evaluate(bottom, "#m30") < page.evaluate(bottom, "#drm-scroll"))
        assert height + top - 60 < page.evaluate(bottom, "#drm-send") <= height + top


def wait_until(page: Page, condition: Callable[[], bool], *, seconds: int = 10) -> None:
    """Wait for a condition, while the page runs."""
    for _ in range(10 * seconds):
        if condition():
            return
        page.wait_for_timeout(100)
    assert condition()


def wait_for_position(page: Page, chat: Chat, user: User, wanted: int) -> None:
    wait_until(page, lambda: position(chat, user) >= wanted)
    assert position(chat, user) == wanted


def origin(page: Page) -> str:
    return str(page.evaluate("location.origin"))


class TestWindow:
    def test_a_long_room_scrolls_to_its_beginning_with_few_nodes(
        self, visit: Visit, person: Callable[..., User]
    ) -> None:
        ann = person("ann")
        chat = Chat.create(str(ann.pk), [])
        for number in range(1, 401):
            chat.send(str(ann.pk), f"Message {number}.")
        page = visit(ann, "room", chat.id)
        expect(page.locator("#m400")).to_be_in_viewport()
        greatest = 0
        for _ in range(200):
            before = page.evaluate(IN_SIGHT)
            page.evaluate(SCROLL, -0.8)
            page.evaluate("new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)))")
            ids, sight = page.evaluate(IDS), page.evaluate(IN_SIGHT)
            assert ids == list(range(ids[0], ids[-1] + 1))
            assert not sight or not before or sight[-1] >= before[0] - 1, "a message was skipped"
            greatest = max(greatest, page.locator("#drm-log > li").count())
            if 1 in sight:
                break
            page.wait_for_load_state("networkidle")
        expect(page.locator("#m1")).to_be_in_viewport()
        assert greatest <= 300
        expect(page.locator("#drm-beginning")).to_have_text("Beginning of your history")

    def test_a_double_click_on_older_messages_loads_them_once(
        self, visit: Visit, person: Callable[..., User]
    ) -> None:
        ann = person("ann")
        chat = Chat.create(str(ann.pk), [])
        for number in range(120):
            chat.send(str(ann.pk), f"Message {number}.")
        page = visit(ann, "room", chat.id)
        page.evaluate(MODULES)
        page.evaluate("for (let n = 0; n < 3; n += 1) document.getElementById('drm-older').click()")
        wait_until(page, lambda: len(page.evaluate(IDS)) > 50)
        ids = page.evaluate(IDS)
        assert ids == list(range(ids[0], 121))

    def test_a_permalink_shows_the_surroundings(self, visit: Visit, person: Callable[..., User]) -> None:
        ann = person("ann")
        chat = Chat.create(str(ann.pk), [])
        for number in range(1, 201):
            chat.send(str(ann.pk), f"Message {number}.", reply_to=3 if number == 200 else None)
        page = visit(ann, "room", chat.id)
        quote = page.locator("#m200 .drm-quote")
        expect(quote).to_contain_text("Message 3.")
        page.evaluate(MODULES)
        quote.click()
        expect(page.locator("#m3.drm-found")).to_be_in_viewport()
        page.goto(f"{reverse('messaging:room', args=[chat.id])}?at=100")
        expect(page.locator("#m100.drm-found")).to_be_in_viewport()
        expect(page.locator("#m99")).to_be_in_viewport()


class TestTyped:
    def test_drafts_survive_other_pages_and_edits(self, visit: Visit, person: Callable[..., User]) -> None:
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)], "First", title="One")
        other = Chat.create(str(ann.pk), [str(bob.pk)], "Second", title="Two")
        page = visit(ann, "room", chat.id)
        page.evaluate(MODULES)
        field = page.locator("#drm-body")
        field.fill("A draft")
        page.goto(reverse("messaging:room", args=[other.id]))
        page.evaluate(MODULES)
        expect(field).to_have_value("")
        page.go_back()
        page.evaluate(MODULES)
        expect(field).to_have_value("A draft")
        field.fill("")
        field.press("ArrowUp")
        expect(field).to_have_value("First")
        field.fill("First, edited")
        field.press("Escape")
        expect(field).to_have_value("")
        field.fill("Another draft")
        page.reload()
        page.evaluate(MODULES)
        expect(field).to_have_value("Another draft")
        field.fill("")
        field.press("ArrowUp")
        expect(field).to_have_value("First, edited")

    def test_messages_written_offline_are_sent_in_order_after_a_reload(
        self, visit: Visit, person: Callable[..., User]
    ) -> None:
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)], title="Train")
        page = visit(ann, "room", chat.id)
        page.route("**/send/**", lambda route: route.abort())
        for number in range(3):
            send(page, f"Tunnel {number}")
        expect(page.locator(".drm-pending")).to_have_count(3)
        expect(page.locator(".drm-pending").first).to_contain_text("Waiting for a connection")
        page.reload()
        expect(page.locator(".drm-pending")).to_have_count(3)
        page.unroute("**/send/**")
        page.evaluate("dispatchEvent(new Event('online'))")
        expect(page.locator(".drm-pending")).to_have_count(0, timeout=TIMEOUT)
        bodies = [message.body for message in chat.history(str(bob.pk)).messages]
        assert bodies == ["Tunnel 0", "Tunnel 1", "Tunnel 2"]
        assert page.locator("#drm-log .drm-body").all_inner_texts() == bodies

    def test_what_was_written_in_another_chat_is_sent(
        self, visit: Visit, person: Callable[..., User]
    ) -> None:
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)], title="One")
        other = Chat.create(str(ann.pk), [str(bob.pk)], title="Two")
        page = visit(ann, "room", chat.id)
        page.route("**/send/**", lambda route: route.abort())
        send(page, "Not sent yet")
        expect(page.locator(".drm-pending")).to_contain_text("Waiting for a connection")
        page.unroute("**/send/**")
        page.goto(reverse("messaging:room", args=[other.id]))
        wait_for_messages(page, chat, bob, ["Not sent yet"])

    def test_a_message_whose_answer_was_lost_long_ago_is_not_sent_again(
        self, visit: Visit, person: Callable[..., User]
    ) -> None:
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)], "First")
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
        later.goto(reverse("messaging:room", args=[chat.id]))
        later.evaluate(MODULES)
        expect(later.locator(".drm-pending")).to_have_count(0, timeout=TIMEOUT)
        assert sent == []
        wait_for_messages(later, chat, bob, ["First", "Only once"])

    def test_a_message_is_sent_after_signing_in_again(
        self, visit: Visit, person: Callable[..., User]
    ) -> None:
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)], "First")
        page = visit(ann, "room", chat.id)
        page.evaluate(MODULES)
        page.context.clear_cookies()
        send(page, "Signed out")
        link = page.locator("#drm-status").get_by_role("link", name="Sign in")
        expect(link).to_be_visible()
        assert reverse("messaging:room", args=[chat.id]) in (link.get_attribute("href") or "")
        # In another tab: a new session, and a new CSRF token.
        session = client_of(ann).cookies["sessionid"].value
        page.context.add_cookies([{"name": "sessionid", "value": session, "url": origin(page)}])
        page.evaluate("dispatchEvent(new Event('focus'))")
        expect_message(page, "Signed out")
        expect(page.locator(".drm-pending")).to_have_count(0, timeout=TIMEOUT)
        wait_for_messages(page, chat, bob, ["First", "Signed out"])

    def test_nothing_is_sent_in_the_name_of_the_next_user(
        self, visit: Visit, person: Callable[..., User]
    ) -> None:
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)], "First")
        page = visit(ann, "room", chat.id)
        page.evaluate(MODULES)
        session = client_of(bob).cookies["sessionid"].value
        page.context.add_cookies([{"name": "sessionid", "value": session, "url": origin(page)}])
        send(page, "By Ann")
        expect(page.locator("#drm-status")).to_contain_text("another user", timeout=TIMEOUT)
        assert [message.body for message in chat.history(str(bob.pk)).messages] == ["First"]
        expect(page.locator("#drm-status")).to_contain_text("is kept in this browser")
        page.locator("#drm-body").fill("A draft by Ann")
        old = {"text": "Of last year", "at": 0}
        page.evaluate("old => localStorage.setItem('drm:0:draft:1', JSON.stringify(old))", old)
        page.reload()  # as Bob, who sees nothing of it but that it is there
        page.evaluate(MODULES)
        expect(page.locator("#drm-kept")).to_contain_text("Another user of this browser")
        expect(page.locator(".drm-pending")).to_have_count(0)
        expect(page.locator("#drm-body")).to_have_value("")
        page.get_by_role("button", name="OK").click()
        expect(page.locator("#drm-kept")).to_be_hidden()
        page.reload()
        page.evaluate(MODULES)
        expect(page.locator("#drm-kept")).to_be_hidden()
        session = client_of(ann).cookies["sessionid"].value
        page.context.add_cookies([{"name": "sessionid", "value": session, "url": origin(page)}])
        page.reload()
        page.evaluate(MODULES)
        expect(page.locator("#drm-body")).to_have_value("A draft by Ann")
        wait_for_messages(page, chat, bob, ["First", "By Ann"])
        assert page.evaluate("localStorage.getItem('drm:0:draft:1')") is None

    def test_who_is_removed_keeps_the_text(self, visit: Visit, person: Callable[..., User]) -> None:
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)], "First", title="Trip")
        chat.send(str(bob.pk), "Second")
        page = visit(bob, "room", chat.id)
        choose(page, 2, "Edit")
        field = page.locator("#drm-body")
        expect(field).to_have_value("Second")
        field.fill("Second, edited")
        field.press("Escape")
        field.fill("A long answer")
        chat.leave(str(bob.pk), by=str(ann.pk))
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

    def test_saving_an_edit_leaves_another_one_alone(self, visit: Visit, person: Callable[..., User]) -> None:
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)], "One", title="Trip")
        chat.send(str(ann.pk), "Two")
        page = visit(ann, "room", chat.id)
        held: list[Route] = []
        page.route("**/edit/**", lambda route: held.append(route))
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

    def test_enter_while_an_input_method_composes_sends_nothing(
        self, visit: Visit, person: Callable[..., User]
    ) -> None:
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)], title="Trip")
        page = visit(ann, "room", chat.id)
        page.evaluate(MODULES)
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


def receive_while_jumping(page: Page, chat: Chat, sender: User, *, polls: bool) -> None:
    """Jump to the newest messages; the answer, made before another message comes, arrives after it, and
    before the answer to the next poll if the page `polls`."""
    held: list[tuple[Route, APIResponse]] = []

    def hold(route: Route) -> None:
        held.append((route, route.fetch()))

    page.route("**/feed/?at=*", hold)
    page.locator("#drm-jump").click()
    wait_until(page, lambda: len(held) == 1)
    message = chat.send(str(sender.pk), "Meanwhile")
    expect(page.locator("#drm-jump")).to_contain_text("1 new", timeout=TIMEOUT)
    if polls:
        page.route("**/feed/?after=*", hold, times=1)
        wait_until(page, lambda: len(held) == 2)
    for route, response in held:
        route.fulfill(response=response)
        expect(page.locator(f"#m{message.id - 1}")).to_be_visible()
    expect(page.locator(f"#m{message.id}")).to_be_visible()


def wait_for_messages(page: Page, chat: Chat, user: User, wanted: list[str]) -> None:
    def bodies() -> list[str]:
        return [message.body for message in chat.history(str(user.pk)).messages]

    wait_until(page, lambda: len(bodies()) >= len(wanted))
    assert bodies() == wanted


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Los_Angeles"])
def test_times_are_those_of_the_viewer(visit: Visit, person: Callable[..., User], zone: str) -> None:
    ann, bob = person("ann"), person("bob")
    chat = Chat.create(str(bob.pk), [str(ann.pk)], "Now")
    page = visit(ann, "room", chat.id, timezone_id=zone, locale="en-GB")
    page.evaluate(MODULES)
    expected = page.evaluate(
        """() => new Date(document.querySelector("#m1 time").dateTime)
             .toLocaleTimeString("en", { hour: "numeric", minute: "2-digit" })"""
    )
    expect(page.locator("#m1 time")).to_have_text(expected)
    expect(page.locator(".drm-day")).to_have_text("today")
    page.goto(reverse("messaging:search", args=[chat.id]) + "?q=Now")
    page.evaluate(MODULES)
    time = page.locator("time").first
    local = "one => new Date(one.dateTime).toLocaleString('en', { dateStyle: 'medium', timeStyle: 'short' })"
    expect(time).to_have_text(time.evaluate(local))


def test_names_and_emoji_are_completed(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann"), person("bob", first_name="Bob", last_name="Lee")
    chat = Chat.create(str(ann.pk), [str(bob.pk)], title="Trip")
    page = visit(ann, "room", chat.id)
    page.evaluate(MODULES)
    field, options = page.locator("#drm-body"), page.locator("#drm-completions [role=option]")
    field.press_sequentially("Hi @bo")
    expect(options.locator(".drm-person")).to_have_text(["Bob Lee bob"])
    expect(options).to_have_attribute("aria-selected", "true")
    field.press("Home")
    field.press("Enter")  # where the caret is now, nothing can be completed
    expect(options).to_have_count(0)
    expect(field).to_have_value("Hi @bo")
    field.press("End")
    field.press_sequentially("b")
    expect(options.locator(".drm-person")).to_have_text(["Bob Lee bob"])
    field.press("Enter")
    expect(field).to_have_value("Hi @Bob Lee ")
    field.press_sequentially(":roc")
    expect(options).to_have_text(["🚀 rocket"])
    field.press("Escape")
    expect(options).to_have_count(0)
    field.press_sequentially("k")
    options.click()
    expect(field).to_have_value("Hi @Bob Lee 🚀 ")
    field.press("Enter")
    expect(page.locator("#m1 .drm-mention")).to_have_text("@Bob Lee")
    field.press_sequentially("@bo")
    expect(options.locator(".drm-person")).to_have_text(["Bob Lee bob"])
    # Enter directly after more was typed: the suggestions that are still shown are not for that.
    field.evaluate("""field => {
      field.value += "th of us";
      field.dispatchEvent(new Event("input"));
      field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
    }""")
    expect_message(page, "@both of us")
    # With Shift it is a line break, on a touch screen always.
    field.press_sequentially("@bo")
    expect(options).to_have_count(1)
    is_left = """field => {
      field.value += "b";
      field.dispatchEvent(new Event("input"));
      const init = { key: "Enter", shiftKey: true, bubbles: true, cancelable: true };
      return field.dispatchEvent(new KeyboardEvent("keydown", init));
    }"""
    assert field.evaluate(is_left)
    touch = visit(ann, "room", chat.id, has_touch=True, is_mobile=True)
    touch.evaluate(MODULES)
    field = touch.locator("#drm-body")
    field.fill("")
    field.press_sequentially("@bo")
    expect(touch.locator("#drm-completions [role=option]")).to_have_count(1)
    field.press_sequentially("x")
    field.press("Enter")
    expect(field).to_have_value("@box\n")


def test_of_two_members_with_one_name_the_chosen_one_is_notified(
    visit: Visit, person: Callable[..., User]
) -> None:
    ann = person("ann")
    bobs = [person(name, first_name="Bob", last_name="Lee") for name in ("bob1", "bob2")]
    chat = Chat.create(str(ann.pk), [str(bob.pk) for bob in bobs], "Hello", title="Trip")
    page = visit(ann, "room", chat.id)
    page.evaluate(MODULES)
    field, options = page.locator("#drm-body"), page.locator("#drm-completions [role=option]")
    field.press_sequentially("@bo")
    expect(options.locator(".drm-person")).to_have_text(["Bob Lee bob1", "Bob Lee bob2"])
    options.first.click()
    field.fill("")
    field.press_sequentially("@bo")
    options.last.click()
    expect(field).to_have_value("@Bob Lee ")
    page.reload()  # the choice is part of the draft
    page.evaluate(MODULES)
    choose(page, 1, "Edit")
    expect(field).to_have_value("Hello")
    field.press_sequentially(" @bo")
    options.first.click()  # an edit notifies nobody, and leaves the draft alone
    field.press("Enter")
    expect(page.locator("#m1 .drm-body")).to_have_text("Hello @Bob Lee")
    expect(field).to_have_value("@Bob Lee ")
    field.press("Enter")
    expect(page.locator("#m2 .drm-mention")).to_have_text("@Bob Lee")
    assert [Mailbox(str(bob.pk)).unread() for bob in bobs] == [0, 1]


def test_quiet_entries_are_between_the_messages(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann", first_name="Ann"), person("bob", first_name="Bob")
    cat = person("cat", first_name="Cat")
    chat = Chat.create(str(ann.pk), [str(bob.pk)], "One")
    chat.add([str(cat.pk)], by=str(ann.pk))
    chat.send(str(ann.pk), "Two")
    page = visit(bob, "room", chat.id)
    page.evaluate(MODULES)
    expect(page.locator("#m1 + .drm-event")).to_have_text("Ann added Cat.")
    chat.rename(str(ann.pk), "Trip")
    expect(page.locator("#m2 + .drm-event")).to_have_text("Ann renamed the chat to “Trip”.", timeout=TIMEOUT)
    expect(page.locator("#drm-title")).to_have_text("Trip")
    assert Inbox(str(cat.pk)).unread() == 1


class TestOddBrowsers:
    @pytest.mark.promise
    def test_nothing_is_sent_twice_after_clocks_were_set(
        self, visit: Visit, person: Callable[..., User]
    ) -> None:
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)])
        page = visit(ann, "room", chat.id)
        url = page.url
        page.add_init_script(CLOCKS)
        page.reload()
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
            page.evaluate("dispatchEvent(new Event('online'))") if change else page.goto(url)
            expect(page.locator(".drm-pending")).to_have_count(0, timeout=TIMEOUT)
            expect_message(page, text)
        assert [message.body for message in chat.history(str(bob.pk)).messages] == list(changes)

    def test_two_tabs_send_each_message_once_in_order(
        self, visit: Visit, person: Callable[..., User]
    ) -> None:
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)], title="Tabs")
        one = visit(ann, "room", chat.id)
        two = one.context.new_page()
        two.goto(one.url)
        for page in (one, two):
            page.route("**/send/**", lambda route: route.abort())
            page.evaluate(MODULES)
        written = [f"{number} {name}" for number in range(3) for name in ("one", "two")]
        for text in written:
            send(one if text.endswith("one") else two, text)
        for page in (one, two):
            expect(page.locator(".drm-pending")).to_have_count(6)
        # Each has a key of its own: a tab that writes at the same time overwrites no other message.
        keys = one.evaluate("Object.keys(localStorage).filter(key => key.includes(':outbox:'))")
        assert len(keys) == 6
        for page in (one, two):
            page.unroute("**/send/**")
            page.evaluate("dispatchEvent(new Event('online'))")
        wait_for_messages(one, chat, bob, written)
        for page in (one, two):
            expect(page.locator(".drm-pending")).to_have_count(0, timeout=TIMEOUT)
            expect(page.locator("#drm-log .drm-message")).to_have_count(6, timeout=TIMEOUT)

    @pytest.mark.parametrize(
        "script",
        [
            "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no'); } })",
            "Storage.prototype.setItem = () => { throw new DOMException('', 'QuotaExceededError'); }",
            "Object.defineProperty(navigator, 'locks', { value: undefined })",
        ],
        ids=["no storage", "full storage", "no locks"],
    )
    def test_without_storage_or_locks(
        self, visit: Visit, person: Callable[..., User], settings: Settings, script: str
    ) -> None:
        settings.ROOT_URLCONF = Alone  # the admin's script needs localStorage
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)], title="Poor")
        page = visit(ann)
        page.add_init_script(script)
        page.goto(reverse("messaging:room", args=[chat.id]))
        send(page, "One")
        send(page, "Two")
        wait_for_messages(page, chat, bob, ["One", "Two"])
        expect(page.locator(".drm-pending")).to_have_count(0)
        expect(page.locator("#drm-body")).to_have_value("")


class TestChangesWhileShown:
    def test_a_message_that_comes_while_the_page_jumps(
        self, visit: Visit, person: Callable[..., User]
    ) -> None:
        ann, bob = person("ann"), person("bob")
        chat = filled(bob, ann, 120)
        chat.ack(str(ann.pk), 120)
        page = visit(ann, "room", chat.id)
        page.goto(f"{page.url}?at=1")
        page.evaluate(MODULES)
        receive_while_jumping(page, chat, bob, polls=True)

    def test_a_chat_that_is_created_anew(self, visit: Visit, person: Callable[..., User]) -> None:
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)], "Old", title="Lunch")
        page = visit(bob, "room", chat.id)
        expect_message(page, "Old")
        page.evaluate(MODULES)
        page.locator("#drm-body").fill("Typed")
        chat.delete(str(ann.pk))
        again = Chat.create(str(ann.pk), [str(bob.pk)], "New", title="Lunch", chat_id=chat.id)
        expect_message(page, "New")
        expect(page.locator("#drm-log .drm-message")).to_have_count(1)
        again.send(str(ann.pk), "More")
        expect_message(page, "More")
        expect(page.locator("#drm-body")).to_have_value("Typed")

    def test_a_message_that_is_deleted_while_its_menu_is_open(
        self, visit: Visit, person: Callable[..., User]
    ) -> None:
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)], "One")
        page = visit(bob, "room", chat.id)
        page.evaluate(MODULES)
        page.locator("#m1").hover()
        page.locator("#m1 .drm-dots").click()
        chat.delete_message(str(ann.pk), 1)
        expect(page.locator("#m1")).to_contain_text("Message deleted", timeout=TIMEOUT)
        chat.send(str(ann.pk), "Two")
        expect_message(page, "Two")
        choose(page, 2, "Reply")
        expect(page.locator("#drm-replying")).to_contain_text("ann")

    @pytest.mark.long
    def test_more_edits_than_a_chat_lists(self, visit: Visit, person: Callable[..., User]) -> None:
        ann, bob = person("ann"), person("bob")
        chat = filled(ann, bob, 130)
        chat.ack(str(bob.pk), 130)
        page = visit(bob, "room", chat.id)
        page.evaluate(MODULES)
        page.route("**/feed/**", lambda route: route.abort())
        for number in range(1, 121):
            chat.edit(str(ann.pk), number, f"Edit {number}.")
        page.unroute("**/feed/**")
        expect(page.locator("#m120")).to_contain_text("Edit 120.", timeout=TIMEOUT)

    @pytest.mark.long
    def test_a_chat_that_keeps_nothing(self, visit: Visit, person: Callable[..., User]) -> None:
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)], keep_last=0)
        for number in range(60):
            chat.send(str(ann.pk), f"Message {number}.")
        page = visit(bob, "room", chat.id)
        page.evaluate(MODULES)
        for user in (ann, bob):
            chat.ack(str(user.pk), 60)
        chat.send(str(ann.pk), "The last one")
        page.evaluate(SCROLL, 1000)
        expect_message(page, "The last one")

    @pytest.mark.long
    def test_the_end_of_a_message_taller_than_the_window_counts(
        self, visit: Visit, person: Callable[..., User]
    ) -> None:
        ann, bob = person("ann"), person("bob")
        chat = Chat.create(str(ann.pk), [str(bob.pk)], "line\n" * 19 + "```\n" + "code\n" * 200 + "```\n")
        chat.send(str(ann.pk), "After it")
        page = visit(bob, "room", chat.id, viewport={"width": 500, "height": 520})
        page.evaluate(MODULES)
        assert position(chat, bob) == 0
        for _ in range(30):
            page.evaluate(SCROLL, 0.8)
            page.evaluate("new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)))")
        wait_for_position(page, chat, bob, 2)


@pytest.mark.long
def test_ten_thousand_messages(visit: Visit, person: Callable[..., User], settings: Settings) -> None:
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "CHAT_KEEP_LAST": 10_000}
    ann = person("ann")
    chat = Chat.create(str(ann.pk), [])
    for number in range(10_000):
        chat.send(str(ann.pk), f"Message {number}.")
    page = visit(ann, "room", chat.id)
    page.evaluate(MODULES)
    first, greatest = 10_000, 0
    while first > 1:
        page.evaluate(SCROLL, -1000)
        wait_until(page, lambda known=first: page.evaluate(IDS)[0] < known)  # type: ignore[misc]
        ids = page.evaluate(IDS)
        assert ids == list(range(ids[0], ids[-1] + 1))
        first, greatest = ids[0], max(greatest, page.locator("#drm-log > li").count())
    assert greatest <= 300
