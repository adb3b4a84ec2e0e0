"""What the tasks of all queues do: note in shared memory when they ran.

The memory is a file of the process that measures. A note takes less than a microsecond, so the rates are
those of the queues.
"""

from __future__ import annotations

import mmap
import os
from time import monotonic, thread_time
from typing import NoReturn

from . import FILE, FORM, RESULTS, SIZE, SLOTS, URL

#: seconds of processor time that the task `cpu` takes
WORK = 0.001

with open(os.environ[FILE], "r+b") as _file:
    _notes = memoryview(mmap.mmap(_file.fileno(), SIZE))
#: of each task, when it ran (monotonic); 0 if it has not
times = _notes[: SLOTS * 8].cast("d")
#: of each task, the process that ran it
processes = _notes[SLOTS * 8 : SLOTS * 12].cast("I")
#: of each task, how often it ran
runs = _notes[SLOTS * 12 :].cast("I")

url = os.environ[URL]
stores_results = bool(os.environ[RESULTS])
form = os.environ[FORM]


def note(number: int) -> int:
    """Note that a task runs. Returns its number, because some queues don't store None."""
    times[number] = monotonic()
    processes[number] = os.getpid()
    runs[number] += 1
    return number


def noop(number: int) -> int:
    return note(number)


async def anoop(number: int) -> int:
    return note(number)


def cpu(number: int) -> int:
    ends = thread_time() + WORK
    while thread_time() < ends:
        pass
    return note(number)


def fail(number: int) -> NoReturn:
    note(number)
    raise ValueError("This task always fails.")


TASKS = {"noop": noop, "anoop": anoop, "cpu": cpu, "fail": fail}
SYNC = {kind: function for kind, function in TASKS.items() if kind != "anoop"}
