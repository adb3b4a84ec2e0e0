"""Other processes: management commands, started as `manage.py` starts them, commands whose output is read
while they run, and forked children."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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


class RunningCommand:
    """A command in a process group of its own; `output` is what it has printed so far."""

    #: seconds to wait for an output, or for the end
    patience = PATIENCE

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], directory: Path | None = None
    ) -> None:
        self._process = subprocess.Popen(
            arguments, cwd=directory, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.output += line

    def wait_until(self, is_printed: Callable[[str], bool]) -> None:
        """Wait until a condition of the output is true."""
        ends = time.monotonic() + self.patience
        while not is_printed(self.output):
            assert self._process.poll() is None and time.monotonic() < ends, self.output
            time.sleep(0.01)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal to the process group, as a terminal does; returns the exit code."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, how)
        return self.ended()

    def ended(self) -> int:
        """Wait until it has ended; returns the exit code."""
        code = self._process.wait(self.patience)
        self._reader.join()
        assert self._process.stdout
        self._process.stdout.close()
        return code


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
