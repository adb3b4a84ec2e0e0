"""A room in a real browser: nothing unread is skipped, nothing typed is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Page, Route, expect
from pytest_django import Settings

from django_redis_messaging import Chat, Inbox, Mailbox

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
#: scrolls by so many pages
SCROLL = """pages => {
  const log = document.getElementById("drm-scroll");
  log.scrollTop += pages * log.clientHeight;
}"""


def filled(sender: User, reader: User, count: int) -> Chat:
    """A chat with messages that the reader has not read."""
    chat = Chat.create(str(sender.pk), [str(reader.pk)], title="Long")
    for number in range(1, count + 1):
        chat.send(str(sender.pk), f"Message {number}.")
    return chat


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


def test_the_end_stays_in_sight_when_the_window_shrinks(visit: Visit, person: Callable[..., User]) -> None:
    ann, bob = person("ann"), person("bob")
    chat = filled(bob, ann, 30)
    chat.ack(str(ann.pk), 30)
    page = visit(ann, "room", chat.id, viewport={"width": 400, "height": 800})
    page.evaluate(MODULES)
    expect(page.locator("#m30")).to_be_in_viewport(ratio=1)
    page.set_viewport_size({"width": 400, "height": 450})  # as by the keyboard of a phone
    expect(page.locator("#m30")).to_be_in_viewport(ratio=1)
    page.locator("#drm-scroll").evaluate(SCROLL, -2)
    expect(page.locator("#m30")).not_to_be_in_viewport()
    page.set_viewport_size({"width": 400, "height": 500})
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(page.locator("#m30")).not_to_be_in_viewport()


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
        page.reload()  # as Bob: what Ann has typed is removed from this browser
        page.evaluate(MODULES)
        expect(page.locator(".drm-pending")).to_have_count(0)
        assert page.evaluate("Object.keys(localStorage).filter(key => key.startsWith('drm:'))") == []


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
    expect(options).to_have_text(["Bob Lee"])
    expect(options).to_have_attribute("aria-selected", "true")
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


def test_of_two_members_with_one_name_the_chosen_one_is_notified(
    visit: Visit, person: Callable[..., User]
) -> None:
    ann = person("ann")
    bobs = [person(name, first_name="Bob", last_name="Lee") for name in ("bob1", "bob2")]
    chat = Chat.create(str(ann.pk), [str(bob.pk) for bob in bobs], title="Trip")
    page = visit(ann, "room", chat.id)
    page.evaluate(MODULES)
    field, options = page.locator("#drm-body"), page.locator("#drm-completions [role=option]")
    field.press_sequentially("@bo")
    expect(options).to_have_text(["Bob Leebob1", "Bob Leebob2"])
    options.first.click()
    field.fill("")
    field.press_sequentially("@bo")
    options.last.click()
    expect(field).to_have_value("@Bob Lee ")
    page.reload()  # the choice is part of the draft
    page.evaluate(MODULES)
    field.press("Enter")
    expect(page.locator("#m1 .drm-mention")).to_have_text("@Bob Lee")
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
