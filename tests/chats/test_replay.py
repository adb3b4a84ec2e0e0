"""A whole play as messages in one chat: a speaker receives exactly the lines sent while present.

The text is read from the directory MESSAGING_DATA, or shared/data beside the repository.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from django_redis_messaging import Chat, Inbox, Message

DATA = Path(os.environ.get("MESSAGING_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
PLAY = DATA / "romeo_and_juliet.jsonl"
PROMPTER = "the prompter: {in the box}"
#: lines that a silent speaker stays
PATIENCE = 40
#: number of lines that a speaker enters before the first word
CUE = 3
#: lines between two polls of attentive speakers
ATTENTION = 7

pytestmark = [
    pytest.mark.one_server,
    pytest.mark.skipif(
        not PLAY.exists(), reason=f"{PLAY} does not exist: set MESSAGING_DATA to its directory"
    ),
]
#: a speaker and a line
Line = tuple[str, str]


def read_play() -> list[Line]:
    lines = map(json.loads, PLAY.read_text(encoding="utf-8").splitlines())
    return [(line["speaker"], line["speech"]) for line in lines]


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
        while found := self.inbox.pending(limit=3):
            [pending] = found
            assert (pending.chat_id, pending.gap, pending.reset) == (self.stage.id, 0, False)
            first = pending.messages[0].id
            assert [message.id - first for message in pending.messages] == list(range(len(pending.messages)))
            for message in pending.messages:
                self.receive(message)
            self.stage.ack(self.name, pending.messages[-1].cursor)
        self.unread = 0

    def receive(self, message: Message) -> None:
        """A message received twice must be equal."""
        line = (message.sender, message.body)
        assert self.received.setdefault(message.id, line) == line


def perform(speakers: dict[str, Speaker], lines: list[Line]) -> None:
    for at, (name, speech) in enumerate(lines):
        speaker = speakers[name]
        for cue, _ in lines[at : at + CUE]:
            speakers[cue].enter(at)
        speaker.last_spoke = at
        sent = speaker.stage.send(name, speech)
        assert sent.id == at + 1
        speaker.receive(sent)
        for actor in speakers.values():
            if actor.present:
                actor.expected.append((name, speech))
                actor.unread += actor is not speaker
                if at - actor.last_spoke > PATIENCE:
                    actor.leave()
                elif actor.polls_often and at % ATTENTION == 0:
                    actor.read_all()


def test_speakers_receive_exactly_the_lines_sent_while_present() -> None:
    stage = Chat.create(PROMPTER, [], title="Verona", chat_id="stage")
    lines = read_play()
    names = dict.fromkeys(name for name, _ in lines)
    speakers = {name: Speaker(name, stage, number) for number, name in enumerate(names)}
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
    read: list[Line] = []
    while found := Inbox(PROMPTER).pending(limit=100):
        read += [(message.sender, message.body) for message in found[0].messages]
        stage.ack(PROMPTER, found[0].messages[-1].cursor)
    assert read == lines
