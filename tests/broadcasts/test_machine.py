"""Compares Broadcast with a model, blocking and async; and checks that the machine finds planted bugs."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from django_redis_messaging import Broadcast, conf
from django_redis_messaging.core import clients

from ..support.server import get_redis_connection
from ..support.state_machines import PROFILE, MachineTests, Plants

MAX_LENGTH = 16
_runs = itertools.count()


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


class ChannelMachine(RuleBasedStateMachine):
    """One channel, its publishers and readers, and a server that loses data."""

    world: Any = staticmethod(lambda function, *args, **options: function(*args, **options))

    def __init__(self) -> None:
        super().__init__()
        changed = dataclasses.replace(conf.current(), BROADCAST_MAX_LENGTH=MAX_LENGTH)
        self.limits = mock.patch.object(conf, "current", return_value=changed)
        self.limits.start()
        self.channel = Broadcast(f"c {next(_runs)}")
        self.client: Any = get_redis_connection(conf.alias())
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

    def teardown(self) -> None:
        self.limits.stop()

    def do(self, verb: str, *args: Any, **options: Any) -> Any:
        return type(self).world(self.channel, verb, *args, **options)

    @rule()
    def join(self) -> None:
        cursor = self.do("cursor")
        self.readers.append(Reader(cursor, self.model.epoch, self.model.last, self.history))

    @rule(request=st.sampled_from([None, None, None, "r1", "r2"]))
    def publish(self, request: str | None) -> None:
        payload = next(self.payloads)
        found = self.do("publish", payload, request_id=request)
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

    @rule(at=st.integers(0, 5), limit=st.sampled_from([1, 2, 3, 1000]))
    def read(self, at: int, limit: int) -> None:
        reader = self.readers[at % len(self.readers)]
        batch = self.do("fetch", reader.cursor, limit=limit)
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

    @rule(lost=st.integers(1, 3), others=st.integers(0, 4), at=st.integers(0, 5))
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


def blocking(channel: Broadcast, verb: str, *args: Any, **options: Any) -> Any:
    return getattr(channel, verb)(*args, **options)


@pytest.fixture
def awaiting() -> Iterator[Callable[..., Any]]:
    """The async versions, on one event loop."""
    with asyncio.Runner() as runner:

        def do(channel: Broadcast, verb: str, *args: Any, **options: Any) -> Any:
            return runner.run(getattr(channel, f"a{verb}")(*args, **options))

        yield do
        runner.run(clients.aclose())


def machine(form: Callable[..., Any]) -> type[ChannelMachine]:
    return type("Machine", (ChannelMachine,), {"world": staticmethod(form)})


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


def patient(channel: Broadcast, verb: str, *args: Any, **options: Any) -> Any:
    """As `blocking`, but raises if a call doesn't terminate."""
    asked = itertools.count()
    page = Broadcast._page

    def counted(self: Broadcast, *words: Any) -> Any:
        body = page(self, *words)
        step = next(body)
        while True:
            if next(asked) > 20:
                raise TimeoutError("the call does not terminate")
            try:
                step = body.send((yield step))
            except StopIteration as end:
                return end.value

    with mock.patch.object(Broadcast, "_page", counted):
        return blocking(channel, verb, *args, **options)


class TestMachine(MachineTests):
    machine = machine(patient)
    plants = PLANTS
    errors = (TimeoutError,)

    def test_awaiting(self, awaiting: Callable[..., Any]) -> None:
        run_state_machine_as_test(machine(awaiting), settings=PROFILE)
