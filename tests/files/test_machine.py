"""Compares FileChannel with a model, while publishers and consumers are killed, or stopped for longer than
their lease, between any two steps; and checks that the machine finds planted bugs."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from django_redis_messaging import MessagingError, conf
from django_redis_messaging.core.operations import Command, Listen, Script
from django_redis_messaging.errors import FileChannelError, LeaseLost, UnknownConsumer
from django_redis_messaging.services.files import FileChannel, Report
from django_redis_messaging.services.files.keys import FileChannelKeys, FileKeys, file_name
from django_redis_messaging.services.files.publishing import Publication, find_sources
from django_redis_messaging.services.files.received import Description, File, Session

from ..support.server import reply_to, steps
from ..support.state_machines import Machine, MachineTests, Plants, finds_a_mistake, one

#: bytes
BLOCK = 4
#: the contents of the files that are published
CONTENTS = (b"", b"abc", b"0123", b"ABCDEFG", b"(ten bytes", b"x", b"abc", b"")
#: files
MAX_WAITING = 3
#: consumers that may come
NAMES = ("ann", "bob", "cid")
#: processes of one kind that exist at a time: the latest one has the lease, the others are late
MAX_PROCESSES = 3
#: steps that suffice for everything that a process can do without another one
MANY = 200
#: steps within which everything must end
PATIENCE = 3000
numbers = st.integers(0, 20)
#: steps that a process takes
counts = st.integers(1, 12) | st.integers(1, 60)
names = st.sampled_from(NAMES)
#: consumers that a publisher names, their number, or those of the publisher before
crews = st.none() | st.none() | st.integers(1, 3) | st.integers(1, 3).map(lambda number: NAMES[:number])


@dataclasses.dataclass
class Stored:
    """A file of the model."""

    id: int
    identity: str
    size: int
    #: consumers that have not acked it
    waiting: set[str]


class Model:
    """A channel. Each method predicts the status that the script of its name replies."""

    def __init__(self) -> None:
        #: id → file, of all files for which space was reserved
        self.known: dict[int, Stored] = {}
        #: ids of all files that were announced
        self.announced: list[int] = []
        self.ends = 0
        self.clear()

    def clear(self) -> None:
        self.exists = self.final = self.closed = False
        self.used = self.places = 0
        self.files: list[Stored] = []
        self.trash: dict[int, int] = {}
        self.writing: Stored | None = None
        self.registered: set[str] = set()
        self.left: set[str] = set()
        self.published: set[str] = set()
        self.fences: dict[str, int] = {}
        #: number of this incarnation of the channel; None: not known yet
        self.run: int | None = None

    def begin(self, reply: Any, fence: int, number: int, reopen: int, *names: str) -> str:
        if self.fences.get("", 0) > fence or (reopen and self.fences.get("") != fence):
            return "stale"
        self.fences[""] = fence
        if self.closed or (self.final and reopen and not self.files and not self.trash):
            if self.closed:
                self.published = set()
            self.final = self.closed = False
            self.places, self.registered, self.left = 0, set(), set()
            self.fences, self.run = {"": fence}, None
        elif self.final:
            self.discard()
            return "final"
        added = [name for name in names if name not in self.registered]
        others = number - len(self.registered) if number else len(added)
        if others < self.places or (names and self.registered - set(names)):
            return "consumers"
        self.exists = True
        for name in added[: self.places]:
            for file in self.files:
                file.waiting.add(name)
        self.registered |= set(names)
        self.places = number - len(self.registered) if number else 0
        self.discard()
        return "ok"

    def reserve(self, reply: Any, fence: int, identity: str, size: int, limit: int, _: int) -> str:
        if self.fences.get("") != fence:
            return "stale"
        if identity in self.published:
            return "known"
        if self.final:
            return "final" if self.files or self.trash else "finished"
        if self.writing and self.writing.identity == identity:
            return "ok"
        if self.used + size > limit or len(self.files) >= MAX_WAITING:
            return "wait"
        found = int(reply[1])
        assert found > max(self.known, default=0)
        self.writing = self.known[found] = Stored(found, identity, size, set())
        self.used += size
        return "ok"

    def announce(self, reply: Any, fence: int, file_id: int, record: str, identity: str, _: int) -> int:
        if any(file.id == file_id for file in self.files):
            return 1
        if self.fences.get("", fence) != fence:
            return -1
        if self.writing is None or self.writing.id != file_id:
            return int(identity in self.published)
        assert identity not in self.published
        self.writing.waiting = set(self.registered)
        self.files.append(self.writing)
        self.announced.append(self.writing.id)
        self.published.add(identity)
        self.writing = None
        self.free()
        return 1

    def abandon(self, reply: Any, fence: int) -> None:
        if self.fences.get("") == fence:
            self.discard()

    def close(self, reply: Any, fence: int) -> str:
        if not self.exists:
            return "closed"
        if self.fences.get("") != fence:
            return "stale"
        self.final = True
        if self.files or self.trash:
            return "wait"
        self.closed = True
        self.end_if_left()
        return "closed"

    def next(self, reply: Any, name: str, fence: int, run: int | str) -> str:
        if not self.exists:
            return "end" if run else "wait"
        if run and run != self.run:
            return "end"
        if name not in self.registered:
            if self.final and name in self.left:
                return "end"
            if not self.places:
                return "unknown"
            self.places -= 1
            self.registered.add(name)
            for file in self.files:
                file.waiting.add(name)
        if self.fences.get(name, 0) > fence:
            return "stale"
        self.fences[name] = fence
        assert self.run in (None, int(reply[1]))
        self.run = int(reply[1])
        for file in self.files:
            if name in file.waiting:
                assert int(reply[2]) == file.id, "not the first one"
                return "file"
        return "end" if self.final else "wait"

    def ack(self, reply: Any, name: str, fence: int, file_id: int) -> str:
        if name not in self.registered or self.fences.get(name, 0) > fence:
            return "stale"
        self.fences[name] = fence
        waiting = [file.id for file in self.files if name in file.waiting]
        if file_id in waiting:
            if file_id != waiting[0]:
                return "order"
            self.known[file_id].waiting.remove(name)
        self.free()
        return "end" if self.final and all(file.id <= file_id for file in self.files) else "ok"

    def leave(self, reply: Any, name: str, run: int) -> int:
        if (
            run != self.run
            or not self.final
            or name not in self.registered
            or any(name in file.waiting for file in self.files)
        ):
            return 0
        self.registered.remove(name)
        self.left.add(name)
        return int(self.end_if_left())

    def release(self, reply: Any, name: str) -> int:
        found = name in self.registered if name else self.places > 0
        self.places -= found and not name
        self.registered.discard(name)
        self.left.discard(name)
        if name:
            self.fences.pop(name, None)
        for file in self.files:
            file.waiting.discard(name)
        self.free()
        return int(found)

    def purge(self, reply: Any, *members: str) -> None:
        for member in members:
            self.used -= self.trash.pop(int(member.split()[0]), 0)
        self.free()

    def discard(self) -> None:
        if self.writing:
            self.trash[self.writing.id] = self.writing.size
            self.writing = None

    def free(self) -> None:
        for file in [] if self.places else [file for file in self.files if not file.waiting]:
            self.files.remove(file)
            self.trash[file.id] = file.size

    def end_if_left(self) -> bool:
        is_end = self.closed and not self.registered and not self.places
        if is_end:
            self.clear()
            self.ends += 1
        return is_end


@dataclasses.dataclass(eq=False)
class Process:
    """A process: the steps of its call, and the next one of them."""

    name: str
    fence: int
    body: Generator[Any, Any, Any]
    step: Any
    result: Any = None
    #: whether its next step must be a wait
    must_wait: bool = False
    #: the error that it must raise by now
    error: type[MessagingError] | None = None


class FilesMachine(Machine):
    """Processes that publish and consume; each rule takes some steps of one of them."""

    @initialize(
        number=st.integers(1, 3), is_named=st.booleans(), limit=st.integers(10, 18), brief=st.booleans()
    )
    def begin(self, number: int, is_named: bool, limit: int, brief: bool) -> None:
        self.change_settings(FILES_BLOCK_BYTES=BLOCK, FILES_MAX_WAITING=MAX_WAITING)
        folder = Path(self.patches.enter_context(tempfile.TemporaryDirectory()))
        self.paths = [folder / str(at) / "log" for at in range(len(CONTENTS))]
        for path, content in zip(self.paths, CONTENTS, strict=True):
            path.parent.mkdir()
            path.write_bytes(content)
        self.sources = find_sources(self.paths, limit)
        self.contents = dict(zip([source.identity for source in self.sources], CONTENTS, strict=True))
        self.consumers: Any = NAMES[:number] if is_named else number
        self.limit = limit
        #: whether no further file is published at the end
        self.is_brief = brief
        self.model = Model()
        self.channel = FileChannel(self.name)
        self.keys = FileChannelKeys(conf.prefix(), self.channel.channel)
        self.fences = itertools.count(1)
        self.publishers: list[Process] = []
        self.readers: list[Process] = []

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            super().teardown()

    # Publishers

    @precondition(lambda self: len(self.publishers) < MAX_PROCESSES)
    @rule(
        some=st.lists(numbers, min_size=1, max_size=4), final=st.sampled_from([False, False, True]),
        crew=crews, count=counts, again=st.booleans(),
    )  # fmt: skip
    def publish(self, some: list[int], final: bool, crew: Any, count: int, again: bool) -> None:
        """A process acquires the publisher's lease. Another one that had it is late from here on."""
        self.consumers = crew or self.consumers
        paths = [self.paths[at % len(CONTENTS)] for at in dict.fromkeys(some)]
        self.take_steps(self.start_publisher(paths, final), count, again)

    @precondition(lambda self: self.publishers)
    @rule(at=numbers, count=counts, again=st.booleans())
    def go_on_publishing(self, at: int, count: int, again: bool) -> None:
        self.take_steps(one(self.publishers, at), count, again)

    @precondition(lambda self: len(self.publishers) < MAX_PROCESSES - 1)
    @rule(at=numbers, early=st.integers(1, 10), late=counts)
    def overtake_publisher(self, at: int, early: int, late: int) -> None:
        """A publisher stops for longer than its lease; another one begins, then the first one goes on."""
        paths = [self.paths[at % len(CONTENTS)]]
        first = self.start_publisher(paths, final=False)
        self.take_steps(first, early, again=False)
        self.take_steps(self.start_publisher(paths, final=False), late, again=False)
        while first in self.publishers and not isinstance(first.step, Listen):
            self.go_on(first)
            self.check()

    # Consumers

    @precondition(lambda self: len(self.readers) < 2 * MAX_PROCESSES)
    @rule(name=names, count=counts, again=st.booleans())
    def consume(self, name: str, count: int, again: bool) -> None:
        """A process acquires the consumer's lease. Another one that had it is late from here on."""
        self.take_steps(self.start_reader(name), count, again)

    @precondition(lambda self: self.readers)
    @rule(at=numbers, count=counts, again=st.booleans())
    def go_on_consuming(self, at: int, count: int, again: bool) -> None:
        self.take_steps(one(self.readers, at), count, again)

    @precondition(lambda self: self.model.registered and len(self.readers) <= MAX_PROCESSES)
    @rule()
    def consume_all(self) -> None:
        """All consumers go on until they wait."""
        for name in sorted(self.model.registered):
            self.take_steps(self.start_reader(name), MANY, again=False)

    @precondition(lambda self: self.publishers or self.readers)
    @rule(at=numbers)
    def kill_process(self, at: int) -> None:
        self.kill(one([*self.publishers, *self.readers], at))

    @precondition(lambda self: self.model.announced)
    @rule(name=names, at=numbers)
    def ack_any_file(self, name: str, at: int) -> None:
        """A consumer acks a file, of which it may be the turn or not, or a second time."""
        file_id = self.model.announced[-1 - at % len(self.model.announced)]
        self.run(name, steps(self.channel._ack, self.session(name), file_id))

    # Operators

    @rule(name=st.sampled_from([*NAMES, ""]), again=st.booleans(), sure=st.integers(0, 2))
    def release(self, name: str, again: bool, sure: int) -> None:
        if sure == 0:
            self.run(name, steps(self.channel.release, name or None), again=again and bool(name))

    # Invariants

    @invariant()
    def state_is_as_in_the_model(self) -> None:
        model, keys = self.model, self.keys
        state = {key.decode(): value.decode() for key, value in self.client.hgetall(keys.state).items()}
        assert bool(state) == model.exists
        assert int(state.get("used", 0)) == model.used <= self.limit
        assert int(state.get("places", 0)) == model.places
        files = self.client.zrange(keys.files, 0, -1, withscores=True)
        assert [int(score) for _, score in files] == [file.id for file in model.files]
        trash = self.client.zrange(keys.trash, 0, -1)
        assert {int(member.split()[0]) for member in trash} == set(model.trash)
        assert {name.decode() for name in self.client.zrange(keys.positions, 0, -1)} == model.registered

    @invariant()
    def stored_bytes_are_reserved(self) -> None:
        """And announced files are complete. A late publisher may store a block more, which it deletes in its
        next step, and which expires."""
        model, total = self.model, 0
        announced = {file.id for file in model.files}
        current = announced | model.trash.keys() | ({model.writing.id} if model.writing else set())
        for file, (blocks, ttl) in zip(model.known.values(), self.blocks(*model.known), strict=True):
            file_id, stored = file.id, sum(map(len, blocks.values()))
            if file_id in announced:
                assert self.joined(blocks) == self.contents[file.identity]
                assert ttl < 0, "an announced file expires"
            if file_id in current:
                assert stored <= file.size
                total += stored
            elif blocks:
                assert stored <= BLOCK, "blocks were left behind"
                assert ttl > 0, "a block was left behind"
        assert total <= model.used

    # Helpers

    def start_publisher(self, paths: list[Path], final: bool) -> Process:
        run, fence = Publication(paths, self.consumers, self.limit, final, None, None), next(self.fences)
        return self.start(self.publishers, "", fence, publishing(self.channel, run, fence))

    def start_reader(self, name: str) -> Process:
        session = self.session(name)
        return self.start(self.readers, name, session.fence, self.consuming(session))

    def start(self, processes: list[Process], name: str, fence: int, body: Any) -> Process:
        process = Process(name, fence, body, next(body))
        processes.append(process)
        return process

    def session(self, name: str) -> Session:
        session = Session(name)
        session.fence = next(self.fences)
        return session

    def consuming(self, session: Session) -> Generator[Any, Any, str]:
        """The steps of `consume` with a loop that reads and acks each file."""
        channel = self.channel
        while session.may_continue:
            found = yield from steps(channel._next, session)
            if found is not None:
                file, blocks = File(channel, session, found), []
                for number in range(found.description.blocks):
                    blocks.append((yield from steps(file._read, number)))
                assert b"".join(blocks) == self.contents[self.model.known[file.id].identity]
                yield from steps(channel._ack, session, file.id)
        return "end"

    def take_steps(self, process: Process, count: int, again: bool) -> None:
        """Take some steps, until it waits; with `again`, the reply to the last one of them is lost."""
        for left in reversed(range(count)):
            if not self.go_on(process, again=again and not left) or isinstance(process.step, Listen):
                break

    def run(self, name: str, body: Any, *, again: bool = False) -> None:
        """Run a call from its beginning to its end; with `again`, the reply to its first step is lost."""
        process = Process(name, 0, body, next(body))
        while self.go_on(process, again=again):
            again = False

    def go_on(self, process: Process, *, again: bool = False) -> bool:
        """Take a step; returns whether there are more. A wait ends without an entry."""
        step, reply = process.step, None
        if not isinstance(step, Listen):
            for _ in range(1 + again):
                reply = reply_to(step)
                if isinstance(step, Script):
                    self.compare(process, step, reply)
        try:
            process.step = process.body.send(reply)
        except StopIteration as stop:
            process.result = stop.value
        except (FileChannelError, LeaseLost, UnknownConsumer) as error:
            late = self.model.fences.get(process.name) != process.fence
            assert type(error) is (process.error or (LeaseLost if late else None)), error
        else:
            assert isinstance(process.step, Listen) or not process.must_wait, "it polls"
            process.must_wait = False
            return True
        self.forget(process)
        return False

    def compare(self, process: Process, step: Script, reply: Any) -> None:
        """Compare the reply to a script with the model's."""
        verb = step.source.name.removeprefix("files/")
        count = int(step.words[2])
        args = [word.decode() if isinstance(word, bytes) else word for word in step.words[3 + count :]]
        if verb == "announce" and self.model.writing and self.model.fences[""] == int(args[0]):
            [(blocks, _)] = self.blocks(self.model.writing.id)
            assert self.joined(blocks) == self.contents[args[3]], "announced before it is complete"
        for member in args if verb == "purge" else ():
            assert not any(self.blocks(int(member.split()[0]))[0][0].values()), "its blocks still exist"
        typed = [int(arg) if arg.isdecimal() and verb != "purge" else arg for arg in args]
        expected = getattr(self.model, verb)(reply, *typed)
        if expected is not None:
            status = reply[0] if isinstance(reply, list) else reply
            assert (status.decode() if isinstance(status, bytes) else status) == expected
            process.must_wait = expected == "wait" and len(reply) == (3 if verb == "next" else 2)
            process.error = ERRORS.get((verb, expected)) or ERRORS.get(expected)

    def blocks(self, *ids: int) -> list[tuple[dict[bytes, bytes], int]]:
        """The blocks of files, and their TTL."""
        pipe = self.client.pipeline(transaction=False)
        for file_id in ids:
            key = FileKeys(conf.prefix(), file_name(self.channel.channel, file_id)).blocks
            pipe.hgetall(key).pttl(key)
        replies = pipe.execute()
        return list(zip(replies[::2], replies[1::2], strict=True))

    @staticmethod
    def joined(blocks: dict[bytes, bytes]) -> bytes:
        return b"".join(blocks[b"%d" % number] for number in range(len(blocks)))

    def kill(self, process: Process) -> None:
        process.body.close()
        self.forget(process)

    def forget(self, process: Process) -> None:
        for processes in (self.publishers, self.readers):
            if process in processes:
                processes.remove(process)

    def finish(self) -> None:
        """Finally, all files are published to all consumers; nothing is left, also when late processes go
        on."""
        if not hasattr(self, "readers"):
            return
        late, self.readers, self.publishers = [*self.publishers, *self.readers], [], []
        model = self.model
        paths = [
            path for path, source in zip(self.paths, self.sources, strict=True)
            if not (model.final or self.is_brief) or source.identity in model.published
        ]  # fmt: skip
        if not isinstance(self.consumers, tuple):
            self.consumers = max(self.consumers, len(model.registered) + model.places)
        elif model.places:
            self.consumers = NAMES
        elif not model.closed:
            self.consumers = tuple({*self.consumers, *model.registered})
        publisher, ends = self.start_publisher(paths, final=True), model.ends
        self.go_on(publisher)
        readers = [self.start_reader(name) for name in NAMES if name in model.registered or model.places]
        for _ in range(PATIENCE):
            active = [process for process in (publisher, *readers) if process.result is None]
            for process in active:
                if not self.go_on(process) and process.error is UnknownConsumer:
                    readers.remove(process)  # others were earlier
            self.check()
            if not active:
                break
        assert isinstance(publisher.result, Report)
        assert publisher.result.files + publisher.result.skipped == len(paths)
        assert all(reader.result == "end" for reader in readers)
        assert model.ends > ends, "the channel still exists"
        for process in late:
            self.take_steps(process, 50, again=False)
        self.check()
        assert list(self.client.scan_iter(match=f"{self.keys.tag}:*", count=1000)) == []

    def check(self) -> None:
        self.state_is_as_in_the_model()
        self.stored_bytes_are_reserved()


