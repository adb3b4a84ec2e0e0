"""Functions that other processes run with a batch of tasks."""

from __future__ import annotations

from typing import Any

from .child_processes import Stage, serve


def enqueue_batch(stage: Stage, tasks: dict[str, Any], log: str, batch_id: str, size: int) -> None:
    """Enqueue a batch of numbered calls, also if a process that was killed has enqueued some of them."""
    serve(stage, log, TASKS=tasks)
    from django_redis_messaging.tasks import TaskBatch
    from tests.tasks import jobs

    with TaskBatch(batch_id=batch_id, on_done=jobs.echo, on_succeeded=jobs.echo) as batch:
        for number in range(size):
            batch.add(jobs.echo, number)
