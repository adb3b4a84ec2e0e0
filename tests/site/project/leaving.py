"""Calls the app after the end of the tests, as a thread does that a test has left."""

import django

django.setup()

from django.test.utils import setup_test_environment, teardown_test_environment  # noqa: E402

from django_redis_messaging import notify  # noqa: E402
from django_redis_messaging.core import testruns  # noqa: E402
from django_redis_messaging.errors import ConfigurationError  # noqa: E402

setup_test_environment()
notify("1", "Hello!")
teardown_test_environment()
notify("1", "Hello again!")
testruns.end()
try:
    notify("1", "Too late")
except ConfigurationError as error:
    print("refused:", error)  # noqa: T201
