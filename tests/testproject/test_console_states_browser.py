"""The console of the demo at work is accessible. With SCREENSHOTS, makes screenshots: see .ci/screenshots."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from django_redis_messaging.core.testruns import Prefix
from django_redis_messaging.services.history.keys import HistoryKeys, Series, level_of
from django_redis_messaging.services.history.things import THINGS

from ..support.browser import Contexts, fits_in_width, violations, wait_until
from ..support.console_world import add_slots
from ..support.demo import Demo
from .test_pages_browser import PREFIX, on_the_server_of_the_demo

ROOT = "/admin/django_redis_messaging/"
STOCK = f"{ROOT}queues/queue/?thing=queue:default/stock"
#: px; the second one is that of the pictures in the documents
SIZES = [(360, 740), (1280, 800)]
#: slots of history from before the demo was started: 50 minutes
SLOTS = 300
State = Callable[[Page], object]


def waiting_job(page: Page) -> None:
    """A job that waits for the lock of another one."""

    def is_shown() -> bool:
        page.goto(f"{STOCK}&place=parked")
        parked = page.locator("#drm-live tbody th a")
        if parked.count():
            parked.first.click()
        return page.get_by_role("heading", name="Why it waits").count() > 0

    wait_until(page, is_shown, seconds=60)


def failed_job(page: Page) -> None:
    page.goto(f"{STOCK}&place=dead")
    page.locator("#drm-live tbody th a").first.click()
    page.locator("#drm-live summary").first.click()


def audit(page: Page) -> None:
    """The trail after a change."""
    page.goto(f"{STOCK}&place=dead")
    page.locator("tbody input[type=checkbox]").first.check()
    page.get_by_role("button", name="Retry", exact=True).click()
    page.locator("#drm-live form button[type=submit]").click()
    expect(page.locator(".messagelist li")).to_be_visible()
    page.goto(f"{ROOT}audit/")


STATES: dict[str, State] = {
    "console_overview": lambda page: page.goto(f"{ROOT}overview/"),
    "console_queues": lambda page: page.goto(f"{ROOT}queues/"),
    "console_queue": lambda page: page.goto(f"{STOCK}&place=dead"),
    "console_waiting": waiting_job,
    "console_failed": failed_job,
    "console_schedule": lambda page: page.goto(f"{ROOT}schedule/"),
    "console_locks": lambda page: page.goto(f"{ROOT}locks/"),
    "console_history": lambda page: page.goto(f"{ROOT}history/?series=queue:default/emails"),
    "console_chats": lambda page: page.goto(f"{ROOT}chats/"),
    "console_audit": audit,
}


def add_past(directory: Path, prefix: Prefix) -> None:
    """History from before the demo was started."""
    with on_the_server_of_the_demo(directory, prefix):
        keys = HistoryKeys(PREFIX)
        for name, jobs, run in (("emails", 35, 0.02), ("invoices", 10, 0.5), ("stock", 2, 3.0)):
            series = Series("queue", name, "default")
            slots = [counts_of(number, jobs, run) for number in range(SLOTS)]
            add_slots(keys, series, slots)
            add_slots(keys, series, [slot | {"ran": 6 * slot["ran"]} for slot in slots[-5:]], seconds=60)
        for series, counts in (
            (THINGS, {"lock": 2, "semaphore": 1, "chat": 5, "mailbox": 6, "broadcast": 2, "directory": 1}),
            (Series("backend", "default", "default"), {"workers": 1, "running": 1, "periodic": 1}),
        ):
            add_slots(keys, series, [counts_so_far(number, counts) for number in range(SLOTS)])


def counts_of(number: int, jobs: int, run: float) -> dict[str, int]:
    """What is recorded in a slot."""
    share = 1 + 0.4 * math.sin(number / 25) + 0.1 * math.sin(number * 7)
    levels = {"wait50": 0.2, "wait95": 0.9, "run50": run, "run95": 1.8 * run}
    found = {name: level_of(seconds * share) for name, seconds in levels.items()}
    return {**found, "ran": round(jobs * share), "failed": int(number % 37 == 0), "ready": round(4 * share)}


def counts_so_far(number: int, counts: dict[str, int]) -> dict[str, int]:
    """How many things a slot has on the way to these."""
    return {name: math.ceil(count * (number + 1) / SLOTS) for name, count in counts.items()}


def has_failed(page: Page) -> bool:
    """Whether the overview names the task that fails."""
    page.reload()
    return page.get_by_text("failed for good").count() > 0


@pytest.fixture
def site(browser: Browser, tmp_path: Path, messaging_settings: Prefix) -> Iterator[Page]:
    """The overview of a demo that has run for a while, as Alice sees it."""
    demo = Demo(tmp_path, env={"DEMO_ACCESS_LOG": ""})
    address = demo.address  # once it runs
    add_past(tmp_path, messaging_settings)
    with closing(Contexts(browser, address)) as contexts:
        page = contexts.new_page(script="", viewport={"width": 1280, "height": 800})
        page.goto(f"/?next={ROOT}overview/")
        page.get_by_role("button", name="Alice").click()
        wait_until(page, lambda: has_failed(page), seconds=120)
        yield page
        contexts.end()
    demo.stop(signal.SIGKILL)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_console_states(site: Page) -> None:
    wanted = os.environ.get("STATES", "").split() or list(STATES)
    for name in wanted:
        if name not in STATES:  # one of tests/web/test_states_browser.py
            continue
        STATES[name](site)
        assert violations(site) == [], name
        directory = os.environ.get("SCREENSHOTS")
        for width, height in SIZES:
            site.set_viewport_size({"width": width, "height": height})
            assert fits_in_width(site), (name, width)
            for scheme in ("light", "dark") if directory else ():
                site.emulate_media(color_scheme=scheme)
                path = Path(str(directory), f"{name}-{scheme}-{width}.png")
                site.screenshot(path=path, animations="disabled")
        site.emulate_media(color_scheme="light")
