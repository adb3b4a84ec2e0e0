"""Reading for many members at once gives each of them what they read alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pytest_django import Settings

from django_redis_messaging import Changes, Chat, ChatNotFound, Inbox, MessagingError, NotAMember

PEOPLE = ["ann", "bob", "cat", "dan", "eve"]
STEPS = 60
LATER = datetime.now(UTC) + timedelta(hours=1)


class Story:
    """What people do in a chat, at random."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.chat = Chat.create("ann", PEOPLE[1:3], "one", title="Trip")
        self.acts: list[Callable[[str], object]] = [
            lambda who: self.chat.send(who, self.chance.choice(["short", "long " * 50])),
            lambda who: self.chat.edit(who, self.number(), "edited"),
            lambda who: self.chat.delete_message(who, self.number()),
            lambda who: self.chat.ack(who, self.number()),
            lambda who: self.chat.join(self.chance.choice(PEOPLE), by=who),
            lambda who: self.chat.leave(self.chance.choice(PEOPLE[1:]), by=who),
            lambda who: self.chat.rename(who, self.chance.choice(["Trip", "Journey"])),
            lambda who: self.chat.mute(
                who, self.chance.choice([None, datetime.now(UTC) + timedelta(hours=1)])
            ),
            lambda who: self.chat.typing(who),
        ]

    def number(self) -> int:
        newest = self.chat.changes("ann", after=0).last_id
        return self.chance.randint(max(1, newest - 5), newest)

    def go_on(self) -> None:
        with suppress(MessagingError):  # not everybody may do everything
            self.chance.choice(self.acts)(self.chance.choice(PEOPLE))


def alone(chat: Chat, known: dict[str, object]) -> dict[str, Changes]:
    found = {}
    for user in PEOPLE:
        with suppress(NotAMember):
            found[user] = chat.changes(user, **known)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_everybody_reads_the_same_together(seed: int, settings: Settings) -> None:
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "CHAT_MAX_LENGTH": 12}
    story = Story(seed)
    chat, known = story.chat, [{"after": 0}]
    for _ in range(STEPS):
        story.go_on()
        after = story.chance.choice(known)
        together = chat.changes_for(PEOPLE, **after)
        assert together == alone(chat, after)
        for changes in together.values():
            numbers = {"edits": changes.edits, "moved": changes.moved, "events": changes.event}
            known.append({"after": changes.cursor, **numbers})
        summaries = {user: Inbox(user).chats() for user in PEOPLE}
        listed = {user: replace(found[0], cursor="") for user, found in summaries.items() if found}
        summarized = chat.summaries_for(PEOPLE)
        assert {user: replace(one, cursor="") for user, one in summarized.items()} == listed


def test_nobody_is_a_member() -> None:
    chat = Chat.create("ann", [], "One")
    assert chat.changes_for(["bob", "cat"], after=0) == chat.summaries_for(["bob", "cat"]) == {}
    with pytest.raises(ChatNotFound):
        Chat("none").changes_for(["ann"], after=0)
    assert Chat("none").summaries_for(["ann"]) == {}
