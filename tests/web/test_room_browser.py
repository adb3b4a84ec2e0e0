"""A room in a real browser: it opens at the first unread message, scrolls, and shows what changes."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator

import pytest
from django.urls import reverse
from playwright.sync_api import APIResponse, Page, Response, Route, expect
from pytest_django import Settings

from django_redis_messaging import Chat, Inbox, notify

from ..support import content_policies
from ..support.browser import (
    IDS,
    IN_SIGHT,
    PAINTED,
    PHONE,
    SCROLL,
    SPEED,
    TIMEOUT,
    Visit,
    choose,
    clocks,
    expect_message,
    filled,
    open_menu,
    open_page,
    position,
    send,
    wait_for_position,
    wait_until,
)
from ..support.people import Member
from .conftest import Members

RLO, PDI = "\u202e", "\u2069"
#: what Safari and site layouts of other kinds do when a keyboard opens: the window keeps its size
COVER = """([height, offsetTop]) => {
  for (const [name, value] of Object.entries({ height, offsetTop })) {
    Object.defineProperty(visualViewport, name, { value, configurable: true });
  }
  visualViewport.dispatchEvent(new Event("resize"));
}"""
#: counts how often a text enters the log, which a screen reader announces
COUNT = """
window.announced = 0;
new MutationObserver((changes) => {
  for (const { addedNodes } of changes) {
    for (const node of addedNodes) if (node.textContent.includes("Hello")) window.announced += 1;
  }
}).observe(document.querySelector("[role=log]"), { childList: true, subtree: true });
"""
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


def loaded(page: Page) -> list[int]:
    """The ids of the loaded messages, which have no gap."""
    ids: list[int] = page.evaluate(IDS)
    assert ids == list(range(ids[0], ids[-1] + 1))
    return ids


class TestUnread:
    def test_opens_at_the_first_unread_and_acks_only_what_was_in_sight(
        self, visit: Visit, ann: Member, bob: Member
    ) -> None:
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
        # What was skipped can be marked as read.
        page.get_by_role("button", name="↓").click()
        expect(page.locator("#m201")).to_be_in_viewport()
        page.get_by_role("button", name="Mark as read").click()
        wait_for_position(page, chat, bob, 201)
        expect(page.locator("#drm-jump")).to_be_hidden()
        expect(page.locator("#drm-mark")).to_be_hidden()

    def test_scrolling_reads_everything_in_order(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = filled(ann, bob, 120)
        page = visit(bob, "room", chat.id)
        while page.locator("#drm-jump").is_visible():
            before = max(page.evaluate(IN_SIGHT), default=0)
            page.evaluate(SCROLL, 0.8)
            if loaded(page)[-1] < 120:
                wait_until(page, lambda: loaded(page)[-1] > before + 10)  # noqa: B023
        wait_for_position(page, chat, bob, 120)
        assert Inbox(bob).unread() == 0

    @pytest.mark.long
    def test_the_end_of_a_message_taller_than_the_window_counts(
        self, visit: Visit, ann: Member, bob: Member
    ) -> None:
        chat = Chat.create(ann, [bob], "line\n" * 19 + "```\n" + "code\n" * 200 + "```\n")
        chat.send(ann, "After it")
        page = visit(bob, "room", chat.id, viewport={"width": 500, "height": 520})
        assert position(chat, bob) == 0
        for _ in range(30):
            page.evaluate(SCROLL, 0.8)
        wait_for_position(page, chat, bob, 2)


class TestWindow:
    """What is loaded, and what stays in sight."""

    def test_a_long_room_scrolls_to_its_beginning_with_few_nodes(self, visit: Visit, ann: Member) -> None:
        chat = filled(ann, ann, 400)
        page = visit(ann, "room", chat.id)
        expect(page.locator("#m400")).to_be_in_viewport()
        greatest, sight = 0, page.evaluate(IN_SIGHT)
        while 1 not in sight:
            first = loaded(page)[0]
            page.evaluate(SCROLL, -0.8)
            before, sight = sight, page.evaluate(IN_SIGHT)
            assert not sight or not before or sight[-1] >= before[0] - 1, "a message was skipped"
            greatest = max(greatest, page.locator("#drm-log > li").count())
            if first > 1 and sight and sight[0] - first < 10:
                wait_until(page, lambda: loaded(page)[0] < first)  # noqa: B023
        expect(page.locator("#m1")).to_be_in_viewport()
        assert greatest <= 300
        expect(page.locator("#drm-beginning")).to_have_text("Beginning of your history")

    def test_quotes_and_permalinks_show_the_surroundings(self, visit: Visit, ann: Member) -> None:
        chat = filled(ann, ann, 199)
        chat.send(ann, "Look", reply_to=3)
        page = visit(ann, "room", chat.id)
        # A double click on older messages loads them once.
        page.evaluate("for (let n = 0; n < 3; n += 1) document.getElementById('drm-older').click()")
        wait_until(page, lambda: len(page.evaluate(IDS)) > 50)
        assert loaded(page)[-1] == 200
        quote = page.locator("#m200 .drm-quote")
        expect(quote).to_contain_text("Message 3.")
        quote.click()
        expect(page.locator("#m3.drm-found")).to_be_in_viewport()
        page.goto(f"{reverse('messaging:room', args=[chat.id])}?at=100")
        expect(page.locator("#m100.drm-found")).to_be_in_viewport()
        expect(page.locator("#m99")).to_be_in_viewport()

    def test_the_end_stays_in_sight_when_a_keyboard_opens(
        self, visit: Visit, ann: Member, bob: Member
    ) -> None:
        chat = filled(bob, ann, 30)
        chat.ack(ann, 30)
        page = visit(ann, "room", chat.id, viewport={"width": 400, "height": 800})
        end = page.locator("#m30")
        expect(end).to_be_in_viewport(ratio=1)
        # It covers the window: the composer stays above it.
        bottom = "selector => document.querySelector(selector).getBoundingClientRect().bottom"
        for height, top in ((450, 0), (450, 120), (800, 0)):
            page.evaluate(COVER, [height, top])
            wait_until(page, lambda: page.evaluate(bottom, "#m30") < page.evaluate(bottom, "#drm-scroll"))
            assert height + top - 60 < page.evaluate(bottom, "#drm-send") <= height + top
        # Or the window shrinks.
        open_page(page, "room", chat.id)
        expect(end).to_be_in_viewport(ratio=1)
        page.set_viewport_size({"width": 400, "height": 450})
        expect(end).to_be_in_viewport(ratio=1)
        page.evaluate(SCROLL, -2)
        expect(end).not_to_be_in_viewport()
        page.set_viewport_size({"width": 400, "height": 500})
        page.evaluate(PAINTED)
        expect(end).not_to_be_in_viewport()

    @pytest.mark.long
    def test_ten_thousand_messages(self, visit: Visit, ann: Member, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "CHAT_KEEP_LAST": 10_000}
        page = visit(ann, "room", filled(ann, ann, 10_000).id)
        first, greatest = 10_000, 0
        while first > 1:
            page.evaluate(SCROLL, -1000)
            wait_until(page, lambda known=first: page.evaluate(IDS)[0] < known)  # type: ignore[misc]
            first, greatest = loaded(page)[0], max(greatest, page.locator("#drm-log > li").count())
        assert greatest <= 300


class TestFocus:
    def test_the_message_field_is_near(self, visit: Visit, ann: Member) -> None:
        """It has the focus on a desktop; elsewhere, a link skips the list of chats."""
        chats = [Chat.create(ann, [], title=f"Chat {number}") for number in range(10)]
        page = visit(ann, "room", chats[0].id)
        expect(page.locator("#drm-body")).to_be_focused()
        page.locator(".drm-skip").focus()
        expect(page.locator(".drm-skip")).to_be_in_viewport()
        page.keyboard.press("Enter")
        expect(page.locator("#drm-body")).to_be_focused()
        touch = visit(ann, "room", chats[0].id, has_touch=True, is_mobile=True)
        expect(touch.locator("#drm-body")).not_to_be_focused()

    def test_the_chats_and_the_messages_have_one_tab_stop_each(
        self, visit: Visit, ann: Member, bob: Member
    ) -> None:
        for number in range(8):
            Chat.create(ann, [], title=f"Chat {number}")
        chat = Chat.create(bob, [ann], "First https://example.org/", title="Lunch")
        for number in range(2, 61):
            chat.send((ann, bob)[number % 2], f"Message {number}")
        chat.send(bob, "A line.\n" * 19 + "```\n" + "code\n" * 60 + "```\n")
        chat.send(bob, "Last https://example.org/")
        chat.ack(ann, 62)
        page = visit(ann, "room", chat.id, has_touch=True)  # where the message field has no focus at first
        press = page.keyboard.press
        stops = list(stops_until(page, "#drm-body"))
        assert len(stops) <= 6, stops
        page.locator("#drm-find-chat").focus()
        press("Tab")
        row = page.locator(".drm-row > a")
        expect(row.first).to_be_focused()
        press("ArrowDown")
        expect(row.nth(1)).to_be_focused()
        press("End")
        expect(row.nth(8)).to_be_focused()
        page.locator("#drm-title").focus()
        while not page.evaluate("document.activeElement.matches('.drm-message')"):
            press("Tab")
        expect(page.locator("#m62")).to_be_focused()
        expect(page.locator("#m62")).to_have_accessible_name(re.compile("^Bob, Last https://example.org/, "))
        press("ArrowRight")
        expect(page.locator("#m62 .drm-body a")).to_be_focused()
        press("ArrowRight")
        expect(page.locator("#m62 .drm-dots")).to_be_focused()
        press("ArrowUp")
        expect(page.locator("#m61")).to_be_focused()
        press("ArrowUp")  # its beginning is out of sight
        expect(page.locator("#m61")).to_be_focused()
        number = page.evaluate(IDS)[0]
        press("Home")  # and older ones are loaded
        expect(page.locator(f"#m{number}")).to_be_focused()
        # A message that is replaced does not take the focus with it.
        chat.edit((ann, bob)[number % 2], number, "Edited")
        expect(page.locator(f"#m{number}")).to_contain_text("Edited", timeout=TIMEOUT)
        expect(page.locator(f"#m{number}")).to_be_focused()
        assert page.locator("#drm-log [tabindex='0'], #drm-scroll[tabindex='0']").count() == 1
        press("Enter")
        expect(page.get_by_role("menuitem", name="Reply")).to_be_focused()
        press("Enter")
        expect(page.locator("#drm-body")).to_be_focused()
        described = re.compile("Reply to .* Edited Cancel")
        expect(page.locator("#drm-body")).to_have_accessible_description(described)


def stops_until(page: Page, selector: str) -> Iterator[str]:
    """Press Tab until an element has the focus, and name where it stops."""
    for _ in range(60):
        page.keyboard.press("Tab")
        yield str(page.evaluate("document.activeElement.outerHTML.slice(0, 80)"))
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab never reaches {selector}.")


class TestTexts:
    """Long and misleading texts, times, and the strictest Content-Security-Policy."""

    def test_long_texts_unfold(self, visit: Visit, ann: Member) -> None:
        body = "\n".join(f"line {number} https://example.com/{number}" for number in range(30))
        chat = Chat.create(ann, [], body)
        chat.send(ann, "word " * 5_000)
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

    def test_marks_and_direction_controls_change_no_other_text(self, visit: Visit, member: Members) -> None:
        ann = member("ann", first_name=f"Ann{PDI}{RLO}")
        chat = Chat.create(ann, [], "Before")
        chat.send(ann, f"{PDI}{RLO}https://example.com/gpj {RLO}")
        chat.send(ann, "Z" + "\u0310\u0323\u0489" * 60)
        chat.send(ann, "After")
        page = visit(ann, "room", chat.id, viewport={"width": 680, "height": 800})
        first, last = page.locator("#m2 .drm-body a").evaluate(ENDS)
        assert first < last
        neighbours = [page.locator(one) for one in ("#m2", "#m4", ".drm-crumbs", ".drm-head-text p")]
        before = [one.screenshot(animations="disabled") for one in neighbours]
        page.evaluate(SPILL, ["#m3 .drm-body", "#drm-title bdi"])
        assert [one.screenshot(animations="disabled") for one in neighbours] == before

    @pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Los_Angeles"])
    def test_times_are_those_of_the_viewer(self, visit: Visit, ann: Member, bob: Member, zone: str) -> None:
        chat = Chat.create(bob, [ann], "Now")
        page = visit(ann, "room", chat.id, timezone_id=zone, locale="en-GB")
        expected = page.evaluate(
            """() => new Date(document.querySelector("#m1 time").dateTime)
                 .toLocaleTimeString("en", { hour: "numeric", minute: "2-digit" })"""
        )
        expect(page.locator("#m1 time")).to_have_text(expected)
        expect(page.locator(".drm-day")).to_have_text("today")
        open_page(page, "search", chat.id, query="?q=Now")
        time = page.locator("time").first
        style = "{ dateStyle: 'medium', timeStyle: 'short' }"
        local = time.evaluate(f"one => new Date(one.dateTime).toLocaleString('en', {style})")
        expect(time).to_have_text(local)

    def test_scripts_with_a_nonce_and_trusted_types(
        self, visit: Visit, ann: Member, bob: Member, settings: Settings
    ) -> None:
        settings.TEST_POLICY = content_policies.STRICT
        chat = Chat.create(ann, [bob], "First", title="Strict")
        page = visit(ann, "room", chat.id)
        send(page, "Sent")
        expect_message(page, "Sent")
        expect(page.locator(".drm-row")).to_contain_text("Sent", timeout=TIMEOUT)
        open_page(page, "contacts")
        page.get_by_label("Search people").press_sequentially("bo")
        expect(page.locator("#drm-results .drm-person")).to_have_text("Bob")
        open_page(page, "new")
        page.get_by_role("combobox").fill("bob")
        expect(page.get_by_role("option")).to_have_text(re.compile("Bob"))
        notify(ann, "Hello")
        open_page(page, "notifications")
        page.get_by_role("button", name="Mark as read").click()
        expect(page.locator(".drm-notice-new")).to_have_count(0)


def receive_while_jumping(page: Page, chat: Chat, sender: Member, *, polls: bool) -> None:
    """Jump to the newest messages; the answer, made before another message comes, arrives after it, and
    before the answer to the next poll if the page `polls`."""
    held: list[tuple[Route, APIResponse]] = []

    def keep(route: Route) -> None:
        held.append((route, route.fetch()))

    page.route("**/feed/?at=*", keep)
    page.locator("#drm-jump").click()
    wait_until(page, lambda: len(held) == 1)
    message = chat.send(sender, "Meanwhile")
    expect(page.locator("#drm-jump")).to_contain_text("1 new", timeout=TIMEOUT)
    if polls:
        page.route("**/feed/?after=*", keep, times=1)
        wait_until(page, lambda: len(held) == 2)
    for route, response in held:
        route.fulfill(response=response)
        expect(page.locator(f"#m{message.id - 1}")).to_be_visible()
    expect(page.locator(f"#m{message.id}")).to_be_visible()


class TestChangesWhileShown:
    def test_a_message_that_comes_while_the_page_jumps(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = filled(bob, ann, 120)
        chat.ack(ann, 120)
        page = visit(ann, "room", chat.id, query="?at=1")
        receive_while_jumping(page, chat, bob, polls=True)

    def test_an_own_message_enters_the_log_once(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = Chat.create(ann, [bob], "First")
        page = visit(ann, "room", chat.id)
        page.evaluate(COUNT)
        send(page, "Hello")
        expect(page.locator("#m2")).to_be_visible()
        expect(page.locator(".drm-pending")).to_have_count(0, timeout=TIMEOUT)
        with page.expect_response("**/feed/**"):
            chat.send(bob, "Next")
        expect(page.locator("#m3")).to_be_visible(timeout=TIMEOUT)
        assert page.evaluate("announced") == 1

    @pytest.mark.parametrize("sender", ["ann", "bob"])
    def test_the_first_message_of_a_chat(self, visit: Visit, ann: Member, bob: Member, sender: str) -> None:
        chat = Chat.create(ann, [bob])
        page = visit(ann, "room", chat.id)
        note = page.get_by_text("No messages yet.")
        expect(note).to_be_visible()
        if sender == "ann":
            send(page, "Hello")
        else:
            chat.send(bob, "Hello")
        expect(page.locator("#m1")).to_be_visible(timeout=TIMEOUT)
        expect(note).to_have_count(0)

    def test_a_chat_that_is_created_anew(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = Chat.create(ann, [bob], "Old", title="Lunch")
        page = visit(bob, "room", chat.id)
        expect_message(page, "Old")
        page.locator("#drm-body").fill("Typed")
        page.context.set_offline(True)  # no poll comes between
        chat.delete(ann)
        again = Chat.create(ann, [bob], "New", title="Lunch", chat_id=chat.id)
        page.context.set_offline(False)
        expect_message(page, "New")
        expect(page.locator("#drm-log .drm-message")).to_have_count(1)
        again.send(ann, "More")
        expect_message(page, "More")
        expect(page.locator("#drm-body")).to_have_value("Typed")

    def test_quiet_entries_and_a_message_that_is_deleted_while_its_menu_is_open(
        self, visit: Visit, ann: Member, bob: Member, cat: Member
    ) -> None:
        chat = Chat.create(ann, [bob], "One")
        chat.add([cat], by=ann)
        chat.send(ann, "Two")
        page = visit(bob, "room", chat.id)
        expect(page.locator("#m1 + .drm-event")).to_have_text("Ann added Cat.")
        chat.rename(ann, "Trip")
        renamed = "Ann renamed the chat to “Trip”."
        expect(page.locator("#m2 + .drm-event")).to_have_text(renamed, timeout=TIMEOUT)
        expect(page.locator("#drm-title")).to_have_text("Trip")
        assert Inbox(cat).unread() == 1
        open_menu(page, 1)
        chat.delete_message(ann, 1)
        expect(page.locator("#m1")).to_contain_text("Message deleted", timeout=TIMEOUT)
        choose(page, 2, "Reply")
        expect(page.locator("#drm-replying")).to_contain_text("Ann")

    def test_a_failing_update_is_shown_and_polling_continues(
        self, visit: Visit, ann: Member, bob: Member
    ) -> None:
        chat = Chat.create(ann, [bob], "One")
        page = visit(ann, "room", chat.id)
        with page.expect_response(lambda response: response.status == 304):
            pass  # an idle poll receives no content
        page.evaluate("console.error = (error) => { window.logged = String(error); }")
        # Coming online makes the page poll soon.
        page.evaluate("setInterval(() => dispatchEvent(new Event('online')), 200)")
        page.route("**/feed/?after=*", lambda route: route.fulfill(json={"messages": 1}))
        expect(page.locator("#drm-status")).to_have_text("Something went wrong.")
        assert "TypeError" in page.evaluate("window.logged")
        page.unroute("**/feed/?after=*")
        chat.send(bob, "Two")
        expect(page.locator(".drm-message")).to_have_count(2)
        expect(page.locator("#drm-status")).to_have_text("")
        chat.edit(ann, 1, "Edited")
        missed = {"messages": [], "edits_missed": True}
        page.locator("#drm-body").fill("Typed")
        page.route("**/feed/?after=*", lambda route: route.fulfill(json=missed), times=1)
        expect(page.locator(".drm-message").first).to_contain_text("Edited")
        assert page.locator("#drm-body").input_value() == "Typed"

    def test_an_idle_room_polls_every_few_seconds(self, visit: Visit, ann: Member) -> None:
        chat = Chat.create(ann, [], "Text")
        page = visit(ann, "room", chat.id)
        polled: list[float] = []
        feed = reverse("messaging:room_feed", args=[chat.id])

        def note(response: Response) -> None:
            if feed in response.url:
                polled.append(time.monotonic())

        page.on("response", note)
        wait_until(page, lambda: len(polled) >= 9)
        gaps = [after - before for before, after in itertools.pairwise(polled)]
        assert SPEED * min(gaps[-4:]) < 5.5  # s; the others may have waited for a processor

    @pytest.mark.long
    def test_more_edits_than_a_chat_lists(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = filled(ann, bob, 130)
        chat.ack(bob, 130)
        page = visit(bob, "room", chat.id)
        page.route("**/feed/**", lambda route: route.abort())
        for number in range(1, 121):
            chat.edit(ann, number, f"Edit {number}.")
        page.unroute("**/feed/**")
        expect(page.locator("#m120")).to_contain_text("Edit 120.", timeout=TIMEOUT)

    @pytest.mark.long
    def test_a_chat_that_keeps_nothing(self, visit: Visit, ann: Member, bob: Member) -> None:
        chat = filled(ann, bob, 60, keep_last=0)
        page = visit(bob, "room", chat.id)
        for user in (ann, bob):
            chat.ack(user, 60)
        chat.send(ann, "The last one")
        page.evaluate(SCROLL, 1000)
        expect_message(page, "The last one")


class TestOptions:
    """The menu of a message."""

    #: px between the menu and what it acts on, horizontally and vertically
    GAPS = """() => {
      const [menu, dots] = ["#drm-menu", ".drm-dots[aria-expanded=true]"].map(
        selector => document.querySelector(selector).getBoundingClientRect());
      const gap = (start, end) => Math.max(0, menu[start] - dots[end], dots[start] - menu[end]);
      return [gap("left", "right"), gap("top", "bottom")];
    }"""

    def test_it_is_beside_its_message_and_inside_the_window(
        self, visit: Visit, ann: Member, bob: Member
    ) -> None:
        chat = Chat.create(ann, [bob], title="Lunch")
        for number in range(1, 13):
            chat.send((bob, ann)[number % 2], "A line.\n" * (60 if number == 10 else 1))
        chat.ack(ann, 12)
        page = visit(ann, "room", chat.id)
        menu = page.locator("#drm-menu")
        for width, height in [(360, 740), (740, 360), (768, 1024), (1440, 900), (600, 900), (320, 400)]:
            page.set_viewport_size({"width": width, "height": height})
            for number in (12, 11, 10, 1):
                message = page.locator(f"#m{number}")
                message.scroll_into_view_if_needed()
                message.focus()
                page.keyboard.press("Enter")
                expect(menu).to_be_in_viewport(ratio=1)
                assert max(page.evaluate(self.GAPS)) <= 1, (width, height, number)
                expect(page.get_by_role("menuitem").first).to_be_focused()
                page.keyboard.press("Escape")
                expect(message).to_be_focused()
                expect(menu).to_be_hidden()
        # The menu follows the message, and closes when that is out of sight.
        page.keyboard.press("Enter")
        chat.send(bob, "Another line.")
        expect(page.locator("#m13")).to_be_attached(timeout=TIMEOUT)
        assert max(page.evaluate(self.GAPS)) <= 1
        page.locator("#drm-scroll").evaluate("one => { one.scrollTop = one.scrollHeight }")
        expect(menu).to_be_hidden()

    def test_a_long_press_opens_it(self, visit: Visit, ann: Member, bob: Member) -> None:
        text = "One\nTwo\nThree\nFour\nFive https://example.org/"
        chat = Chat.create(bob, [ann], text, title="Lunch")
        page = visit(ann, "room", chat.id, fast=False, script=clocks(4), **PHONE)
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        touch = page.context.new_cdp_session(page).send
        menu = page.locator("#drm-menu")

        def press(selector: str, *moves: int) -> None:
            box = page.locator(selector).bounding_box()
            assert box
            for index, move in enumerate((0, *moves)):
                point = {"x": box["x"] + 10, "y": box["y"] + box["height"] / 2 + move}
                kind = "touchMove" if index else "touchStart"
                touch("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [point]})
            page.wait_for_timeout(200)  # longer than LONG_PRESS
            touch("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

        press("#m1 .drm-body", 10, 30)
        press("#m1 .drm-body a")
        expect(menu).to_be_hidden()
        press("#m1 .drm-body")
        expect(menu).to_be_in_viewport(ratio=1)
        page.get_by_role("menuitem", name="Copy text").tap()
        expect(page.locator("#drm-status")).to_have_text("Text copied.")
        assert page.evaluate("navigator.clipboard.readText()") == text
        press("#m1 .drm-body")
        page.locator("#drm-title").tap()
        expect(menu).to_be_hidden()
