"""How a test run is arranged: test variants, reruns, and what is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .support.pytest_hooks import SHRINKING

Run = Callable[..., str]
CONFTEST = """
import pytest
from tests.support import pytest_hooks

pytest_hooks.ENDING = 1
pytest_addoption, pytest_configure = pytest_hooks.add_options, pytest_hooks.configure
pytest_generate_tests, pytest_collection_modifyitems = pytest_hooks.choose_worlds, pytest_hooks.arrange

@pytest.fixture
def server_kind(request): return request.param

@pytest.fixture
def call_style(request): return request.param
"""
INI = "[pytest]\nmarkers =\n timing\n promise\n worlds\n long\n"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run pytest on some tests in a process."""

    def start(tests: str, *words: str, long: bool = False) -> str:
        tmp_path.joinpath("pytest.ini").write_text(INI)
        tmp_path.joinpath("conftest.py").write_text(CONFTEST)
        tmp_path.joinpath("test_some.py").write_text(f"import pytest\nfrom pathlib import Path\n{tests}")
        environment = {name: value for name, value in os.environ.items() if name != "MESSAGING_LONG"}
        environment |= {"PYTHONPATH": str(Path(__file__).parents[2])} | (
            {"MESSAGING_LONG": "1"} if long else {}
        )
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:django", "-v", *words],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.stdout

    return start


PAIRED = """
def test_both(server_kind, call_style): pass
def test_server(server_kind): pass
def test_style(call_style): pass
@pytest.mark.worlds
def test_each(server_kind, call_style): pass
@pytest.mark.long
def test_large(): pass
"""
FLAKY = """
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
import threading
def test_stuck():
    threading.Thread(target=threading.Event().wait, name="endless").start()
    raise ValueError
"""
SLOW = """
import time
def test_slow(): time.sleep(60)
"""


def names(output: str) -> list[str]:
    """The passed tests in order."""
    return [line.split("::")[1].split()[0] for line in output.splitlines() if " PASSED " in line]


class TestVariants:
    def test_pairs_cover_each_value_once(self, run: Run) -> None:
        assert names(run(PAIRED)) == [
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

    @pytest.mark.parametrize("long", [False, True])
    def test_all_combinations(self, run: Run, long: bool) -> None:
        found = names(run(PAIRED, *([] if long else ["--worlds=all"]), long=long))
        assert len([name for name in found if name.startswith("test_both")]) == 12
        assert len([name for name in found if name.startswith("test_server")]) == 6
        assert ("test_large" in found) is long


class TestFlaky:
    @pytest.mark.parametrize("options", [[], ["-n2"]])
    def test_flaky_tests_are_listed_with_their_first_failure(
        self, run: Run, tmp_path: Path, options: list[str]
    ) -> None:
        output = run(FLAKY, "--reruns", "2", "--flaky-list", str(tmp_path / "list"), *options)
        listed = (tmp_path / "list").read_text()
        assert listed.startswith("FLAKY test_some.py::test_second_time\n")
        assert listed.count("FLAKY") == listed.count("AssertionError: the first failure") == 1
        assert "FLAKY test_some.py::test_second_time" in output
        assert output.count("AssertionError: the first failure") == 1

    def test_promises_are_never_rerun(self, run: Run, tmp_path: Path) -> None:
        assert "2 failed, 1 passed, 3 rerun" in run(FLAKY, "--reruns", "2")
        assert (tmp_path / "kept").read_text() == "x"
        assert (tmp_path / "never").read_text() == "xxx"


def test_hanging_test_fails_and_shows_all_threads(run: Run) -> None:
    output = run(SLOW, "--timeout", "0.5")
    assert "Timeout (>0.5s)" in output
    assert "1 failed" in output


def test_leftover_thread_does_not_keep_the_process_alive(run: Run) -> None:
    assert "1 failed" in run(STUCK)


def test_shrinking_time_is_limited() -> None:
    from hypothesis.internal.conjecture import engine

    assert engine.MAX_SHRINKING_SECONDS == SHRINKING
