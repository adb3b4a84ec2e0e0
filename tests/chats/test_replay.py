"""A whole play as messages in one chat: a speaker receives exactly the lines sent while present.

The text is read from the directory MESSAGING_DATA, or shared/data beside the repository.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from django_redis_messaging import Chat, Inbox

DATA = Path(os.environ.get("MESSAGING_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
PLAY = DATA / "romeo_and_juliet.jsonl"
PROMPTER = "the prompter: {in the box}"
#: lines that a silent speaker stays
PATIENCE = 40
#: number of lines that a speaker enters before the first word
CUE = 3
#: lines between two polls of attentive speakers
ATTENTION = 7

pytestmark = pytest.mark.one_server
#: a speaker and a line
Line = tuple[str, str]


class Speaker:
    """Joins, reads at once or when leaving, and leaves. Some crash first and lose what they have read."""

    def __init__(self, name: str, stage: Chat, number: int) -> None:
        self.name, self.stage, self.inbox = name, stage, Inbox(name)
        self.polls_often, self.crashes = number % 3 != 0, number % 3 == 1
        self.present, self.entrances, self.last_spoke, self.unread = False, 0, 0, 0
        self.received: dict[int, Line] = {}
        self.expected: list[Line] = []

    def enter(self, at: int) -> None:
        if not self.present:
            assert self.stage.join(self.name, by=PROMPTER)
            self.present, self.entrances, self.unread, self.last_spoke = True, self.entrances + 1, 0, at

    def leave(self) -> None:
        self.read_all()
        assert self.stage.leave(self.name)
        self.present = False

    def read_all(self, limit: int = 3) -> None:
        """Read everything. A message received twice must be equal."""
        if self.crashes:
            self.inbox.pending()
        while found := self.inbox.pending(limit=limit):
            [pending] = found
            assert (pending.chat_id, pending.gap, pending.reset) == (self.stage.id, 0, False)
            first = pending.messages[0].id
            assert [message.id - first for message in pending.messages] == list(range(len(pending.messages)))
            for message in pending.messages:
                line = (message.sender, message.body)
                assert self.received.setdefault(message.id, line) == line
            self.stage.ack(self.name, pending.cursor)
        self.unread = 0

    def hear(self, at: int, line: Line) -> None:
        self.expected.append(line)
        self.unread += line[0] != self.name
        if at - self.last_spoke > PATIENCE:
            self.leave()
        elif self.polls_often and at % ATTENTION == 0:
            self.read_all()


@pytest.mark.skipif(not PLAY.exists(), reason=f"{PLAY} does not exist: set MESSAGING_DATA to its directory")
def test_speakers_receive_exactly_the_lines_sent_while_present() -> None:
    stage = Chat.create(PROMPTER, [], title="Verona", chat_id="stage")
    parsed = map(json.loads, PLAY.read_text(encoding="utf-8").splitlines())
    lines = [(line["speaker"], line["speech"]) for line in parsed]
    names = dict.fromkeys(name for name, _ in lines)
    speakers = {name: Speaker(name, stage, number) for number, name in enumerate(names)}
    for at, (name, speech) in enumerate(lines):
        for cue, _ in lines[at : at + CUE]:
            speakers[cue].enter(at)
        speakers[name].last_spoke = at
        sent = stage.send(name, speech)
        assert sent.id == at + 1
        speakers[name].received[sent.id] = (sent.sender, sent.body)
        for actor in speakers.values():
            if actor.present:
                actor.hear(at, (name, speech))

    present = {name for name, actor in speakers.items() if actor.present}
    assert {member.user for member in stage.members()} == present | {PROMPTER}
    assert sum(actor.entrances for actor in speakers.values()) > 2 * len(speakers) > 2 * len(present) > 4
    assert any(speakers[name].unread for name in present)
    for actor in speakers.values():
        assert actor.inbox.unread() == (actor.unread if actor.present else 0), actor.name
        assert [chat.unread for chat in actor.inbox.chats()] == [actor.unread] * actor.present
        actor.read_all()
        assert [actor.received[number] for number in sorted(actor.received)] == actor.expected, actor.name
    prompter = Speaker(PROMPTER, stage, 0)
    assert prompter.inbox.unread() == len(lines)
    prompter.read_all(limit=100)
    assert list(prompter.received.values()) == lines
