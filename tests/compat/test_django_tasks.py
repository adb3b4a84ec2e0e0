"""Django's own tests of its Tasks, those that are about any backend, against ours.

They are in Django's source distribution only: DJANGO_SOURCE names the directory where that is unpacked.
What they import of Django's two backends is ours here; nothing else in them is changed.
"""

from __future__ import annotations

import os
import sys
import unittest
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import django
import pytest

pytestmark = pytest.mark.versions

SOURCE = Path(os.environ.get("DJANGO_SOURCE", ""))
HERE = "tests.compat.backends"
#: what is said in place of what
OURS = {
    "from django.tasks.backends.dummy import DummyBackend": f"from {HERE} import Dummy as DummyBackend",
    "from django.tasks.backends.immediate import ImmediateBackend": (
        f"from {HERE} import Immediate as ImmediateBackend"
    ),
    "django.tasks.backends.dummy.DummyBackend": f"{HERE}.Dummy",
    "django.tasks.backends.immediate.ImmediateBackend": f"{HERE}.Immediate",
}
#: tests that are about something else, and about what
ELSE = {
    "DummyBackendTestCase": {
        "test_refresh_result": "changes the dummy's own copy of a result",
        "test_refresh_result_async": "changes the dummy's own copy of a result",
    },
    "ImmediateBackendTestCase": {
        "test_throws_keyboard_interrupt": "a worker has no caller to throw it to",
        "test_cannot_get_result": "ours can",
        "test_cannot_refresh_result": "ours can",
        "test_cannot_pass_run_after": "ours can",
    },
}


def missing() -> str | None:
    """Why the tests can't be run."""
    if find_spec("django.tasks") is None:
        return f"Django {django.__version__} has no Tasks: its tests begin with 6.0."
    if "DJANGO_SOURCE" not in os.environ:
        return (
            "DJANGO_SOURCE is not set: unpack the source distribution of Django "
            f"{django.__version__} (pip download --no-deps --no-binary django) and name its directory."
        )
    return None


def package(name: str) -> ModuleType:
    """Django's package of tests, without the neighbours that a search path would bring along."""
    directory = SOURCE / "tests" / name
    spec = spec_from_file_location(
        name, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(name: str) -> ModuleType:
    """One module of it, with our backends."""
    path = SOURCE / "tests" / "tasks" / f"{name}.py"
    text = path.read_text(encoding="utf-8")
    for theirs, ours in OURS.items():
        text = text.replace(theirs, ours)
    sys.modules[f"tasks.{name}"] = module = ModuleType(f"tasks.{name}")
    module.__package__, module.__file__ = "tasks", str(path)
    exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102
    return module


def cases() -> dict[str, type[unittest.TestCase]]:
    """The test cases, by their names."""
    package("tasks")
    found: dict[str, type[unittest.TestCase]] = {}
    for name in ("test_tasks", "test_dummy_backend", "test_immediate_backend"):
        for key, case in vars(load(name)).items():
            if key.endswith("TestCase") and case.__module__ == f"tasks.{name}":
                found[key] = case
    for key, tests in ELSE.items():
        for test, reason in tests.items():
            setattr(found[key], test, unittest.skip(reason)(getattr(found[key], test)))
    return found


REASON = missing()
if REASON is None:
    # pytest collects them from here
    globals().update(cases())


@pytest.mark.skipif(REASON is not None, reason=REASON or "")
def test_all_of_djangos_cases_are_here() -> None:
    found = {name for name in globals() if name.endswith("TestCase")}
    assert found == {
        "TaskTestCase",
        "DummyBackendTestCase",
        "DummyBackendTransactionTestCase",
        "ImmediateBackendTestCase",
        "ImmediateBackendTransactionTestCase",
    }
