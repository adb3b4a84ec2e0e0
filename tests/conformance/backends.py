"""Our backend with the features of Django's two backends that Django's tests use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django_redis_messaging.tasks import RedisBackend
from django_redis_messaging.tasks.compat import Task, TaskResult
from django_redis_messaging.tasks.worker import Limits, Worker
from tests.support.engines import tasks_of


class Dummy(RedisBackend):
    """A backend that lists the enqueued tasks and can clear them."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._ids: list[str] = []

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        result = super().enqueue(task, args, kwargs)
        self._ids.append(result.id)
        return result

    async def aenqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        result = await super().aenqueue(task, args, kwargs)
        self._ids.append(result.id)
        return result

    @property
    def results(self) -> list[TaskResult]:
        return [self.get_result(result_id) for result_id in self._ids]

    def clear(self) -> None:
        tasks_of(self).purge("default")
        self._ids.clear()


class Immediate(RedisBackend):
    """A backend whose worker finishes all tasks before enqueue() returns."""

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        result = super().enqueue(task, args, kwargs)
        self._work()
        result.refresh()
        return result

    async def aenqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        result = await super().aenqueue(task, args, kwargs)
        self._work()
        await result.arefresh()
        return result

    def _work(self) -> None:
        Worker(self, ["default"], Limits(concurrency=1, burst=True)).run()
