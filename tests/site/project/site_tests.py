"""The tests of a small site, which name nothing of the app's support for tests, but for the last class."""

import multiprocessing
import os
import subprocess
import sys
import unittest
import urllib.request
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from io import StringIO
from typing import ClassVar

import django.test.runner
from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import LiveServerTestCase, SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django_redis import get_redis_connection
from spawned import unread_after

from django_redis_messaging import (
    Chat,
    ConfigurationError,
    DelayQueue,
    Directory,
    Inbox,
    Lock,
    Mailbox,
    conf,
    notify,
)
from django_redis_messaging.core.encoding import FORMAT
from django_redis_messaging.core.topology import endpoint
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.testing import MessagingTestMixin

CONFIGURED = "IS_CONFIGURED" in os.environ
#: another server than that of the site cannot be started, or the setting is wrong
BROKEN = "NO_PROGRAM" in os.environ or os.environ.get("TEST_SERVER") == "mine"


def notify_in_child(name: str) -> str:
    """Notify in another process, started as a command; returns the number of unread notifications."""
    done = subprocess.run([sys.executable, "child.py", name], capture_output=True, text=True, check=True)
    return done.stdout


@unittest.skipIf(BROKEN, "needs a server")
class FirstIsAProcess(SimpleTestCase):
    """Pytest and a spawned process begin with this test: the app was not used before."""

    def test_process_takes_part(self) -> None:
        if django.test.runner._worker_id and multiprocessing.get_start_method() != "spawn":
            conf.prefix()  # nothing else shows that this process is one of a parallel run
        self.assertEqual(notify_in_child("child"), "1")
        self.assertEqual(Mailbox("child").unread(), 1)


@unittest.skipIf(BROKEN, "needs a server")
class Sequences(TransactionTestCase):
    reset_sequences = True

    def test_user_1_is_created_and_deleted(self) -> None:
        user = User.objects.create_user("ann", first_name="Ann")
        self.assertEqual(user.pk, 1)
        self.assertEqual([found.id for found in Directory("everyone").suggest("ann")], ["1"])
        Chat.create("1", ["2"], "Hi", chat_id="lunch")
        user.delete()
        self.assertEqual([chat.chat_id for chat in Inbox("1").chats()], [])
        self.assertEqual(Directory("everyone").suggest("ann"), [])


