"""OPTIONS of a RedisBackend in TASKS: their defaults, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections

from ..services.common.arguments import integer, milliseconds
from ..services.jobs.engine import check_attempts
from .call_fields import find_weights
from .records import TASK_MODULES
from .retries import check_backoff

#: greatest RESULT_MAX
MAX_RESULTS = 1_000_000_000

#: the options with their defaults
OPTIONS: dict[str, Any] = {
    # CACHES alias; None: the ALIAS of REDIS_MESSAGING
    "USING": None,
    # maximum number of attempts; None: JOB_MAX_ATTEMPTS
    "MAX_ATTEMPTS": None,
    # seconds before the next attempt, as `backoff` of a task; None: JOB_BACKOFF, doubled each time
    "BACKOFF": None,
    # seconds an attempt may take; None: no timeout
    "TIMEOUT": None,
    # seconds that a result is kept after its task has ended
    "RESULT_TTL": 86_400,
    # maximum number of results of tasks that have ended; the ones that expire first are removed first
    "RESULT_MAX": 1_000_000,
    # False: at once; True: when all open transactions are committed; or a database alias
    "ENQUEUE_ON_COMMIT": False,
    # modules and packages, beyond the installed apps, that workers may import since a job names them
    "TASK_MODULES": (),
    # function of a group that returns its weight, 1 to 100, or its dotted path; None: 1 for all
    "GROUP_WEIGHT": None,
}
#: options with the functions that check their values
CHECKED: dict[str, Callable[[Any], object]] = {
    "MAX_ATTEMPTS": partial(check_attempts, what="MAX_ATTEMPTS"),
    "BACKOFF": partial(check_backoff, what="BACKOFF"),
    "TIMEOUT": partial(milliseconds, what="TIMEOUT", minimum=1),
    "RESULT_TTL": partial(milliseconds, what="RESULT_TTL"),
    "RESULT_MAX": partial(integer, what="RESULT_MAX", minimum=1, maximum=MAX_RESULTS),
    "GROUP_WEIGHT": find_weights,
}


def problems(alias: str, options: Mapping[str, Any]) -> Iterator[CheckMessage]:
    """Problems of the options of the backend of this alias."""
    for key in options:
        if key not in OPTIONS:
            yield Warning(
                f"TASKS[{alias!r}] has the unknown option {key!r}, which has no effect.",
                hint=f"The options are {', '.join(OPTIONS)}.",
                id="messaging.W101",
            )
    chosen = {**OPTIONS, **options}
    databases = chosen["ENQUEUE_ON_COMMIT"]
    if not isinstance(databases, bool) and databases not in connections:
        yield Error(
            f"TASKS[{alias!r}] has ENQUEUE_ON_COMMIT={databases!r}, which is no alias of DATABASES.",
            hint="ENQUEUE_ON_COMMIT must be False, True or an alias of DATABASES.",
            id="messaging.E101",
        )
    yield from _without_autocommit(alias, databases)
    using = chosen["USING"]
    if using is not None and using not in settings.CACHES:
        yield Error(
            f"TASKS[{alias!r}] has USING={using!r}, which is no alias of CACHES.",
            hint="Name a django-redis entry of CACHES, or remove it: then the alias of the app is used.",
            id="messaging.E102",
        )
    yield from _bad_modules(alias, chosen[TASK_MODULES])
    for name, check in CHECKED.items():
        try:
            if chosen[name] is not None or OPTIONS[name] is not None:
                check(chosen[name])
        except (TypeError, ValueError) as error:
            hint = f"Correct it, or remove it: its default is {OPTIONS[name]!r}."
            yield Error(f"TASKS[{alias!r}]: {error}", hint=hint, id="messaging.E102")


def _bad_modules(alias: str, given: Any) -> Iterator[CheckMessage]:
    if isinstance(given, list | tuple | set | frozenset) and all(
        isinstance(one, str) and one for one in given
    ):
        return
    yield Error(
        f"TASKS[{alias!r}] has TASK_MODULES={given!r}; it must be a list of dotted names of modules.",
        hint='Write "TASK_MODULES": ["mysite.tasks"].',
        id="messaging.E102",
    )


def _without_autocommit(alias: str, databases: Any) -> Iterator[CheckMessage]:
    """Databases that are to be awaited, but on whose commits Django calls nothing."""
    for name in connections:
        if databases in (True, name) and not connections[name].settings_dict["AUTOCOMMIT"]:
            yield Error(
                f"TASKS[{alias!r}] has ENQUEUE_ON_COMMIT={databases!r}, but DATABASES[{name!r}] has "
                "AUTOCOMMIT=False: Django runs no function after its commits.",
                hint="Name a database with autocommit in ENQUEUE_ON_COMMIT, or set it to False.",
                id="messaging.E101",
            )
