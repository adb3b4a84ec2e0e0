"""Registers handlers for due timers and for keyspace events. In `expiries.py` of any app:

    from django_redis_messaging import Expired, KeyEvent, on_expiry, on_key_event

    @on_expiry("order")
    def unpaid(expired: Expired) -> None:
        Order.objects.filter(pk=expired.name, paid=False).update(cancelled=True)

    @on_key_event("session:*", events={"expired"})
    def session_expired(event: KeyEvent) -> None:
        ...

`manage.py run_listener` calls them, and `manage.py check` validates them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from django.utils.module_loading import autodiscover_modules

from .core import keys, keyspace
from .errors import ConfigurationError, InvalidArgument

#: a function, or a coroutine function, with one argument
Handler = Callable[[Any], Any]
H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True)
class Expired:
    """A timer that is due."""

    name: str
    namespace: str
    #: the payload it was started with
    payload: Any
    #: id of this start; lets a handler recognize a repeated call
    id: str
    #: grows with each attempt: a resource that rejects lower fences is safe from late handlers
    fence: int
    #: when it was due; for a later attempt, when that attempt was due
    due_at: datetime


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """An event of one of the site's own keys."""

    #: bytes that are not valid UTF-8 are decoded with surrogateescape
    key: str
    #: its name in Redis: expired, set, del, evicted …
    event: str
    #: number of the database
    db: int
    #: grows each time another listener takes over
    fence: int


@dataclass(frozen=True, slots=True)
class TimerHandler:
    """The handler of the timers of a namespace."""

    namespace: str
    function: Handler
    timeout: float | None


@dataclass(frozen=True, slots=True)
class KeyHandler:
    """A handler of keyspace events."""

    pattern: str
    events: frozenset[str]
    #: number of the database; "*": any; None: the alias's
    db: int | str | None
    function: Handler

    @property
    def flags(self) -> str:
        """The flags that notify-keyspace-events must have."""
        return keyspace.required_flags(self.pattern, self.events)


#: by namespace, in the order of their registration
timers: dict[str, TimerHandler] = {}
key_events: list[KeyHandler] = []


def on_expiry(namespace: str, *, timeout: float | None = None) -> Callable[[H], H]:
    """Register a function, or a coroutine function, that is called with each due timer (`Expired`) of a
    namespace.

    A timer is completed once, so a namespace has one handler; a second one raises ConfigurationError. The
    handler is called again for the same timer (`id`), with a larger `fence`, if it raised, took longer than
    `timeout` seconds, or its process was killed; the pause before grows with each attempt. After
    JOB_MAX_ATTEMPTS attempts the timer is moved to dead letters: `manage.py redrive` restores it.
    """
    keys.name(namespace, "namespace")
    if timeout is not None and not timeout > 0:
        raise InvalidArgument(f"timeout must be greater than 0 s, or None for no limit, not {timeout} s.")

    def register(function: H) -> H:
        existing = timers.get(namespace)
        if existing is not None and not _is_same(existing.function, function):
            raise ConfigurationError(
                f"The namespace {namespace!r} has a handler already, {title(existing.function)}: "
                "call both from one handler, or use two namespaces."
            )
        timers[namespace] = TimerHandler(namespace, function, timeout)
        return function

    return register


def on_key_event(
    pattern: str, *, events: Iterable[str] | None = None, db: int | None = None
) -> Callable[[H], H]:
    """Register a function, or a coroutine function, that is called with events (`KeyEvent`) of the site's own
    keys.

    `pattern` is a pattern of keys ("order:*") or of Redis channels ("__keyspace@0__:order*",
    "__keyevent@0__:expired"); `events` are the names of events, by default all; `db` is the number of the
    database, by default the alias's. Events of this app's own keys are never delivered.

    Delivery is as reliable as Redis's own events: events may be lost while no listener runs, or while
    another listener takes over, and may be delivered twice during a takeover. The server publishes only the
    events that its setting `notify-keyspace-events` enables: `run_listener --configure` adds missing flags.
    """
    keys.name(pattern, "pattern")
    scope = keyspace.parse_pattern(pattern)
    if isinstance(events, str):
        raise TypeError("events must be a set of names, not a str: put it in a set.")
    wanted = frozenset(keys.name(event, "event") for event in events or ())
    named = wanted or frozenset({scope.event} if scope.event else ())
    for event in named:
        if keyspace.is_pattern(event):
            raise InvalidArgument(f"{event!r} is a pattern of events: list each event in `events`.")
    if scope.event is not None and named != {scope.event}:
        raise InvalidArgument(
            f"events must be [{scope.event!r}], the event of the channel, or empty, not {sorted(wanted)}."
        )
    if db is not None and (not isinstance(db, int) or isinstance(db, bool) or db < 0):
        raise InvalidArgument(f"db must be the number of a database, or None for the alias's, not {db!r}.")
    chosen = scope.db if db is None else db

    def register(function: H) -> H:
        found = KeyHandler(scope.pattern, named, chosen, function)
        if found not in key_events:
            key_events.append(found)
        return function

    return register


def discover() -> None:
    """Import `expiries` of each installed app that has one."""
    autodiscover_modules("expiries")


def title(function: Handler) -> str:
    """The name of a handler for messages."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def _is_same(one: Handler, other: Handler) -> bool:
    """Whether both are the same function; a reloaded module defines its functions again, at the same
    lines."""
    return one is other or (title(one), _location(one)) == (title(other), _location(other))


def _location(function: Handler) -> object:
    """File and line: two lambdas of a module have the same title."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code and (code.co_filename, code.co_firstlineno)
