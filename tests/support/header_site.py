"""A site for the servers of test_live_faults.py: the pages alone, for the user that a header names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import include, path


def sign_in(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware that believes the header."""
    from django.contrib.auth.models import User

    def answer(request: HttpRequest) -> HttpResponse:
        request.user = User(pk=int(request.headers["User"]), username="someone")
        return get_response(request)

    return answer


def make_application() -> Any:
    settings.configure(
        SECRET_KEY="test",
        ALLOWED_HOSTS=["127.0.0.1"],
        ROOT_URLCONF=__name__,
        USE_TZ=True,
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_redis_messaging"],
        MIDDLEWARE=[f"{__name__}.sign_in"],
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
        CACHES={
            "messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["REDIS_URL"]}
        },
        REDIS_MESSAGING={
            "PREFIX": os.environ["PREFIX"],
            "IDENTITY": f"{__name__}.Plain",
            "LIVE_LIFETIME": float(os.environ["LIVE_LIFETIME"]),
        },
    )
    django.setup(set_prefix=False)
    return get_asgi_application()


application = make_application()

from django_redis_messaging.web.identity import Identity  # noqa: E402 (needs the settings)

urlpatterns = [path("messages/", include("django_redis_messaging.urls"))]


class Plain(Identity):
    """Everybody is called by their id; there is no database."""

    def labels(self, ids: Iterable[str]) -> dict[str, str]:
        return {member: f"User {member}" for member in ids}

    def descriptions(self, ids: Iterable[str]) -> dict[str, str]:
        return {}
