"""What an attempt leaves in its thread is not seen by the next one."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from asgiref.local import Local
from django.core.cache import caches
from django.urls import get_script_prefix, get_urlconf, set_script_prefix, set_urlconf
from django.utils import timezone, translation

from django_redis_messaging.tasks import task
from django_redis_messaging.tasks.compat import task_backends, task_started

from ..support.workers import burst, ended
from . import jobs

pytestmark = pytest.mark.one_server

variable: ContextVar[str] = ContextVar("variable", default="clean")
local = Local()


@pytest.fixture(autouse=True)
def reset_jobs() -> Iterator[None]:
    jobs.notes.clear()
    yield


def change_state(**_: object) -> None:
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    decimal.getcontext().prec = 3
    set_urlconf("tests.other_urls")
    set_script_prefix("/other/")
    variable.set("dirty")
    local.value = "dirty"


def describe_state() -> list[Any]:
    return [
        translation.get_language(),
        timezone.get_current_timezone_name(),
        decimal.getcontext().prec,
        get_urlconf(),
        get_script_prefix(),
        variable.get(),
        getattr(local, "value", "clean"),
    ]


CLEAN = ["en-us", "UTC", 28, None, "/", "clean", "clean"]


@task
def change() -> None:
    change_state()


@task
def change_and_fail() -> None:
    change_state()
    raise ValueError("after a change")


@task
async def async_change() -> None:
    change_state()


@task
def describe() -> list[Any]:
    return describe_state()


@task
async def async_describe() -> list[Any]:
    return describe_state()


@task
def note_backends() -> None:
    jobs.notes.append((caches["messaging"], task_backends["default"]))


@pytest.mark.parametrize("describing", [describe, async_describe])
@pytest.mark.parametrize("changing", [change, change_and_fail, async_change])
def test_the_next_attempt_is_not_affected(changing: Any, describing: Any) -> None:
    changing.enqueue()
    result = describing.enqueue()
    burst()
    assert ended(result).return_value == CLEAN


def test_changes_of_receivers_affect_their_attempt_only() -> None:
    def receive(task_result: Any, **_: object) -> None:
        if task_result.args == [1]:
            change_state()

    task_started.connect(receive)
    try:
        changed, clean = (describe_with.enqueue(number) for number in (1, 2))
        burst()
    finally:
        task_started.disconnect(receive)
    assert ended(changed).return_value[0] == "de"
    assert ended(clean).return_value == CLEAN


@task
def describe_with(_: int) -> list[Any]:
    return describe_state()


def test_attempts_share_the_backends_of_their_thread() -> None:
    for _ in range(2):
        note_backends.enqueue()
    burst()
    first, second = jobs.notes
    assert [one is other for one, other in zip(first, second, strict=True)] == [True, True]
