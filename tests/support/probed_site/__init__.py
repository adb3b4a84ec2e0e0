"""An app whose handlers, tasks and waiting callers write a line to a file for each item they get.

The lines are in a file, not in Redis: they are complete even while no server responds.
"""

from __future__ import annotations

import json
import os
import time

from django_redis_messaging import Event


def record(role: str, item: object) -> None:
    """Append a line: when (monotonic, the same clock in all processes), who, and what."""
    line = json.dumps([time.monotonic(), role, item]) + "\n"
    file = os.open(os.environ["PROBE_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def consume(event: Event) -> None:
    """The handler of `consume_broadcast`."""
    record("consume_broadcast", event.payload)
