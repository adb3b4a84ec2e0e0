"""Following a chat: what changed in it since the last call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ... import conf
from ...core import payloads
from ...core.keys import name
from ...core.operations import Script, Steps, asynchronous, operation
from ...errors import InvalidArgument, NotAMember
from ..arguments import count
from ..moments import to_datetime
from . import entries, summaries
from .base import ChatBase, limits, typing_window
from .events import make_events
from .values import Changes, ChatEvent, ChatSummary, Message

#: bytes of the entries and positions in one answer
MAX_BYTES = 256 * 1024
#: above any number of edits, and of positions, which have 48 bits
_MAX_KNOWN = 10**15
#: members whose positions are read: those who joined first
MAX_POSITIONS = 200
#: users for whom one call reads
MAX_READERS = 500
_new, _set = object.__new__, object.__setattr__


class _Reader(NamedTuple):
    """What concerns one of the readers alone."""

    join_id: int
    joined_at: int
    event: int
    role: bytes
    oldest: int
    position: int
    unread: int
    muted_until: int
    resumed: int


class Following(ChatBase):
    """Reading only what changed."""

    @operation
    def changes(
        self,
        user: str,
        *,
        after: str | int,
        edits: int | None = None,
        moved: int | None = None,
        events: int | None = None,
        limit: int = 50,
    ) -> Steps[Changes]:
        """Read what changed in a chat: new messages, messages edited or deleted, read positions, and events.

        Pass `cursor`, `edits`, `moved` and `event` (as `events`) of the last answer. The last three can be
        omitted in the first call, which then returns no edited messages, all positions and all events. An
        answer contains at most `limit` new messages, and 256 KiB of stored messages, but at least one message
        if there is any; `has_more` tells to call again. Reading moves no position. Takes one round trip.

        >>> chat = Chat.create("ann", ["bob"], "One", chat_id="following")
        >>> known = chat.changes("bob", after=0)
        >>> _ = chat.send("ann", "Two"), chat.edit("ann", 1, "First")
        >>> news = chat.changes("bob", after=known.cursor, edits=known.edits, moved=known.moved)
        >>> [message.body for message in news.messages], [message.body for message in news.edited]
        (['Two'], ['First'])
        >>> news.positions
        {'ann': 2, 'bob': 0}

        Raises NotAMember, ChatNotFound; ValueError for an invalid cursor.
        """
        found = yield from self._follow([name(user, "user")], after, edits, moved, events, limit)
        return found[user]

    achanges = asynchronous(changes)

    @operation
    def changes_for(
        self,
        users: Sequence[str],
        *,
        after: str | int,
        edits: int | None = None,
        moved: int | None = None,
        events: int | None = None,
        limit: int = 50,
    ) -> Steps[dict[str, Changes]]:
        """Read `changes` for several members who know the same, at most 500; those who are no members (any
        more) are left out.

        The membership of each is checked in the script that reads the messages. Takes one round trip, and
        one for each user who has joined since, or if Redis lost data.

        >>> chat = Chat.create("ann", ["bob"], "One", chat_id="following-together")
        >>> found = chat.changes_for(["ann", "bob", "cat"], after=0)
        >>> {user: changes.unread for user, changes in found.items()}
        {'ann': 0, 'bob': 1}

        Raises ChatNotFound; ValueError for an invalid cursor.
        """
        _check_readers(users)
        try:
            return (yield from self._follow(users, after, edits, moved, events, limit))
        except NotAMember:
            return {}

    achanges_for = asynchronous(changes_for)

    @operation
    def summaries_for(self, users: Sequence[str]) -> Steps[dict[str, ChatSummary]]:
        """Summarize the chat for several members, at most 500, as `Inbox.chats` does; those who are no
        members (any more) are left out. Takes one round trip.

        >>> chat = Chat.create("ann", ["bob"], "One", chat_id="summarizing")
        >>> {user: summary.unread for user, summary in chat.summaries_for(["ann", "bob", "cat"]).items()}
        {'ann': 0, 'bob': 1}
        """
        _check_readers(users)
        keys, (max_length, max_age, _) = self._keys.listing, limits()
        reply = yield Script("chat_summarize", keys, (max_length, max_age, *users))
        return {} if reply == b"no chat" else summaries.make_for(self.id, users, reply)

    asummaries_for = asynchronous(summaries_for)

    def _follow(
        self,
        users: Sequence[str],
        after: str | int,
        edits: int | None,
        moved: int | None,
        events: int | None,
        limit: int,
    ) -> Steps[dict[str, Changes]]:
        reply = yield Script(
            "chat_changes",
            self._keys.following,
            (
                *entries.parse_cursor(after, "after"),
                _known(edits, "edits"),
                _known(moved, "moved"),
                count(limit, "limit"),
                MAX_BYTES,
                MAX_POSITIONS,
                typing_window(),
                _known(events, "events"),
                *limits(),
                int(conf.current().READ_RECEIPTS),
                *users,
            ),
        )
        found, others = self._parse(users, self._checked(reply, users[0]))
        for user in others:
            try:
                found |= yield from self._follow([user], after, edits, moved, events, limit)
            except NotAMember:
                continue  # has left since
        return found

    def _parse(self, users: Sequence[str], reply: list[Any]) -> tuple[dict[str, Changes], list[str]]:
        """The changes for each reader, and the readers for whom the reply is not what they would read alone:
        those who joined after what the others know."""
        epoch, first, stamp, gap, has_more, reset, title, member_count, last, sender, *rest = reply
        edits, missed, moved, positions, newcomers, edited, reading, *rest = rest
        typing, event, event_values, size, *raw = rest
        readers = {user: _Reader(*one) for user, one in zip(users, reading, strict=True) if one}
        messages = entries.make_messages(self.id, int(epoch), first, raw[:size])
        edited_messages = self._edited(int(epoch), edited, raw[size:])
        events = make_events(event_values)
        typists = [member.decode() for member in typing]
        last_sender = payloads.loads_all([sender])[0] if sender else ""
        shared: dict[str, Any] = {
            "chat_id": self.id,
            "messages": messages,
            "cursor": entries.end_cursor(int(epoch), first, stamp.decode(), messages),
            "gap": gap,
            "has_more": bool(has_more),
            "reset": bool(reset),
            "edits": edits,
            "edits_missed": bool(missed),
            "members": [member.decode() for member in positions[::2]],
            "positions": {
                member.decode(): position
                for member, position in zip(positions[::2], positions[1::2], strict=True)
                if position != b"-"
            },
            "newcomers": [member.decode() for member in newcomers],
            "moved": moved,
            "title": title.decode(),
            "member_count": member_count,
            "last_id": last,
            "event": event,
            "events": events,
        }

        after = first - gap - 1
        found = {
            user: self._of_reader(user, one, shared, edited_messages, typists, last_sender)
            for user, one in readers.items()
            if len(readers) == 1 or not (reset or _has_joined_since(one, after, events))
        }
        return found, [user for user in readers if user not in found]

    def _edited(self, epoch: int, edited: list[int], raw: list[bytes]) -> dict[int, Message]:
        """The edited messages by their edit numbers; `edited`: edit number, message id, ..."""
        return {
            number: entries.make_message(self.id, epoch, message_id, entry)
            for number, message_id, entry in zip(
                edited[::2], edited[1::2], payloads.loads_all(raw), strict=True
            )
        }

    def _of_reader(
        self,
        user: str,
        one: _Reader,
        shared: dict[str, Any],
        edited: dict[int, Message],
        typists: list[str],
        last_sender: str,
    ) -> Changes:
        visible = {number: message for number, message in edited.items() if message.id >= one.oldest}
        sees_newest = shared["last_id"] >= one.oldest
        changes = _new(Changes)
        # The __init__ of a frozen dataclass sets field by field, which takes three times as long.
        _set(
            changes,
            "__dict__",
            {
                **shared,
                "role": one.role.decode(),
                "joined_at": to_datetime(one.joined_at),
                "edited": list(visible.values()),
                "edit_numbers": list(visible),
                "last_sender": last_sender if sees_newest else "",
                "newcomers": shared["newcomers"] if sees_newest else [],
                "oldest_id": one.oldest,
                "removed": one.oldest - 1 - one.join_id,
                "resumed": bool(one.resumed),
                "read_id": one.position,
                "unread": one.unread,
                "muted_until": to_datetime(one.muted_until) if one.muted_until else None,
                "typists": [member for member in typists if member != user],
            },
        )
        return changes


def _has_joined_since(one: _Reader, after: int, events: Sequence[ChatEvent]) -> bool:
    """Whether a reader has joined after what the others know, and sees less than they do."""
    return one.join_id > after or (bool(events) and one.event > events[0].number)


def _check_readers(users: Sequence[str]) -> None:
    if isinstance(users, str):
        raise TypeError("users must be a list of names, not a str: wrap it in a list.")
    if not 1 <= len(users) <= MAX_READERS:
        raise InvalidArgument(f"users must have 1 to {MAX_READERS} items, not {len(users)}.")
    for user in users:
        name(user, "users")


def _known(value: int | None, what: str) -> int | str:
    """A number from an earlier answer as the script takes it."""
    if value is None:
        return ""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an int or None, not {type(value).__name__}.")
    if not 0 <= value < _MAX_KNOWN:
        raise InvalidArgument(f"{what} must be between 0 and {_MAX_KNOWN - 1}, not {value}.")
    return value
