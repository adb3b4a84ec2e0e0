"""What the first page costs: HTML, requests, and the time to the first paint."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from pytest_django import Settings

from django_redis_messaging import Chat
from django_redis_messaging.web.views.chats import CHATS_PER_PAGE

from .test_browser import MODULES, Visit, visit
from .test_room_browser import wait_until
from .test_site import Alone

__all__ = ["visit"]  # the fixture

MAX_HTML = 40_000
MAX_REQUESTS = 7
#: ms, once it is known
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def test_the_first_page(
    visit: Visit, person: Callable[..., User], settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.ROOT_URLCONF = Alone
    ann, bob = person("ann", first_name="Ann"), person("bob", first_name="Bob", last_name="Lindqvist")
    for number in range(CHATS_PER_PAGE + 1):
        text = "A message of some length, as people write them."
        Chat.create(str(bob.pk), [str(ann.pk)], text, title=f"Chat number {number}")
    page = visit(ann)
    page.goto("about:blank")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    response = page.goto(reverse("messaging:chats"))
    assert response
    page.evaluate(MODULES)
    wait_until(page, lambda: page.evaluate(PAINT) is not None)
    with capsys.disabled():
        cost = f"{len(response.body())} bytes, {len(requests)} requests, {page.evaluate(PAINT):.0f} ms"
        print(f"\nfirst page: {cost} to the first paint")  # noqa: T201
    assert len(response.body()) <= MAX_HTML
    assert len(requests) <= MAX_REQUESTS
