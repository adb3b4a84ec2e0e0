"""Group chats: messages, members, and what changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Self, cast, get_args

from ... import conf
from ...core import encoding
from ...core.commands import batched
from ...core.encoding import name
from ...core.operations import Clock, Command, Script, Service, Steps, asynchronous, operation
from ...errors import ChatExists, ChatNotFound, InvalidArgument, LimitExceeded, NotAMember, NotPermitted
from ..common.arguments import (
    UserOrId,
    checked_id,
    count,
    flag,
    member_id,
    member_ids,
    request,
    timestamp_ms,
    to_datetime,
    window,
)
from ..directories.folding import fold
from ..rates.user_rates import UserRate
from ..users.keys import UserKeys
from . import replies, values
from .joining import (
    SUSPENDED,
    Joining,
    Way,
    apply_block,
    best_effort,
    end_membership,
    joining_users,
    read_block,
    refuse_blocked,
    refuse_to_blocker,
    remove_entries,
)
from .keys import DIRECT, ChatKeys, digest, direct_id, is_direct
from .replies import REFUSALS, known_number, make_changes, raise_refusal
from .values import (
    MAX_TITLE,
    Changes,
    ChatInfo,
    ChatSummary,
    Found,
    Member,
    Message,
    Names,
    Page,
    Role,
    limits,
)

#: attempts to open a direct chat: each finds the chat changed by another call
_DIRECT_ATTEMPTS = 5
#: messages: Lua would write larger numbers with an exponent
_MAX_KEEP_LAST = 10**9
#: users that one call adds
_MAX_ADDED = 500
#: mentions in one message
MAX_MENTIONS = 20
#: messages that one call returns by their ids
MAX_GET = 50
#: messages that one call searches
_MAX_SCANNED = 500
#: bytes of the entries and positions in one answer
MAX_BYTES = 256 * 1024
#: members whose positions are read: those who joined first
MAX_POSITIONS = 200
#: users for whom one call reads
MAX_READERS = 500


class Chat(Service):
    """A group chat, named by its id. Creating the object does no I/O, and the chat need not exist.

    *Every member receives every message sent while they are a member, in one order per chat, with ids 1, 2,
    3 … without holes, at least once until acked. If a limit removed messages, the reader gets the size of
    the gap; if Redis lost data, the reader gets `reset`.*

    >>> chat = Chat.create("ann", ["bob", "cat"], "Hello!", title="Trip")
    >>> chat.send("bob", "Hi ann").id
    2
    """

    #: the two users of a direct chat, while one of them opens it, joins it or adds the other one
    _pair: tuple[str, str] | None = None

    def __init__(self, chat_id: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        #: never changes
        self.id = name(chat_id, "chat_id")
        self._keys = ChatKeys(self._prefix, chat_id)

    @property
    def chat_id(self) -> str:
        """The id, under the name that other classes use for it."""
        return self.id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @classmethod
    def create(
        cls,
        sender: UserOrId,
        recipients: Iterable[UserOrId],
        body: str = "",
        *,
        chat_id: str | None = None,
        title: str = "",
        open: bool = False,
        keep_last: int | None = None,
        request_id: str | None = None,
        using: str | None = None,
    ) -> Self:
        """Create a chat of the sender (its owner) and the recipients, with `body` as first message if given.

        Anyone can join an `open` chat without being added. `keep_last` is the number of messages kept for
        scroll-back after all members have acked them (default CHAT_KEEP_LAST; 0: none).
        Takes three round trips: the members' indexes of chats, the chat, the indexes again.

        Others can fill at most nine tenths of a user's USER_MAX_CHATS.

        Raises ChatExists (but a repeat with the same `request_id` by the same sender gets the first answer),
        LimitExceeded (CHAT_MAX_MEMBERS, MESSAGE_MAX_BYTES, USER_MAX_CHATS), NotPermitted if one of the
        recipients has blocked the sender.
        """
        sender, request_id = member_id(sender, "sender"), request(request_id)
        chat = cls(_chat_id(chat_id, sender, request_id), using=using)
        chat._create(sender, recipients, body, title, open, keep_last, request_id)
        return chat

    @classmethod
    async def acreate(
        cls,
        sender: UserOrId,
        recipients: Iterable[UserOrId],
        body: str = "",
        *,
        chat_id: str | None = None,
        title: str = "",
        open: bool = False,
        keep_last: int | None = None,
        request_id: str | None = None,
        using: str | None = None,
    ) -> Self:
        """Async version of `create`."""
        sender, request_id = member_id(sender, "sender"), request(request_id)
        chat = cls(_chat_id(chat_id, sender, request_id), using=using)
        await chat._acreate(sender, recipients, body, title, open, keep_last, request_id)
        return chat

    @operation
    def _create(
        self,
        sender: str,
        recipients: Iterable[UserOrId],
        body: str,
        title: str,
        open: bool,
        keep_last: int | None,
        request_id: str,
    ) -> Steps[None]:
        members = _unique(sender, recipients)
        title = encoding.text(title, "title", setting="TITLE_MAX_BYTES")
        has_body = values.body_json(body) != '""'
        content = values.encode_content(sender, body, None, None, request_id) if has_body else ""
        yield from self._count_use(sender, "create", member=False)
        if len(members) > 1:
            yield from self._count_use(sender, "invite", len(members) - 1, member=False)
        yield from self._write(members, request_id, title, flag(open, "open"), keep_last, content)

    _acreate = asynchronous(_create)

    @classmethod
    def direct(cls, user: UserOrId, other: UserOrId, *, using: str | None = None) -> Self:
        """Return the one chat of two users, and open it if needed. Its id is the same whoever begins.

        `user` is who asks, and owns the chat if it is created. If one of the two has left it, they become a
        member again. Nobody else can be added. Takes one round trip if both are members.

        >>> Chat.direct("ann", "bob").id == Chat.direct("bob", "ann").id
        True

        Raises NotPermitted if `user` has blocked `other`, or if the chat has to be opened and `other` has
        blocked `user` or left with `again=False`, or one of the two was removed by the other; LimitExceeded
        (USER_MAX_CHATS).
        """
        pair = _checked_pair(user, other)
        chat = cls(direct_id(*pair), using=using)
        chat._direct(*pair)
        return chat

    @classmethod
    async def adirect(cls, user: UserOrId, other: UserOrId, *, using: str | None = None) -> Self:
        """Async version of `direct`."""
        pair = _checked_pair(user, other)
        chat = cls(direct_id(*pair), using=using)
        await chat._adirect(*pair)
        return chat

    @operation
    def _direct(self, user: str, other: str) -> Steps[None]:
        """Make both users members, whoever of them is one already; try again if another call changes that
        meanwhile."""
        self._pair = user, other
        for attempts_left in reversed(range(_DIRECT_ATTEMPTS)):
            lines, block = yield [
                Command("HMGET", self._keys.roster, user, other, reads=True),
                read_block(self._prefix, user, other),
            ]
            if block is not None:
                # once more, in case the process stopped that opened the chat while the other one was blocked
                yield from apply_block(self._prefix, user, other, is_blocked=True)
                refuse_to_blocker(user, other)
            if lines[0] is not None and lines[0].startswith(SUSPENDED):  # an unblocking was interrupted
                yield from apply_block(self._prefix, user, other, is_blocked=False)
            is_member, has_other = (line is not None for line in lines)
            try:
                if not is_member and not has_other:
                    yield from self._count_use(user, "create", member=False)
                    yield from self._write([user, other], request(None))
                elif not is_member:
                    yield from self._return(user, other)
                elif not has_other:
                    yield from self._count_use(user, "invite")
                    yield from self._join([other], "added", user)
                return
            except (ChatExists, ChatNotFound, NotAMember):
                if not attempts_left:
                    raise

    _adirect = asynchronous(_direct)

    def _return(self, user: str, other: str) -> Steps[None]:
        """Make a user who left a direct chat a member again, unless the other one has blocked them."""
        if (yield read_block(self._prefix, other, user)) is not None:
            refuse_blocked()
        yield from self._join([user], "returning", user)

    def _write(
        self,
        members: list[str],
        request_id: str,
        title: str = "",
        is_open: int = 0,
        keep_last: int | None = None,
        content: str | bytes = "",
    ) -> Steps[None]:
        """Create the chat of checked members, the sender first, in three round trips."""
        keep = _checked_keep_last(keep_last)
        joining = self._joining(members[0])
        try:
            reserved = yield from joining.reserve(members)
            if len(reserved) < len(members):  # others with this chat in their index have blocked the sender
                yield from best_effort(joining.release(reserved))
                refuse_blocked()
        except NotPermitted:
            if (yield from self._was_created(members[0], request_id)):
                return
            raise
        arguments = (request_id, window(), title, is_open, keep, content, values.max_age())
        reply = yield Script("chats/create", self._keys.all_keys, (*arguments, *joining_users(reserved)))
        epoch, *known = yield from joining.checked(reply, members)
        numbers = known or itertools.count(int(epoch))
        yield from best_effort(joining.confirm(zip(members, numbers, strict=False), int(epoch), reserved))

    def _was_created(self, sender: str, request_id: str) -> Steps[bool]:
        """Whether this request has created the chat: a repeat gets the first answer, whoever has blocked the
        sender since."""
        request_key = f"create\0{sender}\0{request_id}"
        found = yield [Command("HEXISTS", key, request_key, reads=True) for key in self._keys.requests]
        return any(found)

    def _joining(self, asker: str) -> Joining:
        return Joining(self._prefix, self.id, asker, self._pair)

    @operation
    def send(
        self,
        sender: UserOrId,
        body: str,
        *,
        data: Any = None,
        reply_to: int | None = None,
        mentions: Iterable[UserOrId] = (),
        request_id: str | None = None,
    ) -> Steps[Message]:
        """Append a message.

        Every member receives it: ids are 1, 2, 3 … in one order. `data` is any JSON value. `mentions` are at
        most 20 other members; users who are not members at that time are left out. A repeat with the same
        `request_id` sends nothing and returns the first message, with the fields that are still stored. The
        message counts as read by the sender only if the sender has read all messages before it.

        >>> Chat.create("ann", ["bob"], chat_id="lunch").send("ann", "Pizza?").id
        1

        Raises NotAMember, ChatNotFound, LimitExceeded (MESSAGE_MAX_BYTES).
        """
        sender = member_id(sender, "sender")
        if reply_to is not None:
            checked_id(reply_to, "reply_to")
        request_id = request(request_id)
        data = values.as_stored(data)
        mentioned = _mentioned(mentions, sender) if mentions else ()
        content = values.encode_content(
            sender, body, data, reply_to, request_id, has_mentions=bool(mentioned)
        )
        yield from self._count_use(sender, "send")
        words = (sender, request_id, window(), content, reply_to or 0, *limits(), *mentioned)
        reply = yield Script("chats/send", self._keys.sending, words)
        reply, entry = reply if type(reply) is list else (reply, None)  # a list: a repeat, or with mentions
        number, ms, nonce, epoch, *_ = self._checked(reply, sender).split(b"-")
        stored = [int(ms), int(nonce), 0, 0, 0, sender, body, reply_to, data, 0, 0]
        if entry is not None:
            stored = encoding.loads_all([entry])[0]
        return values.make_message(self.id, int(epoch), int(number), stored)

    asend = asynchronous(send)

    @operation
    def edit(self, user: UserOrId, message_id: int, body: str) -> Steps[Message | None]:
        """Replace the body of one's own message; None if the message does not exist (any more).

        Raises NotPermitted if another user wrote it, NotAMember, ChatNotFound, LimitExceeded.
        """
        user = member_id(user, "user")
        number, content = checked_id(message_id, "message_id"), values.body_json(body)
        return (yield from self._edit(user, number, content))

    aedit = asynchronous(edit)

    @operation
    def delete_message(self, user: UserOrId, message_id: int) -> Steps[Message | None]:
        """Replace a message with a tombstone; None if the message does not exist (any more).

        For the author, and for owners of the chat, even if they joined later. The id stays, so that ids have
        no holes.
        Raises NotPermitted, NotAMember, ChatNotFound.
        """
        user = member_id(user, "user")
        return (yield from self._edit(user, checked_id(message_id, "message_id"), ""))

    adelete_message = asynchronous(delete_message)

    def _edit(self, user: str, number: int, content: str) -> Steps[Message | None]:
        """Replace the body with this JSON; without any, the message with a tombstone."""
        yield from self._count_use(user, "edit")
        arguments = (user, values.author_json(user), number, content, *limits())
        reply = self._checked((yield Script("chats/edit", self._keys.following, arguments)), user)
        if not reply:
            return None
        epoch, entry = reply
        return values.make_message(self.id, int(epoch), number, encoding.loads_all([entry])[0])

    @operation
    def history(
        self,
        user: UserOrId,
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
        self, user: UserOrId, after: str | int | None, before: str | int | None, limit: int
    ) -> Steps[Page]:
        user = member_id(user, "user")
        place = after if before is None else before
        direction = "newest" if place is None else "after" if before is None else "before"
        cursor = values.parse_cursor(0 if place is None else place, direction)
        reply = yield Script(
            "chats/history",
            self._keys.paging,
            (user, direction, *cursor, limit, *limits()),
        )
        epoch, first, stamp, gap, has_more, reset, role, *raw = self._checked(reply, user)
        messages = values.make_messages(self.id, int(epoch), first, raw)
        return Page(
            messages=messages,
            cursor=values.end_cursor(int(epoch), first, stamp.decode(), messages),
            gap=gap,
            has_more=bool(has_more),
            reset=bool(reset),
            role=role.decode(),
        )

    @operation
    def get_messages(self, user: UserOrId, ids: Iterable[int]) -> Steps[list[Message]]:
        """Read messages by their ids, at most 50: those that the member may see and that are still stored.

        They are in the order of their ids. An answer contains 256 KiB of stored messages, but at least one:
        if it lacks some, ask for the others again.

        >>> chat = Chat.create("ann", ["bob"], "One", chat_id="quoting")
        >>> [message.body for message in chat.get_messages("bob", [1, 2])]
        ['One']

        Raises NotAMember, ChatNotFound.
        """
        user = member_id(user, "user")
        wanted = sorted({checked_id(number, "ids") for number in ids})
        if len(wanted) > MAX_GET:
            raise InvalidArgument(f"ids must have at most {MAX_GET} items, not {len(wanted)}.")
        reply = yield Script(
            "chats/get",
            self._keys.paging,
            (user, MAX_BYTES, *limits(), *wanted),
        )
        epoch, found, *raw = self._checked(reply, user)
        return [
            values.make_message(self.id, int(epoch), number, entry)
            for number, entry in zip(found, encoding.loads_all(raw), strict=True)
        ]

    aget_messages = asynchronous(get_messages)

    @operation
    def search(
        self, user: UserOrId, text: str, *, before: str | int | None = None, limit: int = 20
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
        wanted = fold(encoding.text(text, "text", setting="MESSAGE_MAX_BYTES"))
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
    def ack(self, user: UserOrId, up_to: str | int) -> Steps[int]:
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
        user = member_id(user, "user")
        cursor = values.parse_cursor(up_to, "up_to")
        reply = yield Script("chats/ack", self._keys.acking, (user, *cursor, values.random_step()))
        return int(self._checked(reply, user))

    aack = asynchronous(ack)

    @operation
    def changes(
        self,
        user: UserOrId,
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
        if there is any; if `has_more`, call again. Reading moves no position. Takes one round trip.

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
        user = member_id(user, "user")
        found = yield from self._follow([user], after, edits, moved, events, limit)
        return found[user]

    achanges = asynchronous(changes)

    @operation
    def changes_for(
        self,
        users: Sequence[UserOrId],
        *,
        after: str | int,
        edits: int | None = None,
        moved: int | None = None,
        events: int | None = None,
        limit: int = 50,
    ) -> Steps[dict[str, Changes]]:
        """Read `changes` for at most 500 members who have read the same before; users who are not members
        (any more) are left out.

        The membership of each is checked in the script that reads the messages. Takes one round trip, and
        one for each user who has joined since, or if Redis lost data.

        >>> chat = Chat.create("ann", ["bob"], "One", chat_id="following-together")
        >>> found = chat.changes_for(["ann", "bob", "cat"], after=0)
        >>> {user: changes.unread for user, changes in found.items()}
        {'ann': 0, 'bob': 1}

        Raises ChatNotFound; ValueError for an invalid cursor.
        """
        readers = _checked_readers(users)
        try:
            return (yield from self._follow(readers, after, edits, moved, events, limit))
        except NotAMember:
            return {}

    achanges_for = asynchronous(changes_for)

    @operation
    def summaries_for(self, users: Sequence[UserOrId]) -> Steps[dict[str, ChatSummary]]:
        """Summarize the chat for at most 500 members, as `Inbox.chats` does; users who are not members (any
        more) are left out. Takes one round trip.

        >>> chat = Chat.create("ann", ["bob"], "One", chat_id="summarizing")
        >>> {user: summary.unread for user, summary in chat.summaries_for(["ann", "bob", "cat"]).items()}
        {'ann': 0, 'bob': 1}
        """
        readers = _checked_readers(users)
        arguments = [*map(str, values.limits_without_bytes()), *readers]
        reply = yield Script("chats/summarize", self._keys.listing, arguments)
        return {} if reply == b"no chat" else replies.make_summaries(self.id, readers, reply)

    asummaries_for = asynchronous(summaries_for)

    def _follow(
        self,
        users: Sequence[str],
        after: str | int,
        edits: int | None,
        fingerprint: int | None,
        events: int | None,
        limit: int,
    ) -> Steps[dict[str, Changes]]:
        reply = yield Script(
            "chats/changes",
            self._keys.following,
            (
                *values.parse_cursor(after, "after"),
                known_number(edits, "edits"),
                known_number(fingerprint, "moved"),
                count(limit, "limit"),
                MAX_BYTES,
                MAX_POSITIONS,
                _typing_window(),
                known_number(events, "events"),
                *limits(),
                int(conf.current().READ_RECEIPTS),
                *users,
            ),
        )
        found, others = make_changes(self.id, users, self._checked(reply, users[0]))
        for user in others:
            try:
                found |= yield from self._follow([user], after, edits, fingerprint, events, limit)
            except NotAMember:
                continue  # has left since
        return found

    @operation
    def seen_by(self, message_id: int, *, limit: int = 500) -> Steps[Names]:
        """List the members who have acked a message and let others see it (Choices), by name.

        `has_more` of the list: whether there are more than `limit`. Takes one round trip for each 1000
        members. Raises ChatNotFound.
        """
        number = checked_id(message_id, "message_id")
        arguments = (number, count(limit, "limit") + 1)
        found: dict[str, None] = {}
        position = member = b""
        while len(found) <= limit:
            place = (*arguments, position, member)
            reply = yield Script("chats/seen", self._keys.following, place)
            position, member, *page = self._checked(reply)
            found |= dict.fromkeys(one.decode() for one in page)
            if not member:
                break
        members = list(found)
        return Names(sorted(members[:limit]), has_more=len(members) > limit)

    aseen_by = asynchronous(seen_by)

    @operation
    def typing(self, user: UserOrId) -> Steps[None]:
        """Record that a member is typing, for TYPING_WINDOW seconds; not of a user who has chosen not to be
        seen online. Takes two round trips. Raises NotAMember, ChatNotFound."""
        user = member_id(user, "user")
        choices = UserKeys(self._prefix, user).choices
        is_shown = (yield Command("HGET", choices, "online", reads=True)) != b"0"
        reply = yield Script(
            "chats/type",
            self._keys.following,
            (user, _typing_window(), conf.current().TYPING_MAX_MEMBERS if is_shown else 0),
        )
        self._checked(reply, user)

    atyping = asynchronous(typing)

    @operation
    def typists(self) -> Steps[list[str]]:
        """List the members who are typing, the latest last. Raises ChatNotFound."""
        keys = self._keys
        exists, clock, flat = yield [
            Command("EXISTS", keys.info, reads=True),
            Clock(keys.typing),
            Command("ZRANGE", keys.typing, 0, -1, "WITHSCORES", reads=True),
        ]
        if not exists:
            raise_refusal(b"no chat", self.id, "", "")
        now = Clock.milliseconds(clock)
        last = now + _typing_window()  # those above were typing before the clock was set back
        return [member.decode() for member, until in batched(flat, 2) if now < float(until) <= last]

    atypists = asynchronous(typists)

    @operation
    def join(self, user: UserOrId, *, by: UserOrId | None = None) -> Steps[bool]:
        """Make a user a member who sees the messages sent from then on; False if they are a member already.

        `by` is the member who adds them, as in `add`; without it the user joins alone, and the chat must be
        open. Takes three round trips: the user's index of chats, the chat, the index again.

        >>> Chat.create("ann", [], chat_id="club").join("bob", by="ann")
        True

        Raises NotAMember, ChatNotFound, LimitExceeded (CHAT_MAX_MEMBERS, USER_MAX_CHATS), NotPermitted (see
        `add`; a user whom an owner removed can't join alone).
        """
        user = member_id(user, "user")
        if by is None:
            return bool((yield from self._join([user], "alone", user)))
        by = member_id(by, "by")
        self._refuse_third([user], by)
        yield from self._count_use(by, "invite")
        return bool((yield from self._join([user], "added", by)))

    ajoin = asynchronous(join)

    @operation
    def add(
        self, users: Iterable[UserOrId], *, by: UserOrId, request_id: str | None = None
    ) -> Steps[list[str]]:
        """Make at most 500 users members, all of them or none; returns those who were not members already.

        `by` is the member who adds them. Others can fill at most nine tenths of a user's USER_MAX_CHATS. A
        repeat with the same `request_id` by the same member adds nobody and returns the first answer.
        Takes three round trips, like `join`.

        >>> Chat.create("ann", ["bob"], chat_id="team").add(["bob", "cat", "dan"], by="ann")
        ['cat', 'dan']

        Raises NotAMember, ChatNotFound, LimitExceeded (CHAT_MAX_MEMBERS, USER_MAX_CHATS), and NotPermitted if
        one of the users has blocked `by`, has left with `again=False`, or was removed by an owner and `by` is
        not an owner.
        """
        by = member_id(by, "by")
        unique = list(dict.fromkeys(member_ids(users, "users")))
        if len(unique) > _MAX_ADDED:
            raise InvalidArgument(f"users must have at most {_MAX_ADDED} items, not {len(unique)}.")
        self._refuse_third(unique, by)
        if unique:
            yield from self._count_use(by, "invite", len(unique))
        return (yield from self._join(unique, "added", by, request_id))

    aadd = asynchronous(add)

    def _join(
        self, users: Sequence[str], way: Way, asker: str, request_id: str | None = None
    ) -> Steps[list[str]]:
        """Make users members; returns those who were not. `asker` is the member who adds them, or joins."""
        request_key = request(request_id)
        joining = self._joining(asker)
        reserved = yield from joining.reserve(users)
        records_nothing = int(request_id is not None)
        limit = conf.current().CHAT_MAX_MEMBERS
        arguments = (way, asker, request_key, records_nothing, window(), limit)
        reply = yield Script("chats/join", self._keys.all_keys, (*arguments, *joining_users(reserved)))
        epoch, is_member, joined, *numbers = yield from joining.checked(reply, reserved)
        confirmed = zip(reserved, numbers, strict=True)
        yield from best_effort(joining.confirm(confirmed, int(epoch), reserved))
        if way == "added" and not is_member:  # a repeat
            raise_refusal(b"not added", self.id, "", asker)
        return joined.decode().split("\0") if joined else []

    def _refuse_third(self, users: Iterable[str], by: str) -> None:
        """Refuse to add anyone else to a direct chat: its two members can only add each other."""
        if not is_direct(self.id):
            return
        if any(direct_id(by, user) != self.id for user in users):
            raise NotPermitted(f"Nobody can be added to {self.id!r}, a direct chat: create another chat.")
        for user in users:
            self._pair = by, user

    @operation
    def leave(self, user: UserOrId, *, by: UserOrId | None = None, again: bool = True) -> Steps[bool]:
        """End a membership; False if the user is not a member. `by` is the owner who removes another member.

        Only owners can add a user again whom an owner removed. With `again=False` nobody can add the user
        again; alone, the user can still join an open chat, or open a direct chat, which ends this. A chat
        remembers the latest 1000 users of each kind, until it is deleted. With `again=False`, a user
        remembers the latest 1000 direct chats.

        The last member to leave deletes the chat; if the last owner leaves, the longest-standing member
        becomes an owner. Raises NotPermitted or NotAMember for `by`.
        """
        user = member_id(user, "user")
        by = None if by is None else member_id(by, "by")
        is_removal = by is not None and by != user
        if is_removal and not flag(again, "again"):
            raise InvalidArgument("again=False is for users who leave by themselves: omit it with by=….")
        if is_direct(self.id) and not flag(again, "again"):
            yield Script("chats/inbox_decline", [UserKeys(self._prefix, user).declined], [self.id])
        return (yield from end_membership(self._prefix, self.id, user, by, again=again))

    aleave = asynchronous(leave)

    @operation
    def members(self, *, limit: int = 500, after: UserOrId | None = None) -> Steps[list[Member]]:
        """List members, the longest-standing first; `after` is the last member of the previous page.

        Raises ChatNotFound; NotAMember if `after` is not a member.
        """
        start = "" if after is None else member_id(after, "after")
        reply = yield Script("chats/members", self._keys.listing, (start, count(limit, "limit")))
        return [
            Member(
                user=user.decode(),
                read_id=read_id,
                joined_at=to_datetime(joined_at),
                role=role.decode(),
                suspended=bool(suspended),
            )
            for user, read_id, joined_at, role, suspended in self._checked(reply, other=start)
        ]

    amembers = asynchronous(members)

    @operation
    def role(self, user: UserOrId) -> Steps[Role]:
        """Return a member's role: "owner" or "member". Takes one round trip.

        >>> Chat.create("ann", ["bob"], chat_id="roles").role("bob")
        'member'

        Raises NotAMember, ChatNotFound.
        """
        return cast(Role, (yield from self._read_role(member_id(user, "user"))))

    arole = asynchronous(role)

    @operation
    def set_role(self, user: UserOrId, member: UserOrId, role: Role) -> Steps[bool]:
        """Make a member an "owner" or a plain "member"; False if they already have that role.

        For owners. A chat keeps at least one. Raises NotPermitted, NotAMember, ChatNotFound.
        """
        user = member_id(user, "user")
        member = member_id(member, "member")
        if role not in get_args(Role):
            raise InvalidArgument(f"role must be one of {', '.join(get_args(Role))}, not {role!r}.")
        reply = yield Script(
            "chats/promote",
            self._keys.all_keys,
            (user, member, role, request(None), window()),
        )
        return bool(self._checked(reply, user, member))

    aset_role = asynchronous(set_role)

    @operation
    def rename(self, user: UserOrId, title: str) -> Steps[None]:
        """Change the title. For members. Raises NotAMember, ChatNotFound, LimitExceeded."""
        user = member_id(user, "user")
        checked = encoding.text(title, "title", setting="TITLE_MAX_BYTES")
        yield from self._count_use(user, "rename")
        excerpt = checked.replace("\0", "")[:MAX_TITLE]
        reply = yield Script("chats/rename", self._keys.following, (user, checked, excerpt))
        self._checked(reply, user)

    arename = asynchronous(rename)

    @operation
    def mute(self, user: UserOrId, until: datetime | None) -> Steps[None]:
        """Mute the chat for a member until a given time; None unmutes it. Its messages still count as unread.

        Raises NotAMember, ChatNotFound.
        """
        user = member_id(user, "user")
        arguments = (user, timestamp_ms(until, "until"))
        reply = yield Script("chats/mute", self._keys.listing, arguments)
        self._checked(reply, user)

    amute = asynchronous(mute)

    @operation
    def info(self) -> Steps[ChatInfo]:
        """Describe the chat. Raises ChatNotFound."""
        reply = yield Script("chats/describe", self._keys.listing, limits())
        title, is_open, created, edits, active, last, first, keep, members = self._checked(reply)
        return ChatInfo(
            chat_id=self.id,
            title=title.decode(),
            open=is_open == b"1",
            keep_last=keep,
            created_at=to_datetime(created),
            active_at=to_datetime(active),
            last_id=last,
            first_id=first,
            edits=int(edits),
            member_count=members,
        )

    ainfo = asynchronous(info)

    @operation
    def delete(self, user: UserOrId) -> Steps[bool]:
        """Delete the chat with all its contents; False if it does not exist. For owners.

        Also deletes a chat that has lost some of its keys: any member may delete it if the roster was lost,
        and any user if nobody can read it (`manage.py messaging_repair` might repair it).
        Raises NotPermitted, NotAMember.
        """
        user = member_id(user, "user")
        reply = yield Script("chats/delete", self._keys.all_keys, (user, request(None), window()))
        if reply == b"no chat":
            return False
        members = [(member.decode(), number) for member, number in batched(self._checked(reply, user), 2)]
        yield from best_effort(remove_entries(self._prefix, self.id, members))
        return True

    adelete = asynchronous(delete)

    def _count_use(self, user: str, action: str, times: int = 1, *, member: bool = True) -> Steps[None]:
        """With RATES_IN_SERVICES, count an action, and refuse it above its rate: else the pages do
        (`MessagingView.count_use`). `member`: only members may do it; for others, nothing is counted."""
        if not conf.current().RATES_IN_SERVICES:
            return
        rate = UserRate.of(user, action, using=self._using)
        yield from self._count_member_use(user, rate, times) if member else rate.required(times)

    @operation
    def _admit(self, user: str, action: str = "") -> Steps[None]:
        """Check that a user is a member, and count the action, in one round trip; for the pages."""
        if action:
            yield from self._count_member_use(user, UserRate.of(user, action, using=self._using), 1)
        else:
            yield from self._read_role(user)

    def _count_member_use(self, user: str, rate: UserRate, times: int) -> Steps[None]:
        """Count the use by a member; others use nothing up."""
        try:
            use = rate.use(times)
        except LimitExceeded:  # at once
            yield from self._read_role(user)
            raise
        line, used = yield [self._reading_line(user), use]
        if not _role_in(line):
            exists, _ = yield [Command("EXISTS", self._keys.newest, reads=True), rate.undo(use)]
            raise_refusal(b"no member" if exists else b"no chat", self.id, user, "")
        rate.check(used)

    def _read_role(self, user: str) -> Steps[str]:
        exists, line = yield [Command("EXISTS", self._keys.newest, reads=True), self._reading_line(user)]
        role = _role_in(line)
        if not exists or not role:
            raise_refusal(b"no member" if exists else b"no chat", self.id, user, "")
        return role

    def _reading_line(self, user: str) -> Command:
        """The step that reads a member's line of the roster: see _members.lua."""
        return Command("HGET", self._keys.roster, user, reads=True)

    def _checked(self, reply: Any, user: str = "", other: str = "") -> Any:
        """The reply of a script; raises an error if the script refused."""
        if isinstance(reply, bytes) and reply in REFUSALS:
            raise_refusal(reply, self.id, user, other)
        return reply


def _chat_id(chat_id: str | None, sender: str, request_id: str) -> str:
    """The given id, or one derived from the request id: a repeat must find the chat it created."""
    if chat_id is None:
        return digest(sender, request_id)
    if name(chat_id, "chat_id").startswith(DIRECT):
        raise InvalidArgument(f"chat_id must not begin with {DIRECT!r}: use Chat.direct.")
    return chat_id


def _checked_pair(user: UserOrId, other: UserOrId) -> tuple[str, str]:
    """The two members of a direct chat."""
    pair = member_id(user, "user"), member_id(other, "other")
    if pair[0] == pair[1]:
        raise InvalidArgument("other must be another user: a direct chat has two members.")
    return pair


def _unique(sender: str, recipients: Iterable[UserOrId]) -> list[str]:
    """The members without duplicates, the sender first; the caller's list is not modified."""
    members = list(dict.fromkeys([sender, *member_ids(recipients, "recipients")]))
    limit = conf.current().CHAT_MAX_MEMBERS
    if len(members) > limit:
        raise LimitExceeded("members of a chat", limit=limit, actual=len(members), setting="CHAT_MAX_MEMBERS")
    return members


def _checked_keep_last(keep_last: int | None) -> int:
    if keep_last is None:
        keep_last = conf.current().CHAT_KEEP_LAST
    if not isinstance(keep_last, int) or isinstance(keep_last, bool):
        raise TypeError(f"keep_last must be an int or None, not {type(keep_last).__name__}.")
    if not 0 <= keep_last <= _MAX_KEEP_LAST:
        raise InvalidArgument(f"keep_last must be between 0 and {_MAX_KEEP_LAST}, not {keep_last}.")
    return keep_last


def _mentioned(mentions: Iterable[UserOrId], sender: str) -> list[str]:
    """The mentioned users without duplicates and without the sender, each followed by the user as JSON."""
    users = dict.fromkeys(member_ids(mentions, "mentions"))
    users.pop(sender, None)
    if len(users) > MAX_MENTIONS:
        raise InvalidArgument(f"mentions must have at most {MAX_MENTIONS} items, not {len(users)}.")
    return [text for user in users for text in (user, values.author_json(user))]


def _checked_readers(users: Sequence[UserOrId]) -> list[str]:
    readers = member_ids(users, "users")
    if not 1 <= len(readers) <= MAX_READERS:
        raise InvalidArgument(f"users must have 1 to {MAX_READERS} items, not {len(readers)}.")
    return readers


def _typing_window() -> int:
    """How long a member counts as typing, in ms."""
    return int(conf.current().TYPING_WINDOW * 1000)


def _role_in(line: bytes | None) -> str:
    """The role in a line of the roster; '' for who is no member."""
    return "" if line is None or line.startswith(SUSPENDED) else line.split()[-2].decode()
