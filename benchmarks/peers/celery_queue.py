"""Celery: its prefork pool. Results are optional."""

from __future__ import annotations

from collections.abc import Iterable

from celery import Celery

from . import work

app = Celery("bench", broker=work.url, backend=work.url if work.stores_results else None)
app.conf.broker_connection_retry_on_startup = True
TASKS = {kind: app.task(function, name=kind) for kind, function in work.SYNC.items()}


def push(kind: str, numbers: Iterable[int]) -> None:
    if kind not in TASKS:
        raise NotImplementedError("no async tasks")
    for number in numbers:
        TASKS[kind].delay(number)


def command(processes: int) -> list[list[str]]:
    options = ["--pool", "prefork", "--concurrency", str(processes), "--loglevel", "WARNING"]
    return [["-m", "celery", "-A", f"{__name__}:app", "worker", *options]]
