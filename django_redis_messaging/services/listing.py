"""Lists the locks, semaphores, file channels and chats of a site, for operators: no registry exists, so the
keys are scanned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from redis.exceptions import RedisError

from ..core.endpoints import endpoint
from ..core.keys import FORMAT
from ..core.operations import Script, Steps, perform
from ..core.primaries import scan
from ..core.steps import batched
from ..errors import Unavailable
from .files import FileChannel, FileStats
from .locks.keys import LockKeys, fence_pattern, parse_fence_key
from .locks.values import LockInfo, parse_info
from .semaphores.keys import SemaphoreKeys
from .semaphores.values import SemaphoreInfo

#: locks or semaphores whose states are read in a round trip
PAGE = 100
#: waiting clients of each lock that are listed
MAX_WAITERS = 10


@dataclass(frozen=True, slots=True)
class ListedLock:
    """A lock that is held, or that clients wait for; of these, `info` names up to MAX_WAITERS."""

    name: str
    info: LockInfo


@dataclass(frozen=True, slots=True)
class ListedSemaphore:
    """A semaphore that has holders or waiting clients."""

    name: str
    info: SemaphoreInfo


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
    found = (parse_fence_key(prefix, key) for key in _scan(using, fence_pattern(prefix)))
    for page in batched((lock for lock in found if lock is not None), PAGE):
        states = perform(using, _read_locks(prefix, [key for _, key in page]))
        for (name, _), info in zip(page, states, strict=True):
            if info.holder is not None or info.waiting:
                yield ListedLock(name, info)


def _read_locks(prefix: str, keys: Sequence[str]) -> Steps[list[LockInfo]]:
    replies = yield [Script("lock_info", LockKeys(prefix, key).reading, [MAX_WAITERS]) for key in keys]
    return [parse_info(reply) for reply in replies]


def list_semaphores(using: str, prefix: str) -> Iterator[ListedSemaphore]:
    """The semaphores with holders or waiting clients, in no order. Raises Unavailable."""
    begin, end = f"{prefix}:{FORMAT}:{{semaphore:", "}:limit"
    found = (unquote(key.removeprefix(begin).removesuffix(end)) for key in _scan(using, f"{begin}*{end}"))
    for names in batched(found, PAGE):
        for listed in perform(using, _read_semaphores(prefix, names)):
            if listed.info.held or listed.info.waiting:
                yield listed


def _read_semaphores(prefix: str, names: Sequence[str]) -> Steps[list[ListedSemaphore]]:
    replies = yield [Script("semaphore_info", SemaphoreKeys(prefix, name).reading) for name in names]
    return [
        ListedSemaphore(name, SemaphoreInfo(limit=int(limit or 0), held=held, waiting=waiting))
        for name, (limit, held, waiting) in zip(names, replies, strict=True)
    ]


def list_file_channels(using: str, prefix: str) -> Iterator[ListedFileChannel]:
    """The file channels, in no order. Raises Unavailable."""
    begin, end = f"{prefix}:{FORMAT}:{{files:", "}:state"
    for key in _scan(using, f"{begin}*{end}"):
        channel = FileChannel(unquote(key.removeprefix(begin).removesuffix(end)), using=using)
        if (stats := channel.stats()) is not None:
            yield ListedFileChannel(channel.channel, stats)


def list_chats(using: str, prefix: str) -> Iterator[str]:
    """The ids of chats of which any key is left, in no order. Raises Unavailable."""
    begin, seen = f"{prefix}:{FORMAT}:{{chat:", set[str]()
    for key in _scan(using, f"{begin}*"):
        encoded, _, part = key.removeprefix(begin).partition("}:")
        # answers to requests outlive their chat
        if encoded not in seen and not part.startswith("requests:"):
            seen.add(encoded)
            yield unquote(encoded)


def _scan(using: str, pattern: str) -> Iterator[str]:
    """The matching keys, each once."""
    seen: set[bytes] = set()
    try:
        for _, keys in scan(endpoint(using), pattern):
            for key in keys:
                if key not in seen:
                    seen.add(key)
                    yield key.decode(errors="replace")
    except RedisError as error:
        raise Unavailable(f"Redis was not available while its keys were listed: {error}") from error
