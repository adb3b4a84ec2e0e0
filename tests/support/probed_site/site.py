"""Settings of the processes: the CACHES entry and the prefix come from the environment."""

import json
import os

from tests.settings import *  # noqa: F403

INSTALLED_APPS = [
    *(app for app in INSTALLED_APPS if app != "django.contrib.admin"),  # noqa: F405
    "tests.support.probed_site",
]
CACHES = {**CACHES, "messaging": json.loads(os.environ["PROBE_CACHE"])}  # noqa: F405
REDIS_MESSAGING = {
    "PREFIX": os.environ["PROBE_PREFIX"],
    "COMMAND_DEADLINE": float(os.environ["PROBE_DEADLINE"]),
    "IDENTITY": "tests.support.probed_site.pages.OneUser",
    "SEND_RATE": 1_000_000,
}
BACKEND = {"BACKEND": "django_redis_messaging.tasks.RedisBackend", "OPTIONS": {"TASK_MODULES": ["tests"]}}
TASKS = dict.fromkeys(("default", "site"), BACKEND)
ROOT_URLCONF = "tests.support.probed_site.pages"
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "tests.support.probed_site.pages.SignIn",
]
LOGGING_CONFIG = None
