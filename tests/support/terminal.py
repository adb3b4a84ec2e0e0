"""Commands in this process, and in another one with a terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.conf import settings as django_settings
from django.core.management import call_command

from django_redis_messaging import conf
from tests.support.processes import PATIENCE, ROOT


def output_of(command: str, *arguments: str) -> tuple[str, str]:
    """What a command writes to standard output and standard error. Signal handlers are restored."""
    out, errors = io.StringIO(), io.StringIO()
    old = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        call_command(command, *arguments, stdout=out, stderr=errors)
    finally:
        for number, handler in old:
            signal.signal(number, handler)
    return out.getvalue(), errors.getvalue()


class Terminal:
    """A command whose standard error is a terminal."""

    def __init__(self, process: subprocess.Popen[str], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self.text = ""

    def read_until(self, shown: Callable[[str], object]) -> None:
        """Read what is shown until a condition of the text is true."""
        deadline = time.monotonic() + PATIENCE
        while not shown(self.text):
            assert time.monotonic() < deadline, self.text[-500:]
            self._read()

    def end(self) -> tuple[int, str]:
        """Read the rest; returns the exit code and what was written to standard output."""
        out, _ = self.process.communicate(timeout=PATIENCE)
        while self._read():
            pass
        return self.process.returncode, out

    def _read(self) -> bool:
        ready, _, _ = select.select([self._descriptor], [], [], 0.05)
        try:
            read = os.read(self._descriptor, 4096) if ready else b""
        except OSError:  # the last process has closed the terminal
            return False
        self.text += read.decode()
        return bool(read)


@contextmanager
def on_terminal(*arguments: str, path: str = "", **environment: str) -> Iterator[Terminal]:
    """Start a command with a terminal of 100 columns as standard error; settings: process_settings.py."""
    outer, inner = pty.openpty()
    termios.tcsetwinsize(inner, (24, 100))
    process = subprocess.Popen(
        [sys.executable, "-m", "django", *arguments],
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.support.process_settings",
            "MESSAGING_URL": django_settings.CACHES["messaging"]["LOCATION"],
            "MESSAGING_PREFIX": conf.prefix(),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), path, os.environ.get("PYTHONPATH")))),
            **environment,
        },
        cwd=ROOT,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=inner, text=True,
    )  # fmt: skip
    os.close(inner)
    try:
        yield Terminal(process, outer)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
        os.close(outer)
