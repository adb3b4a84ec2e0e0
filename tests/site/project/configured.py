"""A site without a module of settings, whose tests are run by a script."""

import os
import unittest

import django
from django.conf import settings
from django.test.runner import DiscoverRunner

settings.configure(
    INSTALLED_APPS=["django_redis_messaging"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["SITE_REDIS"]}},
    REDIS_MESSAGING={"ALIAS": "default"},
)
django.setup()


class NotifyTest(unittest.TestCase):
    def test_notify(self) -> None:
        from django_redis_messaging import Mailbox, notify

        notify("1", "Hello!")
        self.assertEqual(Mailbox("1").unread(), 1)


runner = DiscoverRunner()
runner.setup_test_environment()
failures = runner.run_suite(unittest.defaultTestLoader.loadTestsFromTestCase(NotifyTest)).failures
runner.teardown_test_environment()
raise SystemExit(len(failures))
