"""The states of the pages that people see: for screenshots, and for tests of accessibility."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.contrib.auth.models import User
from playwright.sync_api import Page, Route, expect

from django_redis_messaging import (
    Blocks,
    Chat,
    RecentContacts,
    notify,
)
from django_redis_messaging.web.digest_mailing import unsubscribe_token

from .browser import open_menu, open_page

#: stores what another user of the browser has typed and not sent
KEEP = "localStorage.setItem('drm:other:draft:1', JSON.stringify({ text: 'Kept', at: Date.now() }))"


@dataclass
class World:
    """People and their chats, as Alice sees them."""

    alice: User
    bob: User
    crew: Chat
    unread: Chat
    direct: Chat


def build_world(person: Callable[..., User], *, staff: bool) -> World:
    """Alice has a lively chat, one with unread messages, a direct one, and a muted one; and notifications."""
    names = [("Alice", "Moreau"), ("Bob", "Lindqvist"), ("Carol", "Okafor"), ("Dave", "Lundgren")]
    people = [person(first.lower(), first_name=first, last_name=last) for first, last in names]
    people[0].is_staff = people[0].is_superuser = staff
    people[0].save()
    alice, bob, carol, dave = (str(user.pk) for user in people)
    tour = Chat.create(bob, [alice, carol], title="Bike tour")
    for number in range(1, 61):
        tour.send(carol, f"Stage {number}: {number * 7} km, with a long climb at the end.")
    direct = Chat.direct(carol, alice)
    direct.send(carol, "Hi Alice, could you have a look at the draft?")
    crew = Chat.create(
        alice, [bob, carol], "Shall we go through the release notes on Friday?", title="Release crew"
    )
    crew.send(bob, "Friday works for me.")
    crew.send(bob, "After lunch, maybe two o'clock?")
    crew.send(
        carol,
        "Fine. The draft is at https://example.org/notes, run `make notes` first:\n```\nmake notes\n```",
    )
    crew.add([dave], by=alice)
    crew.send(dave, "Hello everybody")
    crew.delete_message(dave, 5)
    crew.send(alice, "Two o'clock then. I'll write the guide.", reply_to=3)
    crew.send(bob, "See you there, @Alice Moreau!", mentions=[alice])
    crew.rename(carol, "Release crew 6.2")
    crew.ack(alice, 7)
    crew.ack(bob, 7)
    tour.mute(alice, datetime.now(UTC) + timedelta(hours=8))
    notify(
        alice, "Bob Lindqvist mentioned you in the group “Release crew 6.2”.", url="/messages/", sender=bob
    )
    notify(alice, "Your export is ready.", level="success", url="/messages/contacts/")
    notify(alice, "The import failed.", level="error")
    Blocks(alice).block(dave)
    for contact in (carol, bob):
        RecentContacts(alice).touch(contact)
    return World(people[0], people[1], crew, tour, direct)


State = Callable[[Page, World], None]
STATES: dict[str, State] = {}


def state(function: State) -> State:
    """Register a state under the name of its function."""
    STATES[function.__name__] = function
    return function


@state
def chats(page: Page, world: World) -> None:
    open_page(page, "chats")


@state
def chats_filtered(page: Page, world: World) -> None:
    open_page(page, "chats")
    page.get_by_label("Filter chats").fill("tour")


@state
def room(page: Page, world: World) -> None:
    open_page(page, "room", world.crew.id)
    expect(page.locator("#m7")).to_be_in_viewport()


@state
def room_unread(page: Page, world: World) -> None:
    open_page(page, "room", world.unread.id)
    expect(page.locator("#drm-unread")).to_be_in_viewport()


@state
def room_menu(page: Page, world: World) -> None:
    room(page, world)
    open_menu(page, 6)


@state
def room_settings(page: Page, world: World) -> None:
    room(page, world)
    page.locator(".drm-settings > summary").click()


@state
def room_account(page: Page, world: World) -> None:
    room(page, world)
    page.locator(".drm-account > summary").click()


@state
def room_keys(page: Page, world: World) -> None:
    room(page, world)
    page.locator("#drm-scroll").focus()
    page.keyboard.press("?")
    expect(page.locator("#drm-keys")).to_be_visible()


@state
def room_deleting(page: Page, world: World) -> None:
    room_menu(page, world)
    page.get_by_role("menuitem", name="Delete").click()


@state
def room_editing(page: Page, world: World) -> None:
    room_menu(page, world)
    page.get_by_role("menuitem", name="Edit").click()


@state
def room_replying(page: Page, world: World) -> None:
    room_menu(page, world)
    page.get_by_role("menuitem", name="Reply").click()


@state
def room_completing(page: Page, world: World) -> None:
    room(page, world)
    page.locator("#drm-body").press_sequentially("Thanks @")
    expect(page.locator("#drm-completions [role=option]").first).to_be_visible()


@state
def room_direct(page: Page, world: World) -> None:
    open_page(page, "room", world.direct.id)
    expect(page.locator("#m1")).to_be_in_viewport()


@state
def room_left(page: Page, world: World) -> None:
    room(page, world)
    page.locator("#drm-body").fill("My answer")
    world.crew.leave(str(world.alice.pk))
    expect(page.get_by_label("Your text that was not sent")).to_be_visible()


@state
def room_kept(page: Page, world: World) -> None:
    room(page, world)
    page.evaluate(KEEP)
    room(page, world)
    expect(page.locator("#drm-kept")).to_be_visible()


@state
def room_refused(page: Page, world: World) -> None:
    send(page, world, lambda route: route.fulfill(status=413, json={"error": {"message": "Too long."}}))
    expect(page.locator(".drm-failed")).to_be_visible()


@state
def room_offline(page: Page, world: World) -> None:
    send(page, world, lambda route: route.abort())
    expect(page.locator(".drm-pending")).to_contain_text("Waiting")


def send(page: Page, world: World, answer: Callable[[Route], None]) -> None:
    """Write a message that gets this answer."""
    page.route("**/send/**", answer)
    room(page, world)
    page.locator("#drm-body").fill("Written in a tunnel")
    page.get_by_role("button", name="Send").click()


@state
def search(page: Page, world: World) -> None:
    open_page(page, "search", world.crew.id, query="?q=o")


@state
def details(page: Page, world: World) -> None:
    open_page(page, "details", world.crew.id)


@state
def add(page: Page, world: World) -> None:
    open_page(page, "add", world.crew.id)


@state
def new(page: Page, world: World) -> None:
    open_page(page, "new", query=f"?to={world.bob.pk}")
    page.get_by_role("combobox").press_sequentially("ca")
    expect(page.get_by_role("option").first).to_be_visible()


@state
def new_nobody(page: Page, world: World) -> None:
    open_page(page, "new")
    page.get_by_role("combobox").press_sequentially("zzz")
    expect(page.locator(".drm-options.drm-note")).to_be_visible()


@state
def new_unclear(page: Page, world: World) -> None:
    open_page(page, "new")
    page.get_by_role("combobox").press_sequentially("l")  # Lindqvist and Lundgren
    page.get_by_role("button", name="Start chat").click()
    expect(page.locator(".drm-picker .drm-error")).to_contain_text("Several people")


@state
def new_refused(page: Page, world: World) -> None:
    open_page(page, "new")
    page.get_by_label("First message").fill("My words")
    page.get_by_role("button", name="Start chat").click()
    expect(page.get_by_role("alert")).to_be_visible()


@state
def contacts(page: Page, world: World) -> None:
    open_page(page, "contacts", query="?q=b")


@state
def person(page: Page, world: World) -> None:
    open_page(page, "person", query=f"?id={world.bob.pk}&chat={world.crew.id}")


@state
def blocks(page: Page, world: World) -> None:
    open_page(page, "blocks")


@state
def unsubscribe(page: Page, world: World) -> None:
    open_page(page, "unsubscribe", unsubscribe_token(str(world.alice.pk)))


@state
def notifications(page: Page, world: World) -> None:
    open_page(page, "notifications")


@state
def message(page: Page, world: World) -> None:
    open_page(page, "message", world.crew.id, "6")


@state
def not_found(page: Page, world: World) -> None:
    open_page(page, "room", "missing")
