"""How a test run is arranged: test variants, order, and what is reported.

CONTRIBUTING.md describes the markers and the options.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import engine

#: values of fixtures with which each test is run: its server, and the form of the operations that it calls
WORLDS = {"server_kind": ("standalone", "cluster"), "call_style": ("blocking", "awaiting")}
#: servers added to these for `--worlds=all`: see topologies.py
FURTHER = ("valkey", "sentinel", "primaries", "redis-tls")
#: pairs used by default for tests with both fixtures: together they cover each value
PAIRS = (("standalone", "blocking"), ("cluster", "awaiting"))
#: folders of tests that don't run on each kind of server
ONE_SERVER = {
    "tests",
    "conformance",
    "core",
    "devserver",
    "failover",
    "site",
    "testproject",
    "topologies",
    "tutorial",
    "web",
}
#: used by default for tests with only the server fixture: this server rejects undeclared keys
STRICTER = "cluster"
#: whether the searches and the fault tests are the large ones
LONG = "MESSAGING_LONG" in os.environ
#: whether the services run as a user of Redis with few permissions: see worlds.py
LIMITED = "MESSAGING_ACL" in os.environ
#: seconds that Hypothesis may spend on shrinking a failing example
SHRINKING = 20
#: seconds that threads of tests have to end after the last test
ENDING = 30


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--worlds",
        choices=("pairs", "all"),
        default="all" if LONG else "pairs",
        help="pairs: blocking on a standalone server and awaiting on a Cluster; all: every combination, and "
        "further servers",
    )
    parser.addoption("--repeats", type=int, default=0, help="repeat a failed test marked `timing` so often")
    parser.addoption("--flaky-list", metavar="FILE", help="append what passed only when run again")


def configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers of pytest-xdist report to this process, which ends them
        config.pluginmanager.register(FlakyTests(config.getoption("--flaky-list")), "flaky-tests")
        config.pluginmanager.register(LeftThreads(), "left-threads")
        config.pluginmanager.register(MissingSources(), "missing-sources")
    # the duration of an example depends on the machine, not on the code
    settings.register_profile(
        "any machine",
        parent=settings(),
        deadline=None,
        derandomize=not LONG,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("any machine")
    engine.MAX_SHRINKING_SECONDS = SHRINKING


def choose_worlds(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test with the values of its fixtures."""
    names = [name for name in WORLDS if name in metafunc.fixturenames]
    if not runs_on_each_server(metafunc.definition):
        names = [name for name in names if name != "server_kind"]
    everything = metafunc.config.getoption("--worlds") == "all"
    whole = everything or metafunc.definition.get_closest_marker("worlds")
    if len(names) == 2 and not whole:
        metafunc.parametrize(names, PAIRS, ids=map("-".join, PAIRS), indirect=True)
        return
    for name in names:
        further = FURTHER if everything and name == "server_kind" and not LIMITED else ()
        alone = name == "server_kind" and not whole
        metafunc.parametrize(name, (STRICTER,) if alone else (*WORLDS[name], *further), indirect=True)


def runs_on_each_server(test: pytest.Item) -> bool:
    """Whether a test runs on each kind of server. The closest mark decides, otherwise its folder."""
    for mark in test.iter_markers():
        if mark.name in {"one_server", "worlds"}:
            return mark.name == "worlds"
    return test.path.parent.name not in ONE_SERVER


def arrange(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add implied markers, and deselect tests that are not wanted."""
    if not LONG:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    if LIMITED:
        config.hook.pytest_deselected(items=[item for item in items if not runs_on_each_server(item)])
        items[:] = [item for item in items if runs_on_each_server(item)]
    repeats = config.getoption("--repeats")
    for item in items:
        if "playwright" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
            item.add_marker("timing")
        if item.get_closest_marker("promise"):
            item.add_marker("timing")
            item.add_marker(pytest.mark.flaky(reruns=0))
        elif item.get_closest_marker("timing") and repeats:
            item.add_marker(pytest.mark.flaky(reruns=repeats))


def move_browser_tests(items: list[pytest.Item]) -> None:
    """Move the browser tests to the end: Playwright's event loop runs until the end of the session, beside
    which no async test may run."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


class FlakyTests:
    """Lists the tests that failed first and passed when rerun, each with its first failure."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._first: dict[str, pytest.TestReport] = {}
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == "rerun":  # type: ignore[comparison-overlap]  # pytest-rerunfailures
            self._first.setdefault(report.nodeid, report)
        elif report.failed:
            self._failed.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        flaky = {nodeid: report for nodeid, report in self._first.items() if nodeid not in self._failed}
        for nodeid, report in flaky.items():
            terminalreporter.section(f"FLAKY {nodeid}")
            report.toterminal(terminalreporter._tw)
        if self._path:
            with Path(self._path).open("a") as listed:
                for nodeid, report in flaky.items():
                    listed.write(f"FLAKY {nodeid}\n{report.longreprtext}\n")


class MissingSources:
    """Says which packages' own tests did not run because their source is missing: conformance/sources.py."""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for report in terminalreporter.stats.get("skipped", []):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            if "only in its source distribution" in reason:
                terminalreporter.write_line(reason.removeprefix("Skipped: "), yellow=True)


class LeftThreads:
    """Ends the process soon after the run even if a failed test left a thread running."""

    def __init__(self) -> None:
        self._code = 0

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._code = int(exitstatus)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        watchdog = threading.Timer(ENDING, self._leave)
        watchdog.daemon = True
        watchdog.start()

    def _leave(self) -> None:
        threads = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
        stuck = [thread.name for thread in threads if not thread.daemon]
        sys.stderr.write(f"Left behind: the threads {', '.join(stuck)}.\n")
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(self._code)
