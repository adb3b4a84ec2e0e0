"""What members say and read."""

from __future__ import annotations

from typing import Any

from ...core import payloads
from ...core.keys import name
from ...core.operations import Script, Steps, asynchronous, operation
from ..arguments import count
from ..requests import request, window
from . import entries
from .base import ChatBase, limits
from .entries import Position
from .values import Message, Page


class Talk(ChatBase):
    """Sending, reading, acking and correcting messages."""

    @operation
    def send(
        self,
        sender: str,
        body: str,
        *,
        data: Any = None,
        reply_to: int | None = None,
        request_id: str | None = None,
    ) -> Steps[Message]:
        """Append a message.

        Every member receives it: ids are 1, 2, 3 … in one order. `data` is anything JSON can say.
        A repeat with the same `request_id` sends nothing and returns the first answer. It counts as
        read by the sender only where nothing before it is unread.

        >>> Chat.create("ann", ["bob"], chat_id="lunch").send("ann", "Pizza?").id
        1

        Raises NotAMember, ChatNotFound, LimitExceeded (MESSAGE_MAX_BYTES).
        """
        name(sender, "sender")
        if reply_to is not None:
            entries.identifier(reply_to, "reply_to")
        data = entries.as_stored(data)
        tail = entries.tail(sender, body, data, reply_to)
        reply = yield Script(
            "chat_send",
            self._keys.talk,
            (sender, tail, request(request_id), window(), *limits(), reply_to or 0),
        )
        number, ms, epoch, _ = map(int, self._accepted(reply, sender).split(b"-"))
        return entries.message(self.id, epoch, number, [ms, 0, 0, 0, 0, sender, body, reply_to, data])

    asend = asynchronous(send)

    @operation
    def history(
        self,
        user: str,
        *,
        after: str | int | None = None,
        before: str | int | None = None,
        limit: int = 50,
    ) -> Steps[Page]:
        """Read a page of what a member may see: what was sent since they joined.

        `after` and `before` take a cursor or an id; with neither, the page is the newest. Reading
        moves no position.

        >>> chat = Chat.create("ann", ["bob"], "One", chat_id="counting")
        >>> [message.body for message in chat.history("bob").messages]
        ['One']

        Raises NotAMember, ChatNotFound.
        """
        name(user, "user")
        if after is not None and before is not None:
            raise ValueError("after and before are both given: a page has one direction, so give one.")
        which, place = "newest", Position(0)
        if after is not None:
            which, place = "after", entries.position(after, "after")
        elif before is not None:
            which, place = "before", entries.position(before, "before")
        keys = self._keys
        reply = yield Script(
            "chat_history",
            (keys.newest, keys.members, keys.roster, keys.log),
            (user, which, place.id, place.epoch, place.ms, count(limit, "limit"), *limits()),
        )
        epoch, first, gap, has_more, reset, *raw = self._accepted(reply, user)
        read = entries.messages(self.id, int(epoch), first, raw)
        return Page(
            messages=read,
            cursor=entries.end_of(int(epoch), first, read),
            gap=gap,
            has_more=bool(has_more),
            reset=bool(reset),
        )

    ahistory = asynchronous(history)

    @operation
    def ack(self, user: str, up_to: str | int) -> Steps[int]:
        """Note that a member has read everything up to a message; returns the member's position.

        `up_to` is a cursor, or a message's id. The position never moves back; beyond the newest means the
        newest. A cursor whose message isn't there any more, because the chat was recreated or Redis
        lost data, moves nothing. What all members have acked may be removed (CHAT_KEEP_LAST).

        >>> chat = Chat.create("ann", ["bob"], "One", chat_id="acking")
        >>> chat.ack("bob", chat.history("bob").cursor)
        1

        Raises NotAMember, ChatNotFound; ValueError for a cursor that isn't one.
        """
        name(user, "user")
        place = entries.position(up_to, "up_to")
        keys = self._keys
        reply = yield Script(
            "chat_ack",
            keys.talk[:4],
            (user, entries.author(user), place.id, place.epoch, place.ms),
        )
        return int(self._accepted(reply, user))

    aack = asynchronous(ack)

    @operation
    def edit(self, user: str, message_id: int, body: str) -> Steps[Message | None]:
        """Replace the body of one's own message; None where there is no such message any more.

        Raises NotPermitted where somebody else wrote it, NotAMember, ChatNotFound, LimitExceeded.
        """
        name(user, "user")
        number = entries.identifier(message_id, "message_id")
        reply = yield Script(
            "chat_edit",
            self._keys.correcting,
            (user, entries.author(user), number, entries.body_text(body)),
        )
        return self._corrected(number, self._accepted(reply, user))

    aedit = asynchronous(edit)

    @operation
    def delete_message(self, user: str, message_id: int) -> Steps[Message | None]:
        """Leave a tombstone where a message was; None where there is no such message any more.

        For the author, and for owners of the chat. The id stays, so that there is never a hole.
        Raises NotPermitted, NotAMember, ChatNotFound.
        """
        name(user, "user")
        number = entries.identifier(message_id, "message_id")
        reply = yield Script(
            "chat_retract",
            self._keys.correcting,
            (user, entries.author(user), number),
        )
        return self._corrected(number, self._accepted(reply, user))

    adelete_message = asynchronous(delete_message)

    def _corrected(self, number: int, reply: list[bytes]) -> Message | None:
        if not reply:
            return None
        epoch, entry = reply
        return entries.message(self.id, int(epoch), number, payloads.loads_all([entry])[0])
