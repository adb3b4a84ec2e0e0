"""The configuration of the app.

Django loads this module in each process of a site. Most of them run no checks, save no users and sign nobody
out, so checks, receivers and hooks import what they need when they are called: above all the Redis client.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, register
from django.db.backends.signals import connection_created
from django.db.models.signals import post_delete, post_save
from django.utils.translation import gettext_lazy as _

#: the tag of the checks
TAG = "messaging"
#: modules of which one is loaded in processes that run tests
TEST_MODULES = {"django.test.utils", f"{__package__}.pytest_plugin"}


class MessagingConfig(AppConfig):
    """Registers the checks and connects the receivers. Defines no models and opens no connections."""

    name = "django_redis_messaging"
    label = "django_redis_messaging"
    verbose_name = _("Messaging")
    #: returns the member id of a user object, the first argument; the second one says which argument of the
    #: caller it is. Raises TypeError for other objects. The services call it; None: the site has no users
    user_hook: Callable[[Any, str], str] | None = None

    @staticmethod
    def backends_hook() -> Mapping[str, Any]:
        """The task backends of this app, by alias. The services call it."""
        from .surveys import backends

        return backends()

    @staticmethod
    def outlook_hook(backend: Any, name: str) -> Any:
        """The steps that read what becomes of a schedule of a task backend next. The services call it."""
        from .tasks.occurrences import read_outlook

        return read_outlook(backend, name)

    @staticmethod
    def limits_hook() -> Sequence[Any]:
        """The rate limits of views and of RATE_LIMITS. The services call it."""
        from .web.limit_rules import declared_services

        return declared_services()

    def ready(self) -> None:
        if os.environ.get("RUN_MAIN") == "true":  # set by Django's autoreloader
            _load_before_threads()
        register(_check, TAG)
        register(_check_deployment, TAG, deploy=True)
        connection_created.connect(_database_connected, dispatch_uid="django_redis_messaging.runs")
        if apps.is_installed("django.contrib.auth"):
            from django.contrib.auth.signals import user_logged_out

            self.user_hook = _member_id_of
            model, uid = settings.AUTH_USER_MODEL, "django_redis_messaging.following"
            post_save.connect(_user_saved, sender=model, dispatch_uid=uid)
            post_delete.connect(_user_deleted, sender=model, dispatch_uid=uid)
            user_logged_out.connect(_user_signed_out, dispatch_uid="django_redis_messaging.live")


def _load_before_threads() -> None:
    """Load what runserver and other commands that reload import next: the URLs in one thread, and the checks
    in another one. If two threads begin to import a package by different modules, such as redis and
    redis.connection, they wait for one another. Python then lets one of them use an incomplete module.
    """
    for name in ("api", "checks", "middleware", "web.checks"):
        import_module(f".{name}", __package__)


def _check(**_: object) -> list[CheckMessage]:
    from . import checks, middleware
    from .checks.settings import check_framework
    from .management.loops import tasks_installed
    from .web.checks import check_pages

    found = [*checks.check(), *middleware.check_rate_limits(), *check_pages()]
    if not tasks_installed():
        return [*found, *check_framework()]
    from .tasks.occurrences import check_periodic_tasks

    return [*found, *check_periodic_tasks()]


def _check_deployment(**_: object) -> list[CheckMessage]:
    from . import checks, middleware
    from .web.checks import check_deployed_pages

    return [*checks.check_deployment(), *middleware.check_proxies(), *check_deployed_pages()]


def _database_connected(**_: object) -> None:
    """Most tests begin with a database connection: processes that they start then take part in the run."""
    if TEST_MODULES.isdisjoint(sys.modules):
        return
    from .core import testruns

    testruns.notice()


def _member_id_of(user: Any, what: str) -> str:
    from .web.identity import member_id_of

    return member_id_of(user, what)


def _user_saved(*, update_fields: frozenset[str] | None, **event: Any) -> None:
    if update_fields == frozenset({"last_login"}):  # a sign-in
        return
    from .web import directories

    directories.user_saved(**event)


def _user_deleted(**event: Any) -> None:
    from .web import directories

    directories.user_deleted(**event)


def _user_signed_out(**event: Any) -> None:
    from .web import stream_access

    stream_access.user_signed_out(**event)
