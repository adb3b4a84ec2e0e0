"""The demo's page of orders at a real browser: it counts down until an order is cancelled."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Browser, Locator, Page, expect

from tests.test_demo import Demo, start

__all__ = ["start"]  # the fixture

#: seconds to pay
TIME = 6
#: ms
SOME_TIME = 30_000


def order(page: Page, item: str) -> Locator:
    """Order it; its line on the page."""
    page.get_by_label("Item").fill(item)
    page.get_by_label("Email").fill("ann@example.com")
    page.get_by_role("button", name="Order", exact=True).click()
    return line(page, item)


def line(page: Page, item: str) -> Locator:
    return page.locator(".orders li", has_text=item)


def seconds(row: Locator) -> int:
    """What it says is left."""
    return int(row.locator("[data-remaining]").inner_text())


def test_it_counts_down_and_leaves_the_form_alone(start: Callable[..., Demo], browser: Browser) -> None:
    address = start(env={"DEMO_TIME_TO_PAY": str(TIME)}).address
    troubles: list[str] = []
    lively = browser.new_page(base_url=address)
    lively.on("pageerror", lambda error: troubles.append(str(error)))
    plain = browser.new_page(base_url=address, java_script_enabled=False)
    for page in (lively, plain):
        page.set_default_timeout(SOME_TIME)
        page.goto("/orders/")
    cake, tea = order(lively, "Cake"), order(plain, "Tea")
    first, second = seconds(cake), seconds(tea)
    lively.get_by_label("Item").fill("Half an or")
    lively.wait_for_function(
        "most => document.querySelector('[data-remaining]')?.innerText <= most", arg=first - 2
    )
    assert seconds(tea) == second
    plain.get_by_role("link", name="Look again").click()
    assert seconds(tea) < second
    expect(cake).to_contain_text("Cancelled: not paid in time", timeout=SOME_TIME)
    expect(cake.get_by_role("button")).to_have_count(0)
    expect(lively.get_by_label("Item")).to_have_value("Half an or")
    while "Cancelled: not paid in time" not in tea.inner_text():
        plain.get_by_role("link", name="Look again").click()
    expect(tea.get_by_role("button")).to_have_count(0)
    for page in (lively, plain):
        page.context.close()
    assert troubles == []


def test_a_button_with_the_focus_stays_and_a_paid_order_counts_no_more(
    start: Callable[..., Demo], browser: Browser
) -> None:
    page = browser.new_page(base_url=start(env={"DEMO_TIME_TO_PAY": "600"}).address)
    page.goto("/orders/")
    cake = order(page, "Cake")
    assert 590 <= seconds(cake) <= 600
    cake.get_by_role("button", name="Pay for Cake").focus()
    for _ in range(2):  # two looks: the first is over by then
        with page.expect_response("**/orders/"):
            pass
    page.keyboard.press("Enter")
    expect(cake.locator(".payment-paid")).to_have_text("Paid", timeout=SOME_TIME)
    expect(cake.locator("[data-remaining]")).to_have_count(0)
    page.context.close()
