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
from typing import Any

from .harness import driver, server, table

COMMANDS = ("run_worker", "run_poller", "run_listener")
MANAGE = Path(__file__).parents[1] / "testproject" / "manage.py"
#: seconds until a process has come to rest
SETTLING = 3.0


def processor_seconds(process: int) -> float:
    """What a process has used of the processors until now."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sent(client: Any) -> int:
    """Commands that clients have sent."""
    return sum(
        stats["calls"]
        for name, stats in client.info("commandstats").items()
        if name in ("cmdstat_eval", "cmdstat_evalsha", "cmdstat_bzpopmin")
    )


def idle(command: str, url: str, seconds: float) -> list[str]:
    """One process, watched while it has nothing to do."""
    process = subprocess.Popen(
        [sys.executable, str(MANAGE), command, "--verbosity", "0"],
        env={**os.environ, "REDIS_URL": url},
    )
    try:
        time.sleep(SETTLING)
        before, commands = processor_seconds(process.pid), sent(driver())
        time.sleep(seconds)
        used = (processor_seconds(process.pid) - before) / seconds
        asked = (sent(driver()) - commands) / seconds
        if process.poll() is not None:
            raise RuntimeError(f"{command} has ended: see what it said.")
    finally:
        process.terminate()
        process.wait()
    return [command, f"{100 * used:.2f} %", f"{asked:.1f}"]


def main(seconds: float) -> None:
    with server() as running:
        rows = [idle(command, running.url, seconds) for command in COMMANDS]
    print(table([["", "of a processor", "commands/s"], *rows]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    main(parser.parse_args().seconds)
