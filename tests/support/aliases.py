"""Entries of CACHES for the servers of a test, and the app's alias that leads to one of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings as site
from django.test import override_settings
from pytest_django import Settings

from django_redis_messaging import conf
from django_redis_messaging.core import clients

from .server import change, server

#: the alias of a test's own server
OWN = "own"


def entry(location: str, **options: Any) -> dict[str, Any]:
    """An entry of CACHES. django-redis keeps its pools by URL: a client name makes this one unique."""
    url = f"{location}{'&' if '?' in location else '?'}client_name=test-{uuid.uuid4().hex}"
    return {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, "OPTIONS": options}


@contextmanager
def leading_to(where: dict[str, Any], **messaging: Any) -> Iterator[None]:
    """Let all of the app's aliases lead to this entry during the block, with these settings only."""
    clients.close()
    with override_settings(CACHES={"default": where, "messaging": where}, REDIS_MESSAGING=messaging):
        try:
            yield
        finally:
            clients.close()


def lead_to(
    settings: Settings, location: str, options: dict[str, Any] | None = None, **messaging: Any
) -> str:
    """Let the app's alias lead there for the rest of the test, with these settings besides; the alias."""
    settings.CACHES = {**settings.CACHES, OWN: entry(location, **options or {})}
    change(settings, ALIAS=OWN, **messaging)
    return OWN


@contextmanager
def limited_user(settings: Settings, *rules: str) -> Iterator[Any]:
    """Connect as a user with these rules during the block. Yields a client of another user."""
    plain, alias = server(), conf.alias()
    plain.execute_command("ACL", "SETUSER", "limited", "on", ">word", "~*", "&*", "+@all", *rules)
    lead_to(settings, site.CACHES[alias]["LOCATION"].replace("unix://", "unix://limited:word@"))
    yield plain
    clients.close()
    change(settings, ALIAS=alias)
    plain.execute_command("ACL", "DELUSER", "limited")
