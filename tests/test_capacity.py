"""The capacity model of the benchmarks: its examples run, and its formula agrees with a simulation."""

import doctest
from types import ModuleType

import pytest

from benchmarks import capacity, clusters, scaling, skew

#: maximum difference between the formula and the simulation, as a share: docs/scaling.md states it
MAX_ERROR = 0.15


@pytest.mark.parametrize("module", [capacity, clusters, scaling, skew], ids=lambda module: module.__name__)
def test_examples_run(module: ModuleType) -> None:
    failed, attempted = doctest.testmod(module)
    assert failed == 0
    assert attempted > 0


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.2])
def test_busiest_primary_is_as_predicted(exponent: float) -> None:
    chats = 20_000
    weights = [number**-exponent for number in range(1, chats + 1)]
    slots = [skew.loads_by_slot(weights, seed) for seed in range(5)]

    for primaries in (3, 10, 100):
        found = sum(skew.busiest(loads, primaries) for loads in slots) / len(slots)
        predicted = skew.hottest_share(primaries, skew.Popularity(chats, exponent))
        assert predicted == pytest.approx(found, rel=MAX_ERROR)


def test_no_primary_is_busier_than_allowed() -> None:
    given, costs = capacity.Assumptions(kept=50), capacity.Costs()
    for users in (10**4, 10**6, 10**8):
        found = capacity.capacity(users, given, costs)
        assert capacity.busiest(users, found.primaries, given, costs) <= given.load
        assert found.memory / found.primaries <= given.memory
        fewer = capacity.busiest(users, max(1, found.primaries - 1), given, costs)
        assert found.limit == "memory" or fewer > 0.97 * given.load
