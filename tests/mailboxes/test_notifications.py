"""Notifications: payload format and safe links."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import Blocks, LimitExceeded, Mailbox, anotify, anotify_many, notify, notify_many
from django_redis_messaging.services.mailboxes.notifications import (
    LEVELS,
    Mailing,
    Notification,
    notification,
)

from ..support.server import change, reply_to, snapshot, steps


@pytest.fixture
def box() -> Mailbox:
    return Mailbox("ann")


def test_notification_is_a_mail_with_a_fixed_payload(box: Mailbox) -> None:
    mail = notify("ann", "Done", url="/orders/7/?a=1#x", level="success", group="orders", sender="shop")
    assert box.fetch().messages == [mail]
    assert notification(mail.payload) == Notification(text="Done", url="/orders/7/?a=1#x", level="success")
    assert (mail.group, mail.sender) == ("orders", "shop")
    assert notify("ann", "Done twice", group="orders").count == 2


def test_levels_and_repeats(box: Mailbox) -> None:
    for level in LEVELS:
        assert notification(notify("ann", "x", level=level).payload).level == level
    assert notify("ann", "x", request_id="r") == notify("ann", "x", request_id="r")
    assert box.unread() == len(LEVELS) + 1


@pytest.fixture
def hosts(settings: Settings) -> None:
    """A site with two hosts and LINK_HOSTS."""
    settings.DEBUG = False
    settings.ALLOWED_HOSTS = ["shop.example", ".club.example", "[::2]"]
    change(settings, LINK_HOSTS=["bank.example", ".docs.example"])


@pytest.mark.parametrize("url", [
    "", "/a/", "a/b?c=javascript:1", "#top", "/ü", "//shop.example/a", "https://shop.example:8000/?a=1#b",
    "HTTP://SHOP.example", "https://www.club.example", "http://[::2]/a", "https://bank.example/pay",
    "https://a.docs.example/",
])  # fmt: skip
def test_urls_that_are_accepted(url: str, hosts: None) -> None:
    assert notification(notify("ann", "x", url=url).payload).url == url


@pytest.mark.parametrize("url", [
    "https://elsewhere.example/", "//elsewhere.example/", "///elsewhere.example/",
    "http:///elsewhere.example/", "https:elsewhere.example", "https://shop.example.elsewhere.example/",
    "https://shop.example@elsewhere.example/", "https://www.bank.example/", "mailto:a@b.c",
    "javascript:alert(1)", "javascript://shop.example/%0aalert(1)", "JaVaScRiPt:alert(1)",
    " javascript:alert(1)", "java\tscript:alert(1)", "\x01javascript:alert(1)", "javascript\n:alert(1)",
    "data:text/html,<script>", "vbscript:x", "blob:x", "file:///etc/passwd", "/\\evil.example", "http://[",
    "/a b",
])  # fmt: skip
def test_urls_that_are_rejected_and_never_shown(url: str, hosts: None, box: Mailbox) -> None:
    with pytest.raises(ValueError, match=r"^url "):
        notify("ann", "x", url=url)
    assert box.unread() == 0
    assert notification({"text": "x", "url": url}).url == ""


def test_wildcard_in_allowed_hosts_allows_no_links(settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    with pytest.raises(ValueError, match="LINK_HOSTS"):
        notify("ann", "x", url="https://elsewhere.example/")
    change(settings, LINK_HOSTS=["*"])
    assert notify("ann", "x", url="https://elsewhere.example/")
    with pytest.raises(ValueError, match=r"^url "):
        notify("ann", "x", url="javascript:alert(1)")


@pytest.mark.parametrize(("debug", "allowed"), [(True, []), (False, ["127.0.0.1", "localhost"])])
def test_local_urls_are_accepted_in_development(debug: bool, allowed: list[str], settings: Settings) -> None:
    settings.DEBUG, settings.ALLOWED_HOSTS = debug, allowed
    for url in ("http://127.0.0.1:8000/a/", "http://localhost:8000/"):
        assert notify("ann", "x", url=url)


@pytest.mark.parametrize(
    ("payload", "text"),
    [("plain", "plain"), (7, "7"), ({"n": 1}, '{"n":1}'), ({"text": [1], "url": 7, "level": []}, "[1]")],
)
def test_other_payloads_are_shown_as_text(payload: Any, text: str) -> None:
    assert notification(payload) == Notification(text=text, url="", level="info")


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "lone surrogate": (lambda: notify("ann", "a\udc80"), ValueError, "surrogate"),
    "lone surrogate in the url": (lambda: notify("ann", "x", url="/\ud800"), ValueError, "surrogate"),
    "lone surrogate in the group": (lambda: notify("ann", "x", group="\udfff"), ValueError, "surrogate"),
    "lone surrogate in the sender": (lambda: notify("ann", "x", sender="\udfff"), ValueError, "surrogate"),
    "long": (lambda: notify("ann", "x", url="/" + "a" * 2000), ValueError, "2000 characters .*, not 2001"),
    "long, encoded": (lambda: notify("ann", "x", url="/" + "ü" * 400), ValueError, "2000 .*, not 2401"),
    "user": (lambda: notify("", "x"), ValueError, "user is empty"),
    "text": (lambda: notify("ann", " "), ValueError, "text must not be empty"),
    "text type": (lambda: notify("ann", 7), TypeError, "text must be"),  # type: ignore[arg-type]
    "level": (lambda: notify("ann", "x", level="loud"), ValueError, "level must be one of"),  # type: ignore[arg-type]
    "level type": (lambda: notify("ann", "x", level=[]), ValueError, "level must be one of"),  # type: ignore[arg-type]
    "url type": (lambda: notify("ann", "x", url=None), TypeError, "url must be"),  # type: ignore[arg-type]
    "much": (lambda: notify("ann", "x" * 70_000), LimitExceeded, "MAIL_MAX_BYTES"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_and_changes_nothing(case: str) -> None:
    act, kind, words = BAD[case]
    before = snapshot()
    with pytest.raises(kind, match=words):
        act()
    assert snapshot() == before


async def test_many_are_notified_without_those_who_have_blocked_the_sender() -> None:
    Blocks("bob").block("mallory")
    told = notify_many(["ann", "bob", "cat", "ann"], "hi", sender="mallory", request_id="r")
    assert told == ["ann", "cat"]
    assert await anotify_many(["ann", "bob"], "hi", sender="mallory", request_id="r") == ["ann"]
    assert await anotify_many(["bob"], "Lunch", url="/lunch/") == ["bob"]
    assert [Mailbox(user).unread() for user in ("ann", "bob", "cat")] == [1, 1, 1]
    assert notify_many([], "hi", sender="mallory") == []
    with pytest.raises(TypeError, match="users must be a list"):
        notify_many("ann", "hi")


def test_many_are_notified_in_two_round_trips() -> None:
    body = steps(Mailing().send, ["ann", "bob"], {"text": "hi"}, None, "mallory", None)
    asked = body.send(reply_to(next(body)))
    with pytest.raises(StopIteration):
        body.send(reply_to(asked))


async def test_async_version(box: Mailbox) -> None:
    mail = await anotify("ann", "hi", level="warning", url="/", group="g")
    assert (await box.afetch()).messages == [mail]
    assert notification(mail.payload) == Notification(text="hi", url="/", level="warning")
    with pytest.raises(ValueError, match="must be a URL of this site"):
        await anotify("ann", "hi", url="javascript:1")
