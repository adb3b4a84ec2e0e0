"""All chats of one user: pending messages, summaries, number of unread messages.

While nothing is new, a read takes one round trip for any number of chats: it reads the user's index, with an
MGET of the newest keys of all chats. For this the process remembers the chats of the users whose inboxes it
has read; the newest keys of others take one more round trip. The index contains the value of each chat's
newest when the user had acked all of its messages, so only chats that have changed since are read, by a
further round trip. `unread` reads those that had unread messages in the first one. A last one updates the
index: chats in which everything is acked or data was lost, and chats of which the user is not a member (any
more), whose entries are removed. A broken chat (a key was lost or has another type) is left out with a
warning in the log; `manage.py messaging_repair` repairs it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar, cast

from ...core import after_fork
from ...core.commands import Resource, batched
from ...core.operations import (
    Command,
    Fan,
    Gather,
    Script,
    Service,
    Steps,
    Together,
    asynchronous,
    operation,
)
from ...errors import MessagingError, OutcomeUnknown
from ..common.arguments import MAX_ITEMS, UserOrId, count, flag, member_id
from ..users.keys import UserKeys
from . import replies, values
from .joining import best_effort, grace
from .keys import ChatKeys, newest_keys
from .values import ChatSummary, Pending, limits, limits_without_bytes

T = TypeVar("T")
Item = TypeVar("Item")

#: index entries changed by one script
_PAGE_SIZE = 500
_NOT_A_MEMBER = -1
#: the user has blocked the other member of a direct chat
_SUSPENDED = -2

_logger = logging.getLogger(__name__)


class _Entry(NamedTuple):
    """An entry of the user's index of chats: see UserKeys.chats."""

    chat_id: str
    number: str
    seen: str


class _Known(NamedTuple):
    """What the latest reads have found in the index of a user."""

    chats: list[bytes]
    keys: list[str]
    """The newest keys of the chats."""
    unread: list[_Entry]
    """The chats that had unread messages."""

    @property
    def size(self) -> int:
        """What it counts for in the memory."""
        return 1 + len(self.chats) + len(self.unread)


_NOTHING = _Known([], [], [])
#: alias, prefix and user
_Owner = tuple[str, str, str]


class _Memory:
    """What the inboxes of this process know, so that new ones of the same users know it, too.

    It saves round trips and changes no answer: the replies of Redis show what is outdated. The users for whom
    no inbox was made for longest are forgotten first.
    """

    #: chats of all users: some 10 MB
    SIZE = 50_000

    def __init__(self) -> None:
        self._known: OrderedDict[_Owner, _Known] = OrderedDict()
        self._size = 0
        self._lock = threading.RLock()

    def get(self, owner: _Owner) -> _Known:
        with self._lock:
            if owner not in self._known:
                return _NOTHING
            self._known.move_to_end(owner)
            return self._known[owner]

    def put(self, owner: _Owner, known: _Known) -> None:
        with self._lock:
            if owner in self._known:
                self._size -= self._known.pop(owner).size
            self._known[owner] = known
            self._size += known.size
            while self._size > self.SIZE:
                self._size -= self._known.popitem(last=False)[1].size


_memory = _Memory()


def _forget() -> None:
    # A forked child must not inherit the lock while another thread holds it.
    global _memory
    _memory = _Memory()


after_fork(_forget)


class _Unacked(NamedTuple):
    """What the user has not acked in a chat: an item of the reply of chats/inbox_pending."""

    newest: bytes
    first: int
    stamp: bytes
    gap: int
    has_more: int
    reset: int
    entries: list[bytes]

    @property
    def is_postponed(self) -> bool:
        """Whether it has no messages only because the maximum of all chats was reached."""
        return bool(self.has_more) and not self.entries

    @property
    def seen(self) -> str:
        """What the user has now seen of the chat: see _positions.lua; '' if that has not changed."""
        if not self.reset:
            return ""
        if not self.entries and not self.has_more:
            return self.newest.decode()
        return f"{self.first - self.gap}-0-0-{values.epoch_of(self.newest)}-0-0-0"

    def cut(self, size: int) -> Self:
        """The first `size` messages."""
        return self._replace(entries=self.entries[:size], has_more=1)


