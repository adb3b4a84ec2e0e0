"""Notifications: mail of a known form, and only links that can do no harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_redis_messaging import LimitExceeded, Mailbox, anotify, notify
from django_redis_messaging.services.notifications import LEVELS, Notification, notification

from .asking import snapshot


@pytest.fixture
def box() -> Mailbox:
    return Mailbox("ann")


def test_it_is_mail_of_a_known_form(box: Mailbox) -> None:
    mail = notify("ann", "Done", url="/orders/7/?a=1#x", level="success", group="orders", sender="shop")
    assert box.fetch().messages == [mail]
    assert notification(mail.payload) == Notification(text="Done", url="/orders/7/?a=1#x", level="success")
    assert (mail.group, mail.sender) == ("orders", "shop")
    assert notify("ann", "Done twice", group="orders").count == 2


@pytest.mark.parametrize("level", LEVELS)
def test_levels(level: Any) -> None:
    assert notification(notify("ann", "x", level=level).payload).level == level


def test_a_repeat_is_none(box: Mailbox) -> None:
    assert notify("ann", "x", request_id="r") == notify("ann", "x", request_id="r")
    assert box.unread() == 1


@pytest.mark.parametrize(
    "url",
    ["", "/a/", "a/b?c=javascript:1", "#top", "//example.com/", "https://example.com/ü", "mailto:a@b.c"],
)
def test_addresses(url: str) -> None:
    assert notification(notify("ann", "x", url=url).payload).url == url


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        " javascript:alert(1)",
        "java\tscript:alert(1)",
        "\x01javascript:alert(1)",
        "javascript\n:alert(1)",
        "data:text/html,<script>",
        "vbscript:x",
        "blob:x",
        "file:///etc/passwd",
        "/\\evil.example",
        "http://[",
        "/a b",
    ],
)
def test_addresses_that_are_refused_and_not_shown_either(url: str, box: Mailbox) -> None:
    with pytest.raises(ValueError, match=r"^url "):
        notify("ann", "x", url=url)
    assert box.unread() == 0
    assert notification({"text": "x", "url": url}).url == ""


@pytest.mark.parametrize(
    ("payload", "text"),
    [("plain", "plain"), (7, "7"), ({"n": 1}, '{"n":1}'), ({"text": [1], "url": 7, "level": []}, "[1]")],
)
def test_what_is_none_is_shown_as_text(payload: Any, text: str) -> None:
    assert notification(payload) == Notification(text=text, url="", level="info")


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "user": (lambda: notify("", "x"), ValueError, "user is empty"),
    "text": (lambda: notify("ann", " "), ValueError, "text is empty"),
    "text type": (lambda: notify("ann", 7), TypeError, "text must be"),  # type: ignore[arg-type]
    "level": (lambda: notify("ann", "x", level="loud"), ValueError, "level is"),  # type: ignore[arg-type]
    "level type": (lambda: notify("ann", "x", level=[]), ValueError, "level is"),  # type: ignore[arg-type]
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


async def test_awaiting(box: Mailbox) -> None:
    mail = await anotify("ann", "hi", level="warning", url="/", group="g")
    assert (await box.afetch()).messages == [mail]
    assert notification(mail.payload) == Notification(text="hi", url="/", level="warning")
    with pytest.raises(ValueError, match="scheme"):
        await anotify("ann", "hi", url="javascript:1")
