"""What an installed app adds to the start of a process, and that its receivers work in it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from django_redis_messaging.core import testruns
from django_redis_messaging.devserver.server import EmbeddedServer

#: a site with the app; what Django has loaded without it is in `before`
SITE = """
import sys
import django
from django.apps import apps
from django.conf import settings

contrib = ["admin", "auth", "contenttypes", "sessions", "messages", "staticfiles"]
others = [f"django.contrib.{name}" for name in contrib]
settings.configure(
    INSTALLED_APPS=others,
    USE_TZ=True,
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": sys.argv[1]}},
    REDIS_MESSAGING={"ALIAS": "default", "FOLLOW_USERS": True},
)
django.setup()
before = set(sys.modules)
assert not {"redis", "hiredis"} & before
apps.set_installed_apps([*others, "django_redis_messaging"])
"""
ADDED = """
added = set(sys.modules) - before - {"__future__"}
assert added == {f"django_redis_messaging{name}" for name in ("", ".apps", ".admin", ".console")}, added
"""
RELOADING = """
wanted = ("redis.connection", *(f"django_redis_messaging.{name}" for name in ("api", "checks", "web.checks")))
assert not [name for name in wanted if name not in sys.modules]
"""
FIRST = """
import os
from importlib import import_module

class Recorder:
    names = []

    def find_spec(self, name, path=None, target=None):
        if name.startswith(("redis", "django_redis.")):
            self.names.append(name)

sys.meta_path.insert(0, Recorder())
import_module(f"django_redis_messaging.{os.environ['MODULE']}")
assert Recorder.names[0] == "django_redis.client", Recorder.names[0]
assert "redis" in Recorder.names
"""
RECEIVERS = """
import redis
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in, user_logged_out
from django.core.management import call_command

call_command("migrate", verbosity=0)
User.objects.bulk_create([User(username="ann")])
ann = User.objects.get()
user_logged_in.send(User, request=None, user=ann)
assert "django_redis_messaging.core.clients" not in sys.modules
ann.save()
from django_redis_messaging import Directory
assert list(Directory("everyone").labels(["1"])) == ["1"]
with redis.Redis.from_url(sys.argv[1]) as client, client.pubsub(ignore_subscribe_messages=True) as hints:
    hints.psubscribe("*")
    hints.get_message(timeout=30)
    user_logged_out.send(User, request=None, user=ann)
    assert hints.get_message(timeout=30)["data"].endswith(b"user:1")
ann.delete()
assert not Directory("everyone").labels(["1"])
"""


def run_site(program: str, url: str = "redis://127.0.0.1:1", **variables: str) -> None:
    """Run a program on the site, as if no tests were running. It must not fail."""
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key not in (testruns.VARIABLE, "DJANGO_SETTINGS_MODULE")
    }
    done = subprocess.run(
        [sys.executable, "-c", SITE + program, url],
        env=inherited | variables, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.versions
def test_app_adds_its_configuration_and_its_entry_in_the_admin() -> None:
    """Not the Redis client, which is most of what the app loads later, and which few commands need."""
    run_site(ADDED)


def test_a_process_that_reloads_loads_the_rest_at_once() -> None:
    """Django sets the variable in the process of runserver, whose threads import the URLs and the checks."""
    run_site(RELOADING, RUN_MAIN="true")


@pytest.mark.parametrize(
    "module", ["api", "urls", "tasks", "web.directories", "web.identity", "web.stream_access"]
)
def test_modules_load_the_redis_client_as_a_cache_does(module: str) -> None:
    """Else a thread that begins with one of them, and another one that uses a cache for the first time, could
    have incomplete modules of redis-py."""
    run_site(FIRST, MODULE=module)


@pytest.mark.one_server
def test_receivers_load_what_they_need() -> None:
    with EmbeddedServer() as server:
        run_site(RECEIVERS, server.url)
