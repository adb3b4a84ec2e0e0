"""Measures what one user can cost or learn of others: `python -m benchmarks.attack CHECKOUT …`.

Prints a table with a column for each checkout of this app. Each runs in its own process, with its own
server. docs/security.md has the results.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KIB = 1024
#: as many apostrophes as a message may have bytes: as HTML, each can take six
LARGE = "'" * 64 * KIB
#: bytes of a large, ordinary message
MESSAGE = "x" * 60_000
PEOPLE = 5006

results: dict[str, str] = {}
#: all users of the site
USERS: list[Any] = []


def main(checkouts: list[str]) -> None:
    columns = [_results_of(Path(checkout).resolve()) for checkout in checkouts]
    for name in columns[-1]:
        print("| " + " | ".join([name, *(column.get(name, "") for column in columns)]) + " |")


def _results_of(checkout: Path) -> dict[str, str]:
    command = [sys.executable, str(Path(__file__).resolve()), "--child"]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    done = subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout))


def attack() -> None:
    """Run all attacks on the app that is on the path, and print the results as JSON."""
    import django
    from django.conf import settings

    from django_redis_messaging.devserver.server import EmbeddedServer

    with EmbeddedServer() as running:
        settings.CACHES["messaging"]["LOCATION"] = running.url
        settings.CACHES["default"] = {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}
        settings.REDIS_MESSAGING = {"CHAT_MAX_BYTES": 256 * KIB * KIB}
        django.setup()
        from django.core.management import call_command
        from django.test.utils import setup_test_environment

        setup_test_environment()
        call_command("migrate", run_syncdb=True, verbosity=0)
        show_modes()
        attacks: list[Callable[[], None]] = [
            poll_large_room,
            poll_apostrophes,
            list_chats,
            time_list,
            swallow_messages,
            invite_many,
            edit_often,
            search_long,
            provoke_errors,
            harvest,
            probe,
        ]
        USERS.extend(_people())
        for run in attacks:
            run()
    json.dump(results, sys.stdout)


def show_modes() -> None:
    from django_redis_messaging.devserver.server import EmbeddedServer

    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent, "redis")
        directory.mkdir(mode=0o755)
        with EmbeddedServer(directory, append_only=True):
            modes = [path.stat().st_mode & 0o777 for path in (directory, *directory.rglob("*"))]
    readable = sum(bool(mode & 0o077) for mode in modes)
    results["Files of the private server that other users can read"] = f"{readable} of {len(modes)}"


def _people() -> Iterator[Any]:
    from django.contrib.auth.models import User

    from django_redis_messaging import Directory

    User.objects.bulk_create(User(username=f"user{number:04}") for number in range(PEOPLE))
    everyone = list(User.objects.order_by("pk"))
    Directory("everyone").add_many([(str(user.pk), user.username) for user in everyone])
    yield from everyone


def _client(number: int, **headers: str) -> Any:
    from django.test import Client

    client = Client(raise_request_exception=False, headers={"Accept": "application/json", **headers})
    client.force_login(USERS[number])
    return client


def _id(number: int) -> str:
    return str(USERS[number].pk)


def _chat(*, body: str = "", title: str = "") -> Any:
    """A new chat of the first three people."""
    from django_redis_messaging import Chat

    return Chat.create(_id(0), [_id(1), _id(2)], body, title=title)


def _traffic(field: str, call: Callable[[], Any]) -> tuple[int, Any]:
    """The bytes that went into Redis ("input") or out of it ("output") because of a call, and its result."""
    from django_redis import get_redis_connection

    client = get_redis_connection("messaging")
    name = f"total_net_{field}_bytes"
    client.info("stats")
    before = client.info("stats")[name]
    own = client.info("stats")[name] - before
    start = client.info("stats")[name]
    answer = call()
    return client.info("stats")[name] - start - own, answer


def _poll(client: Any, chat: Any, **position: Any) -> Any:
    return client.get(f"/messages/chats/{chat.id}/feed/", {"html": 1, **position})


def _size(count: int) -> str:
    return f"{count} B" if count < KIB else f"{count / KIB:.0f} KiB"


def poll_large_room() -> None:
    chat, client = _chat(), _client(1)
    for _ in range(1000):
        chat.send(_id(0), MESSAGE)
    after = chat.history(_id(0), limit=1).cursor
    position = {"after": after}
    first = _poll(client, chat, **position).json()
    position |= {name: str(first[name]) for name in ("edits", "moved") if name in first}
    sent, answer = _traffic("output", lambda: _poll(client, chat, **position))
    results["Idle poll, 1,000 messages of 60 KB: out of Redis"] = _size(sent)
    results["Idle poll …: over HTTP"] = _size(len(answer.content))
    chat.delete(_id(0))


def poll_apostrophes() -> None:
    chat, client = _chat(), _client(1)
    for _ in range(60):
        chat.send(_id(0), "short")
    feed = _poll(client, chat, after=0).json()
    position = {name: str(feed[name]) for name in ("edits", "moved") if name in feed}
    for number in range(1, 61):
        chat.edit(_id(0), number, LARGE)
    sent, answer = _traffic(
        "output", lambda: _poll(client, chat, after=feed["messages"][-1]["cursor"], **position)
    )
    results["Poll after 60 edits to 64 Ki apostrophes: out of Redis"] = _size(sent)
    results["Poll after 60 edits …: over HTTP"] = _size(len(answer.content))
    sent, answer = _traffic("output", lambda: _poll(client, chat, after=0))
    results["Poll of 60 messages of 64 Ki apostrophes: out of Redis"] = _size(sent)
    results["Poll of 60 messages …: over HTTP"] = _size(len(answer.content))
    chat.delete(_id(0))


def list_chats() -> None:
    chats = [_chat(body=LARGE, title="'" * 500) for _ in range(60)]
    sent, answer = _traffic("output", lambda: _client(1).get("/messages/feed/?html=1"))
    results["List of 60 chats with 64 Ki apostrophes: out of Redis"] = _size(sent)
    results["List of 60 chats …: over HTTP"] = _size(len(answer.content))
    chats += [_chat(body=MESSAGE) for _ in range(940)]
    sent, _ = _traffic("output", lambda: _client(1).get("/messages/feed/?html=1"))
    results["List of 1,000 chats, newest messages of 60 KB: out of Redis"] = _size(sent)
    for chat in chats:
        chat.delete(_id(0))


def time_list() -> None:
    from django_redis_messaging import Chat, Inbox

    # two writers: others fill at most nine tenths of a user's list
    for number in range(5000):
        Chat.create("reader", [f"writer {number % 2}"])
    inbox = Inbox("reader")
    times: dict[str, list[float]] = {"list": [], "idle": []}
    for _ in range(15):
        for name, call in (("list", lambda: inbox.chats(limit=50)), ("idle", inbox.pending)):
            began = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - began)
    listed, idle = (sorted(values)[len(values) // 2] * 1000 for values in times.values())
    results["chats(limit=50) of 5,000 chats, and an idle pending()"] = f"{listed:.1f} ms, {idle:.1f} ms"


def swallow_messages() -> None:
    chat = _chat()
    url = f"/messages/chats/{chat.id}/send/"
    for number in (1, 2):
        _client(number).post(url, {"body": f"from {number}", "request_id": "msg-1"})
    stored = len(chat.history(_id(0)).messages)
    results["Two members send with the same request id: messages stored"] = str(stored)
    outsider = _client(3).post(url, {"body": "hello", "request_id": "msg-1"})
    results["… and an outsider with this id gets"] = str(outsider.status_code)


def invite_many() -> None:
    chat = _chat()
    to = [_id(number) for number in range(10, 960)]
    answer = _client(0).post(f"/messages/chats/{chat.id}/add/", {"to": to})
    members = chat.info().member_count - 3
    results["950 people in one invitation"] = f"{answer.status_code}, {members} added"


def edit_often() -> None:
    chat = _chat(body="Hello")
    client, url = _client(0), f"/messages/chats/{chat.id}/messages/1/edit/"
    statuses = [client.post(url, {"body": str(number)}).status_code for number in range(300)]
    results["300 edits at once: accepted"] = str(statuses.count(200))


def search_long() -> None:
    query = {"q": "a" * 2_400_000, "search": "1"}
    received, answer = _traffic("input", lambda: _client(4).post("/messages/new/", query))
    results["Search for 2.4 MB: into Redis"] = f"{_size(received)} ({answer.status_code})"


def provoke_errors() -> None:
    from django_redis import get_redis_connection

    chat, client = _chat(body="Hello"), _client(0)
    zero = _client(1).post(f"/messages/chats/{chat.id}/messages/0/edit/", {"body": "x"})
    new = {"to": _id(1), "body": "Hello", "request_id": "again"}
    client.post("/messages/new/", new)
    redis = get_redis_connection("messaging")
    for key in redis.scan_iter("*:requests:*", count=10_000):
        redis.delete(key)
    repeated = client.post("/messages/new/", new)
    form, client = "application/x-www-form-urlencoded; charset=utf-7", _client(0, Accept="text/html")
    answers = [zero, repeated]
    for path, data in (
        (f"chats/{chat.id}/send/", b"body=%2B2AA-"),
        (f"chats/{chat.id}/send/", b"body=x&request_id=%2B2AA-"),
        (f"chats/{chat.id}/rename/", b"title=%2B2AA-"),
        ("new/", b"search=1&q=%2B2AA-"),
        ("new/", b"body=x&to=%2B2AA-"),
    ):
        answers.append(client.post(f"/messages/{path}", data, content_type=form))
    statuses = [str(answer.status_code) for answer in answers]
    results["Message id 0; a repeated new chat; five texts with a lone surrogate"] = ", ".join(statuses)


def harvest() -> None:
    client, found = _client(5, Accept="text/html"), set()
    for page in range(7):
        to = [_id(number) for number in range(page * 900, min((page + 1) * 900, PEOPLE))]
        answer = client.get("/messages/new/", {"to": to})
        found |= set(re.findall(rb"user\d{4}", answer.content))
    results["People that an outsider collects with 7 requests to new/"] = str(len(found))


def probe() -> None:
    from django_redis import get_redis_connection

    redis, outsider = get_redis_connection("messaging"), _client(3)

    def outcome(url: str, **data: str) -> str:
        redis.config_resetstat()
        status = outsider.get(url, data).status_code
        calls = sum(int(values["calls"]) for values in redis.info("commandstats").values())
        return f"{status} ({calls} commands)"

    own = _chat().id
    urls = [f"/messages/chats/{chat}/feed/" for chat in (own, "missing")]
    answers = [outcome(url, after=after) for url in urls for after in ("0", "bad")]
    results["Outsider: a chat, with a bad cursor; no chat, with a bad cursor"] = ", ".join(answers)


if __name__ == "__main__":
    attack() if sys.argv[1:] == ["--child"] else main(sys.argv[1:])
