"""A conversation in Firefox. All other tests of the pages run in Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from django_redis_messaging import Chat

from ..support import firefox
from ..support.asgi_site import Site
from ..support.firefox import Firefox
from .conftest import client_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timing,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not firefox.BINARY, reason="Firefox is not installed"),
]

ENTER = "\ue007"
#: whether the last message of the room has this text, and is sent
LAST = """
const [text] = arguments;
const bodies = [...document.querySelectorAll("#drm-log .drm-body")];
return bodies.at(-1)?.textContent.trim() === text && !document.querySelector(".drm-pending");
"""
#: whether the room with this title is open
OPEN = """
const [title] = arguments;
return document.querySelector("#drm-title bdi")?.textContent === title && document.title.includes(title);
"""


@pytest.fixture
def window(tmp_path: Path, site: Site) -> Iterator[Firefox]:
    """A window, closed before the site stops."""
    with firefox.open_firefox(tmp_path) as found:
        yield found


def test_a_conversation(window: Firefox, site: Site, person: Callable[..., User]) -> None:
    ann, bob = person("ann", first_name="Ann"), person("bob", first_name="Bob")
    lunch, trip = (
        Chat.create(str(bob.pk), [str(ann.pk)], f"{title}?", title=title) for title in ("Lunch", "Trip")
    )
    window.goto(site.url + "/static/django_redis_messaging/common.js")
    cookie = {"name": "sessionid", "value": client_of(ann).cookies["sessionid"].value}
    window.do("WebDriver:AddCookie", cookie=cookie)
    window.goto(site.url + reverse("messaging:room", args=[lunch.id]))
    window.until(LAST, "Lunch?")
    window.run(
        "window.isSame = true; window.errors = []; addEventListener('error', e => errors.push(e.message))"
    )
    window.until("return document.activeElement.id === 'drm-body'")
    window.type("#drm-body", f"Pasta!{ENTER}")
    window.until(LAST, "Pasta!")
    lunch.send(str(bob.pk), "At noon")
    window.until(LAST, "At noon")
    assert [message.body for message in lunch.history(str(bob.pk)).messages] == [
        "Lunch?",
        "Pasta!",
        "At noon",
    ]
    window.type("#drm-body", "A draft")
    window.click(f'.drm-row[data-id="{trip.id}"] > a')
    window.until(OPEN, "Trip")
    window.until(LAST, "Trip?")
    window.back()
    window.until(OPEN, "Lunch")
    window.until("return document.getElementById('drm-body').value === 'A draft'")
    assert window.run("return [window.isSame, errors]") == [True, []]
    window.until("return !document.querySelector('.drm-row [aria-current] .drm-badge')")
    assert lunch.changes(str(ann.pk), after=0).unread == 0
