"""The keys of timers, and of those who listen to keyspace events."""

from __future__ import annotations

from .names import FORMAT, encoded, tag

#: the slot of all timers of a prefix: one claim serves every namespace, and one wait hears all their bells
TIMERS = ("expiry", "timers")


def timer(prefix: str, namespace: str, name: str) -> str:
    """STRING: a timer's payload, as JSON. Expires when the timer is due, unless somebody says otherwise; one
    that was made to stay is deleted when the timer begins."""
    return f"{tag(prefix, *TIMERS)}:timer:{timer_name(namespace, name)}"


def timer_name(namespace: str, name: str) -> str:
    """What the job of a timer has as its unique key until it begins. So the HASH `uniques` of JobKeys is
    name → job; a field goes when the timer begins, is cancelled, or is buried.

    >>> timer_name("order", "a:b")
    'order:a%3Ab'
    """
    return f"{encoded(namespace)}:{encoded(name)}"


def namespaces(prefix: str) -> str:
    """ZSET namespace → ms at which the last of its timers is due: the namespaces there are. Pruned by age
    when read."""
    return tag(prefix, *TIMERS) + ":namespaces"


def dispatch(prefix: str, node: str) -> str:
    """STRING "token fence": whose handlers get the keyspace events of a primary. Expires when it isn't
    renewed."""
    return f"{prefix}:{FORMAT}:{{listener:nodes}}:{encoded(node)}"
