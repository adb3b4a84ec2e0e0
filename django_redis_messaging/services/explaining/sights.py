"""What is seen of one thing: its own causes, and the thing on which to go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, cast

from django.apps import apps

from ...core.operations import Steps
from ...errors import InvalidArgument
from ..common.things import Thing
from ..jobs.engine import Engine
from .explanation import Cause


class Subject(NamedTuple):
    """A thing that can be looked at."""

    thing: Thing
    #: alias of its server
    using: str
    #: reads it, in at most MAX_TRIPS_OF_ONE round trips; called once
    read: Callable[[], Steps[Sight]]


class Sight(NamedTuple):
    """What was seen of a thing."""

    causes: list[Cause]
    #: what the last cause waits for in turn
    following: Thing | None = None
    #: whether anything is stored of it
    exists: bool = True


class Backend(Protocol):
    """What is needed of a task backend."""

    alias: str
    #: in the order in which workers serve them; empty: any
    queue_names: list[str]

    @property
    def using(self) -> str:
        """The CACHES alias of its jobs."""
        ...

    @property
    def engine(self) -> Engine:
        """The lease engine of its jobs."""
        ...


def ask(hook: str, *args: object) -> Any:
    """Call what is in a layer above this one, see MessagingConfig; None if the app is not installed."""
    found = getattr(apps.app_configs.get("django_redis_messaging"), hook, None)
    return None if found is None else found(*args)


def task_backends() -> Mapping[str, Backend]:
    """The task backends of this app, by alias."""
    return cast(Mapping[str, Any], ask("backends_hook") or {})


def task_backend(alias: str) -> Backend:
    """The backend of this alias. Raises InvalidArgument."""
    known = task_backends()
    if alias not in known:
        names = ", ".join(sorted(known)) or "none"
        raise InvalidArgument(f"{alias[:100]!r} is no task backend of this app (found: {names}).")
    return known[alias]
