"""The console in a real browser: each page filled with data of all kinds, each change through its form, the
keyboard, and how open pages stay up to date."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Locator, Page, Response, expect
from pytest_django import Settings

from django_redis_messaging import Lock, conf
from django_redis_messaging.console.base import ChangePage, ThingPage
from django_redis_messaging.console.urls import ROUTES, Route
from django_redis_messaging.services.audit import AuditTrail
from django_redis_messaging.services.common.things import Thing
from django_redis_messaging.services.history.keys import HistoryKeys, Series, level_of

from ..support import content_policies
from ..support.browser import (
    FAST,
    PHONE,
    Contexts,
    fits_in_width,
    sign_in,
    violations,
    violations_now,
    wait_until,
)
from ..support.console_world import add_slots, lively
from ..support.server import server
from . import sites

pytestmark = [pytest.mark.browser, pytest.mark.one_server]

World = dict[str, Thing]
Open = Callable[..., Page]
#: px
WIDTHS = (768, 1440)
#: bytes of this app's CSS and JS on a page
MAX_BYTES = 60_000
#: the queries with which a page is opened, if it shows several lists
QUERIES = {
    "locks": ["kind=lock", "kind=rwlock", "kind=semaphore", "kind=latch"],
    "limits": ["kind=site", "kind=own"],
    "channels": [f"kind={kind}" for kind in ("mailbox", "broadcast", "files", "directory", "streams")],
    "timers": ["", "namespace=order"],
    "history": ["", "kind=task", "series=queue:default/default", "series=things:all"],
    "search": ["q=nightly", "q="],
    "queue": [f"place={place}" for place in ("leased", "parked", "dead", "finished")],
    "directory": ["q=an"],
}
#: a page of each template: others look alike on a phone
OF_EACH_KIND = {"overview", "queue", "task", "history", "timers"}
#: the lines of the number that has the most: no number is apart from its unit
MOST_LINES = (
    "t => Math.max(...[...t.querySelectorAll('.drm-number bdi')].map(e => e.getClientRects().length))"
)
#: counts the turns of the page's timer, which is a hundred times as fast
TURNS = """
window.turns = 0;
const { setTimeout } = window;
window.setTimeout = (act, ms) => setTimeout(() => { window.turns += ms === 10_000; act(); }, ms / 100);
"""


class Change(NamedTuple):
    """A change: where its button is, and what is said after it."""

    page: str
    #: of what the page is, or what is in the row of the button
    thing: str
    label: str
    done: str
    query: str = ""


#: each change, in an order in which they are possible one after the other
CHANGES = {
    "pause": Change("queue", "mail", "Pause", "The queue is paused."),
    "resume": Change("queue", "mail", "Resume", "The queue is resumed."),
    "purge": Change("queue", "mail", "Purge", "Jobs deleted: 1."),
    "retry": Change("queue", "queue", "Retry", "1 job was enqueued again.", "place=dead"),
    "redrive": Change("task", "dead", "Retry later", "1 job was enqueued again."),
    "discard": Change("queue", "queue", "Discard all", " discarded.", "place=dead"),
    "run_now": Change("task", "delayed 0", "Run now", "1 job is due now."),
    "reschedule": Change("task", "delayed 1", "Reschedule", "1 job was rescheduled."),
    "set_priority": Change("task", "ready", "Set priority", "The priority of 1 job was changed."),
    "cancel": Change("task", "parked", "Cancel jobs", "1 job was cancelled."),
    "run_periodic": Change("schedule", "report", "Run now", "A call was enqueued."),
    "pause_periodic": Change("schedule", "report", "Pause", "The schedule is paused."),
    "resume_periodic": Change("schedule", "report", "Resume", "The schedule is resumed."),
    "remove_periodic": Change("schedule", "report", "Remove", "The schedule was removed."),
    "fire": Change("timer", "timer 17", "Fire now", ""),
    "cancel_timer": Change("timer", "timer 18", "Cancel", ""),
    "release": Change("lock", "lock", "Release", "It was released."),
    "set_limit": Change("semaphore", "semaphore", "Set the limit", ""),
    "reset": Change("rate", "rate", "Reset", "The key was reset."),
}  # fmt: skip


@pytest.fixture
def boss() -> User:
    return User.objects.create(username="ann", first_name="Ann", is_superuser=True, is_staff=True)


@pytest.fixture
def world(boss: User, tmp_path: Path) -> Iterator[World]:
    bob = User.objects.create(username="bob", first_name="Bob", last_name="Donaudampfschifffahrtskapitän")
    with lively(boss, bob, tmp_path) as things:
        yield things


@pytest.fixture
def open_page(contexts: Contexts, settings: Settings) -> Iterator[Open]:
    """Opens a page of the console in the admin, signed in as a user, with a strict Content-Security-Policy.
    Warnings and errors fail the test."""
    settings.TEST_POLICY = content_policies.SELF
    warnings: list[str] = []

    def open_(
        user: User | None,
        name: str,
        query: str = "",
        *,
        place: str = "admin",
        script: str = FAST,
        **options: Any,
    ) -> Page:  # fmt: skip
        page = contexts.new_page(script, **options)
        page.on("console", lambda one: warnings.append(one.text) if one.type == "warning" else None)
        if user is not None:
            sign_in(page.context, user, contexts.url)
        visit(page, name, query, place=place)
        return page

    yield open_
    contexts.end()
    assert warnings == []


def visit(page: Page, name: str, query: str = "", *, place: str = "admin") -> Response:
    response = page.goto(reverse(f"{place}:messaging_{name}") + (f"?{query}" if query else ""))
    assert response and "default-src 'none'" in response.headers["content-security-policy"]
    return response


def query_of(thing: Thing, more: str = "") -> str:
    return "&".join(filter(None, (urlencode({"thing": str(thing)}), more)))


def pages(world: World) -> Iterator[tuple[str, str]]:
    """Each page that is read, with its queries. A page of a thing needs one in the world."""
    for route in (one for routes in ROUTES.values() for one in routes):
        if issubclass(route.view, ChangePage):
            continue
        for query in QUERIES.get(route.name, [""]):
            is_thing = issubclass(route.view, ThingPage)
            yield route.name, query_of(world[route.name], query) if is_thing else query
    yield "task", query_of(world["parked"])
    yield "task", query_of(world["ready"])


def change_routes() -> dict[str, type[ChangePage]]:
    routes: list[Route] = [one for routes in ROUTES.values() for one in routes]
    return {one.name: one.view for one in routes if issubclass(one.view, ChangePage)}


def record_requests(page: Page) -> list[str]:
    """The URLs that a page requests from here on."""
    found: list[str] = []
    page.on("request", lambda request: found.append(request.url))
    return found


def own_bytes(page: Page) -> int:
    """The size of this app's CSS and JS on the page."""
    entries = json.loads(page.evaluate("JSON.stringify(performance.getEntriesByType('resource'))"))
    ours = [one for one in entries if "/static/django_redis_messaging/" in one["name"]]
    assert len(ours) >= 4
    return sum(one["decodedBodySize"] for one in ours)


