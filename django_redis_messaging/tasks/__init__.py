"""The Redis backend of Django's Tasks framework.

TASKS = {"default": {"BACKEND": "django_redis_messaging.tasks.RedisBackend", "QUEUES": ["default"]}}
"""

from ..services.jobs.load import QueueLoad
from .backend import RedisBackend, await_for_result, wait_for_result
from .batches import TaskBatch
from .retries import Retry, retry
from .schedules import ScheduleInfo, Schedules, periodic
from .task import BoundTask, RedisTask, chain, task

__all__ = [
    "BoundTask",
    "QueueLoad",
    "RedisBackend",
    "RedisTask",
    "Retry",
    "ScheduleInfo",
    "Schedules",
    "TaskBatch",
    "await_for_result",
    "chain",
    "periodic",
    "retry",
    "task",
    "wait_for_result",
]
