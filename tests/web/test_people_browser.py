"""People of one name, and their pictures, in a real browser with a strict Content-Security-Policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Locator, Page, Route, expect
from pytest_django import Settings

from django_redis_messaging import Chat
from django_redis_messaging.web.identity import Identity

from ..support import content_policies
from .test_browser import MODULES, Visit, visit

__all__ = ["visit"]  # the fixture

PICTURE = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><path fill="#c60" d="M0 0h8v8H0z"/></svg>'
)
#: whether a picture has been loaded, and the size of what is drawn in its place
LOADED = "img => [img.complete && img.naturalWidth > 0, img.width, img.height]"


class Faces(Identity):
    """Everybody has a picture; that of the second one is missing."""

    def pictures(self, ids: Iterable[str]) -> dict[str, str]:
        users = {str(user.pk): user.username for user in User.objects.filter(pk__in=ids)}
        return {
            member: "/missing.svg" if name == "ann2" else f"/faces/{name}.svg"
            for member, name in users.items()
        }


@pytest.fixture
def annas(person: Callable[..., User], settings: Settings) -> list[User]:
    """Two people called Ann Lee, Bob, and Cat."""
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "IDENTITY": f"{__name__}.Faces"}
    names = [("ann1", "Ann", "Lee"), ("ann2", "ANN", "LEE"), ("bob", "Bob", ""), ("cat", "Cat", "Mo")]
    return [person(name, first_name=first, last_name=last) for name, first, last in names]


def serve_pictures(page: Page) -> None:
    def answer(route: Route) -> None:
        route.fulfill(content_type="image/svg+xml", body=PICTURE)

    page.route("**/faces/*.svg", answer)


def look(avatar: Locator) -> Any:
    return avatar.locator("img").evaluate(LOADED)


def test_namesakes_in_a_room(visit: Visit, annas: list[User], settings: Settings) -> None:
    one, two, bob, cat = (str(user.pk) for user in annas)
    chat = Chat.create(bob, [one, two, cat], title="Trip")
    chat.send(one, "Hello")
    chat.send(cat, "Hello")
    page = visit(annas[2], "contacts")
    settings.TEST_POLICY = content_policies.STRICT
    serve_pictures(page)
    page.goto(f"/messages/chats/{chat.id}/")
    page.evaluate(MODULES)
    authors = page.locator("#drm-log .drm-author")
    expect(authors).to_have_text(["Ann Lee", "Cat Mo"])
    chat.send(two, "Me, too")
    expect(authors).to_have_text(["Ann Lee (ann1)", "Cat Mo", "ANN LEE (ann2)"])
    Chat.direct(two, bob).send(two, "Only you")
    row = page.locator(".drm-row").filter(has_text="Only you")
    expect(row.locator(".drm-row-title")).to_have_text("ANN LEE (ann2)")
    row.locator("a").click()
    expect(page.locator("#drm-title")).to_have_text("ANN LEE (ann2)")
    page.go_back()
    avatars = page.locator("#drm-log .drm-avatar")
    expect(avatars).to_have_text(["AL", "CM", "AL"])
    assert look(avatars.first) == look(avatars.nth(1)) == [True, 32, 32]
    assert not look(avatars.last)[0], "the initials are seen"
    page.locator("#drm-body").press_sequentially("@ann")
    expect(page.locator("#drm-completions .drm-person")).to_have_text(["Ann Lee ann1", "ANN LEE ann2"])


def test_namesakes_in_a_picker(visit: Visit, annas: list[User]) -> None:
    page = visit(annas[2], "contacts")
    serve_pictures(page)
    page.goto("/messages/new/")
    page.evaluate(MODULES)
    page.locator("#drm-q").press_sequentially("ann")
    options = page.get_by_role("option")
    expect(options.locator(".drm-person")).to_have_text(["Ann Lee ann1", "ANN LEE ann2"])
    expect(options.first.locator("img")).to_have_js_property("complete", True)
    assert look(options.first.locator(".drm-avatar")) == [True, 32, 32]
    options.last.click()
    expect(page.locator(".drm-chip bdi")).to_have_text("ANN LEE (ann2)")