@dataclass(slots=True)
class _Found:
    """What the calls of a reading have found in the chats of an inbox."""

    unacked: list[tuple[_Entry, _Unacked]] = field(default_factory=list)
    seen: list[tuple[_Entry, str]] = field(default_factory=list)
    """What the user has now seen of chats in which everything is acked."""
    failures: list[MessagingError] = field(default_factory=list)

    def keep(self, pairs: Iterable[tuple[_Entry, Any]]) -> list[tuple[_Entry, _Unacked]]:
        """Parse the items of a call; keep all but what the user has not acked, which is returned."""
        unacked = []
        for entry, item in pairs:
            if isinstance(item, MessagingError):
                self.failures.append(item)
            elif isinstance(item, bytes):
                self.seen.append((entry, item.decode()))
            else:
                unacked.append((entry, _Unacked(*item)))
        return unacked


class Inbox(Service):
    """The chats of one user.

    >>> chat = Chat.create("ann", ["bob"], "Hello", chat_id="inbox-example")
    >>> inbox = Inbox("bob")
    >>> inbox.unread()
    1
    >>> for news in inbox.pending():
    ...     print(news.chat_id, [message.body for message in news.messages])
    ...     position = Chat(news.chat_id).ack("bob", news.cursor)
    inbox-example ['Hello']
    >>> inbox.pending()
    []
    """

    def __init__(self, user: UserOrId, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.user = member_id(user, "user")
        self._keys = UserKeys(self._prefix, self.user)
        self._index = self._keys.chats
        self._owner: _Owner = (self._using, self._prefix, self.user)
        self._known = _memory.get(self._owner)
        #: chat ids of this object's latest read, and the values of their newest keys
        self._latest: tuple[list[bytes], list[bytes | None]] = ([], [])
        #: those of the chats that are suspended, as far as they were read
        self._suspended: set[str] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.user!r})"

    @operation
    def pending(self, *, limit: int = 100, total: int = 1000, ack: bool = False) -> Steps[list[Pending]]:
        """Read what the user has not acked, chat by chat: at most `limit` messages per chat.

        Reads at most `total` messages from all chats together; when that is used up, other chats with pending
        messages are returned with no messages and `has_more`. Nothing moves: a message stays pending until it
        is acked.

        With `ack=True` the script that reads messages also acks them: they are delivered at most once, and
        are lost if your process crashes. If some chats can't be read, those that were are returned, and the
        others stay pending. A script whose reply was lost is not repeated: this raises OutcomeUnknown, whose
        `received` has the chats that were read. (On a Cluster, which gets one script for each chat, `total`
        may be exceeded by up to 100 chats.)
        """
        flag(ack, "ack")
        count(limit, "limit")
        count(total, "total", maximum=100_000)
        chats, entries, newest, _ = yield from self._read_index()
        changed = _find_changed(chats, entries, newest)
        if not changed:
            return []
        found = yield from self._read_pending(changed, limit, total, ack)
        pending = list(_decoded(_make_pending, found.unacked))
        seen = found.seen + [(entry, unacked.seen) for entry, unacked in found.unacked]
        yield from best_effort(self._record_seen(seen))
        if found.failures:
            _raise_unless_received(found.failures, pending)
        return pending

    apending = asynchronous(pending)

    @operation
    def chats(self, *, limit: int = 100, after: str | None = None) -> Steps[list[ChatSummary]]:
        """List the user's chats by latest activity, at most `limit`; `after`: those below a chat of the list.

        It is the `cursor` of the last chat of the previous page, or its chat_id. A chat that gets a message
        moves to the first page. A cursor continues where the chat was; with a chat_id, the list continues
        below the chat's present place, and raises InvalidArgument if it is not one of the user's chats (any
        more). Reads the index and the newest keys of all chats, but describes only the chats of the page.

        >>> for name in ("one", "two", "three"):
        ...     chat = Chat.create("list-ann", ["list-bob"], chat_id=f"list-{name}")
        >>> first = Inbox("list-ann").chats(limit=2)
        >>> second = Inbox("list-ann").chats(limit=2, after=first[-1].cursor)
        >>> len(first), len(second)
        (2, 1)
        """
        count(limit, "limit")
        start = None if after is None else replies.parse_after(after)
        chats, entries, newest, _ = yield from self._read_index()
        places, lost = replies.sort_places(chats, newest)
        rest = places[0 if start is None else start.rank_in(places) :]
        index = dict(zip(chats, entries, strict=True))
        page = yield from self._describe(lost[: Fan.SIZE], index)
        while rest and len(page) < limit:
            size = limit - len(page)
            page += yield from self._describe(rest[:size], index)
            rest = rest[size:]
        return page[:limit]

    achats = asynchronous(chats)

    @property
    def newest(self) -> dict[str, bytes | None]:
        """Chat id → value of its newest key, for all the user's chats, as of this object's latest read;
        without those that are suspended, if it has met them."""
        pairs = zip(map(bytes.decode, self._latest[0]), self._latest[1], strict=True)
        return {chat_id: value for chat_id, value in pairs if chat_id not in self._suspended}

    @operation
    def unread(self) -> Steps[int]:
        """Count the unread messages of all chats, including muted ones. The user's own never count."""
        script, keys, arguments = "chats/inbox_unread", _reading_keys, (self.user, *limits_without_bytes())
        expected = self._known.unread
        ahead = Fan(script, self._resources(expected, keys, seen=True), arguments)
        chats, entries, newest, items = yield from self._read_index(ahead)
        changed = _find_changed(chats, entries, newest)
        read = dict(zip(expected, items, strict=True))
        pairs = yield from self._read(changed, script, keys, arguments, seen=True, read=read)
        seen = [(entry, item.decode()) for entry, item in pairs if isinstance(item, bytes)]
        yield from best_effort(self._record_seen(seen))
        counts = {entry: item for entry, item in pairs if not isinstance(item, bytes)}
        if expected != [*counts]:
            self._remember(unread=[*counts])
        return sum(counts.values())

    aunread = asynchronous(unread)

    def _describe(
        self, places: Sequence[replies.Place], index: dict[bytes, bytes]
    ) -> Steps[list[ChatSummary]]:
        """Summarize the chats at these places, except those that are broken or not the user's."""
        page = [_entry(place.chat_id, index[place.chat_id]) for place in places]
        arguments = (self.user, *limits_without_bytes())
        pairs = yield from self._read(page, "chats/inbox_chats", _listing_keys, arguments)
        self._suspended.difference_update(entry.chat_id for entry in page)
        self._suspended.update(entry.chat_id for entry, item in pairs if item == _SUSPENDED)
        return list(_decoded(replies.make_summary, [pair for pair in pairs if pair[1] != _SUSPENDED]))

    def _read_index(
        self, ahead: Fan | None = None
    ) -> Steps[tuple[list[bytes], list[bytes], list[bytes | None], list[Any]]]:
        """Read the user's index; returns the chat ids, their entries, the values of their newest keys, and
        the items of `ahead`, which is sent with the first step."""
        chats, keys, _ = self._known
        index = Gather(keys, first=Command("HGETALL", self._index, reads=True))
        reply = yield index if ahead is None else Together(index, ahead)
        end = len(reply) if ahead is None else len(reply) - len(ahead.resources)
        start = end - len(keys)
        flat, newest, items = reply[:start], reply[start:end], reply[end:]
        if flat[::2] != chats:
            found = dict(zip(chats, newest, strict=True))
            chats = flat[::2]
            if new := [chat_id for chat_id in chats if chat_id not in found]:
                found |= zip(new, (yield Gather(newest_keys(self._prefix, new))), strict=True)
            newest = [found[chat_id] for chat_id in chats]
            self._remember(chats=chats, keys=newest_keys(self._prefix, chats))
        self._latest = chats, newest
        return chats, flat[1::2], newest, items

    def _remember(self, **found: Any) -> None:
        self._known = self._known._replace(**found)
        _memory.put(self._owner, self._known)

    def _read_pending(self, changed: list[_Entry], limit: int, total: int, ack: bool) -> Steps[_Found]:
        """Read chats until `total` messages were found. With `ack`, also returns errors: what has been acked
        by then must not be lost with them."""
        found, rest = _Found(), changed
        while rest and total > 0 and not found.failures:
            page, rest = rest[: Fan.SIZE], rest[Fan.SIZE :]
            try:
                pairs = yield from self._read_unacked(page, limit, min(total, MAX_ITEMS), ack)
            except MessagingError as error:
                if not ack or not (found.unacked or found.seen):
                    raise
                found.failures.append(error)
                break
            unacked = found.keep(pairs)
            if not ack:
                unacked = _cut_to_total(unacked, total)
            total -= sum([len(one.entries) for _, one in unacked])
            if total > 0:  # some may have had to stop at the maximum of one script
                rest = [entry for entry, one in unacked if one.is_postponed] + rest
                unacked = [pair for pair in unacked if not pair[1].is_postponed]
            found.unacked += unacked
        if rest and not found.failures:
            try:
                found.unacked += found.keep((yield from self._read_unacked(rest, limit, 0, ack=False)))
            except MessagingError as error:
                if not ack:
                    raise
                # these chats were not acked, and stay pending
                _logger.warning("Some chats could not be read, and stay pending: %s", error)
        return found

    def _read_unacked(
        self, page: Sequence[_Entry], limit: int, total: int, ack: bool
    ) -> Steps[list[tuple[_Entry, Any]]]:
        arguments = (self.user, int(ack), limit, total, *limits(), values.random_step())
        return (
            yield from self._read(page, "chats/inbox_pending", _acking_keys, arguments, seen=True, once=ack)
        )

    def _read(
        self,
        index: Sequence[_Entry],
        script: str,
        keys: Callable[[ChatKeys], Sequence[str]],
        arguments: Sequence[str | int],
        *,
        seen: bool = False,
        once: bool = False,
        read: Mapping[_Entry, Any] = MappingProxyType({}),
    ) -> Steps[list[tuple[_Entry, Any]]]:
        """Run a script over chats and repair the index; returns the items of chats with the user as member.
        `seen`: the script gets what the user has seen of each chat. `read`: items that were read ahead. They
        count if the entry is still the same: the membership, and what the user has seen."""
        pairs = [(entry, read[entry]) for entry in index if entry in read]
        rest = [entry for entry in index if entry not in read]
        if rest:
            items = yield Fan(script, self._resources(rest, keys, seen=seen), arguments, once=once)
            pairs += zip(rest, items, strict=True)
        for entry, item in pairs:
            if is_broken(item):
                _logger.warning("Chat %r was left out of a list: %r", entry.chat_id, item[0].decode())
        yield from best_effort(self._repair([entry for entry, item in pairs if item == _NOT_A_MEMBER]))
        return [pair for pair in pairs if pair[1] != _NOT_A_MEMBER and not is_broken(pair[1])]

    def _resources(
        self, index: Iterable[_Entry], keys: Callable[[ChatKeys], Sequence[str]], *, seen: bool
    ) -> list[Resource]:
        """The chats as resources of a script."""
        return [
            (keys(ChatKeys(self._prefix, entry.chat_id)), (entry.seen,) if seen else ()) for entry in index
        ]

    def _record_seen(self, pairs: Sequence[tuple[_Entry, str]]) -> Steps[None]:
        """Record what the user has now seen of chats: everything, or that data was lost."""
        seen = [(entry, value) for entry, value in pairs if value not in ("", entry.seen)]
        for page in batched(seen, _PAGE_SIZE):
            arguments = [part for entry, value in page for part in (entry.chat_id, entry.number, value)]
            yield Script("chats/inbox_settle", [self._index], arguments)

    def _repair(self, orphans: Sequence[_Entry]) -> Steps[None]:
        """Remove entries without a membership, unless a joining is in progress: it writes the entry first."""
        for page in batched(orphans, _PAGE_SIZE):
            pairs = [part for entry in page for part in (entry.chat_id, entry.number)]
            yield Script("chats/inbox_prune", self._keys.index, (grace(), *pairs))