@unittest.skipIf(BROKEN, "needs a server")
class Pages(TestCase):
    def test_post(self) -> None:
        before = Mailbox("1").unread()
        self.assertEqual(self.client.post("/order/").content, b"ordered")
        self.assertEqual(Mailbox("1").unread(), before + 1)

    async def test_async(self) -> None:
        await Chat.acreate("1", ["2"], "Hi", chat_id="async")
        self.assertEqual(await Inbox("2").aunread(), 1)
        self.assertEqual((await self.async_client.post("/order/")).content, b"ordered")

    def test_threads_and_processes(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            self.assertEqual(pool.submit(unread_after, "thread").result(), 1)
        # a daemonic process, as in a parallel run, has no children
        for method in () if multiprocessing.current_process().daemon else ("fork", "spawn"):
            with self.subTest(method=method):
                context = multiprocessing.get_context(method)
                with ProcessPoolExecutor(1, mp_context=context) as pool:
                    self.assertEqual(pool.submit(unread_after, method).result(), 1)
                self.assertEqual(Mailbox(method).unread(), 1)


@unittest.skipIf(BROKEN, "needs a server")
class Live(LiveServerTestCase):
    def test_post(self) -> None:
        with urllib.request.urlopen(self.live_server_url + "/order/", b"") as reply:  # noqa: S310
            self.assertEqual(reply.read(), b"ordered")
        self.assertGreaterEqual(Mailbox("1").unread(), 1)


@unittest.skipIf(BROKEN, "needs a server")
class Settings(SimpleTestCase):
    def test_aliases_stay_distinct(self) -> None:
        for alias in ("messaging", "jobs") if CONFIGURED else ("messaging", "jobs", "cluster"):
            queue = DelayQueue("calls", using=alias)
            queue.push(alias)
            self.assertEqual([job.data for job in queue.pop()], [alias])
        self.assertNotEqual(endpoint("messaging").db, endpoint("jobs").db)

    def test_tenants_stay_distinct(self) -> None:
        for tenant in ("a", "b"):
            with override_settings(REDIS_MESSAGING={"PREFIX": lambda tenant=tenant: tenant}):
                notify("eve", f"of {tenant}")
                self.assertEqual(Mailbox("eve").unread(), 1)

    def test_copies_of_entries_lead_away_from_the_site(self) -> None:
        copy = {**settings.CACHES["messaging"], "KEY_PREFIX": "copy"}
        other = {**copy, "LOCATION": settings.SITE.replace("db=0", "db=7")}
        with override_settings(CACHES={**settings.CACHES, "messaging": copy, "other": other}):
            notify("copied", "Hi")
            if not CONFIGURED:
                DelayQueue("calls", using="other").push(1)
                with Lock("nightly", key="nightly", using="other"):
                    pass

    def test_a_server_that_the_test_starts_is_used(self) -> None:
        with EmbeddedServer() as server:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
            changed = {**settings.REDIS_MESSAGING, "DURABILITY": None}
            with override_settings(CACHES={**settings.CACHES, "own": entry}, REDIS_MESSAGING=changed):
                DelayQueue("calls", using="own").push(1)
            with server.client() as client:
                self.assertGreater(client.dbsize(), 0)

    def test_commands_use_the_server_of_the_run(self) -> None:
        call_command("messaging_check", stdout=StringIO())
        call_command("messaging_repair", stdout=StringIO())

    @unittest.skipIf(CONFIGURED, "see the next one")
    def test_objects_and_connections_of_before(self) -> None:
        early = apps.get_app_config("early")
        early.queue.push("late")
        self.assertEqual([job.data for job in early.queue.pop()], ["late"])
        self.assertEqual(early.inbox.unread(), Inbox("1").unread())

    @unittest.skipUnless(CONFIGURED, "see the one before")
    def test_objects_of_before_are_refused(self) -> None:
        early = apps.get_app_config("early")
        with self.assertRaisesMessage(ConfigurationError, f"must not use the key 'site:{FORMAT}:{{"):
            early.queue.push("late")
        with self.assertRaisesMessage(ConfigurationError, "must not use the key 'nightly' of the site"):
            Lock("nightly", key="nightly").acquire()
        self.assertRegex(conf.prefix(), "^test:[0-9a-f]{12}")


class WithoutServer(TestCase):
    @unittest.skipUnless("NO_PROGRAM" in os.environ, "only without a server")
    def test_calls_fail_and_say_what_to_do(self) -> None:
        for words in ("install redis-server", "django-redis-messaging[embedded]", "'SERVER': 'configured'"):
            with self.assertRaisesMessage(ConfigurationError, words):
                notify("1", "Hi")
        with self.assertRaisesMessage(ConfigurationError, "could not be started"):
            apps.get_app_config("early").inbox.unread()
        child = subprocess.run([sys.executable, "child.py", "1"], capture_output=True, text=True)
        self.assertIn("could not be started", child.stderr)


class WithInvalidSetting(TestCase):
    @unittest.skipUnless(os.environ.get("TEST_SERVER") == "mine", "only with that setting")
    def test_calls_fail(self) -> None:
        with self.assertRaisesMessage(ConfigurationError, """must be {"SERVER": "private"}"""):
            notify("1", "Hi")


@unittest.skipIf(BROKEN, "needs a server")
class Isolated(MessagingTestMixin, TransactionTestCase):
    """Each test has its own keys, which are removed after it."""

    reset_sequences = True
    prefixes: ClassVar[list[str]] = []

    @classmethod
    def tearDownClass(cls) -> None:
        client = get_redis_connection("messaging")
        left = [key for prefix in cls.prefixes for key in client.scan_iter(f"{prefix}:*")]
        super().tearDownClass()
        assert not left, left

    def setUp(self) -> None:
        self.prefixes.append(self.messaging_prefix)
        notify("own", "Hi")

    def test_1(self) -> None:
        self.assertEqual(Mailbox("own").unread(), 1)
        self.assertEqual(conf.prefix(), self.messaging_prefix)
        self.assertEqual(notify_in_child("own"), "2")

    def test_2(self) -> None:
        self.assertEqual(Mailbox("own").unread(), 1)
        User.objects.create_user("zoe", first_name="Zoe").delete()

    async def test_3(self) -> None:
        self.assertEqual(await Mailbox("own").aunread(), 1)

    @unittest.skipIf(CONFIGURED, "the servers of CACHES are used")
    def test_4_all_aliases_lead_to_the_private_server(self) -> None:
        self.assertEqual(get_redis_connection("jobs").dbsize(), 0)
        self.assertNotIn(settings.SITE.partition("?")[0], str(settings.CACHES["jobs"]["LOCATION"]))
