"""Other processes: management commands, started as `manage.py` starts them, and forked children."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from django.conf import settings as django_settings

from django_redis_messaging import conf
from django_redis_messaging.core import testruns

Process = subprocess.Popen[str]
Start = Callable[..., Process]

#: seconds to wait for a process, also on a busy machine
PATIENCE = 60.0
ROOT = Path(__file__).parents[2]


@contextmanager
def processes() -> Iterator[Start]:
    """Start Python with these arguments and environment variables, and kill the remaining processes at the
    end."""
    started: list[Process] = []

    def start(*arguments: str, **environment: str) -> Process:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, **environment},
            cwd=ROOT,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@contextmanager
def commands() -> Iterator[Start]:
    """Start commands on this test's server (or `url`) with its prefix; settings: process_settings.py.

    `apps` are additional apps in `path`.
    """
    with processes() as run:

        def start(*arguments: str, url: str = "", apps: str = "", path: Path = ROOT) -> Process:
            return run(
                "-m", "django", *arguments,
                DJANGO_SETTINGS_MODULE="tests.support.process_settings",
                MESSAGING_URL=url or django_settings.CACHES["messaging"]["LOCATION"],
                MESSAGING_PREFIX=conf.prefix(),
                MESSAGING_APPS=apps,
                PYTHONPATH=os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH")))),
            )  # fmt: skip

        yield start


def outside_of_tests() -> dict[str, str]:
    """Environment variables of a process that takes no part in this run of tests."""
    ours = ("PYTEST_", "COV_", "COVERAGE_", "DJANGO_")
    return {
        name: value
        for name, value in os.environ.items()
        if name != testruns.VARIABLE and not name.startswith(ours)
    }


@contextmanager
def forked(work: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
    """Run `work` in a forked child; yields a function that waits for it and returns whether it succeeded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests may still be ending
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asyncio._set_running_loop(None)
            code = 0 if work() else 2
        finally:
            os._exit(code)
    yield lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def children_of(pid: int) -> list[int]:
    """The process IDs of the children of a process."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, IndexError):
            # the name in parentheses may contain anything
            fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            if folder.name.isdigit() and int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(folder.name))
    return found


def task_processes(worker: int) -> list[int]:
    """The child processes of a worker: those that its fork server has forked."""
    return [child for server in children_of(worker) for child in children_of(server)]


def proportional_memory(pid: int) -> float:
    """The memory of a process, with its share of the memory that it shares: MiB."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    [line] = [line for line in rollup.splitlines() if line.startswith("Pss:")]
    return int(line.split()[1]) / 1024


def is_running(pid: int) -> bool:
    """Whether a process exists, and is no zombie."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    return False
