"""Chat and Inbox behave like the model; and the state machine that checks this finds planted bugs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from django_redis_messaging import (
    Changes,
    Chat,
    ChatExists,
    ChatNotFound,
    Inbox,
    Message,
    NotAMember,
    NotPermitted,
    Page,
    Pending,
)

from ..support.server import index, is_cluster, keys
from ..support.state_machines import Machine, MachineTests, Plants
from .model import Conversation, Model, Place, Read, Said

#: the beginning of one can be that of another
USERS = ("ann", "an", 'an"é:{d}', "dan")
CHATS = ("one", "tw%o")
REFUSALS = (ChatExists, ChatNotFound, NotAMember, NotPermitted, ValueError)
BODIES = ("hi", "", 'a\n"b\\', "😀 ß")

#: users by number: members of the chat more often than others
people = st.integers(0, 9)
users = st.sampled_from(USERS)
chats = st.sampled_from(["one", "one", "one", "tw%o"])
requests = st.sampled_from([None, None, "r1"])
limits = st.sampled_from([1, 2, 5, 100])


def outcome(act: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """The return value of a call, or the error it raised."""
    try:
        return act(), None
    except REFUSALS as refusal:
        return None, refusal


class ChatMachine(Machine):
    """Four users and two chats whose ids are reused. Each operation runs in the app and in the model, and the
    results must be equal."""

    model: Model

    def __init__(self) -> None:
        super().__init__()
        #: what each cursor returned so far refers to
        self.places: dict[str, dict[str, Place]] = {chat: {} for chat in CHATS}
        #: earlier states of a chat: the app's keys and the model's state
        self.copies: dict[str, tuple[dict[str, tuple[bytes, int]], Any]] = {}
        self.touched: set[str] = set()
        self.created: dict[str, tuple[list[str], str, bool, int, str | None]] = {}

    @initialize(
        members=st.lists(users, min_size=2, unique=True),
        keep_last=st.sampled_from([0, 1, 3]),
        max_length=st.sampled_from([3, 5, 10_000]),
    )
    def begin(self, members: list[str], keep_last: int, max_length: int) -> None:
        self.model = Model(USERS, max_length=max_length)
        self.change_settings(CHAT_MAX_LENGTH=max_length)
        self.create("one", members, "", False, keep_last, "r1")

    def teardown(self) -> None:
        try:
            if hasattr(self, "model"):
                self.read_to_the_end()
        finally:
            super().teardown()

    # Changes

    @rule(
        chat=chats, members=st.lists(users, min_size=1, max_size=5), body=st.sampled_from(BODIES),
        open=st.booleans(), keep_last=st.sampled_from([0, 1, 3]), request=requests,
    )  # fmt: skip
    def create(
        self, chat: str, members: list[str], body: str, open: bool, keep_last: int, request: str | None
    ) -> None:
        self.created[chat] = (members, body, open, keep_last, request)
        unique = list(dict.fromkeys(members))
        options: dict[str, Any] = {"open": open, "keep_last": keep_last, "request_id": request}
        named = list(map(self.named, members))
        self.compare_outcomes(
            chat,
            lambda: self.model.create(chat, unique, body, chat, **options),
            lambda: Chat.create(named[0], named, body, chat_id=self.named(chat), title=chat, **options),
        )

    @rule(chat=chats)
    def repeat_create(self, chat: str) -> None:
        """Repeat the creation, as after a lost reply."""
        if chat in self.created:
            self.create(chat, *self.created[chat])

    @rule(chat=chats, added=st.lists(people, min_size=1, max_size=2), by=people, request=requests)
    def add(self, chat: str, added: list[int], by: int, request: str | None) -> None:
        """Add users who are not members, if any; with a request id, also repeat it, and use it as another."""
        members = self.model.chats[chat].members if chat in self.model.chats else {}
        order = sorted(USERS, key=lambda user: user in members)
        chosen = list(dict.fromkeys(order[at % len(order)] for at in added))
        if by == 9 or (len(chosen) == 1 and request is None):
            self.join(chat, chosen[0], by)
            return
        for adder in [by] if request is None else [by, by, by + 1]:
            who = self.who(chat, adder % 9)
            expected, real = self.both(chat, "add", chosen, by=who, request_id=request)
            assert real == (expected and list(map(self.named, expected)))

    def join(self, chat: str, user: str, by: int) -> None:
        self.same(chat, "join", user, by=self.who(chat, by) if by < 9 else None)

    @rule(chat=chats, who=people, by=st.none() | people, again=st.sampled_from([True, True, False]))
    def leave(self, chat: str, who: int, by: int | None, again: bool = True) -> None:
        user, other = self.who(chat, who), by if by is None else self.who(chat, by)
        self.same(chat, "leave", user, by=other, again=again or other not in (None, user))

    @rule(chat=chats, who=people, by=people)
    def leave_and_join(self, chat: str, who: int, by: int) -> None:
        """Nothing of the first membership may remain: neither unread counts nor own messages."""
        self.send_many(chat, [by, who])
        user = self.who(chat, who)
        self.leave(chat, who, None)
        self.join(chat, user, by)
        self.correct_place(chat, user, 0, "again")
        self.correct_place(chat, user, 0, None)
        self.send_many(chat, [by])

    @rule(chat=chats, who=people, by=people, is_removed=st.booleans())
    def restrict_and_join(self, chat: str, who: int, by: int, is_removed: bool) -> None:
        """Leave for good or be removed, return if allowed, and leave once more."""
        user = self.who(chat, who)
        for again in (False, True):
            members = self.model.chats[chat].members if chat in self.model.chats else {}
            owner = next((at for at, one in enumerate(members.values()) if one.role == "owner"), 0)
            if user in members:
                at = list(members).index(user)
                self.leave(chat, at, owner if is_removed and not again else None, again)
            for adder in (by, owner, 9):
                self.join(chat, user, adder)

    @rule(chat=chats, who=people, sure=st.integers(0, 3))
    def delete(self, chat: str, who: int, sure: int) -> None:
        if sure == 0:
            self.same(chat, "delete", self.who(chat, who))

    @rule(
        chat=chats, who=people, body=st.sampled_from(BODIES), data=st.sampled_from([None, {"n": []}]),
        reply_to=st.sampled_from([None, None, None, 1, 7]), request=requests,
    )  # fmt: skip
    def send(
        self, chat: str, who: int, body: str, data: object, reply_to: int | None, request: str | None
    ) -> None:
        user = self.who(chat, who)
        for _ in range(1 if request is None else 2):
            self.say(chat, user, Said(user, body, data, reply_to), request)

    @rule(chat=chats, who=people, at=people, by_cursor=st.booleans())
    def ack(self, chat: str, who: int, at: int, by_cursor: bool) -> None:
        self.same(chat, "ack", self.who(chat, who), self.cursor(chat, at) if by_cursor else at)

    @rule(chat=chats, late=people)
    def all_but_one_ack(self, chat: str, late: int) -> None:
        members = list(self.model.chats[chat].members) if chat in self.model.chats else []
        for user in members[:late] + members[late + 1 :]:
            self.same(chat, "ack", user, 100)
            self.same(chat, "ack", user, 1)

    @rule(chat=chats, who=people, back=st.integers(0, 4), body=st.sampled_from(BODIES) | st.none())
    def correct(self, chat: str, who: int, back: int, body: str | None) -> None:
        """Edit or delete one of the latest messages."""
        self.correct_place(chat, self.who(chat, who), back, body)

    @rule(chat=chats, senders=st.lists(people, min_size=2, max_size=5))
    def send_many(self, chat: str, senders: list[int]) -> None:
        if chat not in self.model.chats:
            at = senders[0] % len(USERS)
            self.create(chat, [*USERS, *USERS][at : at + 3], "", False, at % 3, None)
        for who in senders:
            self.say(chat, self.who(chat, who), Said(self.who(chat, who), "la"), None)

    # Reads

    @rule(chat=chats, who=people, at=people, by_cursor=st.booleans(), newer=st.booleans(), limit=limits)
    def history(self, chat: str, who: int, at: int, by_cursor: bool, newer: bool, limit: int) -> None:
        place = self.cursor(chat, at) if by_cursor else at
        expected, real = self.both(
            chat, "history", self.who(chat, who), limit=limit, **{"after" if newer else "before": place}
        )
        self.compare_page(chat, expected, real)

    @rule(
        chat=chats, who=people, at=people, by_cursor=st.booleans(), limit=limits, edits=st.integers(0, 3)
    )  # fmt: skip
    def changes(self, chat: str, who: int, at: int, by_cursor: bool, limit: int, edits: int) -> None:
        place = self.cursor(chat, at) if by_cursor else at
        expected, real = self.both(
            chat, "changes", self.who(chat, who), after=place, limit=limit, edits=edits
        )
        if expected is None:
            return
        held = self.model.chats[chat]
        self.compare_page(chat, expected[0], real)
        assert (real.edits, real.edits_missed) == (held.edits, edits > held.edits)
        assert [message.id for message in real.edited] == ([] if real.edits_missed else expected[1])
        for message in real.edited:
            self.compare(chat, message.id, held.said(message.id), message)
        assert real.positions == {self.named(one): member.position for one, member in held.members.items()}

    @rule(who=people, limit=limits, total=st.sampled_from([1, 3, 1000]), ack=st.booleans())
    def pending(self, who: int, limit: int, total: int, ack: bool) -> None:
        if ack and is_cluster():
            total = 1000  # each shard applies it separately
        user = self.who(CHATS[0], who)
        self.pend(user, limit, total, ack)
        if not ack:  # a reply that did not arrive
            self.pend(user, limit, total, ack)

    @rule(user=users)
    def unread(self, user: str) -> None:
        assert Inbox(self.named(user)).unread() == self.model.unread(user)

    # Failures

    @precondition(lambda self: self.copies)
    @rule(at=people)
    def roll_back(self, at: int) -> None:
        self.restore(sorted(self.copies)[at % len(self.copies)])

    @rule(chat=chats, senders=st.lists(people, min_size=1, max_size=3), reader=people)
    def fail_over(self, chat: str, senders: list[int], reader: int) -> None:
        """Lose messages and acks that users have seen, then send more."""
        self.remember(chat)
        self.send_many(chat, senders)
        self.same(chat, "ack", self.who(chat, reader), 100)
        self.pending(reader, 100, 1000, ack=False)
        lost = self.cursor(chat, 0)
        self.restore(chat)
        if chat in self.model.chats:
            self.send_many(chat, senders)
            self.same(chat, "ack", self.who(chat, reader), lost)
            self.pending(reader, 2, 1000, ack=False)

    @rule(chat=chats, sure=st.integers(0, 3))
    def lose(self, chat: str, sure: int) -> None:
        if sure == 0:
            self.copies[chat] = ({}, (None, {}))
            self.restore(chat)

    # Invariants

    @invariant()
    def chats_equal_the_model(self) -> None:
        touched, self.touched = self.touched, set()
        chats = {chat_id: self.model.chats[chat_id] for chat_id in touched & self.model.chats.keys()}
        for chat_id, chat in chats.items():
            self.compare_chat(chat_id, chat)
        for user in sorted({user for chat in chats.values() for user in chat.members}):
            self.compare_list(user)

    @invariant()
    def indexes_contain_all_memberships(self) -> None:
        if hasattr(self, "model"):
            pipeline = self.client.pipeline(transaction=False)
            for user in USERS:
                pipeline.hkeys(index(self.named(user)))
            for user, listed in zip(USERS, pipeline.execute(), strict=True):
                assert {self.unnamed(chat.decode()) for chat in listed} == self.model.lists[user].keys()

    def read_to_the_end(self) -> None:
        """Let every user read and ack all pending messages, two at a time, comparing order and gaps."""
        for user in USERS:
            for _ in range(200):
                if not (found := self.pend(user, 2, 5, ack=False)):
                    break
                for one in found:
                    if one.messages:
                        self.same(self.unnamed(one.chat_id), "ack", user, one.messages[-1].cursor)
            else:
                raise AssertionError("pending never becomes empty")
        for chat_id in self.model.chats:
            self.history(chat_id, 0, at=0, by_cursor=True, newer=True, limit=5)

    # Operations in both

    def say(self, chat: str, user: str, said: Said, request: str | None) -> None:
        place, real = self.compare_outcomes(
            chat,
            lambda: self.model.send(chat, said, request),
            lambda: self.chat(chat).send(
                self.named(user), said.body, data=said.data, reply_to=said.reply_to, request_id=request
            ),
        )
        if place is not None:
            assert real.id == place.id
            assert self.places[chat].setdefault(real.cursor, place) == place
            if place.number == said.number:
                said.cursor = real.cursor
                self.compare(chat, real.id, said, real)

    def correct_place(self, chat: str, user: str, back: int, body: str | None) -> None:
        """Edit or delete the message `back` before the newest."""
        number = max(1, self.model.chats[chat].last - back) if chat in self.model.chats else 1
        words = [] if body is None else [body]
        expected, real = self.both(chat, "edit" if words else "delete_message", user, number, *words)
        self.compare(chat, number, expected, real)

    def pend(self, user: str, limit: int, total: int, ack: bool) -> list[Pending]:
        found = Inbox(self.named(user)).pending(limit=limit, total=total, ack=ack)
        order = [self.unnamed(one.chat_id) for one in found]
        expected = self.model.pending(user, order, limit, total, ack=ack)
        assert sorted(order) == sorted(expected)
        for one, chat in zip(found, order, strict=True):
            self.compare_page(chat, expected[chat], one)
        self.touched.update(order)
        return found

    @rule(chat=chats)
    def remember(self, chat: str) -> None:
        """Copy the chat's keys and the state of the model."""
        names = keys(self.named(chat)).all_keys
        pipeline = self.client.pipeline(transaction=False)
        for key in names:
            pipeline.dump(key).pttl(key)
        found = iter(pipeline.execute())
        dumps = {key: (dump, max(ttl, 0)) for key, dump, ttl in zip(names, found, found, strict=True) if dump}
        self.copies[chat] = (dumps, self.model.copy(chat))

    def restore(self, chat: str) -> None:
        """Restore the copy of a chat."""
        dumps, copied = self.copies[chat]
        for key in keys(self.named(chat)).all_keys:
            self.client.delete(key)
        for key, (dump, ttl) in dumps.items():
            self.client.restore(key, ttl, dump)
        self.model.restore(chat, copied)
        self.touched.add(chat)
        self.wait_for_the_next_ms()

    # Comparisons

    def compare_outcomes(
        self, chat: str, ideal: Callable[[], Any], real: Callable[[], Any]
    ) -> tuple[Any, Any]:
        """The results of the model and of the app. Both must raise the same type of error."""
        self.touched.add(chat)
        expected, refused = outcome(ideal)
        found, really_refused = outcome(real)
        assert type(really_refused) is type(refused), (refused, really_refused)
        return expected, found

    def both(self, chat: str, verb: str, *args: Any, **options: Any) -> tuple[Any, Any]:
        """The results of an operation. The model takes places for cursors, the app other names for users."""

        def ideal(value: Any) -> Any:
            is_cursor = isinstance(value, str) and value.count("-") == 2
            return self.places[chat].get(value, Place(0, 1, 0)) if is_cursor else value

        def real(value: Any) -> Any:
            if isinstance(value, list):
                return list(map(self.named, value))
            return self.named(value) if isinstance(value, str) and value in USERS else value

        return self.compare_outcomes(
            chat,
            lambda: getattr(self.model, verb)(
                chat, *map(ideal, args), **{name: ideal(value) for name, value in options.items()}
            ),
            lambda: getattr(self.chat(chat), verb)(
                *map(real, args), **{name: real(value) for name, value in options.items()}
            ),
        )

    def same(self, chat: str, verb: str, *args: Any, **options: Any) -> None:
        """An operation returns the same in both."""
        expected, real = self.both(chat, verb, *args, **options)
        assert real == expected

    def compare(self, chat: str, number: int, said: Said | None, message: Message | None) -> None:
        if said is None or message is None:
            assert said is None
            assert message is None
            return
        assert (message.id, message.chat_id, message.sender) == (
            number, self.named(chat), self.named(said.sender),
        )  # fmt: skip
        assert (message.body, message.data, message.reply_to) == (said.body, said.data, said.reply_to)
        assert (message.deleted, message.edited_at is not None) == (said.deleted, said.edited)
        said.cursor = said.cursor or message.cursor
        assert message.cursor == said.cursor
        place = Place(self.model.chats[chat].epoch, number, said.number)
        assert self.places[chat].setdefault(message.cursor, place) == place

    def compare_page(self, chat: str, expected: Read | None, page: Changes | Page | Pending | None) -> None:
        if expected is None or page is None:
            assert expected is None
            assert page is None
            return
        assert [message.id for message in page.messages] == list(expected.ids)
        assert (page.gap, page.has_more, page.reset) == (expected.gap, expected.has_more, expected.reset)
        if not page.messages:
            number = int(page.cursor.split("-")[1], 16)
            assert number <= self.model.chats[chat].last
            place = self.model.chats[chat].place(number)
            assert self.places[chat].setdefault(page.cursor, place) == place
        for message in page.messages:
            self.compare(chat, message.id, self.model.chats[chat].said(message.id), message)

    def compare_list(self, user: str) -> None:
        expected = self.model.changed_chats(user, include_unchanged=True)
        summaries = Inbox(self.named(user)).chats()
        order = [(one.active_at, one.chat_id) for one in summaries]
        assert order == sorted(order, reverse=True)
        assert {self.unnamed(one.chat_id) for one in summaries} == expected.keys()
        for one in summaries:
            chat_id = self.unnamed(one.chat_id)
            chat = expected[chat_id]
            assert (one.title, one.unread, one.member_count) == (
                chat.title, chat.unread(user), len(chat.members),
            )  # fmt: skip
            self.compare(chat_id, chat.last, chat.visible(user, chat.last), one.last_message)

    def compare_chat(self, chat_id: str, chat: Conversation) -> None:
        info, members = self.chat(chat_id).info(), self.chat(chat_id).members()
        assert (info.title, info.open, info.keep_last) == (chat.title, chat.open, chat.keep_last)
        assert (info.last_id, info.first_id, info.edits) == (chat.last, chat.first, chat.edits)
        assert [(one.user, one.read_id, one.role) for one in members] == [
            (self.named(user), member.position, member.role) for user, member in chat.members.items()
        ]
        for user in chat.members:
            page = self.chat(chat_id).history(self.named(user), limit=1000)
            self.compare_page(chat_id, self.model.before(chat_id, user, None, 1000), page)

    # Names

    def who(self, chat: str, number: int) -> str:
        members = list(self.model.chats[chat].members) if chat in self.model.chats else []
        return members[number % len(members)] if members and number < 8 else USERS[number % len(USERS)]

    def named(self, name: str) -> str:
        return f"{self.name} {name}"

    def unnamed(self, name: str) -> str:
        return name.removeprefix(f"{self.name} ")

    def chat(self, chat: str) -> Chat:
        return Chat(self.named(chat))

    def cursor(self, chat: str, at: int) -> str:
        """One of the latest cursors; if there are none, one that never existed."""
        known = list(self.places[chat])
        return known[-1 - at % len(known)] if known else "1-1-1"

    def wait_for_the_next_ms(self) -> None:
        """Wait, so that new messages never have the time of lost ones."""
        before = self.client.time()
        while (self.client.time()[0], self.client.time()[1] // 1000) <= (before[0], before[1] // 1000):
            pass


PLANTS: Plants = {
    "chats/_log": {
        "trimming above the lowest position": ("math.min(math.floor(lowest", "math.max(math.floor(lowest"),
        "trimming ignores positions": ("math.min(math.floor(lowest[2] or 0), last - keep)", "last - keep"),
    },
    "chats/_positions": {
        "cursors are not checked": ("if cursor.epoch == '' then", "if true then"),
        "cursors of lost data are valid": ("== cursor.stamp", "~= ''"),
        "cursors of empty pages have no stamp": ("if id == chat.last and id > 0 then", "if false then"),
        "own messages count as unread": ("return last - from - ", "return last - from - 0 * "),
        "resets are reported at every position": ("return stamp ~= '0-0' and", "return"),
        "resets are reported once at a position": (
            "position < newest_seen.id",
            "position < newest_seen.id - 1",
        ),
        "another message as the newest is not noticed": ("return stamp ~= '0-0' and", "return false and"),
    },
    "chats/send": {
        "send ignores request ids": ("if recorded then", "if false then"),
        "sending acks unread messages of others": ("position < last", "false"),
        "sending does not move the position": ("redis.call('ZADD', members, id, sender)", ""),
    },
    "chats/create": {
        "create ignores request ids": ("if recorded then", "if false then"),
        "create ignores who asks": ("'create\\0' .. ARGV[first_user] ..", "'create\\0' .."),
    },
    "chats/ack": {
        "acks move the position back": ("id <= position or not", "not"),
        "acks move the position above the newest": ("math.min(cursor.id, chat.last)", "cursor.id"),
    },
    "chats/join": {
        "joining shows earlier messages": ("= chat.last, user\n", "= 0, user\n"),
        "members add whom an owner removed": ("role ~= 'owner'", "not role"),
        "add ignores who asks": ("'join\\0' .. asker ..", "'join\\0' .."),
        "add ignores request ids": ("if recorded then", "if false then"),
        "members add who left for good": ("has_opted_out[at] and", "false and"),
        "joining does not end a removal": ("'ZREM', keys.removed,", "'ZCARD', keys.removed) --"),
    },
    "chats/inbox_confirm": {"confirmation writes nothing": ("if number > known then", "if false then")},
    "chats/inbox_leave": {"leaving ends later memberships": ("number <= ended", "number")},
    "chats/leave": {
        "leaving appoints no owner": ("redis.call('HINCRBY', keys.info, 'owners', -1) == 0", "false")
    },
    "chats/inbox_pending": {
        "repair removes members": ("or not position", "or not position or chat.last == 2"),
        "pending reports no gap": ("from - position - 1, to <", "0, to <"),
        "pending skips a message": ("math.max(position + 1, first)", "math.max(position + 2, first)"),
        "pending takes the newest message for acked": ("last == position", "last <= position + 1"),
        "pending acks more than it returns": ("own, user, to)", "own, user, last)"),
    },
    "chats/edit": {
        "any member deletes": ("deletes and role == 'owner'", "deletes"),
        "members delete earlier messages": ("moderates and first", "deletes and first"),
        "owners edit messages of others": ("deletes and role == 'owner'", "role == 'owner'"),
        "editing reaches earlier messages": ("math.max(first, join_id + 1)", "first"),
    },
    "chats/history": {"history shows earlier messages": ("math.max(first, join_id + 1)", "first")},
}


@pytest.mark.worlds
class TestMachine(MachineTests):
    machine = ChatMachine
    plants = PLANTS
    quick = ("own messages count as unread", "joining shows earlier messages")
    #: a cursor above the newest message
    errors = (IndexError,)
