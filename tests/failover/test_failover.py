"""Primaries that are killed, frozen or cut off, or lose their last writes, while all services are used."""

from __future__ import annotations

import os
import shutil

import pytest

from ..support.failover import move_slots
from ..support.failover_scenarios import SCENARIOS, Scenario, divided_cluster, divided_sentinel

#: s: the service is back this long after the servers count the primary as dead
BACK = 4.0


def parameter(scenario: Scenario) -> object:
    return pytest.param(
        scenario,
        id=f"{scenario.start.__name__}, {scenario.name}, {scenario.confirmed_by} confirm",
        marks=() if scenario.is_short else pytest.mark.long,
    )


@pytest.mark.promise
@pytest.mark.parametrize("scenario", [parameter(scenario) for scenario in SCENARIOS])
def test_failover(scenario: Scenario) -> None:
    if scenario.start in (divided_cluster, divided_sentinel) and not can_divide():
        pytest.skip("needs root, and `ip` of iproute2")
    shard, report = scenario.run()
    assert report.violations == []
    assert report.doubled == 0
    assert report.outage <= shard.detection + BACK
    if scenario.fault is move_slots:
        assert not any(report.errors.values())
    if scenario.loses:
        assert report.lost["messages"] and report.lost["events"] and report.lost["timers"]
        assert report.reported >= 2  # readers of chats and of broadcasts
    if scenario.loses is False:
        assert not any(report.lost.values())


def can_divide() -> bool:
    """Whether this process may create network namespaces. In CI, it must."""
    return "CI" in os.environ or (os.geteuid() == 0 and shutil.which("ip") is not None)
