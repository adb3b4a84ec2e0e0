"""A whole play as messages in one chat: a speaker receives exactly the lines sent while present.

The text is read from the directory MESSAGING_DATA, or shared/data beside the repository.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from django_redis_messaging import Chat, Inbox, Message

pytestmark = pytest.mark.one_server


DATA = Path(os.environ.get("MESSAGING_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
PLAY = DATA / "romeo_and_juliet.jsonl"
PROMPTER = "the prompter: {in the box}"
#: lines that a silent speaker stays
PATIENCE = 40
#: number of lines that a speaker enters before the first word
CUE = 3
#: lines between two polls of attentive speakers
ATTENTION = 7


class Line(NamedTuple):
    """A line of the play and its speaker."""

    speaker: str
    speech: str


class Speaker:
    """Joins, reads in one of three ways, and leaves."""

    def __init__(self, name: str, stage: Chat, number: int) -> None:
        self.name = name
        self.stage = stage
        self.inbox = Inbox(name)
        self.polls_often = number % 3 != 0
        self.crashes = number % 3 == 1
        self.last_spoke = 0
        self.unread = 0
        self.present = False
        self.received: dict[int, Line] = {}
        self.expected: list[Line] = []
        self.entrances = 0

    def enter(self, at: int) -> None:
        if not self.present:
            assert self.stage.join(self.name, by=PROMPTER)
            self.present, self.entrances, self.unread, self.last_spoke = True, self.entrances + 1, 0, at

    def leave(self) -> None:
        self.read_all()
        assert self.stage.leave(self.name)
        self.present = False

    def read_all(self) -> None:
        """Read everything, three messages at a time. Some crash first and lose what they have read."""
        if self.crashes:
            self.inbox.pending()
        while cursor := self.fetch():
            self.stage.ack(self.name, cursor)
        self.unread = 0

    def say(self, speech: str) -> Message:
        sent = self.stage.send(self.name, speech)
        self.receive(sent)
        return sent

    def receive(self, message: Message) -> None:
        """A message received twice must be equal."""
        line = Line(message.sender, message.body)
        assert self.received.setdefault(message.id, line) == line

    def fetch(self) -> str | None:
        """Fetch pending messages; the cursor of the last one."""
        found = self.inbox.pending(limit=3)
        for pending in found:
            assert (pending.chat_id, pending.gap, pending.reset) == (self.stage.id, 0, False)
            first = pending.messages[0].id
            assert [message.id - first for message in pending.messages] == list(range(len(pending.messages)))
            for message in pending.messages:
                self.receive(message)
        return found[-1].messages[-1].cursor if found else None


def read_play() -> Iterator[Line]:
    for text in PLAY.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        yield Line(line["speaker"], line["speech"])


def perform(speakers: dict[str, Speaker], lines: list[Line]) -> None:
    for at, line in enumerate(lines):
        speaker = speakers[line.speaker]
        for cue in lines[at : at + CUE]:
            speakers[cue.speaker].enter(at)
        speaker.last_spoke = at
        assert speaker.say(line.speech).id == at + 1
        for actor in speakers.values():
            if actor.present:
                actor.expected.append(line)
                actor.unread += actor is not speaker
                if at - actor.last_spoke > PATIENCE:
                    actor.leave()
                elif actor.polls_often and at % ATTENTION == 0:
                    actor.read_all()


@pytest.mark.skipif(not PLAY.exists(), reason=f"{PLAY} does not exist: set MESSAGING_DATA to its directory")
def test_speakers_receive_exactly_the_lines_sent_while_present() -> None:
    stage = Chat.create(PROMPTER, [], title="Verona", chat_id="stage")
    lines = list(read_play())
    speakers: dict[str, Speaker] = {}
    for line in lines:
        speakers.setdefault(line.speaker, Speaker(line.speaker, stage, len(speakers)))
    perform(speakers, lines)

    present = {name for name, actor in speakers.items() if actor.present}
    assert {member.user for member in stage.members()} == present | {PROMPTER}
    assert sum(actor.entrances for actor in speakers.values()) > 2 * len(speakers) > 2 * len(present) > 4
    assert Inbox(PROMPTER).unread() == len(lines)
    for actor in speakers.values():
        assert actor.inbox.unread() == (actor.unread if actor.present else 0), actor.name
        assert [chat.unread for chat in actor.inbox.chats()] == [actor.unread] * actor.present
    assert any(actor.unread for actor in speakers.values() if actor.present)

    for actor in speakers.values():
        actor.read_all()
        assert [actor.received[number] for number in sorted(actor.received)] == actor.expected, actor.name


@pytest.mark.skipif(not PLAY.exists(), reason=f"{PLAY} does not exist: set MESSAGING_DATA to its directory")
def test_reader_receives_the_whole_play() -> None:
    lines = list(read_play())
    stage = Chat.create("author", ["reader"], chat_id="book")
    for line in lines:
        stage.send("author", line.speech, data={"speaker": line.speaker})
    read: list[Line] = []
    while found := Inbox("reader").pending(limit=100):
        read += [Line(message.data["speaker"], message.body) for message in found[0].messages]
        stage.ack("reader", found[0].messages[-1].cursor)
    assert read == lines
