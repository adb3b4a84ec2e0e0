"""A process whose threads and tasks wait for jobs and events, as the code of a site does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from threading import Thread

import django

from . import record

#: seconds that a call waits
WAIT = 5.0


def pop() -> None:
    """Wait for jobs in a thread."""
    from django_redis_messaging import DelayQueue, OutcomeUnknown, Unavailable

    queue = DelayQueue("waited")
    while True:
        try:
            for job in queue.pop(10, lease=2, wait=WAIT):
                record("pop", job.data)
                queue.ack(job)
        except (Unavailable, OutcomeUnknown) as error:
            record("pop failed", type(error).__name__)


async def apop() -> None:
    """Wait for jobs in an event loop."""
    from django_redis_messaging import DelayQueue, OutcomeUnknown, Unavailable

    queue = DelayQueue("awaited")
    while True:
        try:
            for job in await queue.apop(10, lease=2, wait=WAIT):
                record("apop", job.data)
                await queue.aack(job)
        except (Unavailable, OutcomeUnknown) as error:
            record("apop failed", type(error).__name__)


async def consume() -> None:
    """Wait for events in an event loop."""
    from django_redis_messaging import Broadcast

    await Broadcast("news").aconsume(lambda event: record("aconsume", event.payload))


async def gather(*functions: Callable[[], object]) -> None:
    await asyncio.gather(*(function() for function in functions))  # type: ignore[arg-type]


if __name__ == "__main__":
    django.setup()
    Thread(target=pop, daemon=True).start()
    sys.stdout.write("Waiting.\n")
    sys.stdout.flush()
    asyncio.run(gather(apop, consume))
