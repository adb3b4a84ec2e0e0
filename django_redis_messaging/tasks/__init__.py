"""The Redis backend of Django's Tasks framework.

TASKS = {"default": {"BACKEND": "django_redis_messaging.tasks.RedisBackend", "QUEUES": ["default"]}}
"""

from .backend import RedisBackend, await_for_result, wait_for_result
from .schedules import periodic
from .task import RedisTask, task

__all__ = ["RedisBackend", "RedisTask", "await_for_result", "periodic", "task", "wait_for_result"]
