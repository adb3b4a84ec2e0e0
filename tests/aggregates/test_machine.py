"""Compares Aggregator with counts by brute force, while processes are suspended and killed anywhere; and
checks that the machine finds planted bugs."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from django_redis_messaging import Aggregator, LeaseLost, MessagingError, conf
from django_redis_messaging.core import clients
from django_redis_messaging.services.aggregates import aggregator
from django_redis_messaging.services.aggregates.aggregator import AggregateKeys, Flush

from ..support.memory_file import Lines, counted, parse
from ..support.state_machines import Machine, MachineTests, Plants, finds_a_mistake, one

CONSUMERS = ("ann", "b o")
_others = itertools.count()
_process: ContextVar[Process] = ContextVar("process")
lines = st.sampled_from([b"d1 a", b"d1 b", b"d2 a", b"d2 c", b"d3 a", b"d1 a;d2 b", b"", b"?"])
consumers = st.sampled_from(CONSUMERS)
numbers = st.integers(0, 7)


class Killed(Exception):
    """Raised by a parse function, in place of the end of its process."""


class Process:
    """A process of a consumer that counts one file. It is suspended before each batch of lines, and before
    and after each flush."""

    def __init__(self, aggregate: Aggregator, at: int, file: Lines, fails_at: int, repeats: bool) -> None:
        self.at, self.file = at, file
        #: whether each flush is sent twice, as after a lost reply
        self.repeats = repeats
        #: whether another process has changed the marker since this one began
        self.overtaken = False
        self._calls = itertools.count(1)
        self._fails_at = fails_at
        self._go, self._idle = asyncio.Event(), asyncio.Event()
        self._aggregate = aggregate

    async def start(self) -> None:
        """Let it run to its first pause."""
        self.task = asyncio.create_task(self._run())
        await self._suspended()

    async def _run(self) -> None:
        _process.set(self)
        await self._aggregate.aadd_file(self, self._parse)

    id = property(lambda self: self.file.id)
    channel = property(lambda self: self.file.channel)
    consumer = property(lambda self: self.file.consumer)

    def batches(self, n: int, /) -> Any:
        raise NotImplementedError

    async def abatches(self, n: int, /) -> AsyncIterator[list[bytes]]:
        for batch in self.file.batches(n):
            await self.pause()
            yield batch

    def _parse(self, line: bytes) -> list[tuple[str, str]]:
        if next(self._calls) == self._fails_at:
            raise Killed
        return parse(line)

    async def pause(self) -> None:
        self._go.clear()
        self._idle.set()
        await self._go.wait()

    async def advance(self) -> None:
        """Let it run to its next pause, or to its end."""
        self._idle.clear()
        self._go.set()
        await self._suspended()

    async def _suspended(self) -> None:
        idle = asyncio.create_task(self._idle.wait())
        await asyncio.wait({idle, self.task}, return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


_aflush: Callable[[Aggregator, str, int, Flush], Awaitable[None]] = Aggregator._aflush


async def flush(self: Aggregator, marker: str, file_id: int, flush: Flush) -> None:
    """As the original, with pauses; for some processes as after a lost reply."""
    process = _process.get()
    await process.pause()
    for _ in range(1 + process.repeats):
        await _aflush(self, marker, file_id, flush)
    await process.pause()


class AggregateMachine(Machine):
    """Two consumers, of which each may have several processes: only one of them has the lease, but the others
    don't know that yet."""

    flush = staticmethod(flush)

    @initialize(files=st.lists(st.lists(lines, max_size=12), min_size=1, max_size=3))
    def begin(self, files: list[list[bytes]]) -> None:
        for name, value in (("BATCH", 3), ("FLUSH_PAIRS", 2), ("FLUSH_LINES", 4)):
            self.patch(aggregator, name, value)
        self.patch(Aggregator, "_aflush", type(self).flush)
        self.loop = asyncio.new_event_loop()
        self.aggregate = Aggregator(self.name)
        self.keys = AggregateKeys(conf.prefix(), self.name)
        self.files = files
        #: consumer → number of files that it has acked
        self.acked = dict.fromkeys(CONSUMERS, 0)
        #: consumer → its marker: file, lines
        self.markers = dict.fromkeys(CONSUMERS, (0, 0))
        self.processes: list[Process] = []

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            self.finish_all()
        finally:
            super().teardown()
            self.loop.run_until_complete(self.end())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    async def end(self) -> None:
        for process in self.processes:
            await process.kill()
        await clients.aclose()

    # Actions

    @rule(
        consumer=consumers, back=st.sampled_from([0, 0, 0, 1]), repeats=st.booleans(),
        fails_at=st.sampled_from([0, 0, 1, 2, 5, 8]), steps=numbers,
    )  # fmt: skip
    def begin_a_file(self, consumer: str, back: int, repeats: bool, fails_at: int, steps: int) -> None:
        """The next file; or the one before, whose ack was lost."""
        at = self.acked[consumer] - back
        if not 0 <= at < len(self.files):
            return
        self.run(self.process(consumer, at, fails_at, repeats), steps)

    @precondition(lambda self: self.processes)
    @rule(which=numbers, steps=numbers)
    def go_on(self, which: int, steps: int) -> None:
        self.run(one(self.processes, which), steps)

    @precondition(lambda self: self.processes)
    @rule(which=numbers, steps=numbers)
    def take_over(self, which: int, steps: int) -> None:
        """Another process counts the file of one that is suspended; then both run."""
        suspended = one(self.processes, which)
        if suspended.at == self.acked[suspended.consumer]:
            self.run(self.process(suspended.consumer, suspended.at), steps)
            self.run(suspended, steps)

    @precondition(lambda self: self.processes)
    @rule(which=numbers)
    def kill(self, which: int) -> None:
        process = one(self.processes, which)
        self.processes.remove(process)
        self.loop.run_until_complete(process.kill())

    def process(self, consumer: str, at: int, fails_at: int = 0, repeats: bool = False) -> Process:
        file = Lines(self.files[at], 10 + at, consumer=consumer)
        process = Process(self.aggregate, at, file, fails_at, repeats)
        self.processes.append(process)
        self.loop.run_until_complete(process.start())
        return process

    def run(self, process: Process, steps: int) -> None:
        while not process.task.done() and steps > 0:
            self.loop.run_until_complete(process.advance())
            self.read_markers(process)
            steps -= 1
        if process.task.done():
            self.processes.remove(process)
            self.check_outcome(process)

    def check_outcome(self, process: Process) -> None:
        error = process.task.exception()
        if error is None:
            self.acked[process.consumer] = max(self.acked[process.consumer], process.at + 1)
            return
        if isinstance(error, LeaseLost):
            assert process.overtaken, "no other process has counted this file"
        elif not isinstance(error, Killed):
            raise error

    def read_markers(self, by: Process) -> None:
        for consumer, before in self.markers.items():
            text = self.client.hget(self.keys.markers, f"logs\0{consumer}")
            file, line = map(int, text.split()[:2]) if text else (0, 0)
            assert (file, line) >= before, "a marker moved back"
            self.markers[consumer] = (file, line)
            if (file, line) != before:
                assert consumer == by.consumer
                for process in self.processes:
                    process.overtaken |= process is not by and process.consumer == consumer

    def finish_all(self) -> None:
        """Count all files to their end."""
        for consumer in CONSUMERS:
            for at in range(self.acked[consumer], len(self.files)):
                process = self.process(consumer, at)
                self.run(process, 1000)
                assert self.acked[consumer] == at + 1
        self.counts_are_those_of_the_marked_lines()
        assert self.stored() == Counter({pair: 2 * count for pair, count in self.counted().items()})

    # Invariants

    @invariant()
    def counts_are_those_of_the_marked_lines(self) -> None:
        if not hasattr(self, "markers"):
            return
        expected: Counter[tuple[str, str]] = Counter()
        malformed = 0
        for file, end in self.markers.values():
            marked = [line for lines in self.files[: max(file - 10, 0)] for line in lines]
            marked += self.files[file - 10][:end] if file else []
            expected += counted(marked)
            malformed += marked.count(b"?")
        assert self.stored() == expected
        assert self.aggregate.malformed() == malformed

    def counted(self) -> Counter[tuple[str, str]]:
        return counted(itertools.chain.from_iterable(self.files))

    def stored(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for period in self.aggregate.periods():
            counts = self.aggregate.top(period)
            assert self.aggregate.total(period) == sum(one.count for one in counts)
            found |= Counter({(period, one.key): one.count for one in counts})
        return found


PLANTS: Plants = {
    "aggregates/flush": {
        "a repeat is counted": ("is_repeat and {} or read_changes()", "read_changes()"),
        "the marker is not compared": ("if marked > file or not is_repeat and", "if false and"),
        "an older file is counted": ("if marked > file or not", "if marked <= file and not"),
        "an overtaken process continues": ("line ~= first", "line < first"),
        "malformed lines of a repeat are counted": ("if not is_repeat and malformed", "if malformed"),
        "malformed lines are not counted": ("redis.call('INCRBY', malformed, malformed_lines)", ""),
        "a repeat is refused": ("last > first and line == last", "false"),
        "the next file is refused": ("line, ended = 0, false\nend", "end"),
        "the marker stays": ("digits(last) ..", "digits(first) .."),
        "the marker is of another file": ("digits(file) ..", "digits(math.max(file, 12)) .."),
        "a file ends with each flush": ("((is_end or ended) and ' end' or '')", "' end'"),
        "consumers share a marker": ("redis.call('HGET', markers, field)", "redis.call('HVALS', markers)[1]"),
        "a key is forgotten": ("at = change.from, change.to, 2 do", "at = change.from + 2, change.to, 2 do"),
        "the total is that of the last key": ("total = total + tonumber(count)", "total = tonumber(count)"),
        "a period is not registered": ("redis.call('ZADD', periods, 0, change.name)", ""),
    },
}


class TestMachine(MachineTests):
    machine = AggregateMachine
    plants = PLANTS
    quick = ("a repeat is refused", "a period is not registered")
    errors = (
        MessagingError,
        LookupError,
    )  # an error of a script, or a wrong file in a marker, is a find, too


def parts(flush: Flush) -> tuple[Flush, Flush]:
    """The counts of a flush, and its marker."""
    counts = Flush(start=0, end=1, counts=flush.counts, malformed=flush.malformed, is_last=False)
    return counts, Flush(start=flush.start, end=flush.end, counts={}, malformed=0, is_last=flush.is_last)


async def counts_first(self: Aggregator, marker: str, file_id: int, flush: Flush) -> None:
    """The counts first, under another marker; then the marker."""
    process, (counts, empty) = _process.get(), parts(flush)
    await process.pause()
    await _aflush(self, f"{marker}{next(_others)}", file_id, counts)
    await process.pause()
    await _aflush(self, marker, file_id, empty)


async def marker_first(self: Aggregator, marker: str, file_id: int, flush: Flush) -> None:
    """The marker first; then the counts, under another marker."""
    process, (counts, empty) = _process.get(), parts(flush)
    await process.pause()
    await _aflush(self, marker, file_id, empty)
    await process.pause()
    await _aflush(self, f"{marker}{next(_others)}", file_id, counts)


@pytest.mark.usefixtures("messaging_settings")
@pytest.mark.parametrize("in_two_steps", [counts_first, marker_first])
def test_counts_and_marker_in_two_steps_are_found(in_two_steps: Any) -> None:
    class InTwoSteps(AggregateMachine):
        flush = staticmethod(in_two_steps)

        def counts_are_those_of_the_marked_lines(self) -> None:
            """Between the steps they differ: only the result counts."""

    finds_a_mistake(InTwoSteps, MessagingError)
