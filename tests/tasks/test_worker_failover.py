"""A worker after a failover behind one address: the old primary lives on as a replica and refuses writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from django_redis_messaging.core import clients
from django_redis_messaging.core.testruns import Prefix
from tests.support.sentinels import Pair

from ..support.workers import at_work, ended, engine, keys, until
from . import jobs

pytestmark = [pytest.mark.one_server, pytest.mark.timing]


@pytest.fixture
def pair(messaging_settings: Prefix, settings: Settings, tmp_path: Path) -> Iterator[Pair]:
    """A primary and its replica. The alias leads to the primary, by a symbolic link."""
    link = tmp_path / "redis.sock"
    with Pair() as started:
        link.symlink_to(started.servers[0].socket)
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"unix://{link}?db=0"}
        settings.CACHES = {**settings.CACHES, "messaging": entry}
        yield started
        clients.close()
        for server in started.servers:
            server.kill()  # a graceful stop of a primary waits for its replica


def fail_over(pair: Pair, link: Path) -> None:
    """Swap the roles, and let the address lead to the new primary. All connections stay open."""
    link.unlink()
    link.symlink_to(pair.servers[1].socket)
    pair.swap()


def test_pushes_and_the_worker_find_the_new_primary(pair: Pair, tmp_path: Path) -> None:
    jobs.notes.clear()
    jobs.go.clear()
    with at_work(concurrency=1, lease=1.0):
        running = jobs.wait.enqueue()
        until(lambda: jobs.notes == ["waits"])
        # no connection waits, so none is closed by the old primary: each stays open, and is refused
        fail_over(pair, tmp_path / "redis.sock")
        queued = jobs.note.enqueue("after")
        assert pair.clients[0].info("errorstats")["errorstat_READONLY"]["count"] >= 1
        jobs.go.set()
        assert ended(running).return_value == "went"
        assert ended(queued).is_finished
    # the results are on the new primary, and the heartbeat was removed there
    assert pair.clients[1].zcard(keys().finished) == 2
    assert pair.clients[1].exists(keys().workers) == 0
    assert engine().stats("default")[:4] == [0, 0, 0, 0]
