"""Every service on every topology, sync and async."""

from __future__ import annotations

import pytest

from tests.conftest import Call

from ..support.service_scenarios import SCENARIOS, Scenario

pytestmark = pytest.mark.topologies


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_service(scenario: Scenario, call: Call) -> None:
    await scenario(call)
