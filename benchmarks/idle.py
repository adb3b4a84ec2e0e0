"""What a worker, a poller and a listener cost while nothing is due: processor time and commands.

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
#: what is watched: a command of testproject, whose only handler is one of timers
WATCHED = {name: [str(MANAGE), name] for name in ("run_worker", "run_poller", "run_listener")}
#: run_listener again, with a handler of key events too
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
WATCHED["run_listener, key events too"] = ["-c", KEY_EVENTS]
#: seconds until a process has come to rest
SETTLING = 3.0


def processor_seconds(process: int) -> float:
    """What a process has used of the processors until now."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sent_in(seconds: float) -> int:
    """Commands that clients send in this time, whichever they are; a script counts once."""
    with driver().monitor() as monitor:
        time.sleep(seconds)
        count = 0
        while monitor.connection.can_read(0):
            count += monitor.next_command()["client_type"] != "lua"
    return count


def idle(name: str, url: str, seconds: float) -> list[str]:
    """One process, watched while it has nothing to do."""
    process = subprocess.Popen(
        [sys.executable, *WATCHED[name], "--verbosity", "0"],
        cwd=MANAGE.parent,
        env={**os.environ, "REDIS_URL": url},
    )
    try:
        time.sleep(SETTLING)
        before = processor_seconds(process.pid)
        asked = sent_in(seconds) / seconds
        used = (processor_seconds(process.pid) - before) / seconds
        if process.poll() is not None:
            raise RuntimeError(f"{name} has ended: see what it said.")
    finally:
        process.terminate()
        process.wait()
    return [name, f"{100 * used:.2f} %", f"{asked:.1f}"]


def main(seconds: float) -> None:
    with server() as running:
        rows = [idle(name, running.url, seconds) for name in WATCHED]
    print(table([["", "of a processor", "commands/s"], *rows]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    main(parser.parse_args().seconds)
