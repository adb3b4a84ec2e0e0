"""The tests of a project that does not use the app."""

import sys


def test_inert() -> None:
    assert {"django", "redis", "django_redis_messaging.api"}.isdisjoint(sys.modules)
