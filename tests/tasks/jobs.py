"""Tasks that the tests enqueue."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection

from django_redis_messaging import Lock, Unavailable, conf
from django_redis_messaging.core.operations import perform
from django_redis_messaging.services.jobs.keys import JobKeys
from django_redis_messaging.tasks import TaskBatch, task
from django_redis_messaging.tasks.compat import TaskResult

from ..support.server import server


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


@task
def return_object() -> object:
    return object()


@task
def sleep(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.01)


@task(timeout=0.2, max_attempts=3, retry_on=(LookupError,))
async def async_sleep_with_timeout(seconds: float) -> None:
    await asyncio.sleep(seconds)


@task
async def async_sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


@task
def kill_worker_after(marker: str, lines: int) -> None:
    """Kill the worker when a file has this many lines."""
    while len(Path(marker).read_text().splitlines()) < lines:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def no_task() -> None:
    raise AssertionError("only tasks are called")


def raise_unavailable(*_: object, **__: object) -> Any:
    """In place of an operation of Redis."""
    raise Unavailable("no Redis")


def move(result: TaskResult, module: str) -> None:
    """Let a stored call name the task of another module."""
    jobs = JobKeys(conf.prefix(), "tasks", "default").jobs
    stored = server().hget(jobs, result.id)
    server().hset(jobs, result.id, stored.replace(__name__.encode(), module.encode()))


#: values recorded by the tasks of this process
notes: list[Any] = []
#: waiting tasks of this process return when this is set
go = threading.Event()
#: three tasks must run at the same time to pass
meeting = threading.Barrier(3)


@task
def note(value: Any) -> None:
    notes.append(value)


@task(takes_context=True)
def note_attempt(context: Any) -> None:
    notes.append(context.task_result.id)


@task(takes_context=True)
def note_occurrence(context: Any) -> None:
    notes.append(context.task_result.task.run_after)


@task
def note_and_enqueue(value: Any, queue: str) -> None:
    notes.append(value)
    note.using(queue_name=queue).enqueue(f"by {value}")


@task
def wait() -> str:
    notes.append("waits")
    if not go.wait(30):
        raise TimeoutError("go was not set in time")
    return "went"


@task
def wait_and_fail() -> None:
    wait.func()
    raise ValueError("late")


@task(takes_context=True)
def wait_for_loss(context: Any) -> str:
    notes.append(context.lost)
    deadline = time.monotonic() + 30
    while not context.lost and time.monotonic() < deadline:
        time.sleep(0.01)
    notes.append(context.lost)
    return "late"


@task
async def loop_and_meet() -> list[int]:
    await asyncio.to_thread(meeting.wait, 10)
    return [id(asyncio.get_running_loop()), threading.get_ident()]


@task
async def async_wait_a_moment() -> None:
    await asyncio.sleep(0.06)


@task
async def wait_forever() -> None:
    notes.append("waits")
    await asyncio.Event().wait()


def die_at(point: str, result: Any) -> None:
    """Kill this process in the first attempt of a `crash` task with this point."""
    if result.task.func is crash.func and result.args[0] == point and result.attempts == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@task(takes_context=True)
def crash(context: Any, point: str) -> int:
    die_at("in the callback", context.task_result)
    return os.getpid()


@task
def pid_after(marker: str, seconds: float) -> int:
    """Write the process ID to a file at the start, then sleep."""
    with open(marker, "a", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(seconds)
    return os.getpid()


@task
async def async_raise(name: str) -> None:
    raise {"KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit}[name](name)


@task
async def raise_in_child(name: str) -> None:
    await asyncio.create_task(async_raise.func(name))


@task
async def stop_event_loop() -> None:
    """Stop the loop of the worker, then use it."""
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)


@task
async def break_event_loop(*_: object) -> None:
    """Make the next iteration of the worker's loop fail."""

    def fail_unexpectedly() -> None:
        raise RuntimeError("the selector failed")

    asyncio.get_running_loop()._run_once = fail_unexpectedly
    await asyncio.Event().wait()


@task
async def note_connection() -> None:
    await sync_to_async(lambda: notes.append(_open_connection()))()


def _open_connection() -> Any:
    connection.ensure_connection()
    return connection.connection