#: the error that a status causes
ERRORS: dict[Any, type[MessagingError]] = {
    "stale": LeaseLost,
    -1: LeaseLost,
    "consumers": FileChannelError,
    "final": FileChannelError,
    "order": FileChannelError,
    "unknown": UnknownConsumer,
    # the channel has ended
    ("announce", 0): FileChannelError,
}


def publishing(channel: FileChannel, run: Publication, fence: int) -> Generator[Any, Any, Report]:
    """The steps of `publish`."""
    try:
        report: Report = yield from steps(channel._publish, run, fence)
    except MessagingError:
        yield from steps(channel._abandon, fence)
        raise
    return report


PLANTS: Plants = {
    "files/purge": {
        "space is returned twice": ("channel.trash, ARGV[at]) == 1", "channel.trash, ARGV[at]) >= 0"),
        "space is not returned": ("if purged then", "if false then"),
    },
    "files/close": {
        "late publishers close": ("if not is_publisher(channel, fence) then", "if false then"),
        "closed before all is freed": (" or redis.call('ZCARD', channel.trash) > 0 then", " then"),
        "a repeated close is late": ("if redis.call('EXISTS', channel.state) == 0 then", "if false then"),
    },
    "files/ack": {
        "an ack ignores the fence": (" or is_stale(channel, consumer, fence)", ""),
        "an ack moves backwards": ("if tonumber(position) < tonumber(id) then", "if true then"),
        "an ack skips files": ("'(' .. position, '(' .. id) > 0", "'(' .. id, '(' .. id) > 0"),
        "an ack frees nothing": ("free_acked(channel)\n", ""),
        "an ack never ends": ("redis.call('HGET', channel.state, 'final') and", "false and"),
    },
    "files/_files": {
        "freed when the first has acked": ("channel.positions, 0, 0,", "channel.positions, -1, -1,"),
        "open places are ignored": (
            "if tonumber(redis.call('HGET', channel.state, 'places') or 0) > 0",
            "if false",
        ),
        "freed files stay announced": ("redis.call('ZREM', channel.files, freed[at])", ""),
        "discarded files keep their space": (
            "    redis.call('ZADD', channel.trash, id, id .. ' ' .. size)\n    redis.call('HDEL'",
            "    redis.call('HDEL'",
        ),
    },
    "files/reserve": {
        "late publishers reserve": ("if not is_publisher(channel, fence) then", "if false then"),
        "a repeat reserves again": ("if writing and source == identity then", "if false then"),
        "one byte too many": ("if used + size > limit or", "if used + size > limit + 1 or"),
        "one file too many": ("'ZCARD', channel.files) >= max_files", "'ZCARD', channel.files) > max_files"),
    },
    "files/announce": {
        "equal files are one": ("id .. ' ' .. record", "'0 ' .. record"),
        "late publishers announce": ("if latest and latest ~= fence then", "if false then"),
        "identities are not remembered": (
            "digits(milliseconds()), identity)\n",
            "digits(milliseconds()), id)\n",
        ),
    },
    "files/abandon": {
        "late publishers discard": ("if not is_publisher(channel, fence) then", "if false then"),
    },
    "files/next": {
        "late consumers receive": ("if is_stale(channel, consumer, fence) then", "if false then"),
        "late consumers enter the next channel": ("if run ~= '' and run ~= current then", "if false then"),
        "a consumer takes no place": ("redis.call('HINCRBY', channel.state, 'places', -1)", ""),
        "a consumer that has left comes again": ("'s' .. consumer) == 1 then", "'s') == 1 then"),
        "acked files are delivered again": ("channel.files, '(' .. position,", "channel.files, position,"),
    },
    "files/begin": {
        "half-written files stay": ("discard_written(channel)\nwake", "wake"),
        "open places are given up": ("- #known or #added) < places then", "- #known or 0) < 0 then"),
        "names take no open places": ("at <= places and '0' or last", "last"),
        "later consumers receive earlier files": ("at <= places and '0' or last", "'0'"),
        "known consumers lose their position": ("if not is_known[name] then", "if true then"),
        "other consumers are dropped": ("(expected > 0 or is_named[name])", "true"),
        "those who have come are not counted": ("expected - #known or 0", "expected or 0"),
    },
    "files/release": {
        "a release frees nothing": ("free_acked(channel)\n", ""),
    },
    "files/leave": {
        "the first that leaves deletes the channel": (
            "redis.call('ZCARD', channel.positions) == 0 and",
            "true and",
        ),
        "the last that leaves deletes nothing": ("if closed and", "if false and"),
    },
}


