"""The names, flags and channels of Redis keyspace events.

https://redis.io/docs/latest/develop/pubsub/keyspace-notifications/
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

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
