"""Settings of the tests. The pytest plugin starts a private server."""

import os
import tempfile
from pathlib import Path

SECRET_KEY = "tests"
DEBUG = False
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "tests.urls"
LOGIN_URL = "/sign-in/"
STATIC_URL = "static/"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_redis_messaging",
    "tests.web.accounts",
]
#: see tests/support/content_policies.py
TEST_POLICY = ""
MIDDLEWARE = [
    "tests.support.content_policies.send_policy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "tests.support.content_policies.nonce",
            ]
        },
    }
]
DATABASES = {
    # a file: the threads of a live server would share the single connection to an in-memory database and get
    # each other's results
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": ":memory:",
        "OPTIONS": {"timeout": 60},
        "TEST": {"NAME": str(Path(tempfile.gettempdir(), f"messaging-tests-{os.getpid()}.sqlite3"))},
    },
    # for tests with transactions in two databases
    "second": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "TEST": {"MIGRATE": False}},
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    # replaced by the plugin's server
    "messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://nowhere.invalid:1/0"},
}
TASKS = {
    "default": {
        "BACKEND": "django_redis_messaging.tasks.RedisBackend",
        "QUEUES": ["default", "other"],
        "OPTIONS": {"TASK_MODULES": ["tests"]},
    }
}
# the pytest plugin gives each test its prefix
REDIS_MESSAGING = {}