@task
async def break_connection() -> None:
    """Leave a connection that its server has closed."""
    await sync_to_async(lambda: _open_connection().close())()


@task
async def query() -> int:
    return await sync_to_async(_query)()


def _query() -> int:
    with connection.cursor() as cursor:
        [value] = cursor.execute("SELECT 7").fetchone()
    return int(value)


@task
async def query_while_others_end() -> int:
    """Use one cursor before and after another task has ended."""
    cursor = await sync_to_async(lambda: connection.cursor().execute("SELECT 7 UNION SELECT 8"))()
    notes.append("waits")
    await asyncio.to_thread(go.wait, 30)
    return len(await sync_to_async(cursor.fetchall)())


@task
async def close_connection() -> None:
    await sync_to_async(lambda: connection.close())()


@task
async def wait_in_sync_call() -> None:
    await sync_to_async(go.wait)(30)


@task
async def sleep_in_thread(marker: str, seconds: float) -> None:
    """Write the process ID to a file, then sleep in a thread that can't be interrupted."""
    await asyncio.to_thread(pid_after.func, marker, seconds)


@task
def note_timeout(seconds: float) -> None:
    """Sleep, and note after how many seconds that ended."""
    began = time.monotonic()
    try:
        sleep.func(seconds)
    finally:
        notes.append(time.monotonic() - began)


@task
async def async_note_timeout(seconds: float) -> None:
    began = time.monotonic()
    try:
        await asyncio.sleep(seconds)
    finally:
        notes.append(time.monotonic() - began)


@task
def fail_twofold() -> None:
    raise ValueError(ValueError("inside"))


@task
def return_tuple() -> Any:
    return (1, {"inner": (b"bytes", [])})


@task(takes_context=True)
def describe_context(context: Any, greeting: str, *, to: str = "all") -> Any:
    result = context.task_result
    return [result.id, context.attempt, result.status, result.worker_ids, greeting, to]


def take_no_context(other: Any) -> None: ...


@task
def raise_by_name(name: str) -> None:
    kinds = KeyError, ValueError, SystemExit, KeyboardInterrupt
    raise {kind.__name__: kind for kind in kinds}[name](name)


class Order:
    class DoesNotExist(Exception):
        """As of a model: its qualified name has a dot."""


@task
def raise_nested_error() -> None:
    raise Order.DoesNotExist


@task(max_attempts=3, retry_on=(LookupError,))
def retry_lookups(name: str) -> None:
    raise_by_name.func(name)


@task(takes_context=True, max_attempts=3)
def succeed_on_third_attempt(context: Any) -> int:
    if context.attempt < 3:
        raise ValueError(f"attempt {context.attempt}")
    return int(context.attempt)


