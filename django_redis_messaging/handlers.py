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
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from django.utils.module_loading import autodiscover_modules

from .core import encoding
from .errors import ConfigurationError, InvalidArgument

#: flag of notify-keyspace-events → the events it enables; `d` is for those of modules
EVENTS = {
    "g": "copy_to del expire move_from move_to persist rename_from rename_to restore",
    "$": "append incrby incrbyfloat pfadd set setbit setrange",
    "l": "linsert lpop lpush lrem lset ltrim rpop rpush sortstore",
    "s": "sadd sdiffstore sinterstore spop srem sunionstore",
    "h": "hdel hexpire hexpired hincrby hincrbyfloat hpersist hset",
    "z": "geosearchstore georadiusstore zadd zdiffstore zincr zinterstore zpopmax zpopmin zrangestore zrem "
    "zremrangebylex zremrangebyrank zremrangebyscore zunionstore",
    "x": "expired",
    "e": "evicted",
    "d": "",
    "t": "xadd xdel xgroup-create xgroup-createconsumer xgroup-delconsumer xgroup-destroy xgroup-setid "
    "xsetid xtrim",
    "m": "keymiss",
    "n": "new",
}
#: the flags that `A` stands for: all but keymiss and new
ALL = "g$lshzxedt"
FLAGS = {event: flag for flag, events in EVENTS.items() for event in events.split()}

_CHANNEL = re.compile(r"__key(space|event)@(\d+|\*)__:(.+)", re.DOTALL)
_GLOB = re.compile(r"[*?\[\\]")
#: a function, or a coroutine function, with one argument
Handler = Callable[[Any], Any]
H = TypeVar("H", bound=Handler)


class Scope(NamedTuple):
    """The keys, database and event that a pattern selects."""

    #: a Redis glob pattern of keys
    pattern: str
    #: number of the database; "*": any; None: the alias's
    db: int | str | None
    #: the event, if the pattern is a channel of the form __keyevent@…__
    event: str | None = None


def parse_pattern(pattern: str) -> Scope:
    """Parse a pattern of keys, or of either form of channels.

    >>> parse_pattern("order:*")
    Scope(pattern='order:*', db=None, event=None)
    >>> parse_pattern("__keyspace@0__:order*")
    Scope(pattern='order*', db=0, event=None)
    >>> parse_pattern("__keyevent@*__:expired")
    Scope(pattern='*', db='*', event='expired')
    """
    channel = _CHANNEL.fullmatch(pattern)
    if channel is None:
        return Scope(pattern, None)
    kind, number, rest = channel.groups()
    db = number if number == "*" else int(number)
    return Scope(rest, db) if kind == "space" else Scope("*", db, None if rest == "*" else rest)


def channels(pattern: str, db: int | str, events: Iterable[str]) -> list[str]:
    """The channels to subscribe to: those of the keys, or, for all keys, those of the events.

    >>> channels("order:*", 0, ["expired"]), channels("*", 0, ["expired"])
    (['__keyspace@0__:order:*'], ['__keyevent@0__:expired'])
    """
    if pattern != "*" or not events:
        return [f"__keyspace@{db}__:{pattern}"]
    return [f"__keyevent@{db}__:{event}" for event in sorted(events)]


def parse_message(channel: bytes, message: bytes) -> tuple[int, bytes, str] | None:
    """Database, key and event of a message; None if it did not arrive on a keyspace channel."""
    found = _CHANNEL.fullmatch(channel.decode("utf-8", "surrogateescape"))
    if found is None or not found[2].isdigit():
        return None
    name = found[3].encode("utf-8", "surrogateescape")
    key, event = (name, message) if found[1] == "space" else (message, name)
    return int(found[2]), key, event.decode("utf-8", "surrogateescape")


def required_flags(pattern: str, events: Iterable[str]) -> str:
    """The flags that enable these events of these keys; without events: all but keymiss and new. Unknown
    events are ignored.

    >>> required_flags("order:*", {"expired", "set"}), required_flags("*", {"expired"})
    ('K$x', 'Ex')
    >>> required_flags("order:*", ())
    'KA'
    """
    kind = "E" if pattern == "*" and events else "K"
    classes = {FLAGS[event] for event in events if event in FLAGS} if events else {"A"}
    return kind + "".join(sorted(classes))


def _expand(flags: str) -> set[str]:
    """The set of flags, with `A` replaced by the flags it stands for."""
    return set(flags.replace("A", ALL))


def missing(enabled: str, required: str) -> str:
    """The required flags that are not enabled.

    >>> missing("K$e", "Kx"), missing("AKE", "Kx")
    ('x', '')
    """
    return "".join(sorted(_expand(required) - _expand(enabled)))


def merged(enabled: str, required: str) -> str:
    """The enabled and the required flags.

    >>> merged("K$e", "Kx")
    '$Kex'
    """
    return "".join(sorted(_expand(enabled) | _expand(required)))


def is_pattern(text: str) -> bool:
    """Whether `text` has special characters of a Redis glob pattern."""
    return bool(_GLOB.search(text))


def literal_prefix(pattern: str) -> str:
    """The common beginning of all keys that match a pattern.

    >>> literal_prefix("order:*"), literal_prefix("order:1")
    ('order:', 'order:1')
    """
    return _GLOB.split(pattern, maxsplit=1)[0]


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
        return required_flags(self.pattern, self.events)


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
    encoding.name(namespace, "namespace")
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
    encoding.name(pattern, "pattern")
    scope = parse_pattern(pattern)
    if isinstance(events, str):
        raise TypeError("events must be a set of names, not a str: put it in a set.")
    wanted = frozenset(encoding.name(event, "event") for event in events or ())
    named = wanted or frozenset({scope.event} if scope.event else ())
    for event in named:
        if is_pattern(event):
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
