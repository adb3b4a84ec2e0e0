"""Model-based state machines: what they have in common, and planted bugs that they must find, otherwise they
prove nothing.

A test_machine.py has a model, a subclass of `Machine` that runs each operation on the app and on the model, a
table of planted bugs, and a subclass of `MachineTests`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, ClassVar, TypeVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from django_redis_messaging import conf
from django_redis_messaging.core import commands

from .pytest_hooks import LONG
from .scripts import Planting
from .server import get_redis_connection, reply_to, steps

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
#: script without its suffix → name of a bug → a text in the script, and its faulty replacement
Plants = dict[str, dict[str, tuple[str, str]]]
T = TypeVar("T")
_runs = itertools.count()


def one(some: Iterable[T], at: int) -> T:
    """One of them, by any number."""
    known = list(some)
    return known[at % len(known)]


def run(operation: Any, *args: Any, times: int = 1) -> Any:
    """Run an operation of one step, and repeat the step as after lost replies."""
    body = steps(operation, *args)
    try:
        step = next(body)
        body.send([reply_to(step) for _ in range(times)][-1])
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it takes another step")


class Machine(RuleBasedStateMachine):
    """Each run has a name of its own, a raw client, and patches that end with it."""

    def __init__(self) -> None:
        super().__init__()
        self.name = f"run {next(_runs)}"
        self.client: Any = get_redis_connection(conf.alias())
        self.patches = ExitStack()

    def teardown(self) -> None:
        self.patches.close()

    def patch(self, where: object, name: str, value: object) -> None:
        self.patches.enter_context(mock.patch.object(where, name, value))

    def change_settings(self, **changes: Any) -> None:
        changed = dataclasses.replace(conf.current(), **changes)
        self.patch(conf, "current", lambda: changed)


def finds_a_mistake(machine: type[RuleBasedStateMachine], *others: type[Exception]) -> None:
    """The machine fails with an assertion or one of the `others`."""
    quick = settings(PROFILE, phases=[Phase.generate], max_examples=4000, derandomize=True)
    with pytest.raises((AssertionError, FlakyFailure, *others)) as found:
        run_state_machine_as_test(machine, settings=quick)
    # a failure that Hypothesis cannot reproduce also counts: it is reported by this error
    if isinstance(found.value, FlakyFailure):
        assert found.value.split((AssertionError, *others))[1] is None, found.value


class MachineTests:
    """The app behaves as the model, and the machine finds each planted bug."""

    machine: ClassVar[type[RuleBasedStateMachine]]
    plants: ClassVar[Plants]
    #: the planted bugs that are tried in every run: found within few examples. The large form tries all
    quick: ClassVar[tuple[str, ...]]
    #: other errors by which the machine may find a bug
    errors: ClassVar[tuple[type[Exception], ...]] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize the test with the planted bugs."""
        if "bug" in metafunc.fixturenames:
            bugs = [name for bugs in self.plants.values() for name in bugs]
            marks = {name: () if name in self.quick else pytest.mark.long for name in bugs}
            metafunc.parametrize("bug", [pytest.param(name, marks=marks[name]) for name in bugs])

    def test_it_behaves_as_the_model(self) -> None:
        run_state_machine_as_test(self.machine, settings=PROFILE)

    def test_each_bug_changes_a_line_of_its_script(self) -> None:
        """In every run: most planted bugs are tried only in the large form."""
        found = {
            name: commands.read(f"{script}.lua").count(line)
            for script, bugs in self.plants.items()
            for name, (line, _) in bugs.items()
        }
        assert set(found.values()) == {1}, found
        assert len(found) == sum(map(len, self.plants.values())), "two bugs of one name"
        assert found.keys() >= set(self.quick)

    @pytest.mark.one_server
    def test_it_finds_a_planted_bug(self, bug: str, plant: Planting) -> None:
        [(script, change)] = [(script, bugs[bug]) for script, bugs in self.plants.items() if bug in bugs]
        plant((script, *change))
        finds_a_mistake(self.machine, *self.errors)
