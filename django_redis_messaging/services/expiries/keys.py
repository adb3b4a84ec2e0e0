"""The keys of timers."""

from __future__ import annotations

from ...core.keys import encoded, tag

#: the slot of all timers of a prefix: one claim, and one wait, covers every namespace
TIMERS = ("expiry", "timers")


def timer_key(prefix: str, namespace: str, name: str) -> str:
    """STRING: a timer's payload, as JSON. Expires when the timer is due, unless another client changes its
    TTL; a key without a TTL is deleted when the timer starts."""
    return f"{tag(prefix, *TIMERS)}:timer:{timer_name(namespace, name)}"


def timer_name(namespace: str, name: str) -> str:
    """The unique key of a timer's job until the timer starts. So the HASH `uniques` of JobKeys maps names to
    jobs; a field is deleted when the timer starts, is cancelled, or dies.

    >>> timer_name("order", "a:b")
    'order:a%3Ab'
    """
    return f"{encoded(namespace)}:{encoded(name)}"


def namespaces_key(prefix: str) -> str:
    """ZSET namespace → ms at which the last of its timers is due. The poller removes old names of empty
    namespaces."""
    return tag(prefix, *TIMERS) + ":namespaces"


def with_timer(queue: list[str], prefix: str, namespace: str, name: str) -> list[str]:
    """The KEYS of a script about a timer, in the order of _timers.lua. `queue`: the records of the jobs, and
    the queue of the namespace."""
    return [*queue, timer_key(prefix, namespace, name), namespaces_key(prefix)]
