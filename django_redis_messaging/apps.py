"""The configuration of the app."""

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, register
from django.db.backends.signals import connection_created
from django.utils.translation import gettext_lazy as _


class MessagingConfig(AppConfig):
    """Registers the checks. Defines no models and opens no connections."""

    name = "django_redis_messaging"
    label = "django_redis_messaging"
    verbose_name = _("Messaging")

    def ready(self) -> None:
        from . import checks
        from .core import testruns
        from .web import directories, stream_access

        register(_check_tasks, checks.TAG)
        register(_check_rate_limits, checks.TAG)
        register(_check_proxies, checks.TAG, deploy=True)
        # most tests begin with a database connection: processes that they start then take part in the run
        connection_created.connect(testruns.notice, dispatch_uid="django_redis_messaging.runs")
        if apps.is_installed("django.contrib.auth"):
            directories.connect()
            stream_access.connect()


def _check_tasks(**_: object) -> list[CheckMessage]:
    """Check the periodic tasks, where Django's Tasks are installed."""
    # not at the top: most processes run no checks
    from .management.loops import tasks_installed

    if not tasks_installed():
        return []
    from .tasks.occurrences import check_periodic_tasks

    return check_periodic_tasks()


def _check_rate_limits(**_: object) -> list[CheckMessage]:
    """Check the rate limits of requests."""
    from .middleware import check_rate_limits

    return check_rate_limits()


def _check_proxies(**_: object) -> list[CheckMessage]:
    """Check that rate limits see the addresses of clients."""
    from .middleware import check_proxies

    return check_proxies()
