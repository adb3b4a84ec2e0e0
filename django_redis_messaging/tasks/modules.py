"""Which modules a job may cause to be imported.

A job is data: whoever can write to Redis chooses the path of its task. Importing a module runs its code, so
only modules of the site are imported by such a path. A module that this process has imported already is used
whatever it is, since that runs no code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import reduce
from pkgutil import resolve_name
from typing import Any

from django.apps import apps
from django.conf import settings

#: option of a backend in TASKS: modules and packages beyond the installed apps
TASK_MODULES = "TASK_MODULES"


def may_be_used(module: str) -> bool:
    """Whether a module is imported already, or may be imported since a job names it."""
    return module in sys.modules or may_be_imported(module)


def may_be_imported(path: str) -> bool:
    """Whether a dotted path is, or is below, an installed app or an entry of TASK_MODULES."""
    return any(path == base or path.startswith(f"{base}.") for base in _bases())


def found(path: str) -> Any:
    """What a dotted path leads to, such as a nested class; raises any exception if it leads to nothing. No
    module is imported that may not be."""
    if may_be_imported(path):
        return resolve_name(path)
    words = path.split(".")
    for end in range(len(words) - 1, 0, -1):
        module = sys.modules.get(".".join(words[:end]))
        if module is not None:
            return reduce(getattr, words[end:], module)
    raise ImportError(f"{path!r} is in no imported module.")


def _bases() -> Iterator[str]:
    for app in apps.get_app_configs():
        yield app.name
    # of all backends: a task is the same task, whichever backend runs it
    backends: Mapping[str, dict[str, Any]] = getattr(settings, "TASKS", {})
    for backend in backends.values():
        yield from backend.get("OPTIONS", {}).get(TASK_MODULES, ())
