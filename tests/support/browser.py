"""Chromium for tests of the pages: its options, pages of signed-in users, and what users do there."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urljoin

from axe_playwright_python.base import AXE_SCRIPT
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Route, expect

from django_redis_messaging import Chat

from .people import Member, user_of
from .server import until

#: Debian's names: the first is the smaller build, which has no windows of a desktop and starts faster
PROGRAMS = ("chromium-headless-shell", "chromium")
#: arguments for a Chromium that starts in containers and sends no requests of its own
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: ms: a page that has been idle for long polls every 15 s
TIMEOUT = 30_000
#: how many times as fast the clocks of the pages run
SPEED = 10
#: resolves once all modules of the page have run: before, Enter in the message field is a line break
MODULES = (
    "Promise.all([...document.scripts].filter(one => one.type === 'module').map(one => import(one.src)))"
)
#: resolves once the page has been laid out and painted again
PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
#: counts how far the layout has shifted
SHIFTS = """
window.shifted = 0;
new PerformanceObserver(list => { for (const { value } of list.getEntries()) window.shifted += value; })
  .observe({ type: "layout-shift", buffered: true });
"""
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
#: scrolls by so many pages, and lets the page react
SCROLL = """pages => {
  const log = document.getElementById("drm-scroll");
  log.scrollTop += pages * log.clientHeight;
  return new Promise(done => requestAnimationFrame(() => setTimeout(done)));
}"""
#: the elements that violate rules of accessibility: these rules, or all
AXE = """async rules => {
  await Promise.allSettled(document.getAnimations().map(one => one.finished));
  const options = { resultTypes: ["violations"], ...(rules && { runOnly: rules }) };
  const { violations } = await axe.run(document, options);
  return violations.flatMap(({ id, nodes }) => nodes.map(one => `${id}: ${one.html} ${one.failureSummary}`));
}"""

PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
DESKTOP: dict[str, Any] = {"viewport": {"width": 1440, "height": 900}}

Visit = Callable[..., Page]


def clocks(speed: float) -> str:
    """A script that makes all timeouts of the pages shorter, in the same proportions."""
    return (
        "const { setTimeout } = window;"
        f"window.setTimeout = (act, ms, ...rest) => setTimeout(act, ms / {speed}, ...rest);"
    )


FAST = clocks(SPEED)


class Contexts:
    """The contexts of a browser for a site, each used by one test at a time.

    A context is used again, without what the test before has stored: it then has the files of the site in its
    cache. One with a script of its own is used once.
    """

    def __init__(self, browser: Browser, url: str) -> None:
        self.url = url
        self._browser = browser
        self._free: dict[str, list[BrowserContext]] = {}
        self._taken: list[tuple[str, BrowserContext]] = []
        self._errors: list[str] = []

    def new_page(self, script: str = FAST, **options: Any) -> Page:
        """A page in a context of its own, whose pages begin with the script."""
        kind = repr((script, options)) if script in ("", FAST) else ""
        free = self._free.setdefault(kind, [])
        context = free.pop() if free else self._open(script, options)
        self._taken.append((kind, context))
        page = context.new_page()
        devtools = context.new_cdp_session(page)
        devtools.send("Storage.clearDataForOrigin", {"origin": self.url, "storageTypes": "all"})
        devtools.detach()
        return page

    def end(self) -> None:
        """End the test. No page may have logged an error."""
        for kind, context in self._taken:
            if kind:
                self._leave(context)
                self._free[kind].append(context)
            else:
                context.close()
        self._taken.clear()
        errors, self._errors = self._errors, []
        assert errors == [], errors

    def close(self) -> None:
        """Close all contexts, and with them their connections to the site."""
        for contexts in self._free.values():
            for context in contexts:
                context.close()

    def _open(self, script: str, options: dict[str, Any]) -> BrowserContext:
        context = self._browser.new_context(base_url=self.url, **options)
        context.on("page", self._watch)
        if script:
            context.add_init_script(script)
        return context

    def _leave(self, context: BrowserContext) -> None:
        for page in context.pages:
            page.close()
        context.set_offline(False)
        context.clear_cookies()
        context.clear_permissions()

    def _watch(self, page: Page) -> None:
        page.set_default_timeout(TIMEOUT)
        page.on("console", self._record)
        page.on("pageerror", lambda error: self._errors.append(str(error)))
        page.on("dialog", lambda dialog: self._errors.append(f"a dialog: {dialog.message}"))

    def _record(self, message: ConsoleMessage) -> None:
        # Requests of the browser itself, and those that a test blocks, may fail.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self._errors.append(message.text)


@contextmanager
def serving_pages(browser: Browser, url: str) -> Iterator[Contexts]:
    """Pages of a site that threads of this process serve. At the end, they have ended."""
    with closing(Contexts(browser, url)) as found:
        yield found
    until(lambda: not any("process_request" in thread.name for thread in threading.enumerate()))


def sign_in(context: BrowserContext, user: User | Member, url: str) -> None:
    """Make the browser's session at the site of this URL that of the user."""
    client = Client()
    client.force_login(user_of(user))
    session = client.cookies["sessionid"].value
    context.add_cookies([{"name": "sessionid", "value": session, "url": urljoin(url, "/")}])


