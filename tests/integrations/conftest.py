"""A site with metrics, health checks and the debug toolbar, and its Redis."""

from __future__ import annotations

import pytest
from django.test import Client
from pytest_django import Settings

from ..support.server import change

TOKEN = "token-of-prometheus"


@pytest.fixture
def client(settings: Settings) -> Client:
    """A client of the site, as Prometheus is one."""
    settings.ROOT_URLCONF = f"{__package__}.urls"
    change(settings, METRICS_TOKEN=TOKEN)
    return Client(headers={"Authorization": f"Bearer {TOKEN}"})


@pytest.fixture
def away(settings: Settings) -> None:
    """Redis can't be reached."""
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/redis.sock"}
    settings.CACHES = {**settings.CACHES, "gone": entry}
    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": {"USING": "gone"}}}
    change(settings, ALIAS="gone", WEB_DEADLINE=0.2, COMMAND_DEADLINE=0.2)
