"""The Redis backend of Django's Tasks framework.

TASKS = {"default": {"BACKEND": "django_redis_messaging.tasks.RedisBackend", "QUEUES": ["default"]}}
"""

from .backend import RedisBackend
from .task import RedisTask, task

__all__ = ["RedisBackend", "RedisTask", "task"]
