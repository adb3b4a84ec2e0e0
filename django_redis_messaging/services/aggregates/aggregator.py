"""Aggregates: the lines of files, counted by period and key, each exactly once."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Protocol

from ... import conf
from ...core.commands import Argument
from ...core.encoding import encoded, tag
from ...core.encoding import name as checked
from ...core.operations import Command, Script, Service, Steps, asynchronous, operation
from ...errors import ConfigurationError, InvalidArgument, LeaseLost, LimitExceeded
from ..common.arguments import Duration, count, integer, milliseconds

if TYPE_CHECKING:
    from django.contrib.gis.geoip2 import GeoIP2

#: pairs of one line; a line with more is malformed
MAX_PAIRS = 100
#: different pairs that are flushed; with those of one more line they are fewer than 500
FLUSH_PAIRS = 400
#: lines that are flushed even if they have few different pairs: what a killed process has to parse again
FLUSH_LINES = 100_000
#: pairs that are not checked again
CHECKED_PAIRS = 10_000
#: lines that are read at a time: with the longest possible lines, 100 MiB
BATCH = 100
#: ms; how long a marker is kept at least: a file that is delivered again later may be counted again
MARKER_TTL = 400 * 86_400_000
#: maximum number of markers: pairs of a channel and a consumer
MAX_MARKERS = 10_000
#: maximum of a file id, which keeps it in the range of exact floats
MAX_FILE_ID = 2**53
#: names of periods that a script reads or deletes
PAGE = 500
#: the key that has the total of a period
TOTAL = b"\0"

#: a period and a key
Pair = tuple[str, str]
#: what a line counts for: a pair, several pairs, or nothing
Parsed = Pair | Iterable[Pair] | None
#: raises ValueError for a malformed line
Parse = Callable[[bytes], Parsed]
#: addresses whose country is cached: some 10 MB
CACHE_SIZE = 65_536


class AggregateKeys:
    """The keys of one aggregate, in one slot. Those that are not of a period expire together with the last
    marker or period."""

    def __init__(self, prefix: str, name: str) -> None:
        self.tag = tag(prefix, "aggregate", name)

    @functools.cached_property
    def markers(self) -> str:
        """HASH "channel␀consumer" → "file-id line" of the last counted line, followed by " end" if the file
        ends there. A marker is removed 400 days after its last change, or after the TTL if that is longer."""
        return self.tag + ":markers"

    @functools.cached_property
    def periods(self) -> str:
        """ZSET of the names of all periods, with the score 0: in the order of their bytes."""
        return self.tag + ":periods"

    @functools.cached_property
    def expiries(self) -> str:
        """ZSET "p" and the name of a period, or "m" and the field of a marker → ms at which it expires. Each
        flush removes up to 500 that have expired."""
        return self.tag + ":expiries"

    @functools.cached_property
    def malformed(self) -> str:
        """STRING: the number of malformed lines."""
        return self.tag + ":malformed"

    @functools.cached_property
    def all(self) -> list[str]:
        """The keys that are not of a period, in the order of the scripts that take all of them."""
        return [self.markers, self.periods, self.expiries, self.malformed]

    def period(self, name: str) -> str:
        """ZSET key → negative count, so that the highest count comes first, and of equal ones the first key.
        The key "␀" has the total, "" has the counts of unknown keys and of those above the limit. Expires
        when the period was not changed for the TTL of the aggregate."""
        return f"{self.tag}:period:{encoded(name)}"


class CountableFile(Protocol):
    """A file as a consumer of a channel gets it."""

    @property
    def id(self) -> int:
        """Greater than the ids of all files that the consumer got before."""
        ...

    @property
    def channel(self) -> str: ...

    @property
    def consumer(self) -> str: ...

    def batches(self, n: int, /) -> Iterator[list[bytes]]:
        """The lines, in lists of `n`."""
        ...

    def abatches(self, n: int, /) -> AsyncIterator[list[bytes]]:
        """Async version of `batches`."""
        ...


@dataclass(frozen=True, slots=True)
class Count:
    """How often a key was counted in a period."""

    key: str
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """What one call of `add_file` has added."""

    lines: int
    """Lines that this call has counted, malformed ones included. Lines that were counted before are not."""
    malformed: int
    """Lines among them that were skipped because they are malformed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flush:
    """The counts of consecutive lines of a file."""

    start: int
    """Number of lines before the first one."""
    end: int
    """Number of lines up to the last one."""
    counts: dict[Pair, int]
    malformed: int
    is_last: bool
    """Whether the file ends with these lines."""


