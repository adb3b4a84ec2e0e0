"""The orders page of the demo in a real browser: it counts down until an order is cancelled."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Browser, Locator, Page, expect

from tests.testproject.test_demo import Demo, start

__all__ = ["start"]  # the fixture

#: seconds to pay
TIME = 6
#: ms
TIMEOUT = 30_000


def order(page: Page, item: str) -> Locator:
    """Order an item; returns its row on the page."""
    page.get_by_label("Item").fill(item)
    page.get_by_label("Email").fill("ann@example.com")
    page.get_by_role("button", name="Order", exact=True).click()
    return line(page, item)


def sign_in(page: Page) -> None:
    """Sign in and open the page of the orders."""
    page.goto("/?next=/orders/")
    page.get_by_role("button", name="Bob").click()


def line(page: Page, item: str) -> Locator:
    return page.locator(".orders li", has_text=item)


def seconds(row: Locator) -> int:
    """The remaining seconds in the row."""
    return int(row.locator("[data-remaining]").inner_text())


def test_it_counts_down_and_keeps_the_form(start: Callable[..., Demo], browser: Browser) -> None:
    address = start(env={"DEMO_TIME_TO_PAY": str(TIME)}).address
    errors: list[str] = []
    lively = browser.new_page(base_url=address)
    lively.on("pageerror", lambda error: errors.append(str(error)))
    plain = browser.new_page(base_url=address, java_script_enabled=False)
    for page in (lively, plain):
        page.set_default_timeout(TIMEOUT)
        sign_in(page)
    cake, tea = order(lively, "Cake"), order(plain, "Tea")
    first, second = seconds(cake), seconds(tea)
    lively.get_by_label("Item").fill("Half an or")
    lively.wait_for_function(
        "most => document.querySelector('[data-remaining]')?.innerText <= most", arg=first - 2
    )
    assert seconds(tea) == second
    plain.get_by_role("link", name="Refresh").click()
    assert seconds(tea) < second
    expect(cake).to_contain_text("Cancelled: not paid in time", timeout=TIMEOUT)
    expect(cake.get_by_role("button")).to_have_count(0)
    expect(lively.get_by_label("Item")).to_have_value("Half an or")
    while "Cancelled: not paid in time" not in tea.inner_text():
        plain.get_by_role("link", name="Refresh").click()
    expect(tea.get_by_role("button")).to_have_count(0)
    for page in (lively, plain):
        page.context.close()
    assert errors == []


def test_a_focused_button_is_kept_and_a_paid_order_has_no_countdown(
    start: Callable[..., Demo], browser: Browser
) -> None:
    page = browser.new_page(base_url=start(env={"DEMO_TIME_TO_PAY": "600"}).address)
    sign_in(page)
    cake = order(page, "Cake")
    assert 590 <= seconds(cake) <= 600
    cake.get_by_role("button", name="Pay for Cake").focus()
    for _ in range(2):  # two refreshes: the first is complete by then
        with page.expect_response("**/orders/"):
            pass
    page.keyboard.press("Enter")
    expect(cake.locator(".payment-paid")).to_have_text("Paid", timeout=TIMEOUT)
    expect(cake.locator("[data-remaining]")).to_have_count(0)
    page.context.close()
