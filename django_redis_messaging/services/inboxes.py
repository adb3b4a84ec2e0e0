"""All chats of one user: what is pending, what is new, how much of it.

Two round trips for any number of chats while nothing is new: the user's list, then the newest of all chats
together, by MGET; one, where the same Inbox is asked again. The list remembers what the newest was when the
user had acked all of it; so only chats that have moved since are looked into, by another. A last one notes
what was found: that all is acked, or that a chat doesn't know the user (any more), whose entry is then
healed away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .. import conf
from ..core import payloads
from ..core.batches import batched
from ..core.keys import ChatKeys, UserKeys, name, newest_keys
from ..core.operations import Command, Fan, Gather, Script, Service, Steps, asynchronous, operation
from .arguments import MOST, count, flag
from .chats import entries
from .chats.base import limits, upkeep
from .chats.values import ChatSummary, Pending

#: healing waits for this many deadlines: longer than a joining can be between its steps
_GRACE = 3
#: entries changed by one script
_PAGE = 500
_NOT_A_MEMBER = -1


class _Entry(NamedTuple):
    """An entry of a user's list of chats: see UserKeys.chats."""

    chat_id: str
    token: str
    seen: str

    def lost(self, epoch: int, position: int) -> bool:
        """Whether Redis lost what the user knew of the chat: it is another one, or the user's position is
        behind what it was, though positions never move back."""
        if self.seen == "0":
            return False
        known_position, _, known_epoch, _ = map(int, self.seen.split("-"))
        return epoch != known_epoch or position < known_position

    def lost_since(self, line: bytes) -> bool:
        """The same, where all is acked: by the chat's newest."""
        position, _, epoch, _ = map(int, line.split(b"-"))
        return self.lost(epoch, position)


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
        #: the chats of the last look, and their keys: while the list is the same, one round trip tells
        self._looked_at: tuple[list[bytes], list[str]] = ([], [])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.user!r})"

    @operation
    def pending(self, *, limit: int = 100, total: int = 1000, ack: bool = False) -> Steps[list[Pending]]:
        """Read what the user has not acked, chat by chat: at most `limit` messages of a chat.

        Of all chats about `total` messages are read; where that was used up, a chat with news comes
        with no messages and `has_more`. Nothing moves: a message stays pending until it is acked.
        With `ack=True` what is returned is acked by the same script: at most once, lost if you crash;
        never repeated by us, so a lost reply is OutcomeUnknown.
        """
        arguments = (
            self.user,
            entries.author(self.user),
            count(limit, "limit"),
            min(count(total, "total", most=100_000), MOST),
            flag(ack, "ack"),
            *limits(),
        )
        known = yield from self._moved()
        pairs = yield from self._look(known, "inbox_pending", _talk_keys, arguments, once=ack)
        found = [_pending(entry, item) for entry, item in pairs if not _settled(entry, item)]
        yield from upkeep(self._settle(pairs))
        return found if ack else _within(found, total)

    apending = asynchronous(pending)

    @operation
    def chats(self, *, limit: int = 100, after: str | None = None) -> Steps[list[ChatSummary]]:
        """List the user's chats, newest activity first; `after` is the last chat_id of the page before.

        Raises ValueError where `after` is none of the user's chats (any more): begin anew.
        """
        count(limit, "limit")
        if after is not None:
            name(after, "after")
        arguments = (self.user, entries.author(self.user), *limits())
        known = yield from self._entries()
        pairs = yield from self._look(known, "inbox_chats", _list_keys, arguments)
        found = sorted(
            (_summary(entry, item) for entry, item in pairs),
            key=lambda chat: (chat.active_at, chat.chat_id),
            reverse=True,
        )
        begin = 0 if after is None else _place(found, after) + 1
        return found[begin : begin + limit]

    achats = asynchronous(chats)

    @operation
    def unread(self) -> Steps[int]:
        """Count the unread messages of all chats, muted ones too. One's own never count."""
        arguments = (self.user, entries.author(self.user), *limits())
        known = yield from self._moved()
        pairs = yield from self._look(known, "inbox_unread", _talk_keys, arguments)
        # What Redis lost is for pending to tell: it must still be seen then.
        yield from upkeep(self._settle([pair for pair in pairs if _settled(*pair)]))
        return sum(item for _, item in pairs if not isinstance(item, bytes))

    aunread = asynchronous(unread)

    def _entries(self) -> Steps[list[_Entry]]:
        """The user's list of chats."""
        flat = yield Command("HGETALL", self._index, reads=True)
        return [_entry(chat_id, value) for chat_id, value in batched(flat, 2)]

    def _moved(self) -> Steps[list[_Entry]]:
        """Of the user's list of chats: those that are not as they were when all was acked."""
        chats, keys = self._looked_at
        reply = yield Gather(keys, first=Command("HGETALL", self._index, reads=True))
        flat, lines = reply[: len(reply) - len(keys)], reply[len(reply) - len(keys) :]
        if flat[::2] != chats:
            chats = flat[::2]
            keys = newest_keys(self._prefix, chats)
            lines = yield Gather(keys)
            self._looked_at = chats, keys
        return [
            _entry(chat_id, value)
            for chat_id, value, line in zip(chats, flat[1::2], lines, strict=True)
            if line is None or not value.endswith(b" " + line)
        ]

    def _look(
        self,
        known: Sequence[_Entry],
        script: str,
        keys: Callable[[ChatKeys], Sequence[str]],
        arguments: Sequence[str | int],
        *,
        once: bool = False,
    ) -> Steps[list[tuple[_Entry, Any]]]:
        """What the script says of each chat that knows the user; the list is kept right by the way."""
        resources = [(keys(ChatKeys(self._prefix, entry.chat_id)), ()) for entry in known]
        items = yield Fan(script, resources, arguments, once=once)
        pairs = list(zip(known, items, strict=True))
        yield from upkeep(self._heal([entry for entry, item in pairs if item == _NOT_A_MEMBER]))
        return [pair for pair in pairs if pair[1] != _NOT_A_MEMBER]

    def _settle(self, pairs: Sequence[tuple[_Entry, Any]]) -> Steps[None]:
        """Note what the newest is where all of it is acked."""
        for page in batched((pair for pair in pairs if isinstance(pair[1], bytes)), _PAGE):
            arguments = [part for entry, line in page for part in (entry.chat_id, entry.token, line)]
            yield Script("inbox_settle", [self._index], arguments)

    def _heal(self, strangers: Sequence[_Entry]) -> Steps[None]:
        """Remove entries that no chat confirms; only old ones, for a joining writes the entry first."""
        grace = int(conf.current().COMMAND_DEADLINE * _GRACE * 1000)
        for page in batched(strangers, _PAGE):
            pairs = [part for entry in page for part in (entry.chat_id, entry.token)]
            yield Script("inbox_leave", [self._index], (grace, *pairs))


