"""Keyspace events, as Redis names them: events, their flags, channels.

https://redis.io/docs/latest/develop/pubsub/keyspace-notifications/
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

#: which events a flag of notify-keyspace-events delivers; `d` is for those of modules
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
#: what `A` stands for: all but keymiss and new
ALL = "g$lshzxedt"
FLAGS = {event: flag for flag, events in EVENTS.items() for event in events.split()}

_CHANNEL = re.compile(r"__key(space|event)@(\d+|\*)__:(.+)", re.DOTALL)
_GLOB = re.compile(r"[*?\[\\]")


class Place(NamedTuple):
    """What a pattern is about."""

    #: keys, as a pattern of Redis
    pattern: str
    #: number of the database; "*": any; None: that of the alias
    db: int | str | None
    #: the event that a channel of the form __keyevent@…__ names
    event: str | None = None


def place(pattern: str) -> Place:
    """What a pattern of keys, or of either form of channels, is about.

    >>> place("order:*")
    Place(pattern='order:*', db=None, event=None)
    >>> place("__keyspace@0__:order*")
    Place(pattern='order*', db=0, event=None)
    >>> place("__keyevent@*__:expired")
    Place(pattern='*', db='*', event='expired')
    """
    channel = _CHANNEL.fullmatch(pattern)
    if channel is None:
        return Place(pattern, None)
    kind, number, rest = channel.groups()
    db = number if number == "*" else int(number)
    return Place(rest, db) if kind == "space" else Place("*", db, None if rest == "*" else rest)


def channels(pattern: str, db: int | str, events: Iterable[str]) -> list[str]:
    """What to subscribe to: the keys that are meant; where all are, rather the events that are.

    >>> channels("order:*", 0, ["expired"]), channels("*", 0, ["expired"])
    (['__keyspace@0__:order:*'], ['__keyevent@0__:expired'])
    """
    if pattern != "*" or not events:
        return [f"__keyspace@{db}__:{pattern}"]
    return [f"__keyevent@{db}__:{event}" for event in sorted(events)]


def parsed(channel: bytes, message: bytes) -> tuple[int, bytes, str] | None:
    """Database, key and event of what came on a channel; None where it is none of these channels."""
    found = _CHANNEL.fullmatch(channel.decode("utf-8", "surrogateescape"))
    if found is None or not found[2].isdigit():
        return None
    name = found[3].encode("utf-8", "surrogateescape")
    key, event = (name, message) if found[1] == "space" else (message, name)
    return int(found[2]), key, event.decode("utf-8", "surrogateescape")


def needed(pattern: str, events: Iterable[str]) -> str:
    """The flags that deliver these events of these keys; no events: all but keymiss and new. Of an event
    that is not known nobody can tell.

    >>> needed("order:*", {"expired", "set"}), needed("*", {"expired"}), needed("order:*", ())
    ('K$x', 'Ex', 'KA')
    """
    kind = "E" if pattern == "*" and events else "K"
    classes = {FLAGS[event] for event in events if event in FLAGS} if events else {"A"}
    return kind + "".join(sorted(classes))


def expanded(flags: str) -> set[str]:
    """Flags one by one, with what `A` stands for in its place."""
    return set(flags.replace("A", ALL))


def missing(there: str, wanted: str) -> str:
    """Flags that are wanted and not there.

    >>> missing("K$e", "Kx"), missing("AKE", "Kx")
    ('x', '')
    """
    return "".join(sorted(expanded(wanted) - expanded(there)))


def merged(there: str, wanted: str) -> str:
    """What is there, and what is wanted too.

    >>> merged("K$e", "Kx")
    '$Kex'
    """
    return "".join(sorted(expanded(there) | expanded(wanted)))


def is_pattern(text: str) -> bool:
    """Whether a pattern of Redis may mean more than itself."""
    return bool(_GLOB.search(text))


def beginning(pattern: str) -> str:
    """What all keys begin with that a pattern matches.

    >>> beginning("order:*"), beginning("order:1")
    ('order:', 'order:1')
    """
    return _GLOB.split(pattern, maxsplit=1)[0]
