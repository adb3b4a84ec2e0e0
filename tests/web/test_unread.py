"""The tag that renders the number of unread messages in any template."""

from __future__ import annotations

import logging

import pytest
from django.contrib.auth.models import AnonymousUser
from django.template import Context, Template
from django.test import RequestFactory
from pytest_django import Settings

from django_redis_messaging import Chat

from .conftest import Room

TEMPLATE = (
    "{% load messaging %}[{% messaging_unread %}]{% messaging_unread as unread %}{% if unread %}!{% endif %}"
)


def render(user: object) -> str:
    request = RequestFactory().get("/")
    request.user = user  # type: ignore[assignment]
    return Template(TEMPLATE).render(Context({"request": request}))


def test_the_number_is_read_once_for_a_page(room: Room, operations: list[str]) -> None:
    assert render(room.people["owner"]) == "[1]!"
    assert operations == ["Inbox.unread"]
    Chat(room.chat.id).ack(room.id("owner"), 2)
    assert render(room.people["owner"]) == "[]"


def test_nothing_for_others(room: Room, operations: list[str]) -> None:
    assert render(AnonymousUser()) == "[]"
    assert Template(TEMPLATE).render(Context()) == "[]"
    assert operations == []


def test_nothing_without_redis(room: Room, settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    gone = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/redis.sock"}
    settings.CACHES = {**settings.CACHES, "gone": gone}
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "gone"}
    with caplog.at_level(logging.WARNING):
        assert render(room.people["owner"]) == "[]"
    assert "unread messages failed" in caplog.text
