"""What operators ask: which locks, semaphores, read-write locks, latches, file channels and chats a site
has, and whether all is well.

There is no registry of the former, so the keys are scanned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from ...core.commands import batched
from ...core.encoding import FORMAT, tag
from ...core.operations import Fan, Script, Service, Steps, asynchronous, operation, perform
from ..expiries.timers import TIMERS
from ..files import FileChannel, FileStats
from ..jobs.heartbeats import Heartbeat, heartbeat_calls, parse_heartbeats
from ..jobs.keys import JobKeys
from ..latches.latch import LatchInfo, LatchKeys, info_command
from ..latches.latch import parse_info as parse_latch
from ..locks.lock import LockInfo, LockKeys, fence_pattern, lock_key, parse_fence_key, parse_info
from ..rwlocks.rwlock import ReadWriteLockInfo, ReadWriteLockKeys
from ..rwlocks.rwlock import info_script as rwlock_info
from ..rwlocks.rwlock import parse_info as parse_rwlock_info
from ..semaphores.semaphore import SemaphoreInfo, SemaphoreKeys, info_script
from .scanning import scan_keys

#: locks of a kind, semaphores or latches whose states are read in a round trip
PAGE = 100
#: waiting clients of each lock, and holders of each read-write lock, that are listed
MAX_WAITERS = MAX_HOLDERS = 10
#: number of keys that a probe writes: enough for each primary of a typical Cluster to own some
PROBES = 16
#: ms; the TTL of these keys
PROBE_TTL = 60_000


@dataclass(frozen=True, slots=True)
class ListedLock:
    """A lock that is held, or that clients wait for; of these, `info` names up to MAX_WAITERS."""

    name: str
    info: LockInfo
    #: as in Lock(key=...); None: the default key
    key: str | None = None


@dataclass(frozen=True, slots=True)
class ListedSemaphore:
    """A semaphore that has holders or waiting clients."""

    name: str
    info: SemaphoreInfo


@dataclass(frozen=True, slots=True)
class ListedReadWriteLock:
    """A read-write lock that is held, or that clients wait for; `info` names up to MAX_HOLDERS."""

    name: str
    info: ReadWriteLockInfo


@dataclass(frozen=True, slots=True)
class ListedLatch:
    """A latch."""

    name: str
    info: LatchInfo


@dataclass(frozen=True, slots=True)
class ListedFileChannel:
    """A file channel."""

    name: str
    stats: FileStats


def list_locks(using: str, prefix: str) -> Iterator[ListedLock]:
    """The locks that are held, or that clients wait for, in no order. Raises Unavailable.

    Missing are locks that only other programs have acquired for a day, and locks without a lease that have
    been held for more than 30 days.
    """
    found = (parse_fence_key(prefix, key) for key in scan_keys(using, fence_pattern(prefix)))
    for page in batched((lock for lock in found if lock is not None), PAGE):
        yield from perform(using, read_locks(prefix, page))


def read_locks(prefix: str, locks: Sequence[tuple[str, str]]) -> Steps[list[ListedLock]]:
    """Those of the locks, pairs of name and key, that are held or waited for."""
    if not locks:
        return []
    replies = yield [Script("locks/info", LockKeys(prefix, key).all, [MAX_WAITERS]) for _, key in locks]
    states = [
        ListedLock(name, parse_info(reply), None if key == lock_key(prefix, name) else key)
        for (name, key), reply in zip(locks, replies, strict=True)
    ]
    return [one for one in states if one.info.holder is not None or one.info.waiting]


def list_semaphores(using: str, prefix: str) -> Iterator[ListedSemaphore]:
    """The semaphores with holders or waiting clients, in no order. Raises Unavailable."""
    begin, end = f"{prefix}:{FORMAT}:{{semaphore:", "}:limit"
    found = (unquote(key.removeprefix(begin).removesuffix(end)) for key in scan_keys(using, f"{begin}*{end}"))
    for names in batched(found, PAGE):
        for listed in perform(using, read_semaphores(prefix, names)):
            if listed.info.held or listed.info.waiting:
                yield listed


def read_semaphores(prefix: str, names: Sequence[str]) -> Steps[list[ListedSemaphore]]:
    """The semaphores with these names whose limits are stored, whether or not they are in use."""
    if not names:
        return []
    replies = yield [info_script(SemaphoreKeys(prefix, name)) for name in names]
    return [
        ListedSemaphore(name, SemaphoreInfo(limit=int(limit), held=held, waiting=waiting))
        for name, (limit, held, waiting, *_) in zip(names, replies, strict=True)
        if limit is not None
    ]


def list_rwlocks(using: str, prefix: str) -> Iterator[ListedReadWriteLock]:
    """The read-write locks that are held, or that clients wait for, in no order. Raises Unavailable."""
    begin, end = f"{prefix}:{FORMAT}:{{rwlock:", "}:grants"
    found = (unquote(key.removeprefix(begin).removesuffix(end)) for key in scan_keys(using, f"{begin}*{end}"))
    for names in batched(found, PAGE):
        yield from perform(using, read_rwlocks(prefix, names))


def read_rwlocks(prefix: str, names: Sequence[str]) -> Steps[list[ListedReadWriteLock]]:
    """Those of the read-write locks with these names that are held or waited for."""
    if not names:
        return []
    replies = yield [rwlock_info(ReadWriteLockKeys(prefix, name), holders=MAX_HOLDERS) for name in names]
    states = [
        ListedReadWriteLock(name, parse_rwlock_info(reply))
        for name, reply in zip(names, replies, strict=True)
    ]
    return [one for one in states if one.info.holders or one.info.waiting]


def list_latches(using: str, prefix: str) -> Iterator[ListedLatch]:
    """The latches, in no order. Raises Unavailable."""
    begin, end = f"{prefix}:{FORMAT}:{{latch:", "}:state"
    found = (unquote(key.removeprefix(begin).removesuffix(end)) for key in scan_keys(using, f"{begin}*{end}"))
    for names in batched(found, PAGE):
        yield from perform(using, read_latches(prefix, names))


def read_latches(prefix: str, names: Sequence[str]) -> Steps[list[ListedLatch]]:
    """Those of the latches with these names that exist."""
    if not names:
        return []
    replies = yield [info_command(LatchKeys(prefix, name)) for name in names]
    states = [(name, parse_latch(reply)) for name, reply in zip(names, replies, strict=True)]
    return [ListedLatch(name, info) for name, info in states if info is not None]


def list_file_channels(using: str, prefix: str) -> Iterator[ListedFileChannel]:
    """The file channels, in no order. Raises Unavailable."""
    begin, end = f"{prefix}:{FORMAT}:{{files:", "}:state"
    for key in scan_keys(using, f"{begin}*{end}"):
        channel = FileChannel(unquote(key.removeprefix(begin).removesuffix(end)), using=using)
        if (stats := channel.stats()) is not None:
            yield ListedFileChannel(channel.channel, stats)


def list_chats(using: str, prefix: str) -> Iterator[str]:
    """The ids of chats of which any key is left, in no order. Raises Unavailable."""
    begin, seen = f"{prefix}:{FORMAT}:{{chat:", set[str]()
    for key in scan_keys(using, f"{begin}*"):
        encoded, _, part = key.removeprefix(begin).partition("}:")
        # answers to requests outlive their chat
        if encoded not in seen and not part.startswith("requests:"):
            seen.add(encoded)
            yield unquote(encoded)


def probe_key(prefix: str, number: int) -> str:
    """STRING "1", written to verify that writes succeed. Expires within a minute."""
    return tag(prefix, "probe", str(number))


class Health(Service):
    """Reads the state of the app, and writes probe keys only."""

    @operation
    def probe(self) -> Steps[None]:
        """Write and read probe keys with a script, in one round trip; on a Cluster, on each primary."""
        keys = [([probe_key(self._prefix, number)], ()) for number in range(PROBES)]
        yield Fan("common/health_probe", keys, [PROBE_TTL])

    aprobe = asynchronous(probe)

    @operation
    def workers(self, alias: str) -> Steps[list[Heartbeat]]:
        """The workers of a task backend."""
        return (yield from self._heartbeats("tasks", alias))

    aworkers = asynchronous(workers)

    @operation
    def listeners(self) -> Steps[list[Heartbeat]]:
        """The listeners that fire timers."""
        return (yield from self._heartbeats(*TIMERS))

    alisteners = asynchronous(listeners)

    def _heartbeats(self, kind: str, value: str) -> Steps[list[Heartbeat]]:
        return parse_heartbeats(*(yield heartbeat_calls(JobKeys(self._prefix, kind, value))))
