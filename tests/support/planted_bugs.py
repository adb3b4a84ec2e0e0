"""Model-based state machines, and planted bugs that they must find, otherwise they prove nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from django_redis_messaging import conf
from django_redis_messaging.core import commands
from django_redis_messaging.services.directories.folding import readings
from tests.support.gate import LONG

#: few examples, always the same; many random ones with MESSAGING_LONG
PROFILE = settings(
    max_examples=2000 if LONG else 30,
    stateful_step_count=30,
    derandomize=not LONG,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=(*HealthCheck,),
)
#: a script without its suffix, a text in it, and its faulty replacement
Plant = tuple[str, str, str]
Planting = Callable[[Plant], None]
#: number of planted bugs per machine in every run
FEW = 2


def finds_a_mistake(machine: type[RuleBasedStateMachine], *others: type[Exception]) -> None:
    """The machine fails with an assertion or one of the `others`."""
    quick = settings(PROFILE, phases=[Phase.generate], max_examples=1000, derandomize=True)
    with pytest.raises((AssertionError, FlakyFailure, *others)) as found:
        run_state_machine_as_test(machine, settings=quick)
    # a failure that Hypothesis cannot reproduce also counts: it is reported by this error
    if isinstance(found.value, FlakyFailure):
        assert found.value.split((AssertionError, *others))[1] is None, found.value


def sample(plants: Iterable[str]) -> list[Any]:
    """The names of all planted bugs. All but a few are marked as long."""
    names = list(plants)
    few = names[:: max(1, len(names) // FEW)][:FEW]
    return [pytest.param(name, marks=[] if name in few else pytest.mark.long) for name in names]


class PlantedBugs:
    """Tests that a machine finds each of its planted bugs, as a check of the machine."""

    machine: ClassVar[type[RuleBasedStateMachine]]
    plants: ClassVar[dict[str, Plant]]
    #: other errors by which the machine may find a bug
    errors: ClassVar[tuple[type[Exception], ...]] = ()

    @pytest.fixture
    def messaging_alias(self, messaging_settings: object) -> str:
        """One server is enough."""
        return conf.alias()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize the test with the planted bugs."""
        if "name" in metafunc.fixturenames:
            metafunc.parametrize("name", sample(self.plants))

    def test_each_changes_a_line_of_its_script(self) -> None:
        """In every run: most planted bugs are tried only in the large form."""
        found = {
            name: commands.read(f"{where}.lua").count(line) for name, (where, line, _) in self.plants.items()
        }
        assert set(found.values()) == {1}, found

    def test_in_a_script(self, name: str, plant: Planting) -> None:
        plant(self.plants[name])
        finds_a_mistake(self.machine, *self.errors)


def planted(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the scripts with this mistake in them."""
    where, line, mistake = plant
    read = commands.read
    assert read(f"{where}.lua").count(line) == 1

    def misread(filename: str) -> str:
        text = read(filename)
        return text.replace(line, mistake) if filename == f"{where}.lua" else text

    monkeypatch.setattr(commands, "read", misread)
    commands.load.cache_clear()


@contextmanager
def server_clock(ms: int | str) -> Iterator[None]:
    """Scripts read this time of the server: a number, or an expression in which NOW is the real time."""
    real = "time[1] * 1000 + math.floor(time[2] / 1000)"
    with pytest.MonkeyPatch.context() as monkeypatch:
        planted(("common/_time", f"return {real}", f"return {str(ms).replace('NOW', real)}"), monkeypatch)
        try:
            yield
        finally:
            monkeypatch.undo()
            commands.load.cache_clear()


@contextmanager
def without_pypinyin() -> Iterator[None]:
    """As if the package were not installed."""
    readings.cache_clear()
    try:
        with mock.patch.dict(sys.modules, pypinyin=None):
            yield
    finally:
        readings.cache_clear()
