"""The pages for a site with one user, who is always signed in, and no database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest
from django.urls import include, path
from django.utils.deprecation import MiddlewareMixin

from django_redis_messaging.web.identity import Identity

urlpatterns = [path("", include("django_redis_messaging.urls"))]


class SignIn(MiddlewareMixin):
    """Sign in the user."""

    def process_request(self, request: HttpRequest) -> None:
        request.user = User(pk=1, username="ann")


class OneUser(Identity):
    """User names are ids and labels."""

    def member_id(self, user: Any) -> str:
        return str(user.username)

    def labels(self, ids: Iterable[str]) -> dict[str, str]:
        return {one: one for one in ids}

    def available(self, ids: Iterable[str]) -> set[str]:
        return set(ids)
