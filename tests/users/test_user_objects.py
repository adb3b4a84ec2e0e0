"""User objects are taken wherever a member id is."""

from __future__ import annotations

import functools
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.contrib.auth.decorators import login_required
from django.contrib.auth.middleware import get_user
from django.contrib.auth.models import AnonymousUser, Group, User
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient
from django.urls import path
from django.utils.deprecation import MiddlewareMixin
from django.utils.functional import SimpleLazyObject
from pytest_django import Settings

from django_redis_messaging import Chat, Inbox, Mailbox, anotify, notify
from django_redis_messaging.web.identity import Identity

from ..support.server import all_keys, change
from ..web.accounts.models import Named

pytestmark = [pytest.mark.one_server, pytest.mark.versions]

ANN, BOB = User(pk=17, username="ann"), User(pk=18, username="bob")


def test_the_identity_names_the_members() -> None:
    chat = Chat.create(ANN, [BOB, "backup-bot"], "Hello!")
    assert [member.user for member in chat.members()] == ["17", "18", "backup-bot"]
    assert Inbox(SimpleLazyObject(lambda: BOB)).unread() == 1
    assert notify(BOB, "Ready", sender=ANN).sender == "17"
    assert Mailbox(BOB).user == "18"


class Numbered(Identity):
    def member_id(self, user: User) -> str:
        return f"user-{user.pk}"


class Unusable(Identity):
    def member_id(self, user: User) -> str:
        return user.pk  # type: ignore[no-any-return]


def test_an_identity_of_the_site(settings: Settings) -> None:
    change(settings, IDENTITY=f"{__name__}.Numbered")
    assert Inbox(ANN).user == "user-17"
    change(settings, IDENTITY=f"{__name__}.Unusable")
    with pytest.raises(TypeError, match=r"Unusable\.member_id\(\) must return a str, not int"):
        Inbox(ANN)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (17, r"user must be a str or a user object, not int: pass .*str\(user.pk\)"),
        (UUID(int=7), r"not UUID: pass .*str\(user.pk\)"),
        (Group(pk=7), "not Group: pass the user object"),
        (Named(slug="17"), r"user must be a user of auth\.User, not accounts\.Named: .*your IDENTITY"),
        ([ANN], "not list: pass one user"),
        (User, "not the class User: pass an instance"),
        (User(username="ann"), "user is a user without a primary key: save .* before it was deleted"),
        (AnonymousUser(), "user is an anonymous user: .*login_required"),
        (SimpleLazyObject(AnonymousUser), "login_required"),
    ],
)
def test_other_values_are_refused(value: object, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        notify(value, "Ready")  # type: ignore[arg-type]
    assert all_keys() == []


def test_without_users_a_member_is_a_str(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps.get_app_config("django_redis_messaging"), "user_hook", None)
    with pytest.raises(TypeError, match="user must be a str, not User"):
        Inbox(ANN)


async def notify_user(request: HttpRequest) -> HttpResponse:
    """Answers with the member id, or with the error."""
    try:
        return HttpResponse((await anotify(request.user, "Ready", sender=request.user)).sender)
    except TypeError as error:
        return HttpResponse(str(error))


async def after_auser(request: HttpRequest) -> HttpResponse:
    await request.auser()
    return await notify_user(request)


urlpatterns = [
    path("login-required/", login_required(notify_user)),
    path("auser/", after_auser),
    path("plain/", notify_user),
]


class Impersonation(MiddlewareMixin):
    """A middleware of the site: Ann sees the site as Bob does."""

    def process_request(self, request: HttpRequest) -> None:
        seen_as: User  # has no value yet: reading its cell is a ValueError

        @functools.wraps(get_user)
        def load() -> User:
            nonlocal seen_as
            seen_as = User.objects.get(username=request.GET.get("as", "bob"))
            return seen_as

        request.user = SimpleLazyObject(load)  # type: ignore[assignment]


LOGIN_REQUIRED = "django.contrib.auth.middleware.LoginRequiredMiddleware"
IMPERSONATION = f"{__name__}.Impersonation"
NOT_LOADED = "user is a user that is not loaded yet, and can't be in async code: pass await request.auser()."


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("url", "middleware", "answer"),
    [
        ("login-required", [], "17"),
        ("auser", [], "17"),
        ("plain", [LOGIN_REQUIRED], "17"),
        ("plain", [], NOT_LOADED),
        ("login-required", [IMPERSONATION], NOT_LOADED),
        ("auser", [IMPERSONATION], NOT_LOADED),
        ("plain", [IMPERSONATION, LOGIN_REQUIRED], "18"),
    ],
)
def test_request_user_in_async_views(
    url: str, middleware: list[str], answer: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AuthenticationMiddleware keeps the user that async code has read where request.user doesn't look. That
    user is not the one of a lazy object that another middleware has made."""
    monkeypatch.delenv("DJANGO_ALLOW_ASYNC_UNSAFE", raising=False)  # set for browser tests
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, *middleware]
    client = AsyncClient()
    ann, _bob = (User.objects.create(pk=one.pk, username=one.username) for one in (ANN, BOB))
    client.force_login(ann)
    assert async_to_sync(client.get)(f"/{url}/").content.decode() == answer
