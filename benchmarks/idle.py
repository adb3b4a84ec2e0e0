"""Measures idle processes: processor time and commands of a worker, a poller and a listener.

uv run python -m benchmarks.idle
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from .harness import driver, server, table

MANAGE = Path(__file__).parents[1] / "testproject" / "manage.py"
#: commands of testproject, whose only handler is a timer handler
MEASURED = {name: [str(MANAGE), name] for name in ("run_worker", "run_poller", "run_listener")}
#: run_listener with a handler of key events in addition
KEY_EVENTS = """
import os
import sys
import django
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
django.setup()
from django.core.management import execute_from_command_line
from django_redis_messaging import on_key_event
on_key_event("session:*", events={"expired"})(print)
execute_from_command_line(["manage.py", "run_listener", "--configure", *sys.argv[1:]])
"""
MEASURED["run_listener with key events"] = ["-c", KEY_EVENTS]
#: seconds until a started process is idle
STARTUP = 3.0


def processor_seconds(process: int) -> float:
    """Return the processor time that a process has used so far."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def count_commands(seconds: float) -> int:
    """Count the commands that all clients send in this time. A script counts once."""
    with driver().monitor() as monitor:
        time.sleep(seconds)
        count = 0
        while monitor.connection.can_read(0):
            count += monitor.next_command()["client_type"] != "lua"
    return count


def idle(name: str, url: str, seconds: float) -> list[str]:
    """Measure one idle process. Returns a row of the table."""
    process = subprocess.Popen(
        [sys.executable, *MEASURED[name], "--verbosity", "0"],
        cwd=MANAGE.parent,
        env={**os.environ, "REDIS_URL": url},
    )
    try:
        time.sleep(STARTUP)
        before = processor_seconds(process.pid)
        commands = count_commands(seconds) / seconds
        used = (processor_seconds(process.pid) - before) / seconds
        if process.poll() is not None:
            raise RuntimeError(f"{name} has ended: see its output.")
    finally:
        process.terminate()
        process.wait()
    return [name, f"{100 * used:.2f} %", f"{commands:.1f}"]


def main(seconds: float) -> None:
    with server() as running:
        rows = [idle(name, running.url, seconds) for name in MEASURED]
    print(table([["", "of a processor", "commands/s"], *rows]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    main(parser.parse_args().seconds)