class Counting:
    """The lines of a file that are not yet flushed. `start`: number of lines that were counted before."""

    def __init__(self, parse: Parse, start: int) -> None:
        self._parse = parse
        self._check = functools.lru_cache(CHECKED_PAIRS)(check_pair)
        self._skip = start
        #: number of the last line that was flushed, and of the last line that was read
        self._flushed, self._read = start, start
        self._counts: dict[Pair, int] = {}
        self._malformed = 0
        self._lines, self._all_malformed = 0, 0

    def count(self, lines: list[bytes]) -> Iterator[Flush]:
        """Count the next lines, and yield what has to be flushed."""
        if self._skip:
            skipped = min(self._skip, len(lines))
            self._skip -= skipped
            lines = lines[skipped:]
        # This loop determines the rate, so it handles the most frequent case, a pair that is in the buffer,
        # by itself.
        parse, counts, first = self._parse, self._counts, self._read + 1
        for number, line in enumerate(lines, first):
            try:
                parsed: Any = parse(line)
                if parsed is None:
                    continue
                if parsed.__class__ is tuple:
                    try:
                        counts[parsed] += 1
                        continue
                    except (KeyError, TypeError):  # a new pair, several pairs, or something else
                        pass
                self._add(parsed)
            except ValueError:
                self._malformed += 1
            except Exception as error:
                error.add_note(f"Raised for line {number} of the file.")
                raise
            else:
                if len(counts) >= FLUSH_PAIRS:
                    self._read = number
                    yield self._flush()
                    counts = self._counts
        self._read = first - 1 + len(lines)
        if self._read - self._flushed >= FLUSH_LINES:
            yield self._flush()

    def finish(self) -> Flush:
        """The last flush of the file."""
        return self._flush(is_last=True)

    @property
    def counted(self) -> Counted:
        """What was flushed so far."""
        return Counted(lines=self._lines, malformed=self._all_malformed)

    def _flush(self, *, is_last: bool = False) -> Flush:
        flush = Flush(
            start=self._flushed,
            end=self._read,
            counts=self._counts,
            malformed=self._malformed,
            is_last=is_last,
        )
        self._lines += self._read - self._flushed
        self._all_malformed += self._malformed
        self._flushed, self._counts, self._malformed = self._read, {}, 0
        return flush

    def _add(self, parsed: Any) -> None:
        """Add the pairs of a line, all or none. Raises ValueError for a malformed line."""
        counts = self._counts
        if _is_pair(parsed):
            self._check(*parsed)
            counts[parsed] = counts.get(parsed, 0) + 1
            return
        pairs: list[Pair] = list(islice(parsed, MAX_PAIRS + 1))
        if len(pairs) > MAX_PAIRS:
            raise InvalidArgument(f"A line has more than {MAX_PAIRS} pairs.")
        for pair in pairs:
            if not _is_pair(pair):
                raise TypeError(
                    "parse must return a pair (period, key) of two str, an iterable of such pairs, or None;"
                    f" it returned {pair!r:.100}."
                )
            self._check(*pair)
        for pair in pairs:
            counts[pair] = counts.get(pair, 0) + 1


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], str)
    )


def check_pair(period: str, key: str) -> None:
    """Check the names of a period and of a key, which may be empty."""
    checked(period, "period")
    if key != "":
        checked(key, "key")


