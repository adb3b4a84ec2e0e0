"""A whole play, said by its speakers in one chat: who is on stage hears all that is said there, and no more.

The text is looked for in the directory MESSAGING_DATA, else in shared/data beside the repository.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from django_redis_messaging import Chat, Inbox, Message

DATA = Path(os.environ.get("MESSAGING_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
PLAY = DATA / "romeo_and_juliet.jsonl"
PROMPTER = "the prompter: {in the box}"
#: lines somebody stays on stage without a word
PATIENCE = 40
#: lines between somebody's entrance and first word
CUE = 3
#: lines between two looks of the attentive
ATTENTION = 7


class Line(NamedTuple):
    """Who says what."""

    speaker: str
    speech: str


class Actor:
    """Goes on, listens in a way of one's own, and goes off."""

    def __init__(self, name: str, stage: Chat, number: int) -> None:
        self.name = name
        self.stage = stage
        self.inbox = Inbox(name)
        self.looks_often = number % 3 != 0
        self.crashes = number % 3 == 1
        self.last_spoke = 0
        self.unread = 0
        self.present = False
        self.heard: dict[int, Line] = {}
        self.should_hear: list[Line] = []
        self.entrances = 0

    def enter(self, at: int) -> None:
        if not self.present:
            assert self.stage.join(self.name, by=PROMPTER)
            self.present, self.entrances, self.unread, self.last_spoke = True, self.entrances + 1, 0, at

    def leave(self) -> None:
        self.listen()
        assert self.stage.leave(self.name)
        self.present = False

    def listen(self) -> None:
        """Read everything, three messages at a time; some crash at first, and forget what they read."""
        if self.crashes:
            self.inbox.pending()
        while cursor := self.take():
            self.stage.ack(self.name, cursor)
        self.unread = 0

    def say(self, speech: str) -> Message:
        said = self.stage.send(self.name, speech)
        self.hear(said)
        return said

    def hear(self, message: Message) -> None:
        """Whatever is heard twice is the same."""
        line = Line(message.sender, message.body)
        assert self.heard.setdefault(message.id, line) == line

    def take(self) -> str | None:
        """What is pending; the cursor of the last of it."""
        found = self.inbox.pending(limit=3)
        for pending in found:
            assert (pending.chat_id, pending.gap, pending.reset) == (self.stage.id, 0, False)
            first = pending.messages[0].id
            assert [message.id - first for message in pending.messages] == list(range(len(pending.messages)))
            for message in pending.messages:
                self.hear(message)
        return found[-1].messages[-1].cursor if found else None


def play() -> Iterator[Line]:
    for text in PLAY.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        yield Line(line["speaker"], line["speech"])


def perform(cast: dict[str, Actor], lines: list[Line]) -> None:
    for at, line in enumerate(lines):
        speaker = cast[line.speaker]
        for cue in lines[at : at + CUE]:
            cast[cue.speaker].enter(at)
        speaker.last_spoke = at
        assert speaker.say(line.speech).id == at + 1
        for actor in cast.values():
            if actor.present:
                actor.should_hear.append(line)
                actor.unread += actor is not speaker
                if at - actor.last_spoke > PATIENCE:
                    actor.leave()
                elif actor.looks_often and at % ATTENTION == 0:
                    actor.listen()


@pytest.mark.skipif(not PLAY.exists(), reason=f"{PLAY} is not there: set MESSAGING_DATA to its directory")
def test_everybody_hears_what_is_said_while_they_are_on_stage() -> None:
    stage = Chat.create(PROMPTER, [], title="Verona", chat_id="stage")
    lines = list(play())
    cast: dict[str, Actor] = {}
    for line in lines:
        cast.setdefault(line.speaker, Actor(line.speaker, stage, len(cast)))
    perform(cast, lines)

    on_stage = {name for name, actor in cast.items() if actor.present}
    assert {member.user for member in stage.members()} == on_stage | {PROMPTER}
    assert sum(actor.entrances for actor in cast.values()) > 2 * len(cast) > 2 * len(on_stage) > 4
    assert Inbox(PROMPTER).unread() == len(lines)
    for actor in cast.values():
        assert actor.inbox.unread() == (actor.unread if actor.present else 0), actor.name
        assert [chat.unread for chat in actor.inbox.chats()] == [actor.unread] * actor.present
    assert any(actor.unread for actor in cast.values() if actor.present)

    for actor in cast.values():
        actor.listen()
        assert [actor.heard[number] for number in sorted(actor.heard)] == actor.should_hear, actor.name


@pytest.mark.skipif(not PLAY.exists(), reason=f"{PLAY} is not there: set MESSAGING_DATA to its directory")
def test_who_reads_it_afterwards_reads_it_all() -> None:
    lines = list(play())
    stage = Chat.create("author", ["reader"], chat_id="book")
    for line in lines:
        stage.send("author", line.speech, data={"speaker": line.speaker})
    read: list[Line] = []
    while found := Inbox("reader").pending(limit=100):
        read += [Line(message.data["speaker"], message.body) for message in found[0].messages]
        stage.ack("reader", found[0].messages[-1].cursor)
    assert read == lines
