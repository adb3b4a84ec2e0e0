"""The public names of public.txt: a change of one of them is a change of the file, in the same commit.

`MESSAGING_PUBLIC=write uv run pytest -n 0 tests/test_public.py` writes the file.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_redis_messaging import Chat, Directory, notify

from . import public

FILE = Path(__file__).with_name("public.txt")
DOCUMENTS = [public.PROJECT.with_name("README.md"), *sorted(public.PROJECT.with_name("docs").glob("*.md"))]
HEAD = """\
# What users of this app, or data that it has stored, can name. tests/test_public.py compares the code;
#     MESSAGING_PUBLIC=write uv run pytest -n 0 tests/test_public.py
# writes it. A line that is removed or changed can break a site: it needs an entry in the changelog.
"""


def answers(ann: User, bob: User) -> Iterator[tuple[str, Any]]:
    """The JSON answers of the pages to Ann, by the names of their URLs."""
    client = Client(headers={"Accept": "application/json"})
    client.force_login(ann)
    chat = Chat.create(str(ann.pk), [str(bob.pk)], "Hello", title="Trip")
    direct = Chat.direct(str(ann.pk), str(bob.pk))
    chat.rename(str(ann.pk), "The trip")
    first = chat.send(str(bob.pk), "Hello, @ann", mentions=[str(ann.pk)])
    notify(str(ann.pk), "Ready", sender=str(bob.pk))

    def get(name: str, *args: object, **query: str | int) -> Any:
        return client.get(reverse(f"messaging:{name}", args=args), query).json()

    def post(name: str, *args: object, **data: object) -> Any:
        return client.post(reverse(f"messaging:{name}", args=args), data).json()

    sent = post("send", chat.id, body="Hello", reply_to=first.id)
    yield "send", sent
    yield "edit", post("edit", chat.id, sent["message"]["id"], body="Hello!")
    yield "delete_message", post("delete_message", chat.id, sent["message"]["id"])
    yield "ack", post("ack", chat.id, up_to=first.cursor)
    yield "message", get("message", chat.id, first.id)
    yield "room_feed", get("room_feed", chat.id)
    yield "room_feed?after", get("room_feed", chat.id, after=sent["message"]["cursor"], edits=0)
    yield "room_feed?before", get("room_feed", chat.id, before=first.cursor)
    yield "room_feed?at", get("room_feed", chat.id, at="newest")
    yield "room_feed of a direct chat", get("room_feed", direct.id)
    yield "chats_feed", get("chats_feed")
    yield "suggest", get("suggest", q="b")
    yield "member_suggest", get("member_suggest", chat.id, q="b")
    yield "notifications_feed", get("notifications_feed")
    yield "bell", get("bell")
    yield "session", get("session")
    yield "new", post("new", to=str(bob.pk), title="New", body="Hello", request_id="new")
    yield "read_notifications", post("read_notifications", up_to=1)
    yield "error", get("room_feed", "unknown")


@pytest.mark.django_db
def test_public_names_are_those_of_the_file() -> None:
    people = [User.objects.create(username=name) for name in ("ann", "bob")]
    Directory("everyone").add_many([(str(one.pk), one.username) for one in people])
    json = public.section("JSON", public.shapes(answers(*people)))
    text = "\n".join([HEAD.rstrip(), *public.sections(), *json]) + "\n"
    if os.environ.get("MESSAGING_PUBLIC") == "write":
        FILE.write_text(text, encoding="utf-8")
    stored = FILE.read_text(encoding="utf-8")
    diff = difflib.unified_diff(
        stored.splitlines(), text.splitlines(), FILE.name, "the code", lineterm="", n=1
    )
    if stored != text:
        pytest.fail(
            "\n".join(["Public names differ; see the head of tests/public.txt.", *diff]), pytrace=False
        )


def test_annotations_can_be_read_at_run_time() -> None:
    failed, found = {}, list(public.annotated())
    for path, value in found:
        try:
            get_type_hints(value)
        except Exception as error:
            failed[path] = repr(error)
    assert failed == {}
    assert len(found) > 300
    assert get_type_hints(notify)["user"] == str | Any


def test_every_module_in_the_documentation_is_in_the_file() -> None:
    stored = FILE.read_text(encoding="utf-8")
    dotted = re.compile(rf"\b{public.NAME}(?:\.\w+)+")
    written = {name for path in DOCUMENTS for name in dotted.findall(path.read_text(encoding="utf-8"))}
    assert len(written) > 5
    assert [name for name in sorted(written) if not re.search(rf"\b{re.escape(name)}\b", stored)] == []
