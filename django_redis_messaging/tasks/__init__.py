"""The Redis backend of Django's Tasks framework.

TASKS = {"default": {"BACKEND": "django_redis_messaging.tasks.RedisBackend", "QUEUES": ["default"]}}
"""

from .backend import RedisBackend
from .periodic import periodic
from .task import RedisTask, task
from .waiting import await_for_result, wait_for_result

__all__ = ["RedisBackend", "RedisTask", "await_for_result", "periodic", "task", "wait_for_result"]
