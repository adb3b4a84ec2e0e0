"""The processes of a site continue without a restart while primaries fail and slots move."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import override_settings
from redis.crc import key_slot

from django_redis_messaging import DelayQueue, conf
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.broadcasts.broadcast import BroadcastKeys
from django_redis_messaging.services.chats.keys import ChatKeys
from django_redis_messaging.services.expiries.timers import TIMERS
from django_redis_messaging.services.jobs.keys import JobKeys
from tests.support.clusters import NODE_TIMEOUT, Cluster
from tests.support.pytest_hooks import LONG
from tests.support.sentinels import DOWN_AFTER, Sentinels

from ..support.site_processes import DEADLINE, ROLES, SEPARATE, TOGETHER, Site
from ..support.site_processes import PAGES as PAGE_ROLES

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]
#: seconds after the detection of a failure within which everything must work again
AFTER_DETECTION = 4.0
#: seconds until a client closes a socket of a frozen server
RAW_TIMEOUT = 0.3
#: how often each slot moves
MOVES = 4 if LONG else 2
_numbers = itertools.count()
BACKEND = {"BACKEND": "django_redis_messaging.tasks.RedisBackend", "OPTIONS": {"TASK_MODULES": ["tests"]}}


@dataclass
class Ground:
    """The servers of a test, and the CACHES entry that leads to them."""

    entry: dict[str, Any]
    servers: list[EmbeddedServer]
    #: s: after this time a silent primary counts as dead
    detection: float
    cluster: Any = None
    sentinels: Any = None
    _raw: dict[int, redis.Redis] = field(default_factory=dict)

    def writers(self) -> list[redis.Redis]:
        """A raw client of each server that is running."""
        for at, server in enumerate(self.servers):
            if at not in self._raw:
                self._raw[at] = server.client(socket_timeout=RAW_TIMEOUT)
        return [self._raw[at] for at, server in enumerate(self.servers) if server.running]

    def close(self) -> None:
        for client in self._raw.values():
            client.close()


def keys_of(prefix: str) -> list[str]:
    """A key of each resource that the probes use: all are on the first of three nodes."""
    queues = [JobKeys(prefix, "queue", name).jobs for name in ("due", "waited", "awaited")]
    return [
        JobKeys(prefix, *TIMERS).jobs,
        JobKeys(prefix, "tasks", "site").jobs,
        BroadcastKeys(prefix, "news").head,
        ChatKeys(prefix, "office").log,
        *queues,
    ]


@contextmanager
def cluster_ground(stack: ExitStack) -> Iterator[Ground]:
    cluster = stack.enter_context(Cluster(replicas=True))
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": [cluster.url(1), cluster.url(0)]}
    yield Ground(entry, cluster.servers, NODE_TIMEOUT / 1000, cluster=cluster)


@contextmanager
def sentinel_ground(stack: ExitStack, number: int = 3, replicas: int = 2) -> Iterator[Ground]:
    sentinels = stack.enter_context(Sentinels(number, replicas=replicas))
    entry = {
        "BACKEND": "django_redis.cache.RedisCache",
        # django-redis caches its pools by URL: the client name makes this URL unique
        "LOCATION": f"{sentinels.url}&client_name=living-{next(_numbers)}",
        "OPTIONS": sentinels.options,
    }
    yield Ground(entry, sentinels.servers, DOWN_AFTER / 1000, sentinels=sentinels)


@contextmanager
def single_sentinel_ground(stack: ExitStack) -> Iterator[Ground]:
    with sentinel_ground(stack, 1, 1) as ground:
        yield ground


@pytest.fixture
def ground(request: pytest.FixtureRequest, own_prefix: str) -> Iterator[Ground]:
    """Servers that the test may break, and the alias that leads to them."""
    with ExitStack() as stack:
        ground = stack.enter_context(request.param(stack))
        stack.callback(ground.close)
        messaging = {"PREFIX": own_prefix, "COMMAND_DEADLINE": DEADLINE}
        tasks = dict.fromkeys(("default", "site"), BACKEND)
        caches = {"default": ground.entry, "messaging": ground.entry}
        clients.close()
        stack.callback(clients.close)
        stack.enter_context(override_settings(CACHES=caches, REDIS_MESSAGING=messaging, TASKS=tasks))
        yield ground


Fault = Callable[[Ground, Site], None]


def kill_node(ground: Ground, site: Site) -> None:
    """Kill a primary of a Cluster. It returns as a replica."""
    with ground.cluster.killed(0):
        pass


def freeze_node(ground: Ground, site: Site) -> None:
    """Freeze a primary of a Cluster until a replica has taken over and all processes work."""
    began = time.monotonic()
    ground.servers[0].freeze()
    while ground.writers()[3].info("replication")["role"] != "master":
        assert time.monotonic() < began + 60
        time.sleep(0.01)
    site.wait_for_all(time.monotonic())
    ground.servers[0].thaw()


def kill_watched(ground: Ground, site: Site) -> None:
    """Kill the primary that Sentinels watch. It returns as a replica."""
    at = ground.sentinels.kill()
    _until(lambda: ground.sentinels.took_over(at))
    ground.sentinels.restart(at)


def freeze_watched(ground: Ground, site: Site) -> None:
    """Freeze the primary that Sentinels watch until all processes work, then resume it."""
    at = ground.sentinels.freeze()
    _until(lambda: ground.sentinels.took_over(at))
    site.wait_for_all(time.monotonic())
    ground.sentinels.thaw(at)


def order_failover(ground: Ground, site: Site) -> None:
    """Let Sentinels swap the roles of two servers."""
    ground.sentinels.order()
    _until(lambda: ground.sentinels.took_over(0))


def move_slots(ground: Ground, site: Site) -> None:
    """Move the slot of each resource to another node, and back."""
    slots = sorted({key_slot(key.encode()) for key in keys_of(conf.prefix())})
    for to in [1, 0] * (MOVES // 2):
        for slot in slots:
            ground.cluster.migrate(slot, to)


def _until(holds: Callable[[], object]) -> None:
    ends = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


#: fault, servers and commands
CASES = [
    pytest.param(kill_node, cluster_ground, SEPARATE, id="kill_node", marks=pytest.mark.long),
    pytest.param(freeze_node, cluster_ground, TOGETHER, id="freeze_node", marks=pytest.mark.long),
    pytest.param(kill_watched, sentinel_ground, TOGETHER, id="kill_watched"),
    pytest.param(freeze_watched, sentinel_ground, SEPARATE, id="freeze_watched", marks=pytest.mark.long),
    pytest.param(order_failover, single_sentinel_ground, SEPARATE, id="order", marks=pytest.mark.long),
    pytest.param(move_slots, cluster_ground, SEPARATE, id="moves", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("fault", "ground", "commands"), CASES, indirect=["ground"])
def test_processes_work_again_without_a_restart(
    fault: Fault,
    ground: Ground,
    commands: list[list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each caller, loop and page works again a few seconds after a replica was promoted. The pages answer
    503 meanwhile, and nothing else that is an error."""
    site = Site(tmp_path, ground.writers)
    with site.running(commands, ground.entry):
        began = time.monotonic()
        fault(ground, site)
        site.wait_for_all(time.monotonic())
        outages = site.outages(began)
    if LONG:
        with capsys.disabled():
            sys.stdout.write(f"\n{fault.__name__}: {describe(site, outages)}\n")
    assert site.violations == []
    assert set(outages) == {*ROLES, *PAGE_ROLES}
    late = {
        role: seconds for role, seconds in outages.items() if seconds > ground.detection + AFTER_DETECTION
    }
    assert late == {}
    if fault in (move_slots, order_failover):  # others may lose what no replica had: see test_failover.py
        assert site.lost() == {}
    assert DelayQueue("waited").dead() == DelayQueue("awaited").dead() == []


def describe(site: Site, outages: dict[str, float]) -> str:
    """What was measured."""
    seconds = ", ".join(
        f"{role} {worst:.1f}" for role, worst in sorted(outages.items(), key=lambda one: -one[1])
    )
    acknowledged = {role: len(items) for role, items in site.acknowledged.items()}
    return (
        f"seconds without service: {seconds}; acknowledged {acknowledged}; lost {site.lost()}; "
        f"doubled {site.doubled()}; errors {dict(site.errors)}"
    )