def _find_changed(
    chats: Sequence[bytes], entries: Sequence[bytes], newest: Sequence[bytes | None]
) -> list[_Entry]:
    """The entries of chats that have changed since the user acked everything."""
    # Most often, none has. No space stands before the value: with another id, its stamp would differ, too.
    if all(newest) and all(map(bytes.endswith, entries, cast(Sequence[bytes], newest))):
        return []
    return [
        _entry(chat_id, entry)
        for chat_id, entry, value in zip(chats, entries, newest, strict=True)
        if value is None or not entry.endswith(b" " + value)
    ]


def _entry(chat_id: bytes, value: bytes) -> _Entry:
    number, seen = value.decode().split(" ")
    return _Entry(chat_id.decode(), number, seen)


def _reading_keys(keys: ChatKeys) -> Sequence[str]:
    return keys.reading


def _acking_keys(keys: ChatKeys) -> Sequence[str]:
    return keys.acking


def _listing_keys(keys: ChatKeys) -> Sequence[str]:
    return keys.listing


def is_broken(item: Any) -> bool:
    """Whether an item is {error}: see isolated() in _chat.lua."""
    return isinstance(item, list) and len(item) == 1


def _cut_to_total(pairs: list[tuple[_Entry, _Unacked]], total: int) -> list[tuple[_Entry, _Unacked]]:
    """Remove messages beyond the total: on a Cluster, each chat has a script of its own."""
    cut = []
    for entry, unacked in pairs:
        if len(unacked.entries) > total:
            unacked = unacked.cut(total)
        total -= len(unacked.entries)
        cut.append((entry, unacked))
    return cut


