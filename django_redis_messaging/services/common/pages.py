"""Lists for pages: of locks, chats and all else of which there is no registry.

A page is what some calls of SCAN find (scanning.py), and the states of that in one more round trip. So its
cost doesn't depend on how many keys there are. A list may have pages without items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar
from urllib.parse import unquote

from ...core.encoding import FORMAT, UNSAFE, encoded
from ...core.encoding import name as checked
from ...core.operations import Steps, perform
from ...core.topology import literal_pattern
from ...errors import InvalidArgument
from ..broadcasts import usage as broadcasts
from ..chats import usage as chats
from ..files.channel import FileStats, read_stats
from ..live.counting import UserStreams, read_streams
from ..locks.lock import lock_key, parse_fence_key
from ..mailboxes import usage as mailboxes
from .operators import (
    ListedFileChannel,
    ListedLatch,
    ListedLock,
    ListedReadWriteLock,
    ListedSemaphore,
    read_latches,
    read_locks,
    read_rwlocks,
    read_semaphores,
)
from .scanning import MAX_SCANS, scan_page


class Named(Protocol):
    """What a list contains."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


@dataclass(frozen=True)
class Page(Generic[T]):
    """A page of a list."""

    items: list[T]
    #: where the next page begins; empty: this is the last one
    cursor: str


def page_locks(using: str, prefix: str, text: str = "", cursor: str = "") -> Page[ListedLock]:
    """The locks that are held or waited for, whose name contains `text`; see operators.list_locks."""
    return perform(using, _page_locks(using, prefix, text, cursor))


def _page_locks(using: str, prefix: str, text: str, cursor: str) -> Steps[Page[ListedLock]]:
    begin, part = f"{prefix}:{FORMAT}:{{*", ""
    if text:
        # In the key of a fence, unsafe characters are encoded or not: those of a key are not.
        part = literal_pattern(max(UNSAFE.split(checked(text, "name")), key=len)) + "*"
    found = yield from scan_page(using, f"{begin}{part}:fence", cursor)
    locks = {(text, lock_key(prefix, text)): None} if text and not cursor else {}
    locks |= {lock: None for key in found.keys if (lock := parse_fence_key(prefix, key)) is not None}
    items = yield from read_locks(prefix, [*locks])
    return Page([one for one in items if text in one.name], found.cursor)


def page_semaphores(using: str, prefix: str, text: str = "", cursor: str = "") -> Page[ListedSemaphore]:
    """The semaphores with a stored limit, whose name contains `text`."""
    key = ("{semaphore:", "}:limit")
    return perform(using, _page(using, prefix, key, partial(read_semaphores, prefix), text, cursor))


def page_rwlocks(using: str, prefix: str, text: str = "", cursor: str = "") -> Page[ListedReadWriteLock]:
    """The read-write locks that are held or waited for, whose name contains `text`."""
    key = ("{rwlock:", "}:grants")
    return perform(using, _page(using, prefix, key, partial(read_rwlocks, prefix), text, cursor))


def page_latches(using: str, prefix: str, text: str = "", cursor: str = "") -> Page[ListedLatch]:
    """The latches whose name contains `text`."""
    key = ("{latch:", "}:state")
    return perform(using, _page(using, prefix, key, partial(read_latches, prefix), text, cursor))


def page_chats(using: str, prefix: str, text: str = "", cursor: str = "") -> Page[chats.ChatUsage]:
    """The chats whose id contains `text`, each with the member who has read least."""
    key, read = ("{chat:", "}:newest"), partial(chats.read_usage, prefix, readers=1)
    return perform(using, _page(using, prefix, key, read, text, cursor))


def page_mailboxes(using: str, prefix: str, text: str = "", cursor: str = "") -> Page[mailboxes.MailboxUsage]:
    """The mailboxes of users whose id contains `text`."""
    key = ("{mailbox:", "}:newest")
    return perform(using, _page(using, prefix, key, partial(mailboxes.read_usage, prefix), text, cursor))


def page_broadcasts(
    using: str, prefix: str, text: str = "", cursor: str = ""
) -> Page[broadcasts.BroadcastUsage]:
    """The broadcast channels whose name contains `text`."""
    key = ("{broadcast:", "}:head")
    return perform(using, _page(using, prefix, key, partial(broadcasts.read_usage, using), text, cursor))


def page_followers(
    using: str, prefix: str, usage: broadcasts.BroadcastUsage, cursor: str = ""
) -> Page[broadcasts.Follower]:
    """The named consumers of a broadcast channel."""
    return perform(using, read_followers(using, prefix, usage, cursor))


def read_followers(
    using: str, prefix: str, usage: broadcasts.BroadcastUsage, cursor: str = "", *, scans: int = MAX_SCANS
) -> Steps[Page[broadcasts.Follower]]:
    """As `page_followers`, with at most so many calls of SCAN, and a round trip more."""
    key = (f"{{broadcast:{encoded(usage.name)}}}:position:", "")
    read = partial(broadcasts.read_followers, using, usage)
    owner = broadcasts.followers_key(using, usage.name)
    return _page(using, prefix, key, read, "", cursor, owner, scans)


def page_file_channels(using: str, prefix: str, text: str = "", cursor: str = "") -> Page[ListedFileChannel]:
    """The file channels whose name contains `text`."""

    def read(names: Sequence[str]) -> Steps[list[ListedFileChannel]]:
        stats: list[FileStats | None] = yield from read_stats(prefix, names)
        pairs = zip(names, stats, strict=True)
        return [ListedFileChannel(name, one) for name, one in pairs if one is not None]

    return perform(using, _page(using, prefix, ("{files:", "}:state"), read, text, cursor))


def page_streams(using: str, prefix: str, text: str = "", cursor: str = "") -> Page[UserStreams]:
    """The users with live streams in any process, whose id contains `text`."""
    key = ("{user:", "}:streams")
    return perform(using, _page(using, prefix, key, partial(read_streams, using, prefix), text, cursor))


def _page(
    using: str,
    prefix: str,
    key: tuple[str, str],
    read: Callable[[Sequence[str]], Steps[list[T]]],
    text: str,
    cursor: str,
    owner: str | None = None,
    scans: int = MAX_SCANS,
) -> Steps[Page[T]]:
    """`key`: what is before and after the name in the key that each thing has; `owner`, `scans`: see
    scan_page."""
    begin, end = f"{prefix}:{FORMAT}:{key[0]}", key[1]
    part = f"{_pattern(text)}*" if text else ""
    found = yield from scan_page(
        using, f"{literal_pattern(begin)}*{part}{end}", cursor, owner=owner, scans=scans
    )
    names = [text] if text and not cursor else []
    names += [unquote(one[len(begin) : len(one) - len(end)]) for one in found.keys]
    items = yield from read([name for name in dict.fromkeys(names) if _is_name(name)])
    return Page([one for one in items if text in one.name], found.cursor)


def _pattern(text: str) -> str:
    """The SCAN pattern of a part of a name. Raises InvalidArgument if no name contains it."""
    return literal_pattern(encoded(checked(text, "name"))) if text else ""


def _is_name(value: str) -> bool:
    """Whether it can be a name: other programs may write keys, too."""
    try:
        return bool(checked(value, "name"))
    except InvalidArgument:
        return False
