"""A conversation with everything that goes wrong in one: the network, the session, a member who is away."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.urls import reverse
from playwright.sync_api import Page, expect
from pytest_django import Settings

from django_redis_messaging import Chat

from .conftest import client_of
from .test_browser import MODULES, TIMEOUT, Visit, expect_message, visit
from .test_room_browser import origin, wait_for_messages, wait_until
from .test_site import Alone

__all__ = ["visit"]  # the fixture

DESKTOP: dict[str, Any] = {"viewport": {"width": 1440, "height": 900}}
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
#: attempts to send without a network; six take a minute of the pages, whose clocks run four times as fast
ATTEMPTS = 6 if os.environ.get("MESSAGING_LONG") else 3


@pytest.mark.parametrize("frame", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_is_lost_doubled_or_out_of_order(
    visit: Visit, person: Callable[..., User], settings: Settings, frame: dict[str, Any]
) -> None:
    settings.ROOT_URLCONF, settings.LOGIN_URL = Alone, "/login/"
    ann, bob, cat = (person(name, first_name=name.title()) for name in ("ann", "bob", "cat"))
    chat = Chat.create(str(ann.pk), [str(bob.pk), str(cat.pk)], "Who brings what?", title="Picnic")
    at_cats = visit(cat, "room", chat.id, **frame)
    expect_message(at_cats, "Who brings what?")
    wait_until(at_cats, lambda: unread(chat, cat) == 0)
    at_cats.goto("about:blank")  # Cat is away
    at_anns, at_bobs = (visit(user, "room", chat.id, **frame) for user in (ann, bob))
    send(at_bobs, "Bread")
    expect_message(at_anns, "Bread")

    write_offline(at_anns, at_bobs, ["Salad", "Cheese", "No, no cheese"])
    expected = ["Who brings what?", "Bread", "And juice", "Salad", "Cheese", "No, no cheese"]
    wait_for_messages(at_anns, chat, bob, expected)
    expect_message(at_bobs, "No, no cheese")

    lose_session_with_draft(at_anns)
    send(at_bobs, "Who has a blanket?")
    sign_in_again(at_anns, ann)
    expected += ["Who has a blanket?", "I have a blanket"]
    wait_for_messages(at_anns, chat, bob, expected)

    at_cats.goto(reverse("messaging:room", args=[chat.id]))  # Cat is back
    at_cats.evaluate(MODULES)
    expect(at_cats.locator("#drm-unread")).to_have_text("7 new messages")
    expect(at_cats.locator("#drm-unread + .drm-message .drm-body")).to_have_text("Bread")
    send(at_cats, "Here I am")
    expected.append("Here I am")
    wait_for_messages(at_cats, chat, bob, expected)
    for page in (at_anns, at_bobs, at_cats):
        expect(page.locator("#drm-log .drm-body")).to_have_text(expected, timeout=TIMEOUT)
        expect(page.locator("#drm-outbox li")).to_have_count(0)
    wait_until(at_cats, lambda: all(unread(chat, user) == 0 for user in (ann, bob, cat)))


def send(page: Page, text: str) -> None:
    """As users of a phone do, too: there, Enter is a line break."""
    page.evaluate(MODULES)
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send", exact=True).click()


def unread(chat: Chat, user: User) -> int:
    return chat.changes(str(user.pk), after=0).unread


def write_offline(at_anns: Page, at_bobs: Page, texts: list[str]) -> None:
    """Ann writes without a network; Bob's message is sent before hers."""
    failed: list[str] = []
    at_anns.on(
        "requestfailed", lambda request: failed.append(request.url) if "/send/" in request.url else None
    )
    at_anns.context.set_offline(True)
    for text in texts:
        send(at_anns, text)
    expect(at_anns.locator(".drm-pending .drm-body")).to_have_text(texts)
    expect(at_anns.locator(".drm-pending").first).to_contain_text("Waiting for a connection")
    send(at_bobs, "And juice")
    expect(at_bobs.locator("#drm-log .drm-body", has_text="And juice")).to_be_visible(timeout=TIMEOUT)
    wait_until(at_anns, lambda: len(failed) >= ATTEMPTS, seconds=30)
    expect(at_anns.locator(".drm-pending .drm-body")).to_have_text(texts)
    at_anns.context.set_offline(False)


def lose_session_with_draft(at_anns: Page) -> None:
    """Ann's session ends while she writes; what she sends, and what she types then, stays."""
    Session.objects.filter(session_key=session_of(at_anns)).delete()
    send(at_anns, "I have a blanket")
    expect(at_anns.locator("#drm-status").get_by_role("link", name="Sign in")).to_be_visible()
    at_anns.get_by_label("Message", exact=True).fill("And a frisb")


def sign_in_again(at_anns: Page, ann: User) -> None:
    """Ann follows the link, signs in, and is where she was."""
    with at_anns.expect_navigation(url=re.compile("/login/")):
        at_anns.locator("#drm-status").get_by_role("link", name="Sign in").click()
    session = client_of(ann).cookies["sessionid"].value
    at_anns.context.add_cookies([{"name": "sessionid", "value": session, "url": origin(at_anns)}])
    at_anns.go_back()
    at_anns.evaluate(MODULES)
    expect(at_anns.get_by_label("Message", exact=True)).to_have_value("And a frisb")


def session_of(page: Page) -> str:
    return next(str(one["value"]) for one in page.context.cookies() if one["name"] == "sessionid")
