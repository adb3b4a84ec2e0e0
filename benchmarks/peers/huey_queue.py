"""huey: a process for each worker, or four threads in each process."""

from __future__ import annotations

from collections.abc import Iterable

from huey import RedisHuey

from . import work

queue = RedisHuey("bench", url=work.url)
TASKS = {kind: queue.task()(function) for kind, function in work.SYNC.items()}
RUN = ["-m", "huey.bin.huey_consumer", f"{__name__}.queue", "-q"]


def push(kind: str, numbers: Iterable[int]) -> None:
    if kind not in TASKS:
        raise NotImplementedError("no async tasks")
    for number in numbers:
        TASKS[kind](number)


def command(processes: int) -> list[list[str]]:
    if work.form == "threads":
        return [[*RUN, "-k", "thread", "-w", "4"]] * processes
    return [[*RUN, "-k", "process", "-w", str(processes)]]
