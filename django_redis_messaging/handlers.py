"""Who is called when a timer is due, or when Redis tells of a key. In `expiries.py` of any app:

    from django_redis_messaging import Expired, KeyEvent, on_expiry, on_key_event

    @on_expiry("order")
    def unpaid(expired: Expired) -> None:
        Order.objects.filter(pk=expired.name, paid=False).update(cancelled=True)

    @on_key_event("session:*", events={"expired"})
    def gone(event: KeyEvent) -> None:
        ...

`manage.py run_listener` calls them, and `manage.py check` looks for mistakes in them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from django.utils.module_loading import autodiscover_modules

from .core import keys, keyspace
from .errors import ConfigurationError

#: a function, or a coroutine function, of one argument
Handler = Callable[[Any], Any]
H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True)
class Expired:
    """A timer that is due."""

    name: str
    namespace: str
    #: what it was started with
    payload: Any
    #: of this start: what a handler has done, it can remember by it
    id: str
    #: grows with each attempt: a resource that refuses lower ones is safe from late handlers
    fence: int
    #: when it was due; a later attempt: when that was
    due_at: datetime


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """Something that happened to a key of the site's own."""

    #: bytes that are no UTF-8 are kept by surrogateescape
    key: str
    #: as Redis names it: expired, set, del, evicted …
    event: str
    #: number of the database
    db: int
    #: grows with each listener that takes over
    fence: int


@dataclass(frozen=True, slots=True)
class TimerHandler:
    """Who is called for the timers of a namespace."""

    namespace: str
    function: Handler
    timeout: float | None


@dataclass(frozen=True, slots=True)
class KeyHandler:
    """Who is called for some events of some keys."""

    pattern: str
    events: frozenset[str]
    #: number of the database; "*": any; None: that of the alias
    db: int | str | None
    function: Handler

    @property
    def flags(self) -> str:
        """What notify-keyspace-events must have."""
        return keyspace.needed(self.pattern, self.events)


#: in the order of their registration
timers: dict[str, TimerHandler] = {}
key_events: list[KeyHandler] = []


def on_expiry(namespace: str, *, timeout: float | None = None) -> Callable[[H], H]:
    """Have a function, or a coroutine function, called with each timer (`Expired`) of a namespace that is
    due.

    A timer is completed once, so a namespace has one handler; a second one is a ConfigurationError. It may
    be called again for the same timer (`id`), with a larger `fence`: when it raised, took longer than
    `timeout` seconds, or its process was killed; a pause is made before, longer each time. After
    JOB_MAX_ATTEMPTS attempts the timer is dead: `manage.py redrive` puts it back.
    """
    keys.name(namespace, "namespace")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout is {timeout} s: give more than 0, or None for any time.")

    def register(function: H) -> H:
        there = timers.get(namespace)
        if there is not None and not _same(there.function, function):
            raise ConfigurationError(
                f"The namespace {namespace!r} has a handler already, {title(there.function)}: "
                "call both from one, or use two namespaces."
            )
        timers[namespace] = TimerHandler(namespace, function, timeout)
        return function

    return register


def on_key_event(
    pattern: str, *, events: Iterable[str] | None = None, db: int | None = None
) -> Callable[[H], H]:
    """Have a function, or a coroutine function, called with events (`KeyEvent`) of keys of the site's own.

    `pattern` is one of keys ("order:*"), or of channels as Redis names them ("__keyspace@0__:order*",
    "__keyevent@0__:expired"); `events` are their names, all where none are given; `db` is the number of the
    database, that of the alias where none is given. Keys of this app are never told of.

    It is as good as Redis's own events: what happens while nobody listens, or while one listener takes over
    from another, may be lost; what is told during a takeover may come twice. The server tells only what the
    flags of its `notify-keyspace-events` say: `run_listener --configure` adds those that are missing.
    """
    keys.name(pattern, "pattern")
    where = keyspace.place(pattern)
    if isinstance(events, str):
        raise TypeError("events must be a set of names, not one str: put it in a set.")
    wanted = frozenset(keys.name(event, "event") for event in events or ())
    named = wanted or frozenset({where.event} if where.event else ())
    for event in named:
        if keyspace.is_pattern(event):
            raise ValueError(f"{event!r} is a pattern of events: name each event in `events`.")
    if where.event is not None and named != {where.event}:
        raise ValueError(
            f"The channel is that of {where.event!r}, and events are {sorted(wanted)}: give one."
        )
    if db is not None and (not isinstance(db, int) or isinstance(db, bool) or db < 0):
        raise ValueError(f"db is {db!r}: give the number of a database, or None for that of the alias.")
    chosen = where.db if db is None else db

    def register(function: H) -> H:
        found = KeyHandler(where.pattern, named, chosen, function)
        if found not in key_events:
            key_events.append(found)
        return function

    return register


def discover() -> None:
    """Import `expiries` of each installed app that has one."""
    autodiscover_modules("expiries")


def title(function: Handler) -> str:
    """What a handler is called in messages."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def _same(one: Handler, other: Handler) -> bool:
    """A module that is imported again brings its functions again, from the same lines."""
    return one is other or (title(one), _written(one)) == (title(other), _written(other))


def _written(function: Handler) -> object:
    """Where it is: two lambdas of a module, say, have the same title."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code and (code.co_filename, code.co_firstlineno)
