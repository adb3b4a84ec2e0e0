"""Settings for processes that a test starts: the server and prefix come from the environment."""

import os

from tests.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, *os.environ.get("MESSAGING_APPS", "").split()]  # noqa: F405
CACHES = {
    **CACHES,  # noqa: F405
    "messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["MESSAGING_URL"]},
}
REDIS_MESSAGING = {"PREFIX": os.environ["MESSAGING_PREFIX"], "COMMAND_DEADLINE": 1}
