"""All chats of one user: what is pending, what is new, how much of it.

Two round trips for any number of chats: the user's list, then all chats together. A third one only where
the list has entries whose chats don't know the user (any more): they are healed away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import conf
from ..core import payloads
from ..core.batches import batched
from ..core.keys import ChatKeys, UserKeys, name
from ..core.operations import Command, Fan, Script, Service, Steps, asynchronous, operation
from .arguments import count
from .chats import entries
from .chats.base import limits
from .chats.values import ChatSummary, Message, Pending

#: healing waits for this many deadlines: longer than a joining can be between its steps
_GRACE = 3
_NOT_A_MEMBER = -1


class _Entry(NamedTuple):
    """An entry of a user's list of chats."""

    chat_id: str
    token: str
    epoch: int


class Inbox(Service):
    """The chats of one user.

    >>> chat = Chat.create("ann", ["bob"], "Hello", chat_id="inbox-example")
    >>> inbox = Inbox("bob")
    >>> inbox.unread()
    1
    >>> for news in inbox.pending():
    ...     print(news.chat_id, [message.body for message in news.messages])
    ...     position = Chat(news.chat_id).ack("bob", news.messages[-1].cursor)
    inbox-example ['Hello']
    >>> inbox.pending()
    []
    """

    def __init__(self, user: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.user = name(user, "user")
        self._index = UserKeys(self._prefix, user).chats

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
            count(total, "total", most=100_000),
            int(ack),
            *limits(),
        )
        known, items = yield from self._look("inbox_pending", _talk_keys, arguments, once=ack)
        found = [_pending(*pair) for pair in zip(known, items, strict=True) if pair[1] != 0]
        return found if ack else _within(found, total)

    apending = asynchronous(pending)

    @operation
    def chats(self, *, limit: int = 100, after: str | None = None) -> Steps[list[ChatSummary]]:
        """List the user's chats, newest activity first; `after` is the last chat_id of the page before.

        Raises ValueError where `after` is none of the user's chats (any more): begin anew.
        """
        count(limit, "limit")
        arguments = (self.user, entries.author(self.user), *limits())
        known, items = yield from self._look("inbox_chats", _list_keys, arguments)
        found = sorted(
            (_summary(*pair) for pair in zip(known, items, strict=True)),
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
        _, items = yield from self._look("inbox_unread", _talk_keys, arguments)
        return sum(items)

    aunread = asynchronous(unread)

    def _look(
        self,
        script: str,
        keys: Callable[[ChatKeys], Sequence[str]],
        arguments: Sequence[str | int],
        *,
        once: bool = False,
    ) -> Steps[tuple[list[_Entry], list[Any]]]:
        """What the script says of each chat that knows the user; the others are healed away."""
        index = yield from self._entries()
        resources = [(keys(ChatKeys(self._prefix, entry.chat_id)), ()) for entry in index]
        items = yield Fan(script, resources, arguments, once=once)
        strangers = [entry for entry, item in zip(index, items, strict=True) if item == _NOT_A_MEMBER]
        if not strangers:
            return index, items
        yield from self._heal(strangers)
        pairs = [pair for pair in zip(index, items, strict=True) if pair[1] != _NOT_A_MEMBER]
        return [entry for entry, _ in pairs], [item for _, item in pairs]

    def _entries(self) -> Steps[list[_Entry]]:
        flat = yield Command("HGETALL", self._index, reads=True)
        return [_entry(*pair) for pair in batched(flat, 2)]

    def _heal(self, strangers: Sequence[_Entry]) -> Steps[None]:
        """Remove entries that no chat confirms; only old ones, for a joining writes the entry first."""
        grace = int(conf.current().COMMAND_DEADLINE * _GRACE * 1000)
        for page in batched(strangers, 500):
            pairs = [part for entry in page for part in (entry.chat_id, entry.token)]
            yield Script("inbox_leave", [self._index], (grace, *pairs))


def _entry(chat_id: bytes, value: bytes) -> _Entry:
    token, _, epoch = value.decode().split(" ")
    return _Entry(chat_id.decode(), token, int(epoch))


def _talk_keys(keys: ChatKeys) -> Sequence[str]:
    return keys.talk[:4]


def _list_keys(keys: ChatKeys) -> Sequence[str]:
    return (*keys.talk[:4], keys.roster, keys.mutes)


def _pending(entry: _Entry, item: list[Any]) -> Pending:
    epoch, first, gap, has_more, *raw = item
    return Pending(
        chat_id=entry.chat_id,
        messages=entries.messages(entry.chat_id, int(epoch), first, payloads.loads_all(raw)),
        gap=gap,
        has_more=bool(has_more),
        reset=entry.epoch not in (0, int(epoch)),
    )


def _within(found: list[Pending], total: int) -> list[Pending]:
    """The scripts keep to the total, each for its own chats: cut what is too much of all."""
    left, kept = total, []
    for pending in found:
        if len(pending.messages) > left:
            fewer: list[Message] = pending.messages[:left]
            pending = Pending(
                chat_id=pending.chat_id,
                messages=fewer,
                gap=pending.gap,
                has_more=True,
                reset=pending.reset,
            )
        left -= len(pending.messages)
        kept.append(pending)
    return kept


def _summary(entry: _Entry, item: list[Any]) -> ChatSummary:
    epoch, title, unread, active, members, muted, last, newest = item
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
        muted=bool(muted),
    )


def _place(found: Sequence[ChatSummary], after: str) -> int:
    for at, chat in enumerate(found):
        if chat.chat_id == after:
            return at
    raise ValueError("after is none of this user's chats (any more): list them from the beginning.")
