"""The keys of locks."""

from __future__ import annotations

import functools

from .names import FORMAT, encoded, name, tag

#: wake-up keys that a lock's waiters share: as many can be woken one by one
RING = 8


class LockKeys:
    """The keys of one lock, in one slot.

    >>> LockKeys("site", "site:1:{lock:report}").fence
    'site:1:{lock:report}:fence'
    >>> LockKeys("site", "shop:lock").fence
    'site:1:{shop:lock}:lock:fence'
    >>> LockKeys("site", "shop:{7}:a b").fence
    'site:1:{7}:lock:shop%3A%7B7%7D%3Aa%20b:fence'
    """

    def __init__(self, prefix: str, key: str) -> None:
        #: STRING: the holder's token. Expires with the lease; one without a lease stays until it is released.
        self.lock = key
        self._beside = _beside(prefix, key)

    @property
    def fence(self) -> str:
        """STRING "fence request token": the latest grant, and the latest extension of it, or -. Expires a
        day after the grant, or twice its lease if that is later."""
        return self._beside + ":fence"

    @property
    def line(self) -> str:
        """ZSET token → ticket: who waits, in this order. Expires when none of them looks any more."""
        return self._beside + ":line"

    @property
    def seen(self) -> str:
        """ZSET token → ms: when those who wait last looked. Expires as the line."""
        return self._beside + ":seen"

    @property
    def released(self) -> str:
        """STRING: the token that was released last, so that a repeat of it is told from a lease that was
        lost. Expires after a minute."""
        return self._beside + ":released"

    def wake(self, place: int) -> str:
        """STREAM of one entry, whose id is µs of the server: when somebody who waits at this place of the
        ring was given the lock. Expires after seconds."""
        return f"{self._beside}:wake:{place}"

    @functools.cached_property
    def acquiring(self) -> list[str]:
        """What acquiring takes, in the order of the script."""
        return [self.lock, self.fence, self.line, self.seen, *map(self.wake, range(RING))]

    @functools.cached_property
    def releasing(self) -> list[str]:
        """What releasing takes, in the order of the script."""
        return [self.lock, self.released, self.line, self.seen, *map(self.wake, range(RING))]


def lock_key(prefix: str, lock: str) -> str:
    """The key of a lock that has no other."""
    return tag(prefix, "lock", lock)


def checked_lock_key(value: str) -> str:
    """`value` if it can be the key of a lock, whatever else is to have the slot of it.

    >>> checked_lock_key("shop:lock")
    'shop:lock'
    """
    if "}" in _slot(name(value, "key")):
        raise ValueError(f"key {value!r} has a }} outside a hash tag: no other key could have its slot.")
    return value


def _slot(key: str) -> str:
    """What of a key decides its slot: the text between the first brace and the next, or all of it."""
    _, _, rest = key.partition("{")
    inside, end, _ = rest.partition("}")
    return inside if inside and end else key


def _beside(prefix: str, key: str) -> str:
    """What the other keys of a lock begin with: under our prefix, in its slot."""
    if key.startswith(f"{prefix}:{FORMAT}:{{lock:") and key.endswith("}"):
        return key
    slot = _slot(key)
    whose = "" if slot == key else f":{encoded(key)}"
    return f"{prefix}:{FORMAT}:{{{slot}}}:lock{whose}"
