"""The keys of locks."""

from __future__ import annotations

import functools
from urllib.parse import unquote

from ...core.keys import FORMAT, encoded, name, tag
from ...errors import InvalidArgument

#: number of wake-up keys that a lock's waiting clients share; with more clients, several wake up together
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
        #: STRING: the holder's token. Expires with the lease; without a lease it stays until the release.
        self.key = key
        self._base = _base(prefix, key)

    @property
    def fence(self) -> str:
        """STRING "fence request token": the fence and token of the latest acquire, and the request id of
        the latest extension of it, or -. Expires a day after the latest acquire or extension, after twice the
        lease if that is longer, or after 30 days without a lease."""
        return self._base + ":fence"

    @property
    def line(self) -> str:
        """ZSET token → ticket: the waiting clients, in order. Expires when none of them polls any more."""
        return self._base + ":line"

    @property
    def seen(self) -> str:
        """ZSET token → ms: when each waiting client last polled. Expires with the queue."""
        return self._base + ":seen"

    @property
    def releases(self) -> str:
        """LIST: up to 1000 tokens that were released, the latest first; distinguishes a repeated release from
        a lost lease. Expires a minute after the latest release."""
        return self._base + ":releases"

    def wake(self, place: int) -> str:
        """STREAM of one entry, whose id is the server time in µs: when a client at this place of the ring was
        handed the lock. Expires after some seconds."""
        return f"{self._base}:wake:{place}"

    @functools.cached_property
    def all(self) -> list[str]:
        """The keys in the order of all scripts, see lock_at() in _locks.lua; without the ring."""
        return [self.key, self.fence, self.line, self.seen, self.releases]

    @functools.cached_property
    def with_ring(self) -> list[str]:
        """The keys in the order of the scripts that wake clients."""
        return [*self.all, *map(self.wake, range(RING))]


def lock_key(prefix: str, lock: str) -> str:
    """The default key of a lock."""
    return tag(prefix, "lock", lock)


def checked_lock_key(value: str) -> str:
    """Return `value` if it is a valid lock key, so that other keys can be put into its slot.

    >>> checked_lock_key("shop:lock")
    'shop:lock'
    """
    if "}" in _hashed_part(name(value, "key")):
        raise InvalidArgument(
            f"key {value!r} has a }} outside a hash tag: other keys could not share its slot."
        )
    return value


def _hashed_part(key: str) -> str:
    """The part of a key that determines its slot: the hash tag, or the whole key without one."""
    _, _, rest = key.partition("{")
    inside, end, _ = rest.partition("}")
    return inside if inside and end else key


def _base(prefix: str, key: str) -> str:
    """The beginning of the other keys of a lock: under the app's prefix, in the slot of its key."""
    if key.startswith(f"{prefix}:{FORMAT}:{{lock:") and key.endswith("}"):
        return key
    hashed = _hashed_part(key)
    suffix = "" if hashed == key else f":{encoded(key)}"
    return f"{prefix}:{FORMAT}:{{{hashed}}}:lock{suffix}"


def fence_pattern(prefix: str) -> str:
    """The SCAN pattern of the fences of all locks, and of few other keys."""
    return f"{prefix}:{FORMAT}:{{*:fence"


def parse_fence_key(prefix: str, fence_key: str) -> tuple[str, str] | None:
    """The name and the key of the lock to which a fence belongs; if the lock has a key of its own, both are
    that key. None for other keys.

    >>> parse_fence_key("site", "site:1:{lock:nightly%20report}:fence")
    ('nightly report', 'site:1:{lock:nightly%20report}')
    >>> parse_fence_key("site", "site:1:{shop:lock}:lock:fence")
    ('shop:lock', 'shop:lock')
    >>> parse_fence_key("site", "site:1:{7}:lock:shop%3A%7B7%7D%3Aa%20b:fence")
    ('shop:{7}:a b', 'shop:{7}:a b')
    >>> parse_fence_key("site", "site:1:{chat:7}:fence")
    """
    hashed, _, suffix = fence_key.removeprefix(f"{prefix}:{FORMAT}:{{").removesuffix(":fence").partition("}")
    if not suffix and hashed.startswith("lock:"):
        name = unquote(hashed.removeprefix("lock:"))
        return name, lock_key(prefix, name)
    if suffix == ":lock":
        return hashed, hashed
    key = unquote(suffix.removeprefix(":lock:"))
    return (key, key) if suffix.startswith(":lock:") else None
