"""Fixtures of modules whose tests start the servers that they use: they don't run on each kind of server."""

from __future__ import annotations

import pytest

from django_redis_messaging import conf
from django_redis_messaging.core.testruns import Prefix


@pytest.fixture
def messaging_alias(messaging_settings: Prefix) -> str:
    """The alias of the settings."""
    return conf.alias()


@pytest.fixture
def limited_user() -> None:
    """MESSAGING_ACL runs only the tests on the common servers."""
    pytest.skip("starts servers of its own, which don't have the limited user")
