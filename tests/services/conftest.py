"""The services are tested twice: on a standalone server, and on a Redis Cluster of one node."""

import pytest
from pytest_django import Settings

from django_redis_messaging import conf


@pytest.fixture(params=["standalone", "cluster"])
def messaging_alias(request: pytest.FixtureRequest, settings: Settings) -> str:
    """The alias of the server that this run of the test uses; `using=None` means it, too."""
    if request.param == "cluster":
        request.getfixturevalue("cluster_server")
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "cluster"}
    return conf.alias()