@task(unique=True)
def unique_echo(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


@task(unique=True)
def unique_report(year: int, options: Any = None) -> None: ...


@task
def return_large(size: int) -> str:
    return "x" * size


@task(lock="order:{order_id}")
def locked_note(order_id: int, value: Any = None) -> None:
    notes.append(value)


@task(lock="order:{order_id}", takes_context=True)
def locked_state(context: Any, order_id: int) -> list[Any]:
    """Whether the lock can be acquired while the task runs; the fence of the task."""
    return [Lock(f"order:{order_id}").acquire(blocking=False), context.lock_fence]


@task(lock="order:{order_id}", takes_context=True)
async def async_locked_state(context: Any, order_id: int) -> list[Any]:
    return await asyncio.to_thread(locked_state.func, context, order_id)


@task(lock="order:7")
def locked_loss() -> str:
    """Run until the lease of its lock is lost."""
    server().delete(Lock("order:7").key)
    return "done"


@task(concurrency=1, concurrency_key="customer:{customer}")
def limited_note(customer: str) -> None:
    notes.append(customer)


@task(rate="2/h", rate_key="c {customer}")
def rated_note(customer: str, number: int = 0) -> None:
    notes.append((customer, number))


@task
def short_sleep() -> None:
    time.sleep(0.005)


@task(lock="order:{order_id}", concurrency=2, concurrency_key="orders")
def enter(order_id: int, number: int) -> None:
    """Count the calls that run, in Redis; note the largest counts."""
    client = server()
    running = f"{conf.prefix()}:running"
    for name in (f"order {order_id}", "orders"):
        largest = client.hincrby(running, name, 1)
        notes.append((name, largest))
    time.sleep(0.01)
    for name in (f"order {order_id}", "orders"):
        client.hincrby(running, name, -1)
    client.rpush(f"{conf.prefix()}:entered", number)


@task(lock="order:7", takes_context=True)
def sleep_in_first_attempt(context: Any, marker: str, seconds: float) -> int:
    """Write the process ID to a file; in the first attempt, sleep then."""
    return int(pid_after.func(marker, seconds if context.attempt == 1 else 0))


@task(then=note)
def double(number: int) -> int:
    return 2 * number


@task
def multiply(number: int, by: int) -> int:
    return number * by


@task(unique=lambda value: f"value {value}")
def unique_note(value: Any) -> None:
    notes.append(value)


@task(takes_context=True)
def purge_queue(context: Any) -> str:
    """Delete all jobs of the queue, this one too."""
    backend = context.task_result.task.get_backend()
    perform(backend.using, backend.engine.purge(context.task_result.task.queue_name))
    return "purged"


@task
def note_values(batch_id: str, values: Any) -> None:
    notes.append((batch_id, values))


@task(takes_context=True)
async def async_note_values(context: Any, batch_id: str, *, values: Any) -> None:
    notes.append((batch_id, values))


@task(takes_context=True, max_attempts=3)
def add_to_batch(context: Any, *values: Any) -> None:
    """Add calls to the batch of the call, which is done when these have ended; fail in the first attempt."""
    with context.batch as batch:
        for value in values:
            batch.add(note, value)
    if context.attempt == 1:
        raise ValueError("after it was added")


@task(takes_context=True)
def note_batch(context: Any, *_: str) -> None:
    notes.append(context.batch and context.batch.id)


@task(takes_context=True)
def cancel_batch(context: Any, batch_id: str) -> None:
    notes.append(TaskBatch.get(batch_id).cancel())


@task
def process_id() -> int:
    return os.getpid()


@task
async def async_process_id() -> int:
    return os.getpid()


@task(takes_context=True)
def attempt_number(context: Any, marker: str, seconds: float) -> int:
    """Write the process ID to a file, sleep, and return the number of the attempt."""
    pid_after.func(marker, seconds)
    return int(context.attempt)


@task
def end_process(marker: str, how: str = "exit") -> None:
    """End the process once another task runs in it, by a file with two lines."""
    pid_after.func(marker, 0)
    while len(Path(marker).read_text(encoding="ascii").splitlines()) < 2:
        time.sleep(0.01)
    end_at_once(how)


def end_at_once(how: str) -> None:
    """End this process."""
    if how == "exit":
        os._exit(3)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    ctypes.string_at(0)


@task
def end_process_at_once(how: str) -> None:
    end_at_once(how)


@task(max_attempts=1)
def end_process_once(marker: str) -> None:
    pid_after.func(marker, 0)
    os._exit(3)


@task
def hold_gil(marker: str, seconds: int) -> int:
    """Keep all other threads of the process from running, as a long call of C code does."""
    pid_after.func(marker, 0)
    ctypes.PyDLL(None).sleep(seconds)
    return os.getpid()


@task(timeout=1)
def hold_gil_with_timeout(marker: str, seconds: int) -> int:
    return int(hold_gil.func(marker, seconds))


@task(timeout=1, max_attempts=2)
def hold_gil_in_first_attempt(marker: str, seconds: int) -> int:
    """Hold it if the file has no line yet."""
    return int(hold_gil.func(marker, 0 if Path(marker).exists() else seconds))


@task
def grow(mebibytes: int) -> int:
    """Use more memory from now on."""
    notes.append(b"x" * (mebibytes * 2**20))
    return os.getpid()


@task
def end_program() -> int:
    """Start a program and terminate it; returns its exit code."""
    program = subprocess.Popen(["sleep", "600"])
    program.terminate()
    return program.wait(30)


@task
def sleep_a_moment(value: Any) -> Any:
    time.sleep(0.005)
    return value
