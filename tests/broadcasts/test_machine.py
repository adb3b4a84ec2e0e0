"""Compares Broadcast with a model, while the server loses data; and checks that the machine finds planted
bugs."""

from __future__ import annotations

import dataclasses
import itertools

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from django_redis_messaging import Batch, Broadcast

from ..support.server import reply_to, steps
from ..support.state_machines import Machine, MachineTests, Plants, one

MAX_LENGTH = 16
#: pages that suffice for each call
MAX_PAGES = 20
numbers = st.integers(0, 5)


@dataclasses.dataclass
class Reader:
    """The position of a reader, in the model and as a cursor."""

    cursor: str
    epoch: int
    position: int
    #: number of the history: each roll-back begins another one
    history: int


@dataclasses.dataclass
class Model:
    """A channel: its events as (id, payload, history), the oldest one left, its epoch."""

    events: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    first: int = 1
    epoch: int = 0

    @property
    def last(self) -> int:
        return self.events[-1][0] if self.events else 0

    def kept(self) -> list[tuple[int, int, int]]:
        least = max(self.first, self.last - MAX_LENGTH + 1)
        return [event for event in self.events if event[0] >= least]


class ChannelMachine(Machine):
    """One channel, its publishers and readers, and a server that loses data."""

    def __init__(self) -> None:
        super().__init__()
        self.change_settings(BROADCAST_MAX_LENGTH=MAX_LENGTH)
        self.channel = Broadcast(self.name)
        self.model = Model()
        self.histories = itertools.count(1)
        self.history = 0
        #: history → the one it branched from, and the last event that they share
        self.parents: dict[int, tuple[int, int]] = {}
        self.payloads = itertools.count()
        self.requests: dict[str, int] = {}
        self.readers: list[Reader] = []
        self.saved: tuple[dict[bytes, bytes], Model, dict[str, int], int] | None = None
        self.join()

    @rule()
    def join(self) -> None:
        cursor = self.channel.cursor()
        self.readers.append(Reader(cursor, self.model.epoch, self.model.last, self.history))

    @rule(request=st.sampled_from([None, None, None, "r1", "r2"]))
    def publish(self, request: str | None) -> None:
        payload = next(self.payloads)
        found = self.channel.publish(payload, request_id=request)
        if request in self.requests:
            assert found.id == self.requests[request]
            return
        self.model.events.append((self.model.last + 1, payload, self.history))
        assert found.id == self.model.last
        if request is not None:
            self.requests[request] = found.id

    @rule(many=st.integers(1, 9))
    def publish_many(self, many: int) -> None:
        for _ in range(many):
            self.publish(None)

    @rule(at=numbers, limit=st.sampled_from([1, 2, 3, 1000]))
    def read(self, at: int, limit: int) -> None:
        reader = one(self.readers, at)
        batch = self.fetch(reader.cursor, limit)
        if reader.epoch == self.model.epoch and not self.knows(reader):
            self.model.epoch = -next(self.histories)  # all readers must notice
        other = reader.epoch != self.model.epoch
        kept = [event for event in self.model.kept() if other or event[0] > reader.position]
        gone = not other and self.model.last > reader.position and (
            not kept or kept[0][0] != reader.position + 1
        )  # fmt: skip
        assert batch.missed == (other or gone), (reader, self.model)
        expected = kept[:limit]
        assert [(event.id, event.payload) for event in batch.events] == [event[:2] for event in expected]
        reader.cursor, reader.epoch, reader.history = batch.cursor, self.model.epoch, self.history
        reader.position = expected[-1][0] if expected else self.model.last

    def fetch(self, cursor: str, limit: int) -> Batch:
        """Read; raises TimeoutError if the call doesn't terminate."""
        body = steps(self.channel.fetch, cursor, limit=limit)
        step = next(body)
        try:
            for _ in range(MAX_PAGES):
                step = body.send(reply_to(step))
        except StopIteration as end:
            return end.value
        raise TimeoutError("the call does not terminate")

    def knows(self, reader: Reader) -> bool:
        """Whether the channel verifiably still has the event that the reader read last."""
        if reader.position > self.model.last:
            return False
        kept = self.model.kept()
        next_is_there = bool(kept) and kept[0][0] <= reader.position + 1
        if reader.position == 0 or (reader.position < self.model.last and not next_is_there):
            return True  # nothing to compare: missing events are reported anyway
        return self.model.events[reader.position - 1][2] == self.published_in(reader)

    def published_in(self, reader: Reader) -> int:
        """The history of the event that the reader read last."""
        history = reader.history
        while history in self.parents and reader.position <= self.parents[history][1]:
            history = self.parents[history][0]
        return history

    @rule()
    def buckets_expire(self) -> None:
        self.client.delete(*self.channel._keys.buckets)
        self.model.first = self.model.last + 1

    @rule()
    def save(self) -> None:
        dumps = {key: self.client.dump(key) for key in self.keys()}
        model = dataclasses.replace(self.model, events=list(self.model.events))
        self.saved = (dumps, model, dict(self.requests), self.history)

    @precondition(lambda self: self.saved is not None)
    @rule()
    def roll_back(self) -> None:
        """Restart the server from its snapshot."""
        assert self.saved is not None
        dumps, model, requests, history = self.saved
        self.forget_keys()
        for key, dump in dumps.items():
            self.client.restore(key, 0, dump)
        self.model = dataclasses.replace(model, events=list(model.events))
        if self.channel._keys.head.encode() not in dumps:
            self.model.epoch = -next(self.histories)  # it had none then, and gets a new one
        self.requests = dict(requests)
        self.history = next(self.histories)
        self.parents[self.history] = (history, self.model.last)

    @rule(lost=st.integers(1, 3), others=st.integers(0, 4), at=numbers)
    def lose(self, lost: int, others: int, at: int) -> None:
        """Lose events that were read, and use their ids for others."""
        self.save()
        self.publish_many(lost)
        self.read(at, 1000)
        self.roll_back()
        for _ in range(others):
            self.publish(None)
        self.read(at, 1000)

    @rule(sure=st.integers(0, 3))
    def flush(self, sure: int) -> None:
        if sure == 0:
            self.forget_keys()
            self.model, self.requests, self.saved = Model(epoch=-next(self.histories)), {}, None
            self.history = next(self.histories)

    @rule()
    def head_goes(self) -> None:
        """Lose the head only: by eviction or deletion."""
        self.client.delete(self.channel._keys.head)
        self.model, self.history = Model(epoch=-next(self.histories)), next(self.histories)

    def keys(self) -> list[bytes]:
        return list(self.client.scan_iter(match=self.channel._keys.tag + ":*", count=1000))

    def forget_keys(self) -> None:
        for key in self.keys():
            self.client.delete(key)


PLANTS: Plants = {
    "broadcasts/publish": {
        "stamps are not chained": ("us .. ',' .. active", "us .. ',' .. us"),
        "repeats are events": ("if before then", "if false then"),
    },
    "broadcasts/fetch": {
        "the newest is not compared": (" or (id == last and us ~= active)", ""),
        "the one before is not compared": ("previous ~= us", "false"),
        "a reader ahead is not detected": ("id > last or ", ""),
        "a gap is not reported": ("page[4] = 1", "page[4] = 0"),
        "a page skips one": ("math.max(id + 1, ", "math.max(id + (id > 9 and 2 or 1), "),
        "the length is not limited": (", last - max_length + 1", ""),
    },
    "broadcasts/open": {
        "a lost epoch continues": ("epoch ~= lost_epoch", "true"),
        "old buckets are read as new": ("redis.call('UNLINK', broadcast.bell, unpack(KEYS, 6))", ""),
    },
    "broadcasts/trim": {
        "too much is trimmed": ("last - max_length + 1", "last - max_length + 2"),
    },
}


class TestMachine(MachineTests):
    machine = ChannelMachine
    plants = PLANTS
    quick = ("a gap is not reported", "repeats are events")
    errors = (TimeoutError,)
