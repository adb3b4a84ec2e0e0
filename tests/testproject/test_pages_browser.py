"""The pages of the demo in a real browser: orders, the market, the traffic."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings
from django_redis import get_redis_connection
from playwright.sync_api import Browser, Locator, Page, expect

from django_redis_messaging import Expiry, Lock
from django_redis_messaging.core import clients
from django_redis_messaging.core.testruns import Prefix
from django_redis_messaging.services.locks.lock import LockKeys

from ..support.browser import TIMEOUT, Contexts, violations, violations_now
from ..support.server import until
from .test_demo import Demo

PREFIX = "demo"
#: seconds in which an order must be paid
TIME_TO_PAY = 600

Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo(directory: Path) -> Iterator[Demo]:
    """One demo for all tests."""
    found = Demo(directory, env={"DEMO_TIME_TO_PAY": str(TIME_TO_PAY), "DEMO_ACCESS_LOG": ""})
    yield found
    found.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def contexts(browser: Browser, demo: Demo) -> Iterator[Contexts]:
    with closing(Contexts(browser, demo.address)) as found:
        yield found


@pytest.fixture
def visit(contexts: Contexts) -> Iterator[Visit]:
    """Opens a page in a separate browser context, signed in as a demo user."""

    def open_(name: str, path: str, **options: Any) -> Page:
        page = contexts.new_page(**options)
        page.goto(f"/?next={path}")
        page.get_by_role("button", name=name).click()
        page.wait_for_url(f"**{path}")
        return page

    yield open_
    contexts.end()


@contextmanager
def on_the_server_of_the_demo(directory: Path, prefix: Prefix) -> Iterator[None]:
    """Use the private server and the prefix of the demo in this process."""
    entry = {**settings.CACHES["messaging"], "LOCATION": f"unix://{directory}/redis/server.sock?db=0"}
    clients.close()
    with override_settings(CACHES={**settings.CACHES, "messaging": entry}), prefix.instead(PREFIX):
        yield
        clients.close()


class TestOrders:
    def order(self, page: Page, item: str) -> Locator:
        """Order an item; returns its row on the page."""
        page.get_by_label("Item").fill(item)
        page.get_by_label("Email").fill("ann@example.com")
        page.get_by_role("button", name="Order", exact=True).click()
        return page.locator(".orders li", has_text=item)

    def seconds(self, row: Locator) -> int:
        """The remaining seconds in the row."""
        return int(row.locator("[data-remaining]").inner_text())

    def test_they_count_down_and_keep_the_form(
        self, visit: Visit, directory: Path, messaging_settings: Prefix
    ) -> None:
        lively, plain = visit("Bob", "/orders/"), visit("Bob", "/orders/", java_script_enabled=False)
        cake, tea = self.order(lively, "Cake"), self.order(plain, "Tea")
        first, second = self.seconds(cake), self.seconds(tea)
        assert TIME_TO_PAY - 10 <= first <= TIME_TO_PAY
        lively.get_by_label("Item").fill("Half an or")
        counted = "most => document.querySelector('[data-remaining]')?.innerText <= most"
        lively.wait_for_function(counted, arg=first - 2)
        assert self.seconds(tea) == second
        plain.get_by_role("link", name="Refresh").click()
        assert self.seconds(tea) < second
        urls = [str(row.locator("form").get_attribute("action")) for row in (cake, tea)]
        with on_the_server_of_the_demo(directory, messaging_settings):
            for url in urls:
                assert Expiry("order").extend(re.sub(r"\D", "", url), 0.1)
        expect(cake).to_contain_text("Cancelled: not paid in time", timeout=TIMEOUT)
        expect(cake.get_by_role("button")).to_have_count(0)
        expect(lively.get_by_label("Item")).to_have_value("Half an or")
        while "Cancelled: not paid in time" not in tea.inner_text():
            plain.get_by_role("link", name="Refresh").click()
        expect(tea.get_by_role("button")).to_have_count(0)

    def test_a_focused_button_is_kept_and_a_paid_order_has_no_countdown(self, visit: Visit) -> None:
        page = visit("Carol", "/orders/")
        pie = self.order(page, "Pie")
        pie.get_by_role("button", name="Pay for Pie").focus()
        for _ in range(2):  # two refreshes: the first is complete by then
            with page.expect_response("**/orders/"):
                pass
        page.keyboard.press("Enter")
        expect(pie.locator(".payment-paid")).to_have_text("Paid", timeout=TIMEOUT)
        expect(pie.locator("[data-remaining]")).to_have_count(0)


class TestMarket:
    def button(self, page: Page, item: str) -> Locator:
        return page.get_by_role("button", name=f"Buy {item}")

    def own(self, page: Page, item: str) -> Locator:
        own = page.get_by_role("list", name="Your items")
        return own.get_by_role("listitem").filter(has_text=item)

    def wait_for_waiting(self, lock: Lock, count: int) -> None:
        """Wait until this number of clients wait for the lock."""
        client, line = get_redis_connection("messaging"), LockKeys(PREFIX, lock.key).line
        until(lambda: client.zcard(line) >= count)

    def test_one_of_two_users_gets_the_item(
        self, visit: Visit, directory: Path, messaging_settings: Prefix
    ) -> None:
        users = {
            "Carol Okafor": visit("Carol", "/market/"),
            "Dave Marchetti": visit("Dave", "/market/", java_script_enabled=False),
        }
        item_id = self.button(users["Carol Okafor"], "Blue bicycle").get_attribute("value", timeout=TIMEOUT)
        assert item_id
        with on_the_server_of_the_demo(directory, messaging_settings):
            lock = Lock(f"item:{item_id.partition(':')[0]}", renew=True)
            with lock:  # both purchases begin, and wait for it
                for number, page in enumerate(users.values(), start=1):
                    self.button(page, "Blue bicycle").click(no_wait_after=True)
                    self.wait_for_waiting(lock, number)
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
            expect(self.own(page, "Blue bicycle")).to_have_count(int(name == winner))
            expect(page.get_by_text(f"You have {40 if name == winner else 100} coins.")).to_be_visible()
            expect(self.button(page, "Blue bicycle")).to_have_count(0)
            expect(page.get_by_text(f"{winner} bought Blue bicycle from Bob Lindqvist")).to_be_visible()

    def test_several_items_are_bought_with_the_keyboard_and_sold(self, visit: Visit) -> None:
        page = visit("Erin", "/market/", java_script_enabled=False)
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
        expect(self.own(page, "Chess set")).to_contain_text("For sale at 40 coins")
        buyer = visit("Alice", "/market/")
        self.button(buyer, "Chess set").press("Enter")
        expect(self.own(buyer, "Chess set")).to_be_visible()

    def test_the_page_is_accessible_and_fits_small_screens(self, visit: Visit) -> None:
        page = visit("Frank", "/market/")
        for scheme, item, text in (
            ("light", "Acoustic guitar", "Bought"),
            ("dark", "Mechanical keyboard", "You don't have enough coins"),
        ):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            self.button(page, item).click()
            expect(page.get_by_role("alert")).to_contain_text(text)
            assert violations_now(page) == []
        page.reload()
        assert violations(page) == []
        page.set_viewport_size({"width": 360, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert violations(page) == []


@pytest.mark.parametrize("scripts", [False, True])
def test_the_bars_of_the_traffic_have_numbers_and_fit_small_screens(visit: Visit, scripts: bool) -> None:
    page = visit("Alice", "/traffic/", viewport={"width": 360, "height": 800}, java_script_enabled=scripts)
    blocked: list[Any] = []
    page.on("console", lambda message: blocked.append(message.text))
    page.get_by_role("button", name="Process the access log").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_be_visible()
    rows = page.get_by_role("table", name="5993 requests").get_by_role("row")
    expect(rows).to_have_count(6)
    widths = [rows.nth(at).locator("rect").bounding_box()["width"] for at in range(1, 6)]  # type: ignore[index]
    counts = [int(rows.nth(at).get_by_role("cell").first.inner_text()) for at in range(1, 6)]
    for width, count in zip(widths, counts, strict=True):
        assert abs(width / max(widths) - count / max(counts)) < 0.01
    assert page.locator("[style]").count() == 0
    rows.nth(3).get_by_role("link").click()
    expect(page.get_by_role("heading", name="May 19, 2026")).to_be_in_viewport()
    if scripts:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert violations(page) == []
        page.set_viewport_size({"width": 1200, "height": 800})
        assert violations(page) == []
    assert blocked == []
