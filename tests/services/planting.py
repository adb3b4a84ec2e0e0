"""State machines that are run against a model; and bugs, planted for them to find, or they could not be
believed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from django_redis_messaging import conf
from django_redis_messaging.core import scripts
from tests.gate import LONG

#: few and always the same; many, at random, under MESSAGING_LONG
PROFILE = settings(
    max_examples=2000 if LONG else 30,
    stateful_step_count=30,
    derandomize=not LONG,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=(*HealthCheck,),
)
#: a file of ../lua, some words of it, and what a mistake would have made of them
Plant = tuple[str, str, str]
Planting = Callable[[Plant], None]
#: planted bugs of each machine that every run looks for
FEW = 4


def finds_a_mistake(machine: type[RuleBasedStateMachine], *others: type[Exception]) -> None:
    """The machine fails, by an assertion or by one of the `others`."""
    quick = settings(PROFILE, phases=[Phase.generate], max_examples=300, derandomize=True)
    with pytest.raises((AssertionError, FlakyFailure, *others)) as found:
        run_state_machine_as_test(machine, settings=quick)
    # also one that can't be repeated was found: by such an error
    if isinstance(found.value, FlakyFailure):
        assert found.value.split((AssertionError, *others))[1] is None, found.value


def sample(plants: Iterable[str]) -> list[Any]:
    """The names of all planted bugs; all but a few are for MESSAGING_LONG."""
    names = list(plants)
    few = names[:: max(1, len(names) // FEW)][:FEW]
    return [pytest.param(name, marks=[] if name in few else pytest.mark.long) for name in names]


class PlantedBugs:
    """Tests that a machine finds each of its `plants`, or could not be believed."""

    machine: ClassVar[type[RuleBasedStateMachine]]
    plants: ClassVar[dict[str, Plant]]
    #: errors by which it finds some, too
    errors: ClassVar[tuple[type[Exception], ...]] = ()

    @pytest.fixture
    def messaging_alias(self, messaging_settings: object) -> str:
        """One server is enough."""
        return conf.alias()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test for each."""
        if "name" in metafunc.fixturenames:
            metafunc.parametrize("name", sample(self.plants))

    def test_in_a_script(self, name: str, plant: Planting) -> None:
        plant(self.plants[name])
        finds_a_mistake(self.machine, *self.errors)


def planted(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts are loaded with this mistake in them."""
    where, line, mistake = plant
    read = scripts.read
    assert read(f"{where}.lua").count(line) == 1

    def misread(filename: str) -> str:
        text = read(filename)
        return text.replace(line, mistake) if filename == f"{where}.lua" else text

    monkeypatch.setattr(scripts, "read", misread)
    scripts.load.cache_clear()
