"""Runs operations in the app and in the model, and compares their results."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

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
    conf,
)
from django_redis_messaging.services.chats.keys import ChatKeys

from .chat_conversation import Conversation, Place, Read, Said
from .chat_model import Model
from .server import get_redis_connection

USERS = ("ann", "bob", "cé:{d}", "dan")
CHATS = ("one", "tw%o")
REFUSALS = (ChatExists, ChatNotFound, NotAMember, NotPermitted, ValueError)
_runs = itertools.count()


def outcome(act: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """The return value of a call, or the error it raised."""
    try:
        return act(), None
    except REFUSALS as refusal:
        return None, refusal


class Comparison(RuleBasedStateMachine):
    """Runs every operation in both and compares them."""

    model: Model

    def __init__(self) -> None:
        super().__init__()
        self.run = next(_runs)
        #: what each cursor returned so far refers to
        self.places: dict[str, dict[str, Place]] = {chat: {} for chat in CHATS}
        #: earlier states of a chat: the app's keys and the model's state
        self.copies: dict[str, tuple[dict[str, tuple[bytes, int]], Any]] = {}
        self.touched: set[str] = set()
        self.client: Any = get_redis_connection(conf.alias())

    # Operations

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

    def ack_place(self, chat: str, user: str, place: int | str) -> None:
        expected, real = self.both(
            chat,
            lambda: self.model.ack(chat, user, self.place(chat, place)),
            lambda: self.chat(chat).ack(self.name(user), place),
        )
        assert real == expected

    def correct_place(self, chat: str, user: str, back: int, body: str | None) -> None:
        """Edit or delete the message `back` before the newest."""
        number = max(1, self.model.chats[chat].last - back) if chat in self.model.chats else 1
        verb, words = ("delete_message", []) if body is None else ("edit", [body])
        expected, real = self.both(
            chat,
            lambda: getattr(self.model, verb)(chat, user, number, *words),
            lambda: getattr(self.chat(chat), verb)(self.name(user), number, *words),
        )
        self.compare(chat, number, expected, real)

    def pend(self, user: str, limit: int, total: int, ack: bool) -> list[Pending]:
        found = Inbox(self.name(user)).pending(limit=limit, total=total, ack=ack)
        order = [self.unnamed(one.chat_id) for one in found]
        expected = self.model.pending(user, order, limit, total, ack=ack)
        assert sorted(order) == sorted(expected)
        for one, chat in zip(found, order, strict=True):
            self.compare_page(chat, expected[chat], one)
        self.touched.update(order)
        return found

    def remember(self, chat: str) -> None:
        """Copy the chat's keys and the state of the model."""
        keys = ChatKeys(conf.prefix(), self.name(chat)).all_keys
        pipeline = self.client.pipeline(transaction=False)
        for key in keys:
            pipeline.dump(key).pttl(key)
        found = pipeline.execute()
        dumps = {key: (found[2 * at], max(found[2 * at + 1], 0)) for at, key in enumerate(keys)}
        self.copies[chat] = (
            {key: dump for key, dump in dumps.items() if dump[0] is not None}, self.model.copy(chat),
        )  # fmt: skip

    def restore(self, chat: str) -> None:
        """Restore the copy of a chat."""
        dumps, copied = self.copies[chat]
        for key in ChatKeys(conf.prefix(), self.name(chat)).all_keys:
            self.client.delete(key)
        for key, (dump, ttl) in dumps.items():
            self.client.restore(key, ttl, dump)
        self.model.restore(chat, copied)
        self.touched.add(chat)
        self.wait_for_the_next_ms()

    # Comparisons

    def both(self, chat: str, ideal: Callable[[], Any], real: Callable[[], Any]) -> tuple[Any, Any]:
        """The results of the model and of the app. Both must raise the same type of error."""
        self.touched.add(chat)
        expected, refused = outcome(ideal)
        real_one, really_refused = outcome(real)
        assert type(really_refused) is type(refused), (refused, really_refused)
        return expected, real_one

    def compare(self, chat: str, number: int, said: Said | None, message: Message | None) -> None:
        if said is None or message is None:
            assert said is None
            assert message is None
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
            self.compare_list(user)

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
        """One of the latest cursors; if there are none, one that never existed."""
        known = list(self.places[chat])
        return known[-1 - at % len(known)] if known else "1-1-1"

    def place(self, chat: str, place: int | str) -> int | Place:
        return place if isinstance(place, int) else self.places[chat].get(place, Place(0, 1, 0))

    def wait_for_the_next_ms(self) -> None:
        """Wait, so that new messages never have the time of lost ones."""
        before = self.client.time()
        while (self.client.time()[0], self.client.time()[1] // 1000) <= (before[0], before[1] // 1000):
            pass
