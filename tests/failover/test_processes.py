"""The processes of a site continue without a restart while primaries fail and slots move."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from django.test import override_settings

from django_redis_messaging import DelayQueue
from tests.support.pytest_hooks import LONG

from ..support.replicated_primary import connected
from ..support.server_faults import (
    Break,
    Start,
    cluster,
    fail_over,
    freeze_primary,
    kill_primary,
    move_slots,
    one_sentinel,
    sentinel,
    steady_cluster,
)
from ..support.site_processes import DEADLINE, ROLES, SEPARATE, TOGETHER, Site
from ..support.site_processes import PAGES as PAGE_ROLES
from ..support.topologies import Servers

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]
#: seconds after the detection of a failure within which everything must work again
AFTER_DETECTION = 4.0
BACKEND = {"BACKEND": "django_redis_messaging.tasks.RedisBackend", "OPTIONS": {"TASK_MODULES": ["tests"]}}


@pytest.mark.parametrize(
    ("start", "happens", "commands"),
    [
        pytest.param(cluster, kill_primary, SEPARATE, id="kill_node", marks=pytest.mark.long),
        pytest.param(cluster, freeze_primary, TOGETHER, id="freeze_node", marks=pytest.mark.long),
        pytest.param(sentinel, kill_primary, TOGETHER, id="kill_watched"),
        pytest.param(sentinel, freeze_primary, SEPARATE, id="freeze_watched", marks=pytest.mark.long),
        pytest.param(one_sentinel, fail_over, SEPARATE, id="order", marks=pytest.mark.long),
        pytest.param(steady_cluster, move_slots, SEPARATE, id="moves", marks=pytest.mark.long),
    ],
)
def test_processes_work_again_without_a_restart(
    start: Start,
    happens: Break,
    commands: list[list[str]],
    servers: Servers,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each caller, loop and page works again a few seconds after a replica was promoted. The pages answer
    503 meanwhile, and nothing else that is an error."""
    tasks = override_settings(TASKS=dict.fromkeys(("default", "site"), BACKEND))
    with start(servers) as shard, connected(shard, COMMAND_DEADLINE=DEADLINE), tasks:
        site = Site(tmp_path, shard)
        with site.running(commands):
            began = time.monotonic()
            happens(shard, site)
            site.wait_for_all(time.monotonic())
            site.until(shard.is_whole)
            outages = site.outages(began)
        if LONG:
            with capsys.disabled():
                sys.stdout.write(f"\n{happens.__name__}: {describe(site, outages)}\n")
        assert site.violations == []
        assert set(outages) == {*ROLES, *PAGE_ROLES}
        limit = shard.detection + AFTER_DETECTION
        assert {role: seconds for role, seconds in outages.items() if seconds > limit} == {}
        if happens is move_slots:
            # Others may lose what no replica had. Sentinel orders a replica to take over without stopping the
            # primary, which accepts writes for another second.
            assert site.lost() == {}
        assert DelayQueue("waited").dead() == DelayQueue("awaited").dead() == []


def describe(site: Site, outages: dict[str, float]) -> str:
    """What was measured."""
    worst_first = sorted(outages.items(), key=lambda one: -one[1])
    seconds = ", ".join(f"{role} {worst:.1f}" for role, worst in worst_first)
    acknowledged = {role: len(items) for role, items in site.acknowledged.items()}
    return (
        f"seconds without service: {seconds}; acknowledged {acknowledged}; lost {site.lost()}; "
        f"doubled {site.doubled()}; errors {dict(site.errors)}"
    )
