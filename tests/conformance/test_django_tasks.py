"""Django's own tests of its Tasks that apply to any backend, run with our backend.

They exist only in Django's source distribution: see sources.py. Imports of Django's backends are replaced by
ours; nothing else is changed.
"""

from __future__ import annotations

import sys
import unittest
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import django
import pytest

from .sources import find_source, missing_source

pytestmark = pytest.mark.versions

SOURCE = find_source("django") or Path()
HERE = "tests.conformance.backends"
#: replacements in the text of the tests
REPLACEMENTS = {
    "from django.tasks.backends.dummy import DummyBackend": f"from {HERE} import Dummy as DummyBackend",
    "from django.tasks.backends.immediate import ImmediateBackend": (
        f"from {HERE} import Immediate as ImmediateBackend"
    ),
    "from django.tasks.backends.base import BaseTaskBackend": (
        "from django_redis_messaging.tasks import RedisBackend as BaseTaskBackend"
    ),
    "from django.tasks import Task, default_task_backend, task, task_backends": (
        "from django.tasks import default_task_backend, task, task_backends\n"
        "from django_redis_messaging.tasks import RedisTask as Task"
    ),
    "django.tasks.backends.dummy.DummyBackend": f"{HERE}.Dummy",
    "django.tasks.backends.immediate.ImmediateBackend": f"{HERE}.Immediate",
}
MODULES = ("test_tasks", "test_dummy_backend", "test_immediate_backend", "test_custom_backend")
#: tests that do not apply, and why
SKIPPED = {
    "DummyBackendTestCase": {
        "test_refresh_result": "changes the dummy's own copy of a result",
        "test_refresh_result_async": "changes the dummy's own copy of a result",
    },
    "ImmediateBackendTestCase": {
        "test_throws_keyboard_interrupt": "a worker has no caller to throw it to",
        "test_cannot_get_result": "our backend supports it",
        "test_cannot_refresh_result": "our backend supports it",
        "test_cannot_pass_run_after": "our backend supports it",
    },
    "CustomBackendTestCase": {
        "test_backend_does_not_support_priority": "our backend supports it",
        "test_no_enqueue": "a subclass of our backend inherits enqueue()",
    },
}


def missing() -> str | None:
    """The reason why the tests can't run, if any."""
    if find_spec("django.tasks") is None:
        return f"Django {django.__version__} has no Tasks: its tests begin with 6.0."
    return missing_source("django")


def package(name: str) -> ModuleType:
    """Django's test package, without the neighbours that a search path would add."""
    directory = SOURCE / "tests" / name
    spec = spec_from_file_location(
        name, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(name: str) -> ModuleType:
    """A module of that package, with our backends."""
    path = SOURCE / "tests" / "tasks" / f"{name}.py"
    text = path.read_text(encoding="utf-8")
    for old, new in REPLACEMENTS.items():
        text = text.replace(old, new)
    sys.modules[f"tasks.{name}"] = module = ModuleType(f"tasks.{name}")
    module.__package__, module.__file__ = "tasks", str(path)
    exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102
    return module


def cases() -> dict[str, type[unittest.TestCase]]:
    """The test cases by name."""
    package("tasks")
    found: dict[str, type[unittest.TestCase]] = {}
    for name in MODULES:
        for key, case in vars(load(name)).items():
            if key.endswith("TestCase") and case.__module__ == f"tasks.{name}":
                found[key] = case
    for key, tests in SKIPPED.items():
        for test, reason in tests.items():
            setattr(found[key], test, unittest.skip(reason)(getattr(found[key], test)))
    return found


REASON = missing()
if REASON is None:
    # pytest collects them from here
    globals().update(cases())


@pytest.mark.skipif(REASON is not None, reason=REASON or "")
def test_all_of_djangos_test_cases_are_collected() -> None:
    found = {name for name in globals() if name.endswith("TestCase")}
    new = {"CustomTaskTestCase"} if django.VERSION >= (6, 1) else set()
    assert found == new | {
        "CustomBackendTestCase",
        "TaskTestCase",
        "DummyBackendTestCase",
        "DummyBackendTransactionTestCase",
        "ImmediateBackendTestCase",
        "ImmediateBackendTransactionTestCase",
    }