class Aggregator(Service):
    """Counts the lines of files by period and key, each line exactly once. Creating the object does no I/O.

    *A line is counted once for each consumer of a channel, even if the process is killed at any moment, or
    another one counts the same file at the same time.* The counts are collected in memory and added by a
    script, together with the place up to which the file is counted. A file that is delivered again is
    continued there.

    >>> visits = Aggregator("visits-example")
    >>> visits.total("2026-11-22"), visits.top("2026-11-22"), visits.periods()
    (0, [], [])

    A period is any name, such as a date. It is deleted `ttl` seconds after its last change (default:
    AGGREGATE_TTL). A period has at most AGGREGATE_MAX_KEYS keys; the counts of further keys are added to the
    key "".
    """

    def __init__(self, name: str, *, ttl: Duration | None = None, using: str | None = None) -> None:
        super().__init__(using=using)
        self.name = checked(name, "name")
        self._ttl = None if ttl is None else milliseconds(ttl, "ttl", minimum=1)
        self._keys = AggregateKeys(self._prefix, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def add_file(self, file: CountableFile, parse: Parse) -> Counted:
        """Count the lines of a file that were not counted before; returns how many they were.

        `parse` is called with each line as bytes. It returns a pair (period, key), or up to 100 pairs, or
        None if there is nothing to count. If it raises ValueError, or returns more pairs or an invalid name,
        the line is malformed: it is counted as such and skipped. Names have 1 to 255 bytes of UTF-8, without
        NUL; a key may also be "". Other exceptions of `parse` end the call, as does a TypeError if it
        returns anything else.

            for file in FileChannel("logs").consume("visits"):
                visits.add_file(file, parse)
                file.ack()

        `parse` must depend on nothing but the line. Another `parse` needs another aggregate: in this one the
        lines are counted already.

        Raises LeaseLost if another process counts the file meanwhile, and LimitExceeded
        (AGGREGATE_MAX_PERIODS). Lines up to the latest flush are then counted, others are not.
        """
        marker = _marker_field(file)
        start = self._counted_lines(marker, file.id)
        if start is None:
            return Counted(lines=0, malformed=0)
        counting, batches = Counting(_checked_parse(parse), start), file.batches(BATCH)
        try:
            for lines in batches:
                for flush in counting.count(lines):
                    self._flush(marker, file.id, flush)
        finally:
            if isinstance(batches, Generator):
                batches.close()
        self._flush(marker, file.id, counting.finish())
        return counting.counted

    async def aadd_file(self, file: CountableFile, parse: Parse) -> Counted:
        """Async version of `add_file`; `parse` is a plain function."""
        marker = _marker_field(file)
        start = await self._acounted_lines(marker, file.id)
        if start is None:
            return Counted(lines=0, malformed=0)
        counting, batches = Counting(_checked_parse(parse), start), file.abatches(BATCH)
        try:
            async for lines in batches:
                for flush in counting.count(lines):
                    await self._aflush(marker, file.id, flush)
                await asyncio.sleep(0)  # counting blocks the event loop: other tasks run between the batches
        finally:
            if isinstance(batches, AsyncGenerator):
                await batches.aclose()
        await self._aflush(marker, file.id, counting.finish())
        return counting.counted

    @operation
    def top(self, period: str, n: int = 10) -> Steps[list[Count]]:
        """The `n` (at most 1000) highest counts of a period, highest first, equal ones in the order of keys.

        >>> Aggregator("visits-example").top("2026-11-22", 3)
        []
        """
        stop = count(n, "n")  # one more: the total
        reply = yield Command("ZRANGE", self._counts(period), 0, stop, "WITHSCORES", reads=True)
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return [Count(key.decode(), _to_count(score)) for key, score in pairs if key != TOTAL][:n]

    atop = asynchronous(top)

    @operation
    def total(self, period: str) -> Steps[int]:
        """The sum of all counts of a period."""
        return _to_count((yield Command("ZSCORE", self._counts(period), TOTAL, reads=True)))

    atotal = asynchronous(total)

    @operation
    def count(self, period: str, key: str) -> Steps[int]:
        """How often a key was counted in a period."""
        check_pair(period, key)
        return _to_count((yield Command("ZSCORE", self._counts(period), key, reads=True)))

    acount = asynchronous(count)

    @operation
    def periods(self, *, after: str | None = None, limit: int = 1000) -> Steps[list[str]]:
        """Up to `limit` (at most 1000) periods in the order of their names, after the name `after`.

        >>> Aggregator("visits-example").periods(after="2026-11-22")
        []
        """
        cursor = "" if after is None else checked(after, "after")
        size = count(limit, "limit")
        found: list[str] = []
        while len(found) < size:
            keys = [self._keys.periods, self._keys.expiries]
            following, names = yield Script("aggregates/periods", keys, [cursor, size - len(found)])
            found += [name.decode() for name in names]
            if not following:
                break
            cursor = following.decode()
        return found

    aperiods = asynchronous(periods)

    @operation
    def malformed(self) -> Steps[int]:
        """The number of malformed lines in all files."""
        return int((yield Command("GET", self._keys.malformed, reads=True)) or 0)

    amalformed = asynchronous(malformed)

    @operation
    def delete(self) -> Steps[None]:
        """Delete all counts and all markers: files that are delivered again are counted again.

        End the consumers first. A call of `add_file` that has begun raises LeaseLost, one that begins
        meanwhile may lose counts.
        """
        remaining = 1
        while remaining:
            names = yield Command("ZRANGE", self._keys.periods, 0, PAGE - 1, reads=True)
            counts = [self._keys.period(name.decode()) for name in names]
            remaining = yield Script("aggregates/delete", [*self._keys.all, *counts], names)

    adelete = asynchronous(delete)

    def _counts(self, period: str) -> str:
        return self._keys.period(checked(period, "period"))

    @operation
    def _counted_lines(self, marker: str, file_id: int) -> Steps[int | None]:
        """How many lines of a file are counted; None: all."""
        reply = yield Command("HGET", self._keys.markers, marker, reads=True)
        if reply is None:
            return 0
        marked, line, *ended = reply.decode().split()
        if int(marked) != file_id:
            return 0 if int(marked) < file_id else None
        return None if ended else int(line)

    _acounted_lines = asynchronous(_counted_lines)

    @operation
    def _flush(self, marker: str, file_id: int, flush: Flush) -> Steps[None]:
        settings = conf.current()
        ttl = self._ttl or milliseconds(settings.AGGREGATE_TTL, "AGGREGATE_TTL", minimum=1)
        place = (marker, file_id, flush.start, flush.end, int(flush.is_last), flush.malformed)
        limits = (settings.AGGREGATE_MAX_KEYS, settings.AGGREGATE_MAX_PERIODS, MAX_MARKERS)
        keys, changes = [*self._keys.all], list[Argument]()
        for period, pairs in groupby(sorted(flush.counts.items()), key=lambda item: item[0][0]):
            words = [word for (_, key), number in pairs for word in (key, number)]
            keys.append(self._keys.period(period))
            changes += [period, len(words) // 2, *words]
        args = [*place, ttl, max(ttl, MARKER_TTL), *limits, *changes]
        reply = yield Script("aggregates/flush", keys, args)
        self._check(reply, flush)

    _aflush = asynchronous(_flush)

    def _check(self, reply: int | list[Any], flush: Flush) -> None:
        """Raise an error if a flush was refused."""
        if reply == 0:
            raise LeaseLost(
                f"Lines {flush.start + 1} to {flush.end} were not added to the aggregate {self.name!r}:"
                " another process counts this file for the same consumer."
            )
        if isinstance(reply, list):
            what, actual = reply
            limit, setting = MAX_MARKERS, ""
            if what == b"periods":
                limit, setting = conf.current().AGGREGATE_MAX_PERIODS, "AGGREGATE_MAX_PERIODS"
            named = f"Number of {what.decode()} of the aggregate {self.name!r}"
            raise LimitExceeded(named, limit=limit, actual=int(actual), setting=setting)


def _marker_field(file: CountableFile) -> str:
    """The field of the marker for a file's channel and consumer."""
    integer(file.id, "file.id", minimum=1, maximum=MAX_FILE_ID)
    return f"{checked(file.channel, 'file.channel')}\0{checked(file.consumer, 'file.consumer')}"


def _checked_parse(parse: Parse) -> Parse:
    if not callable(parse):
        raise TypeError(f"parse must be callable, not {type(parse).__name__}.")
    return parse


def _to_count(score: bytes | None) -> int:
    """The count that a score stands for."""
    return -int(float(score or 0))


class Countries:
    """Looks up the countries of IP addresses in a GeoIP2 database, with Django's `GeoIP2`.

        countries = Countries()
        countries("2001:218::1")        # "JP"
        countries("192.168.0.1")        # ""

    `path` is a database (`.mmdb`, of countries or of cities) or its folder; by default the setting GEOIP_PATH
    of Django. Needs the extra `geoip`.

    A call takes an IPv4 or IPv6 address as str or bytes, and returns the ISO 3166-1 code of its country, or
    "" if the database has none, as for private addresses. The countries of the latest 65,536 addresses are
    cached. It raises InvalidArgument, a ValueError, for any other text: host names are not resolved.

    Raises ConfigurationError if the extra or the database is missing.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._find = functools.lru_cache(CACHE_SIZE)(functools.partial(_find, _open(path)))

    def __call__(self, ip: str | bytes) -> str:
        return self._find(ip)


def _open(path: str | os.PathLike[str] | None) -> GeoIP2:
    from django.contrib.gis import geoip2

    if not geoip2.HAS_GEOIP2:
        raise ConfigurationError(
            "Countries needs the package geoip2: pip install 'django-redis-messaging[geoip]'."
        )
    from maxminddb import InvalidDatabaseError

    try:
        return geoip2.GeoIP2(path)
    except (geoip2.GeoIP2Exception, InvalidDatabaseError, OSError) as error:
        raise ConfigurationError(
            "The GeoIP2 database of countries can't be opened: set GEOIP_PATH to the database or its folder,"
            f" or pass it as path. {error}"
        ) from error


def _find(database: GeoIP2, ip: str | bytes) -> str:
    from geoip2.errors import AddressNotFoundError

    if not isinstance(ip, str | bytes):
        raise TypeError(f"ip must be a str or bytes, not {type(ip).__name__}.")
    try:
        text = ip.decode("ascii") if isinstance(ip, bytes) else ip
        address = ipaddress.ip_address(text)
    except ValueError:
        raise InvalidArgument(f"ip must be an IPv4 or IPv6 address, not {ip!r:.60}.") from None
    try:
        # not as text: Django would look up text that it takes for a host name in the DNS
        return database.country(getattr(address, "ipv4_mapped", None) or address)["country_code"] or ""
    except AddressNotFoundError:
        return ""
