"""Tasks that the tests enqueue."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
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


@task(timeout=0.2, max_attempts=3, retry_on=(LookupError,))
async def asleep_briefly(seconds: float) -> None:
    await asyncio.sleep(seconds)


@task
async def asleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


@task
def kill_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def no_task() -> None:
    raise AssertionError("only tasks are called")


#: what tasks of this process have noted
notes: list[Any] = []
#: tasks of this process that wait begin to end when it is set
go = threading.Event()
#: how many meet
meeting = threading.Barrier(3)


@task
def note(value: Any) -> None:
    notes.append(value)


@task(takes_context=True)
def note_attempt(context: Any) -> None:
    notes.append(context.task_result.id)


@task
def note_and_enqueue(value: Any, queue: str) -> None:
    notes.append(value)
    note.using(queue_name=queue).enqueue(f"by {value}")


@task
def wait() -> str:
    notes.append("waits")
    if not go.wait(30):
        raise TimeoutError("nobody said go")
    return "went"


@task(takes_context=True)
def wait_for_loss(context: Any) -> str:
    notes.append(context.lost)
    ends = time.monotonic() + 30
    while not context.lost and time.monotonic() < ends:
        time.sleep(0.01)
    notes.append(context.lost)
    return "late"


@task
def meet() -> None:
    meeting.wait(10)


@task
async def where() -> list[int]:
    await asyncio.sleep(0.05)
    return [id(asyncio.get_running_loop()), threading.get_ident()]


@task
async def wait_for_ever() -> None:
    notes.append("waits")
    await asyncio.Event().wait()


def die_at(point: str, result: Any) -> None:
    """End this process as a crash would, in the first attempt at a task that asks for it."""
    if result.task.func is crash.func and result.args[0] == point and result.attempts == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@task(takes_context=True)
def crash(context: Any, point: str) -> int:
    die_at("in the callback", context.task_result)
    return os.getpid()


@task
def pid_after(marker: str, seconds: float) -> int:
    """Say by a file that it has begun."""
    with open(marker, "a", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(seconds)
    return os.getpid()


@task
def interrupt() -> None:
    raise KeyboardInterrupt("stop")


@task
def leave() -> None:
    raise SystemExit("bye")


@task
def fail_twofold() -> None:
    raise ValueError(ValueError("inside"))


@task
def return_tuple() -> Any:
    return (1, {"inner": (b"bytes", [])})


@task(takes_context=True)
def introduce(context: Any, greeting: str, *, to: str = "all") -> Any:
    result = context.task_result
    return [result.id, context.attempt, result.status, result.worker_ids, greeting, to]


def take_no_context(other: Any) -> None: ...


@task
def raise_by_name(name: str) -> None:
    raise {"KeyError": KeyError, "ValueError": ValueError, "SystemExit": SystemExit}[name](name)


@task(max_attempts=3, retry_on=(LookupError,))
def retry_lookups(name: str) -> None:
    raise_by_name.func(name)


@task(takes_context=True, max_attempts=3)
def third_time(context: Any) -> int:
    if context.attempt < 3:
        raise ValueError(f"attempt {context.attempt}")
    return int(context.attempt)


@task(unique=True)
def alone(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


@task(unique=True)
def alone_elsewhere(*args: Any) -> None: ...


@task(unique="everybody")
def one_for_all(number: int) -> int:
    return number


@task(unique=lambda order, **_: f"order {order}")
def one_an_order(order: int, *, note: str = "") -> str:
    return note


@task(unique=True)
def fail_alone() -> None:
    raise ValueError("alone")


@task
def return_large(size: int) -> str:
    return "x" * size
