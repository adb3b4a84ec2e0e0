"""All chats of one user: pending messages, summaries, number of unread messages.

While nothing is new, a read takes two round trips for any number of chats: the user's index, then an MGET
of the newest keys of all chats. If the same Inbox reads again, it takes one. The index contains the value
of each chat's newest when the user had acked all of its messages, so only chats that have changed since are
read, by a third round trip. A last one updates the index: chats in which everything is acked, and chats of
which the user is not a member (any more), whose entries are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .. import conf
from ..core import payloads
from ..core.keys import name
from ..core.operations import Command, Fan, Gather, Script, Service, Steps, asynchronous, operation
from ..core.steps import batched
from ..errors import InvalidArgument
from .arguments import MAX_ITEMS, count, flag
from .chats import entries
from .chats.base import best_effort, limits
from .chats.keys import ChatKeys, newest_keys
from .chats.values import ChatSummary, Pending
from .moments import to_datetime
from .users import UserKeys

#: minimum age of an entry that a read removes, in COMMAND_DEADLINEs: longer than a joining takes
_GRACE = 3
#: index entries changed by one script
_PAGE_SIZE = 500
_NOT_A_MEMBER = -1


class _Entry(NamedTuple):
    """An entry of the user's index of chats: see UserKeys.chats."""

    chat_id: str
    token: str
    seen: str

    def has_lost_data(self, epoch: int, position: int) -> bool:
        """Whether Redis lost what the user had seen: the chat has another epoch, or the user's position is
        lower than before, although positions never move back."""
        if self.seen == "0":
            return False
        seen_position, _, seen_epoch, _ = map(int, self.seen.split("-"))
        return epoch != seen_epoch or position < seen_position

    def is_settled_by(self, newest: bytes) -> bool:
        """Whether nothing was lost, given the value of newest of a chat in which everything is acked."""
        position, _, epoch, _ = map(int, newest.split(b"-"))
        return not self.has_lost_data(epoch, position)


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

    def __init__(self, user: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.user = name(user, "user")
        self._index = UserKeys(self._prefix, user).chats
        #: chat ids of the latest read and their newest keys: while the ids stay, one round trip suffices
        self._latest: tuple[list[bytes], list[str]] = ([], [])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.user!r})"

    @operation
    def pending(self, *, limit: int = 100, total: int = 1000, ack: bool = False) -> Steps[list[Pending]]:
        """Read what the user has not acked, chat by chat: at most `limit` messages per chat.

        Reads about `total` messages from all chats together; when that is used up, other chats with pending
        messages are returned with no messages and `has_more`. Nothing moves: a message stays pending until it
        is acked. With `ack=True` the script that reads messages also acks them: they are delivered at most
        once, and are lost if your process crashes. Such a call is never retried, so a lost reply raises
        OutcomeUnknown.
        """
        arguments = (
            self.user,
            entries.author_json(self.user),
            flag(ack, "ack"),
            count(limit, "limit"),
            min(count(total, "total", maximum=100_000), MAX_ITEMS),
            *limits(),
        )
        changed = yield from self._find_changed()
        pairs = yield from self._read(changed, "inbox_pending", _reading_keys, arguments, once=ack)
        pending = [_pending(entry, item) for entry, item in pairs if not _is_settled(entry, item)]
        yield from best_effort(self._settle(pairs))
        return pending if ack else _cut_to_total(pending, total)

    apending = asynchronous(pending)

    @operation
    def chats(self, *, limit: int = 100, after: str | None = None) -> Steps[list[ChatSummary]]:
        """List the user's chats by latest activity; `after` is the last chat_id of the previous page.

        Raises InvalidArgument if `after` is not one of the user's chats (any more): start at the top.
        """
        count(limit, "limit")
        if after is not None:
            name(after, "after")
        arguments = (self.user, entries.author_json(self.user), *limits())
        index = yield from self._entries()
        pairs = yield from self._read(index, "inbox_chats", _listing_keys, arguments)
        chats = sorted(
            (_summary(entry, item) for entry, item in pairs),
            key=lambda chat: (chat.active_at, chat.chat_id),
            reverse=True,
        )
        start = 0 if after is None else _rank_of(chats, after) + 1
        return chats[start : start + limit]

    achats = asynchronous(chats)

    @operation
    def unread(self) -> Steps[int]:
        """Count the unread messages of all chats, including muted ones. The user's own never count."""
        arguments = (self.user, entries.author_json(self.user), *limits())
        changed = yield from self._find_changed()
        pairs = yield from self._read(changed, "inbox_unread", _reading_keys, arguments)
        # Lost data is reported by pending, which must still find it: leave such entries as they are.
        yield from best_effort(self._settle([pair for pair in pairs if _is_settled(*pair)]))
        return sum(item for _, item in pairs if not isinstance(item, bytes))

    aunread = asynchronous(unread)

    def _entries(self) -> Steps[list[_Entry]]:
        """Read the user's index of chats."""
        flat = yield Command("HGETALL", self._index, reads=True)
        return [_entry(chat_id, value) for chat_id, value in batched(flat, 2)]

    def _find_changed(self) -> Steps[list[_Entry]]:
        """Read the index; returns the entries of chats that have changed since the user acked everything."""
        chats, keys = self._latest
        reply = yield Gather(keys, first=Command("HGETALL", self._index, reads=True))
        flat, newest = reply[: len(reply) - len(keys)], reply[len(reply) - len(keys) :]
        if flat[::2] != chats:
            chats = flat[::2]
            keys = newest_keys(self._prefix, chats)
            newest = yield Gather(keys)
            self._latest = chats, keys
        return [
            _entry(chat_id, entry)
            for chat_id, entry, value in zip(chats, flat[1::2], newest, strict=True)
            if value is None or not entry.endswith(b" " + value)
        ]

    def _read(
        self,
        index: Sequence[_Entry],
        script: str,
        keys: Callable[[ChatKeys], Sequence[str]],
        arguments: Sequence[str | int],
        *,
        once: bool = False,
    ) -> Steps[list[tuple[_Entry, Any]]]:
        """Run a script over chats and repair the index; returns the items of chats with the user as
        member."""
        resources = [(keys(ChatKeys(self._prefix, entry.chat_id)), ()) for entry in index]
        items = yield Fan(script, resources, arguments, once=once)
        pairs = list(zip(index, items, strict=True))
        yield from best_effort(self._repair([entry for entry, item in pairs if item == _NOT_A_MEMBER]))
        return [pair for pair in pairs if pair[1] != _NOT_A_MEMBER]

    def _settle(self, pairs: Sequence[tuple[_Entry, Any]]) -> Steps[None]:
        """Record the value of newest of chats in which everything is acked."""
        for page in batched((pair for pair in pairs if isinstance(pair[1], bytes)), _PAGE_SIZE):
            arguments = [part for entry, newest in page for part in (entry.chat_id, entry.token, newest)]
            yield Script("inbox_settle", [self._index], arguments)

    def _repair(self, orphans: Sequence[_Entry]) -> Steps[None]:
        """Remove entries without a membership, but only old ones: joining writes the entry first."""
        grace = int(conf.current().COMMAND_DEADLINE * _GRACE * 1000)
        for page in batched(orphans, _PAGE_SIZE):
            pairs = [part for entry in page for part in (entry.chat_id, entry.token)]
            yield Script("inbox_leave", [self._index], (grace, *pairs))