def test_every_page(
    world: World, boss: User, open_page: Open, contexts: Contexts, settings: Settings
) -> None:
    settings.ROOT_URLCONF, settings.LOGIN_URL = sites.NoAdmin, "/sign-in/"
    page = open_page(boss, "overview", place="messaging_console", viewport={"width": 1440, "height": 900})
    requests, largest, seen = record_requests(page), 0, set[str]()
    for name, query in pages(world):
        which, is_first = f"{name}?{query}", name not in seen
        assert visit(page, name, query, place="messaging_console").status == 200, which
        seen.add(name)
        largest = max(largest, own_bytes(page))
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert fits_in_width(page), (which, width)
        if is_first:
            assert violations(page) == [], which
        page.set_viewport_size(PHONE["viewport"])
        assert fits_in_width(page), (which, 360)
        if is_first and name in OF_EACH_KIND:
            assert violations_now(page) == [], (which, 360)
    assert largest <= MAX_BYTES
    assert {urlsplit(url).netloc for url in requests} == {urlsplit(contexts.url).netloc}


@pytest.mark.parametrize("language", ["de", "ar"])
def test_long_words_and_right_to_left(
    world: World, boss: User, open_page: Open, settings: Settings, language: str
) -> None:
    settings.LANGUAGE_CODE = language
    page = open_page(boss, "overview")
    for name in ("overview", "queues", "locks", "task"):
        visit(page, name, query_of(world["parked"]) if name == "task" else "")
        for width in (360, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert fits_in_width(page), (name, width)
        sections = page.locator(".drm-sections")
        assert sections.evaluate("one => one.clientHeight") < 48, "one row"
        assert violations_now(page) == [], name


def test_pages_in_the_admin(world: World, boss: User, open_page: Open) -> None:
    """Their tables fit beside the sidebar, even that of a queue with all numbers that is paused at length."""
    keys, other = HistoryKeys(conf.prefix()), Series("queue", "other", "default")
    latencies = {"wait50": 0.123, "wait95": 270, "run50": 0.123, "run95": 90}
    server().delete(keys.open(str(other), 60))
    add_slots(keys, other, [{name: level_of(one) for name, one in latencies.items()}], 60)
    page = open_page(boss, "queues")
    expect(page.get_by_role("row").filter(has_text="see the ticket").first).to_contain_text(
        "145 ms / 4.9 min"
    )
    for name in ("overview", "queues", "locks"):
        visit(page, name)
        for width in (360, 768, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert fits_in_width(page), (name, width)
        assert violations(page) == [], name
        assert page.locator("#nav-sidebar").is_visible()
        table = page.locator(".drm-sideways").first
        assert table.evaluate("one => one.scrollWidth <= one.clientWidth"), name
        assert table.evaluate(MOST_LINES) <= 2, name


class TestChanges:
    def test_each_change_has_a_way(self) -> None:
        assert set(CHANGES) == set(change_routes())

    def test_each_through_its_form(self, world: World, boss: User, open_page: Open) -> None:
        page = open_page(boss, "overview")
        for action, change in CHANGES.items():
            entries = len(AuditTrail().entries(limit=200))
            make(page, world, change)
            assert len(AuditTrail().entries(limit=200)) == entries + 1, action
            entry = AuditTrail().entries()[0]
            assert (entry.by, entry.action, entry.number) == ("ann", action, entry.number or 1), action

    def test_without_scripts(self, world: World, boss: User, open_page: Open, settings: Settings) -> None:
        settings.ROOT_URLCONF, settings.LOGIN_URL = sites.NoAdmin, "/sign-in/"
        place = "messaging_console"
        page = open_page(boss, "overview", place=place, java_script_enabled=False)
        for action in ("pause", "release"):
            make(page, world, CHANGES[action], place=place)
        assert Lock("nightly").info().holder != "holder of nightly"
        page.get_by_role("searchbox").fill("printers")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("printers")
        assert not page.locator(".drm-fresh").is_visible()


def make(page: Page, world: World, change: Change, *, place: str = "admin") -> None:
    """Make a change through the form of a page and the question."""
    in_row = change.page == "schedule"
    query = change.query if in_row else query_of(world[change.thing], change.query)
    visit(page, change.page, query, place=place)
    where = page.url
    if page.locator("tbody input[type=checkbox]").count() and "all" not in change.label:
        page.locator("tbody input[type=checkbox]").first.check()
    part: Page | Locator = page.get_by_role("row").filter(has_text=change.thing).first if in_row else page
    part.locator(
        f"xpath=.//button[@type='submit'][normalize-space(text()[1])='{change.label}']"
    ).first.click()
    expect(page.locator("h1")).to_contain_text("?")
    page.locator("#drm-live form button[type=submit]").click()
    expect(page.locator(".messagelist li, .drm-said li")).to_contain_text(change.done or ".")
    assert page.url == where


class TestKeyboard:
    def test_skip_link_order_and_focus(
        self, world: World, boss: User, open_page: Open, settings: Settings
    ) -> None:
        settings.ROOT_URLCONF, settings.LOGIN_URL = sites.NoAdmin, "/sign-in/"
        page = open_page(boss, "locks", place="messaging_console")
        names = []
        for _ in range(3):
            page.keyboard.press("Tab")
            focused = page.locator(":focus")
            names.append(focused.inner_text().strip())
            assert focused.evaluate("one => getComputedStyle(one).outlineStyle") == "solid", names
            if names[-1] == "Skip to content":
                break
        page.keyboard.press("Enter")
        expect(page.locator("#drm-main")).to_be_focused()
        order = []
        for _ in range(8):
            page.keyboard.press("Tab")
            order.append(page.evaluate("document.activeElement.textContent.trim()"))
        assert order[:5] == ["Pause updates", "Locks", "Read-write locks", "Semaphores", "Latches"], order

    def test_filter_forms(self, world: World, boss: User, open_page: Open) -> None:
        page = open_page(boss, "locks")
        page.get_by_label("Text in the name").press_sequentially("night")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("name=night"))
        expect(page.locator("#drm-live tbody tr")).to_have_count(1)
        page.get_by_role("link", name="Show all").press("Enter")
        expect(page.locator("#drm-live tbody tr")).not_to_have_count(1)
        visit(page, "queue", query_of(world["other"], "place=delayed"))
        page.get_by_label("Text in arguments").press_sequentially("nothing of it")
        page.keyboard.press("Enter")
        expect(page.locator("#drm-live")).to_contain_text("No jobs match here.")


class TestLive:
    def test_contents_are_replaced_but_not_what_is_in_use(
        self, world: World, boss: User, open_page: Open
    ) -> None:
        page = open_page(boss, "locks", script=TURNS)
        Lock("brand-new", timeout=600).acquire(blocking=False)
        expect(page.get_by_role("link", name="brand-new")).to_be_visible()
        link = page.get_by_role("link", name="nightly")
        link.focus()
        assert not is_replaced(page, world)
        expect(link).to_be_focused()
        page.locator("h1").click()
        page.evaluate("getSelection().selectAllChildren(document.querySelector('#drm-live tbody th'))")
        assert not is_replaced(page, world)
        page.evaluate("getSelection().empty()")
        expect(page.get_by_role("link", name="added 2")).to_be_visible()

    def test_selections_and_open_parts_stay(self, world: World, boss: User, open_page: Open) -> None:
        page = open_page(boss, "queue", query_of(world["queue"], "place=dead"), script=TURNS)
        for begin in ("input[type=checkbox]", "details > summary"):
            part = page.locator(f"#drm-live {begin}").first
            part.click()
            page.locator("h1").click()
            assert not is_replaced(page, world), begin
            part.click()
            page.locator("h1").click()

    def test_pause_and_a_lost_server(self, world: World, boss: User, open_page: Open) -> None:
        page = open_page(boss, "locks", script=TURNS)
        button, status = (
            page.get_by_role("button", name="Pause updates"),
            page.locator(".drm-fresh [role=status]"),
        )
        button.click()
        expect(status).to_have_text("Paused")
        expect(button).to_have_attribute("aria-pressed", "true")
        assert not is_replaced(page, world)
        button.click()
        expect(status).to_have_text("")
        expect(page.get_by_role("link", name="added 1")).to_be_visible()
        page.route("**/locks/", lambda route: route.abort())
        expect(status).to_contain_text("can't be reached")
        page.unroute("**/locks/")
        expect(status).to_have_text("")


def is_replaced(page: Page, world: World) -> bool:
    """Whether a page whose contents have changed is updated within three turns of its timer."""
    number = 1 + sum(1 for key in world if key.startswith("added"))
    name = f"added {number}"
    world[name] = Thing("lock", name)
    Lock(name, timeout=600).acquire(blocking=False)
    page.evaluate("document.querySelector('#drm-live').firstElementChild.dataset.old = ''")
    before = page.evaluate("turns")
    wait_until(page, lambda: page.evaluate("turns") >= before + 3)
    return not page.locator("#drm-live > [data-old]").count()


class TestRoles:
    def test_in_the_admin(self, world: World, boss: User, open_page: Open) -> None:
        """Each page and change."""
        every = dict(pages(world)) | dict.fromkeys(change_routes(), "")
        staff = User.objects.create(username="staff", is_staff=True)
        page = open_page(staff, "overview")
        assert violations_now(page) == []
        for name, query in every.items():
            assert visit(page, name, query).status == 403, name
            expect(page.get_by_role("alert")).to_be_visible()
            assert not page.locator(".drm-sections, #drm-live table").count(), name
        for user in (User.objects.create(username="user"), None):
            page = open_page(user, "overview")
            for name, query in every.items():
                visit(page, name, query)
                assert "/admin/login/" in page.url and not page.locator(".drm").count(), name

    @pytest.mark.parametrize("name", ["overview", "locks"])
    def test_alone(self, world: World, boss: User, open_page: Open, settings: Settings, name: str) -> None:
        settings.ROOT_URLCONF, settings.LOGIN_URL = sites.NoAdmin, "/sign-in/"
        place = "messaging_console"
        page = open_page(boss, name, place=place)
        expect(page.locator("#drm-live")).not_to_be_empty()
        assert violations(page) == []
        for field in ("is_staff", ""):
            user = User.objects.create(username=f"user {field}", **({field: True} if field else {}))
            page = open_page(user, name, place=place)
            expect(page.get_by_role("alert")).to_be_visible()
            assert not page.locator(".drm-sections").count()
        assert "/sign-in/" in open_page(None, name, place=place).url
