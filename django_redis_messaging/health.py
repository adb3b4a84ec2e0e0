"""Checks for django-health-check 4:

    from health_check.views import HealthCheckView

    class Health(HealthCheckView):
        checks = ("django_redis_messaging.health.Redis", "django_redis_messaging.health.Consuming")

A check that fails says what is wrong without addresses, and without names of users, delay queues and timers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

try:
    from health_check.base import HealthCheck
    from health_check.exceptions import ServiceUnavailable
except ImportError as error:
    raise ImportError(
        "The health checks need django-health-check: pip install 'django-health-check>=4'."
    ) from error

from . import surveys
from .core.outcome import deadline
from .errors import MessagingError
from .services.common.operators import Health

__all__ = ["Consuming", "Redis"]

#: in which a check has to end
TIMEOUT = timedelta(seconds=5)


@dataclass
class Redis(HealthCheck):  # type: ignore[misc]
    """Whether Redis answers, and can be written by a script; on a Cluster, each primary. `alias`: of CACHES;
    None: that of this app."""

    alias: str | None = None
    timeout = TIMEOUT

    def run(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # it may be sync, too
        try:
            with deadline(TIMEOUT.total_seconds()):
                Health(using=self.alias).probe()
        except MessagingError as error:
            raise ServiceUnavailable(f"Redis can't be used ({type(error).__name__}).") from error


@dataclass
class Consuming(HealthCheck):  # type: ignore[misc]
    """Whether ready jobs of tasks, timers and delay queues are taken, and periodic tasks are enqueued.
    `max_age`: seconds that a job may be ready in a queue without consumers."""

    max_age: float = 60.0
    timeout = TIMEOUT

    def run(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # it may be sync, too
        try:
            with deadline(TIMEOUT.total_seconds()):
                problems = [*self._waiting(), *self._without_poller()]
        except MessagingError as error:
            raise ServiceUnavailable(f"Redis can't be read ({type(error).__name__}).") from error
        if problems:
            raise ServiceUnavailable(" ".join(problems))

    def _waiting(self) -> Iterator[str]:
        for alias in surveys.aliases():
            yield from surveys.problems(surveys.survey(alias), self.max_age)

    def _without_poller(self) -> Iterator[str]:
        if not surveys.backends():
            return
        from .tasks.occurrences import unpolled

        for one in unpolled():
            yield f"No poller has enqueued the periodic tasks of {one.alias!r} {one.since}."