class TestMachine(MachineTests):
    machine = FilesMachine
    plants = PLANTS
    quick = ("an ack frees nothing", "one byte too many")
    errors = (MessagingError, LookupError)  # an error of a script, and a missing block or id, are finds, too


def open_unchecked(channel: Any, fence: int, blocks: str) -> Any:
    """Begins to store a file that a successor may have discarded."""
    yield [Command("HSET", blocks, "", ""), Command("PEXPIRE", blocks, 3_600_000)]


def write_unchecked(channel: Any, blocks: str, number: int, block: bytes) -> Any:
    """Stores a block of a file that a successor may have discarded."""
    yield [Command("HSET", blocks, number, block), Command("PEXPIRE", blocks, 3_600_000)]


def sweep_late(channel: Any, trash: Any) -> Any:
    """Returns the space of files before their blocks are deleted."""
    has_trash = bool(trash)
    while trash:
        members, trash = trash, (yield Script("files/purge", channel._keys.all, trash))
        yield [Command("UNLINK", channel._blocks(int(member.split()[0]))) for member in members]
    return has_trash


def announce_early(channel: Any, run: Any, source: Any, file_id: int, fence: int) -> Any:
    """Announces a file before its last block is stored."""
    blocks = channel._blocks(file_id)
    yield from channel._open(fence, blocks)
    description = Description(name="x", size=source.size, blocks=0, checksum="", encoding="")
    yield from channel._announce(fence, file_id, description, source.identity)


@pytest.mark.parametrize(
    ("step", "mistake"),
    [
        ("_sweep", sweep_late),
        pytest.param("_open", open_unchecked, marks=pytest.mark.long),
        pytest.param("_write", write_unchecked, marks=pytest.mark.long),
        pytest.param("_copy", announce_early, marks=pytest.mark.long),
    ],
)
def test_it_finds_mistakes_in_the_steps(step: str, mistake: Callable[..., Any]) -> None:
    with mock.patch.object(FileChannel, step, mistake):
        finds_a_mistake(FilesMachine, MessagingError, LookupError)
