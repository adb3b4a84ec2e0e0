"""The market of the demo in a real browser: two users who buy the same item at the same moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.conf import settings
from django.test import override_settings
from django_redis import get_redis_connection
from playwright.sync_api import Browser, Locator, Page, expect

from django_redis_messaging import Lock
from django_redis_messaging.core import clients
from django_redis_messaging.core.testruns import Prefix
from django_redis_messaging.services.locks.lock import LockKeys
from tests.testproject.test_demo import Demo, start

from .test_browser import violations

__all__ = ["start"]  # the fixture

#: ms
TIMEOUT = 30_000
#: seconds
PATIENCE = 30.0
PREFIX = "demo"

Visit = Callable[..., Page]


@pytest.fixture
def visit(start: Callable[..., Demo], browser: Browser) -> Iterator[Visit]:
    """Opens the market in a separate browser context, signed in as a demo user."""
    address = start().address
    errors: list[str] = []
    contexts = []

    def open_(name: str, **options: Any) -> Page:
        context = browser.new_context(base_url=address, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto("/market/")
        page.get_by_role("button", name=name).click()
        expect(page.get_by_role("heading", name="Market")).to_be_visible()
        return page

    yield open_
    for context in contexts:
        context.close()
    assert errors == []


@contextmanager
def on_the_server_of_the_demo(directory: Path, prefix: Prefix) -> Iterator[None]:
    """Use the private server and the prefix of the demo in this process."""
    entry = {**settings.CACHES["messaging"], "LOCATION": f"unix://{directory}/redis/server.sock?db=0"}
    clients.close()
    with override_settings(CACHES={**settings.CACHES, "messaging": entry}), prefix.instead(PREFIX):
        yield
        clients.close()


def wait_for_waiting(lock: Lock, count: int) -> None:
    """Wait until this number of clients wait for the lock."""
    ends = time.monotonic() + PATIENCE
    while get_redis_connection("messaging").zcard(LockKeys(PREFIX, lock.key).line) < count:
        assert time.monotonic() < ends
        time.sleep(0.005)


def button(page: Page, item: str) -> Locator:
    return page.get_by_role("button", name=f"Buy {item}")


def own(page: Page, item: str) -> Locator:
    return page.get_by_role("list", name="Your items").get_by_role("listitem").filter(has_text=item)


def test_one_of_two_users_gets_the_item(visit: Visit, tmp_path: Path, messaging_settings: Prefix) -> None:
    users = {"Carol Okafor": visit("Carol"), "Dave Marchetti": visit("Dave", java_script_enabled=False)}
    item_id = button(users["Carol Okafor"], "Blue bicycle").get_attribute("value", timeout=TIMEOUT)
    assert item_id
    with on_the_server_of_the_demo(tmp_path, messaging_settings):
        lock = Lock(f"item:{item_id.partition(':')[0]}", renew=True)
        with lock:  # both purchases begin, and wait for it
            for number, page in enumerate(users.values(), start=1):
                button(page, "Blue bicycle").click(no_wait_after=True)
                wait_for_waiting(lock, number)
    for page in users.values():
        expect(page.get_by_role("alert")).to_contain_text("Blue bicycle")
    texts = {name: page.get_by_role("alert").inner_text() for name, page in users.items()}
    assert sorted(texts.values()) == [
        "Bought: Blue bicycle.",
        "Sold to somebody else a moment ago: Blue bicycle.",
    ]
    [winner] = [name for name, text in texts.items() if text.startswith("Bought")]
    for name, page in users.items():
        page.reload()
        expect(own(page, "Blue bicycle")).to_have_count(int(name == winner))
        expect(page.get_by_text(f"You have {40 if name == winner else 100} coins.")).to_be_visible()
        expect(button(page, "Blue bicycle")).to_have_count(0)
        expect(page.get_by_text(f"{winner} bought Blue bicycle from Bob Lindqvist")).to_be_visible()


def test_several_items_are_bought_with_the_keyboard_and_sold(visit: Visit) -> None:
    page = visit("Erin", java_script_enabled=False)
    for item in ("Desk lamp", "Chess set"):
        page.get_by_role("checkbox", name=item).focus()
        page.keyboard.press("Space")
    page.get_by_role("button", name="Buy the selected items").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("Bought: Desk lamp, Chess set.")
    expect(page.get_by_text("You have 60 coins.")).to_be_visible()
    page.get_by_label("Price of Chess set in coins").fill("40")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Sell Chess set")).to_be_focused()
    page.keyboard.press("Enter")
    expect(own(page, "Chess set")).to_contain_text("For sale at 40 coins")
    buyer = visit("Alice")
    button(buyer, "Chess set").press("Enter")
    expect(own(buyer, "Chess set")).to_be_visible()


def test_the_page_is_accessible_and_fits_small_screens(visit: Visit) -> None:
    page = visit("Dave")
    for scheme, item, text in (
        ("light", "Acoustic guitar", "Bought"),
        ("dark", "Mechanical keyboard", "You don't have enough coins"),
    ):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        button(page, item).click()
        expect(page.get_by_role("alert")).to_contain_text(text)
        assert Axe().run(page).response["violations"] == []
    assert violations(page) == {}
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert violations(page) == {}
