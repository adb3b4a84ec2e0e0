"""Checks that the poller can enqueue the periodic tasks."""

from __future__ import annotations

from django.core.checks import CheckMessage, Error, Warning

from ..errors import MessagingError
from .periodic import discover
from .polling import never_enqueued, our_backends


def check_periodic_tasks() -> list[CheckMessage]:
    """Check the periodic tasks. If TASKS has a backend of this app, import `tasks.py` of all apps first."""
    try:
        if our_backends():
            discover()
    except MessagingError as error:
        return [
            Error(
                f"tasks.py of an installed app can't be imported: {error}",
                hint="Correct the schedule that @periodic is given, or install what it needs.",
                id="messaging.E010",
            )
        ]
    return [
        Warning(
            f"The periodic task {one.name} is never enqueued: its backend {one.task.backend!r} is not a "
            "RedisBackend.",
            hint=f"Define it with @task(backend=…) of a RedisBackend, or change TASKS[{one.task.backend!r}].",
            id="messaging.W013",
        )
        for one in never_enqueued()
    ]