def open_page(page: Page, name: str, *args: Any, query: str = "") -> Page:
    """Open a page of the app, and wait until its scripts have run."""
    page.goto(reverse(f"messaging:{name}", args=args) + query)
    page.evaluate(MODULES)
    return page


def reload(page: Page) -> None:
    page.reload()
    page.evaluate(MODULES)


def violations(page: Page) -> list[str]:
    """What violates rules of accessibility on the page as it is, in light and in dark mode."""
    found = violations_now(page)
    page.emulate_media(color_scheme="dark")  # which changes nothing but colours
    found += violations_now(page, "color-contrast", "link-in-text-block")
    page.emulate_media(color_scheme="light")
    return found


def violations_now(page: Page, *rules: str) -> list[str]:
    """What violates rules of accessibility on the page as it is; these rules, or all."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found: list[str] = page.evaluate(AXE, list(rules) or None)
    return found


def fits_in_width(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth && scrollX === 0"))


def wait_until(page: Page, condition: Callable[[], object], *, seconds: float = 30) -> None:
    """Wait for a condition, while the page runs."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        page.wait_for_timeout(20)


def hold(page: Page, pattern: str) -> list[Route]:
    """The requests to these URLs from here on; none is answered."""
    held: list[Route] = []

    def keep(route: Route) -> None:
        held.append(route)

    page.route(pattern, keep)
    return held


def send(page: Page, text: str) -> None:
    page.evaluate(MODULES)
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def choose(page: Page, message_id: int, option: str) -> None:
    """Choose an option of a message."""
    page.evaluate(MODULES)
    open_menu(page, message_id)
    page.get_by_role("menuitem", name=option, exact=True).click()


def open_menu(page: Page, message_id: int) -> None:
    page.locator(f"#m{message_id}").hover()
    page.locator(f"#m{message_id} .drm-dots").click()


def open_account(page: Page) -> None:
    page.get_by_text("Account").locator("..").click()


def expect_message(page: Page, text: str) -> None:
    expect(page.locator(".drm-log .drm-body", has_text=text)).to_be_visible(timeout=TIMEOUT)


def expect_sent(page: Page, text: str) -> None:
    """The message is in the log, and not among those that wait to be sent."""
    expect(page.locator("#drm-log .drm-body", has_text=text)).to_be_visible(timeout=TIMEOUT)


def expect_title(page: Page, text: str) -> None:
    """The room is open."""
    expect(page.locator("#drm-title bdi")).to_have_text(text)


def row(page: Page, title: str) -> Locator:
    """The link of a chat in the list."""
    return page.locator(".drm-row > a", has=page.get_by_text(title, exact=True))


def shown_bodies(page: Page) -> list[str]:
    return page.locator("#drm-log .drm-body").all_inner_texts()


def bodies(chat: Chat, user: Member) -> list[str]:
    """The messages of the chat that the user can read."""
    return [message.body for message in chat.history(user).messages]


def wait_for_messages(page: Page, chat: Chat, user: Member, wanted: list[str]) -> None:
    wait_until(page, lambda: len(bodies(chat, user)) >= len(wanted))
    assert bodies(chat, user) == wanted, bodies(chat, user)


def position(chat: Chat, user: Member) -> int:
    """Up to which message the user has read."""
    return chat.changes(user, after=0).read_id


def wait_for_position(page: Page, chat: Chat, user: Member, wanted: int) -> None:
    wait_until(page, lambda: position(chat, user) >= wanted)
    assert position(chat, user) == wanted


def filled(sender: Member, reader: Member, count: int, **options: Any) -> Chat:
    """A chat with messages that the reader has not read."""
    chat = Chat.create(sender, [reader], title="Long", **options)
    for number in range(1, count + 1):
        chat.send(sender, f"Message {number}.")
    return chat


def many_chats(reader: Member, other: Member, count: int = 60) -> list[Chat]:
    """Chats with a message that the reader has not read, the newest first."""
    return [
        Chat.create(other, [reader], f"Hello {number}", title=f"Room {number}") for number in range(count)
    ][::-1]


def titled(title: str) -> re.Pattern[str]:
    return re.compile(re.escape(title))
