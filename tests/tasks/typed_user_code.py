"""Tasks as a site writes them: type checkers know the arguments and the return values of tasks.

mypy and pyright check this file with the package. Each comment `type: ignore` marks a mistake that both have
to report: an unnecessary one is an error.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import assert_type

from django_redis_messaging.tasks import chain, periodic, task, wait_for_result
from django_redis_messaging.tasks.compat import TaskContext


@task
def add(number: int, other: int) -> int:
    return number + other


@task(max_attempts=3)
async def greet(name: str, *, loud: bool = False) -> str:
    return name.upper() if loud else name


@task(takes_context=True)
def describe(context: TaskContext, text: str) -> list[str]:
    return [context.task_result.id, text]


@task(takes_context=True, timeout=5)
async def adescribe(context: TaskContext, text: str) -> list[str]:
    return [context.task_result.id, text]


@periodic(every=3600)
@task(unique=True)
def tidy_up(limit: int = 10) -> None: ...


def check_arguments() -> None:
    add.enqueue(1, other=2)
    add.enqueue(1, "x")  # type: ignore[arg-type]
    add.enqueue(1)  # type: ignore[call-arg]
    add.call(1, "x")  # type: ignore[arg-type]
    add.using(priority=7, max_attempts=2).enqueue(1, "x")  # type: ignore[arg-type]
    add.enqueue_on_commit().enqueue(1, "x")  # type: ignore[arg-type]
    greet.enqueue("ann", loud=True)
    greet.enqueue("ann", True)  # type: ignore[call-arg]
    describe.enqueue("text")
    describe.enqueue(7)  # type: ignore[arg-type]
    adescribe.enqueue(7)  # type: ignore[arg-type]
    tidy_up.enqueue(5)
    tidy_up.enqueue("all")  # type: ignore[arg-type]


async def check_async_arguments() -> None:
    await add.aenqueue(1, 2)
    await add.aenqueue(1, "x")  # type: ignore[arg-type]
    await greet.acall(7)  # type: ignore[arg-type]


def check_due_times() -> None:
    for due in (timedelta(minutes=5), datetime(2030, 1, 1, tzinfo=UTC)):
        result = add.using(run_after=due).enqueue(1, 2)
        result.reschedule(due)
        add.reschedule(result.id, due)
    add.using(run_after=300)  # type: ignore[arg-type]
    result.reschedule(300)  # type: ignore[arg-type]


def check_names_of_other_queues() -> None:
    add.apply_async((1, 2))  # type: ignore[attr-defined]
    add.enqueue(1, 2).get()  # type: ignore[attr-defined]


def check_results() -> None:
    result = add.enqueue(1, 2)
    assert_type(result.return_value, int)
    assert_type(wait_for_result(result).return_value, int)
    assert_type(add.get_result(result.id).return_value, int)
    assert_type(add.enqueue_many([((1, 2), {})])[0].return_value, int)
    assert_type(add.call(1, 2), int)
    assert_type(greet.enqueue("ann").return_value, str)
    assert_type(greet.using(delay=5).enqueue("ann").return_value, str)
    assert_type(describe.enqueue("text").return_value, list[str])
    assert_type(adescribe.enqueue("text").return_value, list[str])


async def check_async_results() -> None:
    assert_type((await add.aenqueue(1, 2)).return_value, int)
    assert_type((await greet.aenqueue("ann")).return_value, str)
    assert_type(await greet.acall("ann"), str)


def check_chains() -> None:
    steps = chain(greet, add.with_args(3), describe)
    assert_type(steps.enqueue("ann", loud=True).return_value, str)
    steps.enqueue(7)  # type: ignore[arg-type]
    add.with_args("x")  # type: ignore[arg-type]
    describe.with_args("more")  # type: ignore[call-arg]
