"""Measures the bytes of polls and of pages: what Redis sends, and what the browser receives.

uv run python -m benchmarks.polling
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .harness import driver, table

#: characters of a message: just below MESSAGE_MAX_BYTES
LENGTH = 60_000
#: texts that become longer in HTML or JSON
NASTY = {
    "apostrophes": "'",
    "ampersands": "&",
    "quotes": '"',
    "addresses": "http://e.io/?a&b ",
    "emojis": "😀",
}
#: messages of each of them
COUNT = 30


def set_up(url: str) -> Any:
    """Set up the settings of the tests with an SQLite database in memory, and return a user."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django
    from django.conf import settings

    settings.CACHES = {"messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}}
    settings.DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    settings.ALLOWED_HOSTS = ["testserver"]
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    return User.objects.create(username="ann")


#: a page of JSON → parameters of the next request
Following = Callable[[Any], dict[str, Any]]
#: kind of messages, parameters of the first request, parameters of the next one
READING: list[tuple[str, dict[str, Any], Following]] = [
    ("new", {"after": 0}, lambda page: {"after": page["cursor"]}),
    ("edited", {"after": COUNT, "edits": 0}, lambda page: {"edits": page["edits"]}),
    ("older", {"before": COUNT}, lambda page: {"before": page["messages"][0]["id"]}),
]


def kibibytes(count: int) -> str:
    return f"{count / 1024:.1f} KiB"


class Browser:
    """A signed-in user who reads pages and JSON."""

    def __init__(self, user: Any) -> None:
        from django.test import Client

        self.client = Client()
        self.client.force_login(user)
        self.me = str(user.pk)

    def get(self, name: str, *args: str, **query: Any) -> tuple[Any, int]:
        """The response, and the bytes that Redis sent for it."""
        from django.urls import reverse

        def sent() -> int:
            return int(driver().info("stats")["total_net_output_bytes"])

        first, second = sent(), sent()
        response = self.client.get(reverse(f"messaging:{name}", args=args), query)
        if response.status_code != 200:
            raise RuntimeError(f"{name}: status {response.status_code}")
        return response, sent() - second - (second - first)

    def row(self, title: str, name: str, *args: str, **query: Any) -> list[str]:
        response, sent = self.get(name, *args, **query)
        return [title, kibibytes(sent), kibibytes(len(response.content))]


def idle(browser: Browser, messages: int) -> list[list[str]]:
    """Measure an idle poll, and the page, of a room of large messages."""
    from django_redis_messaging import Chat

    chat = Chat.create(browser.me, ["bob"], chat_id="large")
    for _ in range(messages):
        chat.send("bob", "x" * LENGTH)
    for number in range(messages - 99, messages + 1):
        chat.edit("bob", number, "y" * LENGTH)
    state = chat.changes(browser.me, after=messages)
    query = {"after": state.cursor, "edits": state.edits, "moved": state.moved, "html": "1"}
    return [
        browser.row(
            f"idle poll, {messages:,} messages of {LENGTH // 1000} KB", "room_feed", chat.id, **query
        ),
        browser.row("first poll after 100 edits of these", "room_feed", chat.id, **{**query, "edits": 0}),
        browser.row("page of the room", "room", chat.id),
    ]


def largest(browser: Browser, chat_id: str, start: dict[str, Any], following: Following) -> tuple[int, int]:
    """Read until there is nothing more; the largest answer, from Redis and over HTTP."""
    query, sizes, more = start, [], True
    while more:
        response, sent = browser.get("room_feed", chat_id, **query)
        sizes.append((sent, len(response.content)))
        page = response.json()
        query, more = {**query, **following(page)}, page["has_more"]
    return max(sent for sent, _ in sizes), max(received for _, received in sizes)


def nasty(browser: Browser, name: str) -> list[list[str]]:
    """Measure the answers for texts of one kind: new, edited and older messages, and the page."""
    from django_redis_messaging import Chat

    body = NASTY[name] * (65_000 // len(NASTY[name].encode()))
    chat = Chat.create(browser.me, [], chat_id=name)
    for _ in range(COUNT):
        chat.send(browser.me, body)
    for number in range(1, COUNT + 1):
        chat.edit(browser.me, number, body)
    rows = []
    for html in ("1", ""):
        for kind, start, following in READING:
            found = largest(browser, chat.id, {**start, "html": html}, following)
            title = f"{name}: largest answer with {kind} messages{', HTML' if html else ''}"
            rows.append([title, *map(kibibytes, found)])
    return [*rows, browser.row(f"{name}: page of the room", "room", chat.id)]


def listing(browser: Browser, chats: int) -> list[list[str]]:
    """Measure the list of chats."""
    from django_redis_messaging import Chat

    for _ in range(chats):
        Chat.create("bob", [browser.me], "x" * LENGTH)
    return [
        browser.row(f"list of {chats:,} chats with newest messages of {LENGTH // 1000} KB", "chats_feed"),
        browser.row("the same as a page", "chats"),
    ]


def main(messages: int, chats: int) -> None:
    from django_redis_messaging.devserver.server import EmbeddedServer

    with EmbeddedServer() as running:
        browser = Browser(set_up(running.url))
        rows = idle(browser, messages)
        for name in NASTY:
            rows += nasty(browser, name)
        rows += listing(browser, chats)
        print(table([["", "from Redis", "over HTTP"], *rows]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--chats", type=int, default=1000)
    options = parser.parse_args()
    main(options.messages, options.chats)
