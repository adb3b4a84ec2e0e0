"""Tasks that the tests enqueue."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from django_redis_messaging.tasks import task


@task
def noop() -> None: ...


@task
def echo(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


@task
async def aecho(*args: Any, **kwargs: Any) -> Any:
    await asyncio.sleep(0)
    return [args, kwargs]


@task
def fail(text: str = "no") -> None:
    raise ValueError(text)


@task(max_attempts=3)
def fail_again(text: str = "no") -> None:
    raise ValueError(text)


@task(takes_context=True)
def tell(context: Any) -> Any:
    return [context.attempt, context.fence, context.lost]


@task
def return_object() -> object:
    return object()


@task
def sleep(seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(0.01)


@task
async def asleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


@task
def kill_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def no_task() -> None:
    raise AssertionError("only tasks are called")
