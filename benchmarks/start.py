"""Measures what the app adds to a process of a site: processor time, memory and modules.

uv run python -m benchmarks.start
uv run python -m benchmarks.start --rounds 5 ../another-checkout .

The site has Django's admin, auth, sessions, messages and static files, a SQLite database in memory, and
django-redis as its cache. A process sets up Django and then does one thing: nothing, a request for the
admin's sign-in page, the system checks, or the signal of a saved user. Half of the processes don't have the
app; their medians are subtracted. Some sites have used their cache before: the Redis client is loaded then.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from .harness import table

SITE = """
import io, json, os, sys, time
from types import ModuleType
from django.conf import settings

after, has_app, uses_cache = sys.argv[1], sys.argv[2] == "True", sys.argv[3] == "True"
site = sys.modules["site_urls"] = ModuleType("site_urls")
contrib = ["admin", "auth", "contenttypes", "sessions", "messages", "staticfiles"]
settings.configure(
    SECRET_KEY="start", USE_TZ=True, ALLOWED_HOSTS=["localhost"], STATIC_URL="static/",
    ROOT_URLCONF="site_urls",
    INSTALLED_APPS=["django.contrib." + name for name in contrib] + ["django_redis_messaging"] * has_app,
    MIDDLEWARE=[
        "django.middleware.security.SecurityMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
    ],
    TEMPLATES=[{
        "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
        "OPTIONS": {"context_processors": [
            "django.template.context_processors.request",
            "django.contrib.auth.context_processors.auth",
            "django.contrib.messages.context_processors.messages",
        ]},
    }],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1"}},
    REDIS_MESSAGING={"ALIAS": "default"},
)
import django
if uses_cache:
    from django.core.cache import caches
    caches["default"].client  # not connected: nothing is sent

def request():
    from django.contrib import admin
    from django.core.handlers.wsgi import WSGIHandler
    from django.urls import include, path
    pages = [path("messages/", include("django_redis_messaging.urls"))] if has_app else []
    site.urlpatterns = [path("admin/", admin.site.urls), *pages]
    environ = {
        "REQUEST_METHOD": "GET", "PATH_INFO": "/admin/login/", "SERVER_NAME": "localhost",
        "SERVER_PORT": "80", "wsgi.input": io.BytesIO(), "wsgi.url_scheme": "http",
    }
    statuses = []
    b"".join(WSGIHandler()(environ, lambda status, headers: statuses.append(status)))
    assert statuses == ["200 OK"], statuses

def check():
    from django.contrib import admin
    from django.core.management import call_command
    site.urlpatterns = []
    call_command("check", stdout=io.StringIO(), stderr=io.StringIO())

def save_user():
    from django.contrib.auth.models import User
    from django.db.models.signals import post_save
    post_save.send(User, instance=User(pk=1), created=True, raw=False, using="default", update_fields=None)

before = time.process_time()
django.setup()
{"nothing": lambda: None, "request": request, "check": check, "saved user": save_user}[after]()
used = time.process_time() - before
pages = int(open("/proc/self/statm").read().split()[1])
own = [name for name in sys.modules if name.partition(".")[0] == "django_redis_messaging"]
json.dump([1000 * used, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(sys.modules), len(own)], sys.stdout)
"""
#: what a process does after django.setup()
AFTER = ("nothing", "request", "check", "saved user")
#: by whether the site has used its cache before
CASES = {False: "the site has not used its cache", True: "the site has used its cache"}
TITLES = ("django.setup() and", "Django: ms", "the app adds: ms", "MiB", "modules", "of these its own")

#: ms of processor time, MiB, modules, and modules of the app
Figures = list[float]


def start(checkout: Path, after: str, *, has_app: bool, uses_cache: bool) -> Figures:
    """Measure one process."""
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-c", SITE, after, str(has_app), str(uses_cache)]
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, check=True)
    measured: Figures = json.loads(done.stdout)
    return measured


def row(checkout: Path, after: str, rounds: int, *, uses_cache: bool) -> list[str]:
    """What the app adds, as medians."""
    found: dict[bool, list[Figures]] = {False: [], True: []}
    for has_app in [True, False] * (1 + rounds):
        found[has_app].append(start(checkout, after, has_app=has_app, uses_cache=uses_cache))
    # the first process of each kind compiles modules
    alone, whole = (
        [statistics.median(values) for values in zip(*found[has_app][1:], strict=True)]
        for has_app in (False, True)
    )
    time, memory, modules, own = (mine - other for mine, other in zip(whole, alone, strict=True))
    return [after, f"{alone[0]:.0f}", f"{time:.0f}", f"{memory:.1f}", f"{modules:.0f}", f"{own:.0f}"]


def main(rounds: int, checkouts: list[Path]) -> None:
    for checkout in checkouts:
        for uses_cache, title in CASES.items():
            print(f"\n{checkout}: {title}")
            print(table([TITLES, *(row(checkout, after, rounds, uses_cache=uses_cache) for after in AFTER)]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("checkouts", type=Path, nargs="*", default=[Path(__file__).parents[1]])
    chosen = parser.parse_args()
    main(chosen.rounds, chosen.checkouts)
