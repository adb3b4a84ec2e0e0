"""Following a chat: what changed in it since the last call."""

from __future__ import annotations

from typing import Any

from ...core import payloads
from ...core.keys import name
from ...core.operations import Script, Steps, asynchronous, operation
from ...errors import InvalidArgument
from ..arguments import count
from ..moments import to_datetime
from . import entries
from .base import ChatBase, limits
from .events import make_events
from .values import Changes

#: bytes of the entries and positions in one answer
MAX_BYTES = 256 * 1024
#: above any number of edits, and of positions, which have 48 bits
_MAX_KNOWN = 10**15
#: members whose positions are read: those who joined first
MAX_POSITIONS = 200
#: members who are shown as typing
MAX_TYPISTS = 10


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
        name(user, "user")
        keys = self._keys
        reply = yield Script(
            "chat_changes",
            keys.following,
            (
                user,
                *entries.parse_cursor(after, "after"),
                _known(edits, "edits"),
                _known(moved, "moved"),
                count(limit, "limit"),
                MAX_BYTES,
                MAX_POSITIONS,
                MAX_TYPISTS,
                _known(events, "events"),
                *limits(),
            ),
        )
        return self._changes(user, self._checked(reply, user))

    achanges = asynchronous(changes)

    def _changes(self, user: str, reply: list[Any]) -> Changes:
        epoch, first, stamp, gap, has_more, reset, role, title, member_count, last, sender, *rest = reply
        edits, missed, moved, positions, edited, reader, typists, event, events, size, *raw = rest
        oldest, removed, position, unread, muted_until = reader
        messages = entries.make_messages(self.id, int(epoch), first, raw[:size])
        corrected = payloads.loads_all(raw[size:])
        return Changes(
            chat_id=self.id,
            messages=messages,
            cursor=entries.end_cursor(int(epoch), first, stamp.decode(), messages),
            gap=gap,
            has_more=bool(has_more),
            reset=bool(reset),
            role=role.decode(),
            edited=[
                entries.make_message(self.id, int(epoch), number, entry)
                for number, entry in zip(edited[1::2], corrected, strict=True)
            ],
            edit_numbers=edited[::2],
            edits=edits,
            edits_missed=bool(missed),
            positions=dict(zip(map(bytes.decode, positions[::2]), positions[1::2], strict=True)),
            moved=moved,
            title=title.decode(),
            member_count=member_count,
            last_id=last,
            last_sender=payloads.loads_all([sender])[0] if sender else "",
            oldest_id=oldest,
            removed=removed,
            read_id=position,
            unread=unread,
            muted_until=to_datetime(muted_until) if muted_until else None,
            typists=[member for member in map(bytes.decode, typists) if member != user],
            event=event,
            events=make_events(events),
        )


def _known(value: int | None, what: str) -> int | str:
    """A number from an earlier answer as the script takes it."""
    if value is None:
        return ""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an int or None, not {type(value).__name__}.")
    if not 0 <= value < _MAX_KNOWN:
        raise InvalidArgument(f"{what} must be between 0 and {_MAX_KNOWN - 1}, not {value}.")
    return value
