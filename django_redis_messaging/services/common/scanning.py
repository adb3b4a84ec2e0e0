"""Finds resources of which there is no registry by the names of their keys: all, or a page of them."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import NamedTuple

from redis.exceptions import RedisError

from ...core.connection import Address
from ...core.operations import Clock, Command, Steps
from ...core.topology import Router, endpoint, scan
from ...errors import InvalidArgument, Unavailable

#: calls of SCAN for a page
MAX_SCANS = 8
#: keys that a page is to have, and that it has at most
PAGE_KEYS, MAX_PAGE_KEYS = 100, 150
#: keys that a SCAN for a page examines: at the first call, and at most, which takes about 2 ms
FIRST_COUNT, MAX_COUNT = 100, 3000
_CURSOR = re.compile(r"([0-9a-f]{8})\.(\d{1,20})(?:\.(\S{1,255}):(\d{1,5}))?", re.ASCII)


class ScanBudget:
    """How many keys each list of a block may find, and until when they may search."""

    def __init__(self, keys: int, seconds: float) -> None:
        self._keys = keys
        self._ends = monotonic() + seconds
        #: whether a list has ended early
        self.is_spent = False

    def ends_at(self, found: int) -> bool:
        """Whether a list that has found this many keys must end although it has not searched all."""
        if found >= self._keys or monotonic() >= self._ends:
            self.is_spent = True
        return self.is_spent


_budget: ContextVar[ScanBudget | None] = ContextVar("budget", default=None)


@contextmanager
def scan_budget(keys: int, seconds: float) -> Iterator[ScanBudget]:
    """Let each list in this block end once it has found that many keys, or after that time."""
    budget = ScanBudget(keys, seconds)
    before = _budget.set(budget)
    try:
        yield budget
    finally:
        _budget.reset(before)


def scan_keys(using: str, pattern: str) -> Iterator[str]:
    """The matching keys, each once, as far as the `scan_budget` allows. Raises Unavailable."""
    seen, budget = set[bytes](), _budget.get()
    try:
        for _, keys in scan(endpoint(using), pattern):
            if budget is not None and budget.ends_at(len(seen)):
                return
            for key in keys:
                if key not in seen:
                    seen.add(key)
                    yield key.decode(errors="replace")
    except RedisError as error:
        raise Unavailable(f"Redis was not available while its keys were listed: {error}") from error


class KeyPage(NamedTuple):
    """A page of keys."""

    keys: list[str]
    #: where the next page begins; empty: this is the last one
    cursor: str


class Scan(Command):
    """A call of SCAN, to the primary that owns `key`."""

    __slots__ = ("_key",)

    def __init__(self, key: str, cursor: int, pattern: str, count: int) -> None:
        super().__init__("SCAN", cursor, "MATCH", pattern, "COUNT", count, reads=True)
        self._key = key

    @property
    def key(self) -> str:
        return self._key


class Place(NamedTuple):
    """How far the keys have been searched."""

    #: the primary that is being searched; None: the server that the alias names
    address: Address | None
    #: of SCAN
    cursor: int = 0


def scan_page(
    using: str, pattern: str, cursor: str = "", *, owner: str | None = None, scans: int = MAX_SCANS
) -> Steps[KeyPage]:
    """The next matching keys, each once: about PAGE_KEYS of them if there are as many among the keys that
    `scans` calls examine. `owner`: a key; only its primary is searched. A key that exists all the time is
    on at least one page.

    Raises InvalidArgument for a cursor of other pages, or of a primary that the Cluster no longer has.
    """
    if not endpoint(using).router.is_known:
        yield Command("TIME", reads=True)
    router = endpoint(using).router
    primaries = _primaries(router, owner)
    list_id = f"{zlib.crc32(f'{using} {pattern}'.encode()):08x}"
    place = _parse(cursor, list_id, primaries) if cursor else Place(primaries[0])
    found, examined, count = dict[bytes, None](), 0, FIRST_COUNT
    for _ in range(scans):
        key = owner or _owned_key(router, place.address)
        reply, keys = yield Scan(key, place.cursor, pattern, count)
        if found and len(found) + len(keys) > MAX_PAGE_KEYS:
            if count <= FIRST_COUNT:
                break
            count = max(count // 4, FIRST_COUNT)
            continue
        found.update(dict.fromkeys(keys))
        examined += count
        following = _after(place, int(reply), primaries)
        if following is None:
            return KeyPage([key.decode(errors="replace") for key in found], "")
        place = following
        if len(found) >= PAGE_KEYS:
            break
        # as many as probably have the keys that are missing
        count = min(max((PAGE_KEYS - len(found)) * examined // (len(found) + 1), FIRST_COUNT), MAX_COUNT)
    return KeyPage([key.decode(errors="replace") for key in found], _format(list_id, place))


def _primaries(router: Router, owner: str | None) -> list[Address | None]:
    """The servers to search, in an order that stays."""
    if owner is not None:
        return [router.address(Clock(owner))]
    return [*sorted(router.addresses)] or [None]


def _owned_key(router: Router, address: Address | None) -> str:
    """A key that the primary owns."""
    texts = map(str, itertools.count())
    return "0" if address is None else next(one for one in texts if router.address(Clock(one)) == address)


def _after(place: Place, cursor: int, primaries: list[Address | None]) -> Place | None:
    """The place after a reply; None after the last one."""
    if cursor:
        return place._replace(cursor=cursor)
    following = primaries.index(place.address) + 1
    return Place(primaries[following]) if following < len(primaries) else None


def _format(list_id: str, place: Place) -> str:
    address = f".{place.address[0]}:{place.address[1]}" if place.address else ""
    return f"{list_id}.{place.cursor}{address}"


def _parse(cursor: str, list_id: str, primaries: list[Address | None]) -> Place:
    match = _CURSOR.fullmatch(cursor)
    if match is None or match[1] != list_id or int(match[2]) >= 2**64:
        raise InvalidArgument("The cursor is not one of this list: begin at its first page.")
    place = Place((match[3], int(match[4])) if match[3] else None, int(match[2]))
    if place.address not in primaries:
        raise InvalidArgument("The servers of the Cluster have changed: begin at the first page.")
    return place
