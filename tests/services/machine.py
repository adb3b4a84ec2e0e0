"""A machine that does whatever people do, in the app and in the model, and compares."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from django_redis import get_redis_connection
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from django_redis_messaging import Chat, Inbox, Message, MessagingError, Page, Pending, conf
from django_redis_messaging.core.keys import ChatKeys, UserKeys
from django_redis_messaging.services import inboxes

from .model import Conversation, Model, Place, Read, Said

USERS = ("ann", "bob", "cé:{d}", "dan")
CHATS = ("one", "tw%o")
BODIES = ("hi", "", 'a\n"b\\', "😀 ß")

#: people, by number: rather a member of the chat than anybody
people = st.integers(0, 9)
users = st.sampled_from(USERS)
chats = st.sampled_from(["one", "one", "one", "tw%o"])
requests = st.sampled_from([None, None, "r1"])
limits = st.sampled_from([1, 2, 5, 100])
_runs = itertools.count()


class ChatMachine(RuleBasedStateMachine):
    """Does everything twice, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.run = next(_runs)
        #: what each cursor that was ever given out names
        self.places: dict[str, dict[str, Place]] = {chat: {} for chat in CHATS}
        #: older states of a chat: the app's keys, and the model's
        self.copies: dict[str, tuple[dict[str, tuple[bytes, int]], Any]] = {}
        self.touched: set[str] = set()
        self.client = get_redis_connection(conf.alias())
        self.patches: list[Any] = []

    @initialize(
        members=st.lists(users, min_size=2, unique=True),
        keep_last=st.sampled_from([0, 1, 3]),
        max_length=st.sampled_from([3, 5, 10_000]),
        heals=st.booleans(),
    )
    def begin(self, members: list[str], keep_last: int, max_length: int, heals: bool) -> None:
        self.model = Model(USERS, max_length=max_length, heals=heals)
        changed = dataclasses.replace(conf.current(), CHAT_MAX_LENGTH=max_length)
        self.patches = [
            mock.patch.object(conf, "current", return_value=changed),
            mock.patch.object(inboxes, "_GRACE", 0 if heals else 3),
        ]
        for patch in self.patches:
            patch.start()
        self.create("one", members, "", False, keep_last, None)

    def teardown(self) -> None:
        try:
            if self.patches:
                self.everybody_reads_on()
        finally:
            for patch in self.patches:
                patch.stop()

    # What people do

    @rule(
        chat=chats, members=st.lists(users, min_size=1, max_size=5), body=st.sampled_from(BODIES),
        open=st.booleans(), keep_last=st.sampled_from([0, 1, 3]), request=requests,
    )  # fmt: skip
    def create(
        self, chat: str, members: list[str], body: str, open: bool, keep_last: int, request: str | None
    ) -> None:
        unique = list(dict.fromkeys(members))
        options: dict[str, Any] = {"open": open, "keep_last": keep_last, "request_id": request}
        self.both(
            chat,
            lambda: self.model.create(chat, unique, body, chat, **options),
            lambda: Chat.create(
                self.name(members[0]), map(self.name, members), body,
                chat_id=self.name(chat), title=chat, **options,
            ),
        )  # fmt: skip

    @rule(chat=chats, who=people, by=st.none() | people)
    def join(self, chat: str, who: int, by: int | None) -> None:
        user, other = self.who(chat, who), by if by is None else self.who(chat, by)
        expected, real = self.both(
            chat,
            lambda: self.model.join(chat, user, other),
            lambda: self.chat(chat).join(self.name(user), by=other and self.name(other)),
        )
        assert real == expected

    @rule(chat=chats, who=people, by=st.none() | people)
    def leave(self, chat: str, who: int, by: int | None) -> None:
        user, other = self.who(chat, who), by if by is None else self.who(chat, by)
        expected, real = self.both(
            chat,
            lambda: self.model.leave(chat, user, other),
            lambda: self.chat(chat).leave(self.name(user), by=other and self.name(other)),
        )
        assert real == expected

    @rule(chat=chats, who=people)
    def delete(self, chat: str, who: int) -> None:
        user = self.who(chat, who)
        expected, real = self.both(
            chat, lambda: self.model.delete(chat, user), lambda: self.chat(chat).delete(self.name(user))
        )
        assert real == expected

    @rule(
        chat=chats, who=people, body=st.sampled_from(BODIES), data=st.sampled_from([None, {"n": []}]),
        reply_to=st.sampled_from([None, None, None, 1, 7]), request=requests,
    )  # fmt: skip
    def send(
        self, chat: str, who: int, body: str, data: object, reply_to: int | None, request: str | None
    ) -> None:
        user = self.who(chat, who)
        self.say(chat, user, Said(user, body, data, reply_to), request)

    def say(self, chat: str, user: str, said: Said, request: str | None) -> None:
        place, real = self.both(
            chat,
            lambda: self.model.send(chat, said, request),
            lambda: self.chat(chat).send(
                self.name(user), said.body, data=said.data, reply_to=said.reply_to, request_id=request
            ),
        )
        if place is not None:
            assert real.id == place.id
            assert self.places[chat].setdefault(real.cursor, place) == place
            if place.number == said.number:
                said.cursor = real.cursor
                self.compare(chat, real.id, said, real)

    @rule(chat=chats, who=people, at=st.integers(0, 12))
    def ack(self, chat: str, who: int, at: int) -> None:
        user = self.who(chat, who)
        self.ack_place(chat, user, at)

    @rule(chat=chats, who=people, at=st.integers(0, 40))
    def ack_by_cursor(self, chat: str, who: int, at: int) -> None:
        user = self.who(chat, who)
        self.ack_place(chat, user, self.cursor(chat, at))

    def ack_place(self, chat: str, user: str, place: int | str) -> None:
        expected, real = self.both(
            chat,
            lambda: self.model.ack(chat, user, self.place(chat, place)),
            lambda: self.chat(chat).ack(self.name(user), place),
        )
        assert real == expected

    @rule(chat=chats, who=people, number=st.integers(1, 6), body=st.sampled_from(BODIES))
    def edit(self, chat: str, who: int, number: int, body: str) -> None:
        user = self.who(chat, who)
        expected, real = self.both(
            chat,
            lambda: self.model.edit(chat, user, number, body),
            lambda: self.chat(chat).edit(self.name(user), number, body),
        )
        self.compare(chat, number, expected, real)

    @rule(chat=chats, who=people, number=st.integers(1, 6))
    def delete_message(self, chat: str, who: int, number: int) -> None:
        user = self.who(chat, who)
        expected, real = self.both(
            chat,
            lambda: self.model.delete_message(chat, user, number),
            lambda: self.chat(chat).delete_message(self.name(user), number),
        )
        self.compare(chat, number, expected, real)

    @rule(chat=chats, talkers=st.lists(people, min_size=2, max_size=5))
    def talk(self, chat: str, talkers: list[int]) -> None:
        for who in talkers:
            self.say(chat, self.who(chat, who), Said(self.who(chat, who), "la"), None)

    # What people read

    @rule(chat=chats, who=people, at=st.none() | st.integers(0, 12), limit=limits)
    def history_before(self, chat: str, who: int, at: int | None, limit: int) -> None:
        user = self.who(chat, who)
        expected, real = self.both(
            chat,
            lambda: self.model.before(chat, user, at, limit),
            lambda: self.chat(chat).history(self.name(user), before=at, limit=limit),
        )
        self.compare_page(chat, expected, real)

    @rule(chat=chats, who=people, at=st.integers(0, 12), limit=limits)
    def history_after(self, chat: str, who: int, at: int, limit: int) -> None:
        user = self.who(chat, who)
        expected, real = self.both(
            chat,
            lambda: self.model.after(chat, user, at, limit),
            lambda: self.chat(chat).history(self.name(user), after=at, limit=limit),
        )
        self.compare_page(chat, expected, real)

    @rule(chat=chats, who=people, at=st.integers(0, 40), limit=limits, newer=st.booleans())
    def history_by_cursor(self, chat: str, who: int, at: int, limit: int, newer: bool) -> None:
        user = self.who(chat, who)
        cursor = self.cursor(chat, at)
        read = self.model.after if newer else self.model.before
        direction = "after" if newer else "before"
        expected, real = self.both(
            chat,
            lambda: read(chat, user, self.place(chat, cursor), limit),
            lambda: self.chat(chat).history(self.name(user), **{direction: cursor}, limit=limit),  # type: ignore[arg-type]
        )
        self.compare_page(chat, expected, real)

    @rule(user=users, limit=limits, total=st.sampled_from([1, 3, 1000]), ack=st.booleans())
    def pending(self, user: str, limit: int, total: int, ack: bool) -> None:
        if ack and conf.alias() == "cluster":
            total = 1000  # each shard keeps to it by itself
        self.pend(user, limit, total, ack)

    @rule(user=users)
    def unread(self, user: str) -> None:
        assert Inbox(self.name(user)).unread() == self.model.unread(user)

    @rule(user=users)
    def list_chats(self, user: str) -> None:
        expected = self.model.looked_into(user, all_of_them=True)
        summaries = Inbox(self.name(user)).chats()
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

    # What happens to Redis

    @rule(chat=chats)
    def copy(self, chat: str) -> None:
        keys = ChatKeys(conf.prefix(), self.name(chat)).every
        pipeline = self.client.pipeline(transaction=False)
        for key in keys:
            pipeline.dump(key).pttl(key)
        found = pipeline.execute()
        dumps = {key: (found[2 * at], max(found[2 * at + 1], 0)) for at, key in enumerate(keys)}
        self.copies[chat] = (
            {key: dump for key, dump in dumps.items() if dump[0] is not None}, self.model.copy(chat),
        )  # fmt: skip

    @precondition(lambda self: self.copies)
    @rule(at=people)
    def roll_back(self, at: int) -> None:
        chat = sorted(self.copies)[at % len(self.copies)]
        dumps, copied = self.copies[chat]
        self.lose_keys(chat)
        for key, (dump, ttl) in dumps.items():
            self.client.restore(key, ttl, dump)
        self.model.restore(chat, copied)
        self.wait_for_the_next_ms()

    @rule(chat=chats, talkers=st.lists(people, min_size=1, max_size=3), reader=people)
    def fail_over(self, chat: str, talkers: list[int], reader: int) -> None:
        """What was said and acked last is lost, though people have seen it."""
        self.copy(chat)
        self.talk(chat, talkers)
        self.ack_place(chat, self.who(chat, reader), 100)
        self.roll_back(sorted(self.copies).index(chat))

    @rule(chat=chats, sure=st.integers(0, 2))
    def lose(self, chat: str, sure: int) -> None:
        if sure == 0:
            self.lose_keys(chat)
            self.model.restore(chat, (None, {}))
            self.wait_for_the_next_ms()

    def lose_keys(self, chat: str) -> None:
        for key in ChatKeys(conf.prefix(), self.name(chat)).every:
            self.client.delete(key)
        self.touched.add(chat)

    # What always holds

    @invariant()
    def chats_are_as_they_should_be(self) -> None:
        touched, self.touched = self.touched, set()
        for chat_id in touched & self.model.chats.keys():
            self.compare_chat(chat_id, self.model.chats[chat_id])

    @invariant()
    def lists_know_all_memberships(self) -> None:
        if not self.patches:
            return
        for user in USERS:
            index = self.client.hgetall(UserKeys(conf.prefix(), self.name(user)).chats)
            assert {self.unnamed(chat.decode()) for chat in index} == self.model.lists[user].keys()

    def everybody_reads_on(self) -> None:
        """At the end, two at a time: what was said while they were members, in order, and how much is gone."""
        for user in USERS:
            for _ in range(200):
                if not (found := self.pend(user, 2, 5, ack=False)):
                    break
                for one in found:
                    if one.messages:
                        self.ack_place(self.unnamed(one.chat_id), user, one.messages[-1].cursor)
            else:
                raise AssertionError("there is always more")

    def pend(self, user: str, limit: int, total: int, ack: bool) -> list[Pending]:
        found = Inbox(self.name(user)).pending(limit=limit, total=total, ack=ack)
        order = [self.unnamed(one.chat_id) for one in found]
        expected = self.model.pending(user, order, limit, total, ack=ack)
        assert sorted(order) == sorted(expected)
        for one, chat in zip(found, order, strict=True):
            self.compare_page(chat, expected[chat], one)
        self.touched.update(order)
        return found

    # How it is compared

    def both(self, chat: str, ideal: Callable[[], Any], real: Callable[[], Any]) -> tuple[Any, Any]:
        """What the model says, and the app; where the model refuses, so must the app, for the same reason."""
        self.touched.add(chat)
        try:
            expected = ideal()
        except (MessagingError, ValueError) as refusal:
            with pytest.raises((MessagingError, ValueError)) as caught:
                real()
            assert caught.type is type(refusal), repr(caught.value)
            return None, None
        return expected, real()

    def compare(self, chat: str, number: int, said: Said | None, message: Message | None) -> None:
        if said is None or message is None:
            assert said is message is None
            return
        assert (message.id, message.chat_id, message.sender) == (
            number, self.name(chat), self.name(said.sender),
        )  # fmt: skip
        assert (message.body, message.data, message.reply_to) == (said.body, said.data, said.reply_to)
        assert (message.deleted, message.edited_at is not None) == (said.deleted, said.edited)
        said.cursor = said.cursor or message.cursor
        assert message.cursor == said.cursor
        place = Place(self.model.chats[chat].epoch, number, said.number)
        assert self.places[chat].setdefault(message.cursor, place) == place

    def compare_page(self, chat: str, expected: Read | None, page: Page | Pending | None) -> None:
        if expected is None or page is None:
            assert expected is page is None
            return
        assert [message.id for message in page.messages] == list(expected.ids)
        assert (page.gap, page.has_more, page.reset) == (expected.gap, expected.has_more, expected.reset)
        for message in page.messages:
            self.compare(chat, message.id, self.model.chats[chat].said(message.id), message)

    def compare_chat(self, chat_id: str, chat: Conversation) -> None:
        info, members = self.chat(chat_id).info(), self.chat(chat_id).members()
        assert (info.title, info.open, info.keep_last) == (chat.title, chat.open, chat.keep_last)
        assert (info.last_id, info.first_id, info.edits) == (chat.last, chat.first, chat.edits)
        assert [(one.user, one.read_id, one.role) for one in members] == [
            (self.name(user), member.position, member.role) for user, member in chat.members.items()
        ]
        for user in chat.members:
            page = self.chat(chat_id).history(self.name(user), limit=1000)
            self.compare_page(chat_id, self.model.before(chat_id, user, None, 1000), page)

    # Names

    def who(self, chat: str, number: int) -> str:
        members = list(self.model.chats[chat].members) if chat in self.model.chats else []
        return members[number % len(members)] if members and number < 8 else USERS[number % len(USERS)]

    def name(self, name: str) -> str:
        return f"{name} {self.run}"

    def unnamed(self, name: str) -> str:
        return name.removesuffix(f" {self.run}")

    def chat(self, chat: str) -> Chat:
        return Chat(self.name(chat))

    def cursor(self, chat: str, at: int) -> str:
        """One that was given out; one of nothing that ever was, where none was."""
        known = list(self.places[chat])
        return known[at % len(known)] if known else "1-1-1"

    def place(self, chat: str, place: int | str) -> int | Place:
        return place if isinstance(place, int) else self.places[chat].get(place, Place(0, 1, 0))

    def wait_for_the_next_ms(self) -> None:
        """What is sent now must not have the time of what was lost."""
        before = self.client.time()
        while (self.client.time()[0], self.client.time()[1] // 1000) <= (before[0], before[1] // 1000):
            pass
