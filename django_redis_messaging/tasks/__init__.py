"""The Redis backend of Django's Tasks framework.

TASKS = {"default": {"BACKEND": "django_redis_messaging.tasks.RedisBackend", "QUEUES": ["default"]}}
"""

from ..services.jobs.load import QueueLoad
from .backend import RedisBackend, await_for_result, wait_for_result
from .batches import TaskBatch
from .schedules import ScheduleInfo, Schedules, periodic
from .task import RedisTask, task

__all__ = [
    "QueueLoad",
    "RedisBackend",
    "RedisTask",
    "ScheduleInfo",
    "Schedules",
    "TaskBatch",
    "await_for_result",
    "periodic",
    "task",
    "wait_for_result",
]
