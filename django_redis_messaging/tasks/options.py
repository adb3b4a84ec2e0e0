"""What TASKS[…]["OPTIONS"] may hold for our backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections

from ..services.arguments import milliseconds, whole

#: attempts a task may be given at most
MOST_ATTEMPTS = 10_000
#: what OPTIONS may hold, with the defaults
OPTIONS: dict[str, Any] = {
    # CACHES alias; None: that of REDIS_MESSAGING
    "USING": None,
    # attempts a task may have; None: JOB_MAX_ATTEMPTS
    "MAX_ATTEMPTS": None,
    # seconds an attempt may take; None: any time
    "TIMEOUT": None,
    # seconds a result is kept after its task has ended
    "RESULT_TTL": 86_400,
    # True: when all open transactions are committed; a database: when its is; False: at once
    "ENQUEUE_ON_COMMIT": False,
}


def attempts(value: int, what: str) -> int:
    """`value` if a task may be given so many attempts."""
    return whole(value, what, least=1, most=MOST_ATTEMPTS)


#: options whose values can be wrong, and what raises then
CHECKED: dict[str, Callable[[Any], object]] = {
    "MAX_ATTEMPTS": partial(attempts, what="MAX_ATTEMPTS"),
    "TIMEOUT": partial(milliseconds, what="TIMEOUT", least=1),
    "RESULT_TTL": partial(milliseconds, what="RESULT_TTL"),
}


def problems(alias: str, options: Mapping[str, Any]) -> Iterator[CheckMessage]:
    """What is wrong with the options of the backend of this alias."""
    for key in options:
        if key not in OPTIONS:
            yield Warning(
                f"TASKS[{alias!r}] has the unknown option {key!r}: it does nothing.",
                hint=f"OPTIONS may have {', '.join(OPTIONS)}.",
                id="messaging.W101",
            )
    chosen = {**OPTIONS, **options}
    databases = chosen["ENQUEUE_ON_COMMIT"]
    if not isinstance(databases, bool) and databases not in connections:
        yield Error(
            f"TASKS[{alias!r}] waits for commits of {databases!r}, which is no database.",
            hint="ENQUEUE_ON_COMMIT is False, True or an alias of DATABASES.",
            id="messaging.E101",
        )
    using = chosen["USING"]
    if using is not None and using not in settings.CACHES:
        yield Error(
            f"TASKS[{alias!r}] has USING={using!r}, which is no alias of CACHES.",
            id="messaging.E102",
        )
    for name, check in CHECKED.items():
        try:
            if chosen[name] is not None:
                check(chosen[name])
        except (TypeError, ValueError) as error:
            yield Error(f"TASKS[{alias!r}]: {error}", id="messaging.E102")
