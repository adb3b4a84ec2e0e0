"""Types of tasks at run time, where they are no part of a task; type checkers check `typed_user_code.py`."""

from __future__ import annotations

import pytest

from django_redis_messaging.tasks import RedisTask
from django_redis_messaging.tasks.task import RedisTaskResult

from ..support.workers import burst
from . import typed_user_code

pytestmark = [pytest.mark.one_server, pytest.mark.versions]


def test_typed_tasks_are_tasks() -> None:
    called = typed_user_code.add
    assert type(called) is RedisTask and not hasattr(called, "__dict__")
    result = called.enqueue(1, 2)
    burst()
    result.refresh()
    assert result.return_value == called.call(1, 2) == 3


def test_annotations_can_be_evaluated() -> None:
    assert RedisTask[[int, str], int].__origin__ is RedisTask
    assert RedisTaskResult[int].__args__ == (int,)
