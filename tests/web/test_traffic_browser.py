"""The traffic page of the demo in a real browser, without JavaScript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import Browser, expect

from tests.testproject.test_demo import Demo, start

from .test_browser import violations

__all__ = ["start"]  # the fixture

#: ms
TIMEOUT = 30_000


def test_the_bars_have_numbers_and_fit_small_screens(start: Callable[..., Demo], browser: Browser) -> None:
    address = start(env={"DEMO_ACCESS_LOG": ""}).address
    for options in ({"java_script_enabled": False}, {}):
        context = browser.new_context(base_url=address, viewport={"width": 360, "height": 800}, **options)  # type: ignore[arg-type]
        page = context.new_page()
        page.set_default_timeout(TIMEOUT)
        blocked: list[Any] = []
        page.on("console", lambda message: blocked.append(message.text))  # noqa: B023
        page.goto("/traffic/")
        page.get_by_role("button", name="Alice").click()
        page.get_by_role("button", name="Process the access log").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_be_visible()
        table = page.get_by_role("table", name="5993 requests")
        rows = table.get_by_role("row")
        expect(rows).to_have_count(6)
        widths = [rows.nth(at).locator("rect").bounding_box()["width"] for at in range(1, 6)]  # type: ignore[index]
        counts = [int(rows.nth(at).get_by_role("cell").first.inner_text()) for at in range(1, 6)]
        for width, count in zip(widths, counts, strict=True):
            assert abs(width / max(widths) - count / max(counts)) < 0.01
        assert page.locator("[style]").count() == 0
        rows.nth(3).get_by_role("link").click()
        expect(page.get_by_role("heading", name="May 19, 2026")).to_be_in_viewport()
        if not options:
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            assert violations(page) == {}
            page.set_viewport_size({"width": 1200, "height": 800})
            assert violations(page) == {}
        assert blocked == []
        context.close()
