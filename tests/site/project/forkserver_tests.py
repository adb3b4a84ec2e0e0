"""Tests that start processes by a server of forks, which Python 3.14 does by default."""

import multiprocessing

from django.test import SimpleTestCase

from django_redis_messaging import Mailbox, notify
from django_redis_messaging.testing import MessagingTestMixin

context = multiprocessing.get_context("forkserver")
# as a site whose code has been imported there
context.set_forkserver_preload(["preload"])


def notify_all() -> None:
    import django

    django.setup()
    notify("1", "Hello from a process!")


class ForkserverTests(MessagingTestMixin, SimpleTestCase):
    def check(self) -> None:
        process = context.Process(target=notify_all)
        process.start()
        process.join()
        self.assertEqual(process.exitcode, 0)
        self.assertEqual(Mailbox("1").unread(), 1)

    def test_first(self) -> None:
        self.check()

    def test_second(self) -> None:
        self.check()
