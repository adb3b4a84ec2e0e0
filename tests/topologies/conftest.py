"""Each test runs on the servers of one topology, which start when they are needed first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings as django_settings
from django.test import override_settings
from pytest_django import Settings

from django_redis_messaging import conf
from django_redis_messaging.core.testruns import Prefix
from django_redis_messaging.testing import close_connections

from ..support.topologies import TOPOLOGIES, Servers, Topology

#: the CACHES alias of the topology under test
ALIAS = "topology"


@pytest.fixture(scope="session", params=TOPOLOGIES)
def topology(
    request: pytest.FixtureRequest, servers: Servers, messaging_settings: Prefix
) -> Iterator[Topology]:
    found = servers[request.param]
    with override_settings(CACHES={**django_settings.CACHES, ALIAS: found.entry}):
        yield found
        close_connections(ALIAS)


@pytest.fixture
def messaging_alias(topology: Topology, settings: Settings) -> str:
    """Its alias, also used for `using=None`."""
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": ALIAS}
    return conf.alias()
