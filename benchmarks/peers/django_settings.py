"""Settings of the site whose worker is measured."""

import os

from . import MODULE, URL

SECRET_KEY = "benchmark"  # noqa: S105
USE_TZ = True
INSTALLED_APPS = ["django_redis_messaging"]
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ[URL]},
}
TASKS = {
    "default": {
        "BACKEND": "django_redis_messaging.tasks.RedisBackend",
        "OPTIONS": {"TASK_MODULES": [os.environ.get(MODULE, "benchmarks.peers.ours")]},
    }
}
# the other queues log only failures, too
LOGGING = {
    "version": 1,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"django.tasks": {"level": "WARNING", "handlers": ["console"], "propagate": False}},
}
