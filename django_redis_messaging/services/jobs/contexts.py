"""The context in which the attempts of a lane run."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from django.core.cache import caches

#: modules that may have a handler of task backends: Django's own, and its backport
_TASK_MODULES = ("django.tasks", "django_tasks")


def create_backends() -> None:
    """Create the cache and task backends of this thread. They are stored in the context, so each attempt, in
    a copy of it, would create its own ones otherwise."""
    handlers: list[Any] = [caches]
    handlers += [vars(sys.modules[name])["task_backends"] for name in _TASK_MODULES if name in sys.modules]
    for handler in handlers:
        for alias in handler:
            with suppress(Exception):  # an invalid entry of the settings: raised where it is used
                handler[alias]