def _entry(chat_id: bytes, value: bytes) -> _Entry:
    token, _, seen = value.decode().split(" ")
    return _Entry(chat_id.decode(), token, seen)


def _reading_keys(keys: ChatKeys) -> Sequence[str]:
    return keys.reading


def _listing_keys(keys: ChatKeys) -> Sequence[str]:
    return keys.listing


def _is_settled(entry: _Entry, item: Any) -> bool:
    """Whether everything is acked and nothing was lost, so that there is nothing to return."""
    return isinstance(item, bytes) and entry.is_settled_by(item)


def _pending(entry: _Entry, item: bytes | list[Any]) -> Pending:
    if isinstance(item, bytes):
        last, ms, epoch, _ = map(int, item.split(b"-"))
        end = entries.format_cursor(epoch, last, ms)
        return Pending(chat_id=entry.chat_id, messages=[], cursor=end, gap=0, has_more=False, reset=True)
    epoch, first, gap, has_more, *raw = item
    messages = entries.make_messages(entry.chat_id, int(epoch), first, raw)
    return Pending(
        chat_id=entry.chat_id,
        messages=messages,
        cursor=entries.end_cursor(int(epoch), first, messages),
        gap=gap,
        has_more=bool(has_more),
        reset=entry.has_lost_data(int(epoch), first - gap - 1),
    )


def _cut_to_total(chats: list[Pending], total: int) -> list[Pending]:
    """Remove messages beyond the total: each script call applies it only to its own chats."""
    remaining, cut = total, []
    for pending in chats:
        if len(pending.messages) > remaining:
            fewer = pending.messages[:remaining]
            end = fewer[-1].cursor if fewer else entries.cursor_before(pending.messages[0])
            pending = replace(pending, messages=fewer, cursor=end, has_more=True)
        remaining -= len(pending.messages)
        cut.append(pending)
    return cut


def _summary(entry: _Entry, item: list[Any]) -> ChatSummary:
    epoch, title, unread, active, member_count, muted, last, newest, members = item
    message = None
    if newest:
        decoded = payloads.loads_all([newest])[0]
        message = entries.make_message(entry.chat_id, int(epoch), last, decoded)
    return ChatSummary(
        chat_id=entry.chat_id,
        title=title.decode(),
        unread=unread,
        last_message=message,
        active_at=to_datetime(active),
        member_count=member_count,
        members=[member.decode() for member in members],
        muted=bool(muted),
    )


def _rank_of(chats: Sequence[ChatSummary], chat_id: str) -> int:
    for rank, chat in enumerate(chats):
        if chat.chat_id == chat_id:
            return rank
    raise InvalidArgument("after is not one of this user's chats (any more): start with the first page.")