def _entry(chat_id: bytes, value: bytes) -> _Entry:
    token, _, seen = value.decode().split(" ")
    return _Entry(chat_id.decode(), token, seen)


def _talk_keys(keys: ChatKeys) -> Sequence[str]:
    return keys.talk[:4]


def _list_keys(keys: ChatKeys) -> Sequence[str]:
    return (*keys.talk[:4], keys.roster, keys.mutes, keys.info, keys.standing)


def _settled(entry: _Entry, item: Any) -> bool:
    """Whether all is acked, and nothing was lost: there is nothing to tell."""
    return isinstance(item, bytes) and not entry.lost_since(item)


def _pending(entry: _Entry, item: bytes | list[Any]) -> Pending:
    if isinstance(item, bytes):
        last, ms, epoch, _ = map(int, item.split(b"-"))
        end = entries.cursor(epoch, last, ms)
        return Pending(chat_id=entry.chat_id, messages=[], cursor=end, gap=0, has_more=False, reset=True)
    epoch, first, gap, has_more, *raw = item
    read = entries.messages(entry.chat_id, int(epoch), first, raw)
    return Pending(
        chat_id=entry.chat_id,
        messages=read,
        cursor=entries.end_of(int(epoch), first, read),
        gap=gap,
        has_more=bool(has_more),
        reset=entry.lost(int(epoch), first - gap - 1),
    )


def _within(found: list[Pending], total: int) -> list[Pending]:
    """The scripts keep to the total, each for its own chats: cut what is too much of all."""
    left, kept = total, []
    for pending in found:
        if len(pending.messages) > left:
            fewer = pending.messages[:left]
            end = fewer[-1].cursor if fewer else entries.before(pending.messages[0])
            pending = replace(pending, messages=fewer, cursor=end, has_more=True)
        left -= len(pending.messages)
        kept.append(pending)
    return kept


def _summary(entry: _Entry, item: list[Any]) -> ChatSummary:
    epoch, title, unread, active, members, muted, last, newest, some = item
    message = None
    if newest:
        message = entries.message(entry.chat_id, int(epoch), last, payloads.loads_all([newest])[0])
    return ChatSummary(
        chat_id=entry.chat_id,
        title=title.decode(),
        unread=unread,
        last_message=message,
        active_at=entries.moment(active),
        member_count=members,
        members=[member.decode() for member in some],
        muted=bool(muted),
    )


def _place(found: Sequence[ChatSummary], after: str) -> int:
    for at, chat in enumerate(found):
        if chat.chat_id == after:
            return at
    raise ValueError("after is none of this user's chats (any more): list them from the beginning.")
