"""How a test run is arranged: test variants, reruns, and what is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .support.processes import ROOT
from .support.pytest_hooks import SHRINKING

Run = Callable[..., str]
CONFTEST = """
import pytest
from tests.support import pytest_hooks

pytest_addoption, pytest_configure = pytest_hooks.add_options, pytest_hooks.configure
pytest_generate_tests, pytest_collection_modifyitems = pytest_hooks.choose_worlds, pytest_hooks.arrange

@pytest.fixture
def server_kind(request): return request.param

@pytest.fixture
def call_style(request): return request.param
"""
INI = "[pytest]\nmarkers =\n timing\n promise\n worlds\n long\n"
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:django", "-v")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run Python in a directory with these tests; returns the output."""

    def start(tests: str, *words: str) -> str:
        tmp_path.joinpath("pytest.ini").write_text(INI)
        tmp_path.joinpath("conftest.py").write_text(CONFTEST)
        tmp_path.joinpath("test_some.py").write_text(tests)
        environment = {name: value for name, value in os.environ.items() if name != "MESSAGING_LONG"}
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    return start


#: runs three sessions in one process
SESSIONS = f"""
import importlib, os, pytest
from tests.support import pytest_hooks

for words in ([], ["--worlds=all"], []):
    print("SESSION")
    pytest.main([*{OPTIONS!r}, *words])
    if words:
        os.environ["MESSAGING_LONG"] = "1"
        importlib.reload(pytest_hooks)
"""
VARIANTS = """
import pytest
def test_both(server_kind, call_style): pass
def test_server(server_kind): pass
def test_style(call_style): pass
@pytest.mark.worlds
def test_each(server_kind, call_style): pass
@pytest.mark.long
def test_large(): pass
"""
FLAKY = """
import pytest
from pathlib import Path

def tries(name):
    with open(name, "a") as done: done.write("x")
    return len(Path(name).read_text())

@pytest.mark.timing
def test_second_time(): assert tries("second") == 2, "the first failure"

@pytest.mark.timing
def test_never(): assert tries("never") == 9

@pytest.mark.promise
def test_kept(): assert tries("kept") == 2
"""
STUCK = """
import threading, time
from tests.support import pytest_hooks

pytest_hooks.ENDING = 0.1

@pytest.mark.timeout(0.2)
@pytest.mark.flaky(reruns=0)
def test_slow(): time.sleep(60)

@pytest.mark.flaky(reruns=0)
def test_leaves_a_thread():
    threading.Thread(target=threading.Event().wait, name="endless").start()
    raise ValueError
"""


def names(output: str) -> list[str]:
    """The passed tests in order."""
    return [line.split("::")[1].split()[0] for line in output.splitlines() if " PASSED " in line]


def test_variants(run: Run) -> None:
    """By default, pairs of server and call style cover each value once."""
    _, by_default, in_all_worlds, in_large_form = map(names, run(VARIANTS, "-c", SESSIONS).split("SESSION"))
    assert by_default == [
        "test_both[standalone-blocking]",
        "test_both[cluster-awaiting]",
        "test_server[cluster]",
        "test_style[blocking]",
        "test_style[awaiting]",
        "test_each[standalone-blocking]",
        "test_each[standalone-awaiting]",
        "test_each[cluster-blocking]",
        "test_each[cluster-awaiting]",
    ]
    for found in (in_all_worlds, in_large_form):
        assert len([name for name in found if name.startswith("test_both")]) == 12
        assert len([name for name in found if name.startswith("test_server")]) == 6
    assert ("test_large" in in_all_worlds, "test_large" in in_large_form) == (False, True)


@pytest.mark.parametrize(("more", "options"), [(STUCK, []), ("", ["-n2"])], ids=["serial", "parallel"])
def test_flaky_tests_are_listed_and_promises_are_never_rerun(
    run: Run, tmp_path: Path, more: str, options: list[str]
) -> None:
    """In the same run, a hanging test fails, and a thread that is left does not keep the process alive."""
    listed = tmp_path / "list"
    words = ("-m", "pytest", *OPTIONS, "--reruns", "2", "--flaky-list", str(listed), *options)
    output = run(FLAKY + more, *words)
    assert f"{4 if more else 2} failed, 1 passed, 3 rerun" in output
    assert listed.read_text().startswith("FLAKY test_some.py::test_second_time\n")
    for found in (output, listed.read_text()):
        assert found.count("FLAKY") == found.count("AssertionError: the first failure") == 1
    assert "FLAKY test_some.py::test_second_time" in output
    assert (tmp_path / "kept").read_text() == "x"
    assert (tmp_path / "never").read_text() == "xxx"
    if more:
        assert "Timeout (>0.2s)" in output
        assert "Left behind: the threads endless." in output


def test_browser_tests_are_last() -> None:
    """In one process, no async test can run after them. pytest groups the tests by their fixtures before."""
    folders = (ROOT / "tests" / "web", ROOT / "tests" / "live")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--collect-only", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    browser = ["_browser.py::" in line for line in listed.splitlines() if "::" in line]
    assert browser == sorted(browser)
    assert set(browser) == {False, True}


def test_shrinking_time_is_limited() -> None:
    from hypothesis.internal.conjecture import engine

    assert engine.MAX_SHRINKING_SECONDS == SHRINKING


@pytest.mark.parametrize("marker", ["timing", "promise", "versions"])
def test_helpers_set_no_marker_by_which_the_gate_chooses_modules(marker: str) -> None:
    """`.ci/run` collects the modules that contain a marker, so a marker from elsewhere would hide a test."""
    helpers = [ROOT / "tests" / "conftest.py", *ROOT.joinpath("tests", "support").rglob("*.py")]
    assert [path for path in helpers if f"mark.{marker}" in path.read_text("utf-8")] == []
