"""The services are tested on a standalone server and on a Redis Cluster of one node: see ../gate.py."""

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from django_redis_messaging import conf
from django_redis_messaging.core import scripts

from .planting import Planting, planted


@pytest.fixture
def messaging_alias(server_kind: str, request: pytest.FixtureRequest, settings: Settings) -> str:
    """The alias of that server; `using=None` means it, too."""
    if server_kind == "cluster":
        request.getfixturevalue("cluster_server")
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "cluster"}
    return conf.alias()


@pytest.fixture
def plant() -> Iterator[Planting]:
    """Puts a mistake into the scripts, until the test ends."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield lambda mistake: planted(mistake, monkeypatch)
    scripts.load.cache_clear()
