"""The messages of a chat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...core import payloads
from ...core.keys import name
from ...core.operations import Script, Steps, asynchronous, operation
from ...errors import InvalidArgument
from ..arguments import count, request, window
from ..cursors import checked_id
from ..directories.folding import fold
from . import entries
from .base import limits
from .changes import MAX_BYTES, Following
from .values import Found, Message, Page

#: messages that one call returns by their ids
MAX_GET = 50
#: mentions in one message
MAX_MENTIONS = 20
#: messages that one call searches
_MAX_SCANNED = 500


class Messages(Following):
    """Sending, reading, acking, editing and deleting messages."""

    @operation
    def send(
        self,
        sender: str,
        body: str,
        *,
        data: Any = None,
        reply_to: int | None = None,
        mentions: Iterable[str] = (),
        request_id: str | None = None,
    ) -> Steps[Message]:
        """Append a message.

        Every member receives it: ids are 1, 2, 3 … in one order. `data` is any JSON value. `mentions` are at
        most 20 other members; whoever is no member when it is sent is left out. A repeat with the same
        `request_id` sends nothing and returns the first message, as far as it is still stored. The message
        counts as read by the sender only if the sender has read all messages before it.

        >>> Chat.create("ann", ["bob"], chat_id="lunch").send("ann", "Pizza?").id
        1

        Raises NotAMember, ChatNotFound, LimitExceeded (MESSAGE_MAX_BYTES).
        """
        name(sender, "sender")
        if reply_to is not None:
            checked_id(reply_to, "reply_to")
        request_id = request(request_id)
        data = entries.as_stored(data)
        mentioned = _mentioned(mentions, sender) if mentions else ()
        content = entries.encode_content(
            sender, body, data, reply_to, request_id, has_mentions=bool(mentioned)
        )
        yield from self._count_use(sender, "send")
        reply = yield Script(
            "chat_send",
            self._keys.sending,
            (sender, request_id, window(), content, reply_to or 0, *limits(), *mentioned),
        )
        entry = None
        if type(reply) is list:  # a repeat, or with mentions
            reply, entry = reply
        number, ms, nonce, epoch = map(int, self._checked(reply, sender).split(b"-")[:4])
        stored = [ms, nonce, 0, 0, 0, sender, body, reply_to, data, 0, 0]
        if entry is not None:
            stored = payloads.loads_all([entry])[0]
        return entries.make_message(self.id, epoch, number, stored)

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
        """Read a page of the messages that a member may see: those sent since they joined.

        `after` and `before` take a cursor or an id; without either, the page contains the newest messages.
        Reading moves no position.

        >>> chat = Chat.create("ann", ["bob"], "One", chat_id="counting")
        >>> [message.body for message in chat.history("bob").messages]
        ['One']

        Raises NotAMember, ChatNotFound.
        """
        if after is not None and before is not None:
            raise InvalidArgument("after and before can't both be given: a page has one direction.")
        return (yield from self._read_page(user, after, before, count(limit, "limit")))

    ahistory = asynchronous(history)

    def _read_page(
        self, user: str, after: str | int | None, before: str | int | None, limit: int
    ) -> Steps[Page]:
        name(user, "user")
        place = after if before is None else before
        direction = "newest" if place is None else "after" if before is None else "before"
        cursor = entries.parse_cursor(0 if place is None else place, direction)
        keys = self._keys
        reply = yield Script(
            "chat_history",
            (keys.newest, keys.members, keys.roster, keys.log),
            (user, direction, *cursor, limit, *limits()),
        )
        epoch, first, stamp, gap, has_more, reset, role, *raw = self._checked(reply, user)
        messages = entries.make_messages(self.id, int(epoch), first, raw)
        return Page(
            messages=messages,
            cursor=entries.end_cursor(int(epoch), first, stamp.decode(), messages),
            gap=gap,
            has_more=bool(has_more),
            reset=bool(reset),
            role=role.decode(),
        )

    @operation
    def get_messages(self, user: str, ids: Iterable[int]) -> Steps[list[Message]]:
        """Read messages by their ids, at most 50: those that the member may see and that are still stored.

        They are in the order of their ids. An answer contains 256 KiB of stored messages, but at least one:
        if it lacks some, ask for the others again.

        >>> chat = Chat.create("ann", ["bob"], "One", chat_id="quoting")
        >>> [message.body for message in chat.get_messages("bob", [1, 2])]
        ['One']

        Raises NotAMember, ChatNotFound.
        """
        name(user, "user")
        wanted = sorted({checked_id(number, "ids") for number in ids})
        if len(wanted) > MAX_GET:
            raise InvalidArgument(f"ids must have at most {MAX_GET} items, not {len(wanted)}.")
        keys = self._keys
        reply = yield Script(
            "chat_get",
            (keys.newest, keys.members, keys.roster, keys.log),
            (user, MAX_BYTES, *limits(), *wanted),
        )
        epoch, found, *raw = self._checked(reply, user)
        return [
            entries.make_message(self.id, int(epoch), number, entry)
            for number, entry in zip(found, payloads.loads_all(raw), strict=True)
        ]

    aget_messages = asynchronous(get_messages)

    @operation
    def search(
        self, user: str, text: str, *, before: str | int | None = None, limit: int = 20
    ) -> Steps[Found]:
        """Search the messages that a member may see for a text, from the newest to the oldest.

        This is a scan without an index: a call reads at most 500 messages and 256 KiB of stored messages, in
        one round trip, so it may find nothing although there is more. Continue with `before` of the answer
        until it is `complete`. Texts are compared as `Directory` does, so that "STRASSE" finds "Straße".
        Deleted messages are not found.

        >>> chat = Chat.create("ann", ["bob"], "One", chat_id="searching")
        >>> [message.id for message in chat.search("bob", "on").messages]
        [1]

        Raises NotAMember, ChatNotFound; ValueError for an empty text.
        """
        wanted = fold(payloads.text(text, "text", setting="MESSAGE_MAX_BYTES"))
        if not wanted:
            raise InvalidArgument("text must not be empty.")
        count(limit, "limit")
        page = yield from self._read_page(user, None, before, _MAX_SCANNED)
        matching = [one for one in reversed(page.messages) if not one.deleted and wanted in fold(one.body)]
        found, is_cut = matching[:limit], len(matching) > limit
        continue_at = found[-1].id if is_cut else page.messages[0].id if page.messages else 0
        return Found(messages=found, before=continue_at, complete=not is_cut and not page.has_more)

    asearch = asynchronous(search)

    @operation
    def ack(self, user: str, up_to: str | int) -> Steps[int]:
        """Record that a member has read everything up to a message; returns the member's position.

        `up_to` is a cursor or the id of a message; an id above the newest means the newest. The position
        never moves back. A cursor whose message no longer exists, because the chat was created anew or
        Redis lost data, moves nothing. Messages that all members have acked may be removed
        (CHAT_KEEP_LAST).

        >>> chat = Chat.create("ann", ["bob"], "One", chat_id="acking")
        >>> chat.ack("bob", chat.history("bob").cursor)
        1

        Raises NotAMember, ChatNotFound; ValueError for an invalid cursor.
        """
        name(user, "user")
        cursor = entries.parse_cursor(up_to, "up_to")
        reply = yield Script("chat_ack", self._keys.reading, (user, *cursor))
        return int(self._checked(reply, user))

    aack = asynchronous(ack)

    @operation
    def edit(self, user: str, message_id: int, body: str) -> Steps[Message | None]:
        """Replace the body of one's own message; None if the message does not exist (any more).

        Raises NotPermitted if another user wrote it, NotAMember, ChatNotFound, LimitExceeded.
        """
        name(user, "user")
        number, content = checked_id(message_id, "message_id"), entries.body_json(body)
        yield from self._count_use(user, "edit")
        reply = yield Script(
            "chat_edit",
            self._keys.correcting,
            (user, entries.author_json(user), number, content, *limits()),
        )
        return self._corrected(number, self._checked(reply, user))

    aedit = asynchronous(edit)

    @operation
    def delete_message(self, user: str, message_id: int) -> Steps[Message | None]:
        """Replace a message with a tombstone; None if the message does not exist (any more).

        For the author, and for owners of the chat, also if they joined later. The id stays, so that ids have
        no holes.
        Raises NotPermitted, NotAMember, ChatNotFound.
        """
        name(user, "user")
        number = checked_id(message_id, "message_id")
        yield from self._count_use(user, "edit")
        reply = yield Script(
            "chat_retract",
            self._keys.correcting,
            (user, entries.author_json(user), number, *limits()),
        )
        return self._corrected(number, self._checked(reply, user))

    adelete_message = asynchronous(delete_message)

    def _corrected(self, number: int, reply: list[bytes]) -> Message | None:
        if not reply:
            return None
        epoch, entry = reply
        return entries.make_message(self.id, int(epoch), number, payloads.loads_all([entry])[0])


def _mentioned(mentions: Iterable[str], sender: str) -> list[str]:
    """The mentioned users without duplicates and without the sender, each followed by the user as JSON."""
    if isinstance(mentions, str):
        raise TypeError("mentions must be a list of names, not a str: wrap it in a list.")
    users = dict.fromkeys(name(user, "mentions") for user in mentions)
    users.pop(sender, None)
    if len(users) > MAX_MENTIONS:
        raise InvalidArgument(f"mentions must have at most {MAX_MENTIONS} items, not {len(users)}.")
    return [text for user in users for text in (user, entries.author_json(user))]