def _make_pending(chat_id: str, found: _Unacked) -> Pending:
    epoch = values.epoch_of(found.newest)
    messages = values.make_messages(chat_id, epoch, found.first, found.entries)
    return Pending(
        chat_id=chat_id,
        messages=messages,
        cursor=values.end_cursor(epoch, found.first, found.stamp.decode(), messages),
        gap=found.gap,
        has_more=bool(found.has_more),
        reset=bool(found.reset),
    )


def _decoded(make: Callable[[str, Item], T], pairs: Iterable[tuple[_Entry, Item]]) -> Iterator[T]:
    """Decode items. A chat with entries that this app has not written must not hide the others."""
    for entry, item in pairs:
        try:
            yield make(entry.chat_id, item)
        except (ValueError, TypeError, LookupError) as error:
            _logger.warning("Chat %r was left out of a list: %r", entry.chat_id, error)


def _raise_unless_received(failures: list[MessagingError], received: list[Pending]) -> None:
    """Raise the error of a reading that also acks; not if what was received can be returned without loss."""
    unknown = next((failure for failure in failures if isinstance(failure, OutcomeUnknown)), None)
    if unknown is not None:
        raise OutcomeUnknown(*unknown.args, received=received) from unknown
    if not received:
        raise failures[0]
    _logger.warning("Some chats could not be read, and stay pending: %s", failures[0])
