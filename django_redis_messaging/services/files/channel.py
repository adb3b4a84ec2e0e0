"""File channels: distribution of files to a known set of consumers, each of which gets each file."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any, NamedTuple

from ... import conf
from ...core.encoding import name as checked
from ...core.operations import BulkCommand, Command, Listen, Script, Service, Steps, asynchronous, operation
from ...core.outcome import deadline
from ...errors import FileChannelError, LeaseLost, LockError, MessagingError, UnknownConsumer
from ..common.arguments import Duration, Stop, milliseconds, to_datetime
from ..locks import Lock
from .keys import FileChannelKeys, FileKeys, file_name, lease_key
from .publishing import REMEMBERED, Paths, Progress, Publication, Report, Source
from .reading import detect_encoding, new_checksum
from .received import Announced, Description, File, Session, parse_description

#: seconds that a consumer or publisher waits before it checks whether it has to stop
MAX_WAIT = 1.0
#: ms after which the blocks of a file that was not announced expire
WRITING_TTL = 3_600_000
#: seconds; the deadline for discarding a file after an error
ABANDON_DEADLINE = 2.0
#: bytes at the beginning of a file that show how it is compressed
HEAD_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerStats:
    """A consumer of a file channel."""

    name: str
    waiting: int
    """Number of files that it has not acked."""
    seen_at: datetime | None
    """When it last asked for a file or acked one; None: never."""
    active: bool
    """Whether a process holds the consumer's lease."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileStats:
    """The state of a file channel."""

    files: int
    """Number of files that not all consumers have acked."""
    bytes: int
    """Bytes that are reserved for these files and the one being published."""
    max_bytes: int
    """The limit of `bytes`."""
    final: bool
    """Whether the last file has been published."""
    open_places: int
    """Number of consumers that are expected but have not come yet."""
    consumers: list[ConsumerStats]
    """The consumers that have not received all files of a final channel."""


class FileChannel(Service):
    """Distributes files to consumers through Redis: each consumer processes each file, in order.

    >>> import tempfile, pathlib
    >>> log = pathlib.Path(tempfile.mkdtemp(), "access.log")
    >>> _ = log.write_text("GET /\\nGET /about\\n")
    >>> channel = FileChannel("logs")
    >>> channel.publish(log, consumers=["counter"])
    Report(files=1, bytes=17, skipped=0, completed=True)
    >>> for file in channel.consume("counter"):
    ...     print(file.name, list(file.lines()))
    ...     file.ack()
    ...     break
    access.log [b'GET /', b'GET /about']

    A file is delivered at least once to each consumer: again if the consumer ends before its `ack`. It is
    announced when it is stored completely, and deleted when all consumers have acked it. Files of at most
    `max_bytes` together are stored; publishing waits for the consumers when there is no space.

    One process at a time publishes to a channel, and one consumes under each name: a lease, renewed in the
    background, excludes others. After a process was killed, its successor waits for the end of the lease,
    `lease` seconds; a LockError is raised if the lease is still held then.
    """

    def __init__(self, channel: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.channel = checked(channel, "channel")
        self._keys = FileChannelKeys(self._prefix, channel)

    def publish(
        self,
        paths: Paths,
        *,
        consumers: Sequence[str] | int,
        max_bytes: int = 1024**3,
        final: bool = False,
        on_progress: Callable[[Progress], object] | None = None,
        stop: Stop | None = None,
        lease: Duration = 10,
    ) -> Report:
        """Publish files, in the given order; of a directory, its files by name, without hidden ones.

        `consumers` are names, or the number of consumers, which then may have any name. Consumers may be
        added later: they receive the files that are published from then on. With `final`, no file follows:
        each `consume` ends after its last file, and this call returns when all consumers have acked all
        files. `on_progress` is called after each block. `stop` ends the call before the next file, and while
        it waits: the report then says that it is not `completed`.

        A file that was published to the channel before, with the same absolute path, size and time of
        modification, is skipped: after a crash, repeat the call. The channel remembers this until a final
        call returns, for the latest 100,000 files, and for 30 days without files.

        Raises FileNotFoundError or PermissionError, and LimitExceeded for a file larger than `max_bytes` or
        for more than 100,000 files, before anything is published; FileChanged for a file that changes while
        it is read; FileChannelError if the channel has other consumers, or its last file was published and
        not all are acked; LockError if another process is publishing; LeaseLost.
        """
        run = Publication(paths, consumers, max_bytes, final, on_progress, stop)
        lock = self._lease("", lease_seconds(lease), run.lose_lease)
        with leased(lock, self._publishing, stop) as is_held:
            if not is_held:
                return run.report
            try:
                return self._publish(run, lock.fence)
            except BaseException:  # also interrupts
                with suppress(MessagingError), deadline(ABANDON_DEADLINE):
                    self._abandon(lock.fence)
                raise

    async def apublish(
        self,
        paths: Paths,
        *,
        consumers: Sequence[str] | int,
        max_bytes: int = 1024**3,
        final: bool = False,
        on_progress: Callable[[Progress], object] | None = None,
        stop: Stop | None = None,
        lease: Duration = 10,
    ) -> Report:
        """An async version of `publish`; it reads the files block by block, without a thread."""
        run = Publication(paths, consumers, max_bytes, final, on_progress, stop)
        lock = self._lease("", lease_seconds(lease), run.lose_lease)
        async with aleased(lock, self._publishing, stop) as is_held:
            if not is_held:
                return run.report
            try:
                return await self._apublish(run, lock.fence)
            except GeneratorExit:
                raise  # a closed coroutine can't await: the next publisher discards the file
            except BaseException:  # also cancellation
                with suppress(MessagingError), deadline(ABANDON_DEADLINE):
                    await self._aabandon(lock.fence)
                raise

    def consume(
        self, consumer: str, *, lease: Duration = 10, stop: Stop | None = None
    ) -> Generator[File, None, None]:
        """Yield each file that this consumer has not acked, in order; wait for further files.

        Ends after the last file of a final channel, or when `stop` is set. Waits if nothing was published to
        the channel yet. The loop must ack each file before it goes on. If it raises or breaks, the file is
        delivered again by the next call.

        Raises UnknownConsumer if the channel has other consumers; LockError if another process consumes under
        this name; LeaseLost; FileChannelError if a file was not acked.
        """
        return self._consume(checked(consumer, "consumer"), lease_seconds(lease), stop)

    def _consume(self, consumer: str, lease: float, stop: Stop | None) -> Generator[File, None, None]:
        session = Session(consumer)
        lock = self._lease(consumer, lease, session.lose_lease)
        with leased(lock, self._consuming(consumer), stop) as is_held:
            session.fence, session.may_continue = lock.fence, is_held
            while session.may_continue and not (stop and stop.is_set()):
                found = self._next(session)
                if found is not None:
                    file = File(self, session, found)
                    yield file
                    _check_acked(file)

    async def aconsume(
        self, consumer: str, *, lease: Duration = 10, stop: Stop | None = None
    ) -> AsyncGenerator[File, None]:
        """An async version of `consume`. A loop that may break must close it: `async with aclosing(...)`."""
        session = Session(checked(consumer, "consumer"))
        lock = self._lease(consumer, lease_seconds(lease), session.lose_lease)
        async with aleased(lock, self._consuming(consumer), stop) as is_held:
            session.fence, session.may_continue = lock.fence, is_held
            while session.may_continue and not (stop and stop.is_set()):
                found = await self._anext(session)
                if found is not None:
                    file = File(self, session, found)
                    yield file
                    _check_acked(file)

    @operation
    def release(self, consumer: str | None) -> Steps[bool]:
        """Release the share of a consumer that has vanished: files no longer wait for its acks. Returns False
        if the channel has no such consumer. With None, release a place that no consumer has taken, if their
        number was given.

        >>> FileChannel("logs").release("unknown")
        False
        """
        name = "" if consumer is None else checked(consumer, "consumer")
        # a repeat after a lost reply would release a second place
        once = consumer is None
        found, *trash = yield Script("files/release", self._keys.all, [name], once=once)
        yield from self._sweep(trash)
        return bool(found)

    arelease = asynchronous(release)

    @operation
    def stats(self) -> Steps[FileStats | None]:
        """The files and consumers of the channel; None if nothing was published to it, or it has ended.

        >>> FileChannel("nothing").stats() is None
        True
        """
        [found] = yield from read_stats(self._prefix, [self.channel])
        return found

    astats = asynchronous(stats)

    def _lease(self, consumer: str, seconds: float, on_lost: Callable[[LeaseLost], object]) -> Lock:
        """The lease of a consumer, or of the publisher: ''."""
        return Lock(
            f"files:{self.channel}", key=lease_key(self._prefix, self.channel, consumer), timeout=seconds,
            renew=True, on_lost=on_lost, thread_local=False, raise_on_release_error=False, using=self._using,
        )  # fmt: skip

    @property
    def _publishing(self) -> str:
        """What the holder of the publisher's lease does."""
        return f"publishes to the channel {self.channel!r}"

    def _consuming(self, consumer: str) -> str:
        """What the holder of a consumer's lease does."""
        return f"consumes the channel {self.channel!r} as {consumer!r}"

    @operation
    def _publish(self, run: Publication, fence: int) -> Steps[Report]:
        yield from self._begin(fence, run.names, run.number)
        for source in run.sources:
            if not (yield from self._publish_file(run, source, fence)):
                return run.report
        run.completed = not run.final or (yield from self._wait_for_consumers(run, fence))
        return run.report

    _apublish = asynchronous(_publish)

    def _publish_file(self, run: Publication, source: Source, fence: int) -> Steps[bool]:
        """Publish a file, as soon as there is space, unless it was published before. Returns False if it
        has to stop before."""
        run.start(source.name)
        while not run.check_stop():
            reserved = yield from self._reserve(fence, source.identity, source.size, run.limit)
            if isinstance(reserved, MustWait):
                yield from self._wait(run, reserved)
            elif reserved == "finished":
                yield from self._begin(fence, run.names, run.number, reopen=True)
            else:
                if isinstance(reserved, int):
                    yield from self._copy(run, source, reserved, fence)
                run.finish(source, skipped=reserved == "known")
                return True
        return False

    def _copy(self, run: Publication, source: Source, file_id: int, fence: int) -> Steps[None]:
        """Store a file and announce it."""
        blocks, checksum = self._blocks(file_id), new_checksum(run.checksum)
        number, head = 0, b""
        with source.open() as file:
            yield from self._open(fence, blocks)
            for block in source.read_blocks(file, run.block_size):
                yield from self._write(blocks, number, block)
                checksum.update(block)
                number, head = number + 1, (head + block[:HEAD_BYTES])[:HEAD_BYTES]
                run.advance(len(block))
        digest = checksum.hexdigest()
        description = Description(
            name=source.name,
            size=source.size,
            blocks=number,
            checksum=digest and f"{run.checksum}:{digest}",
            encoding=detect_encoding(source.name, head),
        )
        yield from self._announce(fence, file_id, description, source.identity)

    def _wait_for_consumers(self, run: Publication, fence: int) -> Steps[bool]:
        """Declare the last file published, and wait until all consumers have acked all files. Returns
        False if it has to stop before."""
        run.start("")
        while not run.check_stop():
            unfreed = yield from self._close(fence)
            if unfreed is None:
                return True
            yield from self._wait(run, unfreed)
        return False

    def _wait(self, run: Publication, unfreed: MustWait) -> Steps[None]:
        """Wait until a file is freed, at most MAX_WAIT seconds."""
        run.report_progress(waiting=True)
        yield Listen(self._keys.space, unfreed.entry, seconds=MAX_WAIT)

    def _begin(self, fence: int, names: Sequence[str], number: int, *, reopen: bool = False) -> Steps[None]:
        """Register the consumers. `reopen`: begin anew after the last file, if all files are freed."""
        status, *rest = yield Script("files/begin", self._keys.all, [fence, number, int(reopen), *names])
        if status == b"consumers":
            places, *known = rest
            others = [repr(name.decode()) for name in known] + ([f"{places} more"] if places else [])
            raise FileChannelError(
                f"The channel {self.channel!r} has the consumers {', '.join(others)}: name or count "
                "them too, or release those that have vanished."
            )
        self._check_lease(status)
        yield from self._sweep(rest)

    def _reserve(self, fence: int, identity: str, size: int, limit: int) -> Steps[int | MustWait | str]:
        """Reserve space for a file; returns its id; or "known" if it was published before, "finished" if the
        channel has ended."""
        args = (fence, identity, size, limit, conf.current().FILES_MAX_WAITING)
        status, *rest = yield Script("files/reserve", self._keys.all, args)
        while status == b"wait":
            entry, *trash = rest
            if not (yield from self._sweep(trash)):
                return MustWait(int(entry))
            status, *rest = yield Script("files/reserve", self._keys.all, args)
        self._check_lease(status)
        if status == b"final":
            raise FileChannelError(
                f"The last file of the channel {self.channel!r} has been published: wait until its consumers "
                "have acked all files, release those that have vanished, or use another channel."
            )
        if status == b"ok":
            [file_id] = rest
            return int(file_id)
        return str(status, "ascii")

    def _open(self, fence: int, blocks: str) -> Steps[None]:
        """Begin to store a file. If a successor has discarded it already, nothing else would delete it."""
        yield [Command("HSET", blocks, "", ""), _expire(blocks)]
        if not (yield from self._is_latest("", fence)):
            yield Command("UNLINK", blocks)
            raise self._lease_lost()

    def _write(self, blocks: str, number: int, block: bytes) -> Steps[None]:
        """Store a block. If a successor has discarded the file, the block is deleted again."""
        *_, is_open = yield [
            BulkCommand("HSET", blocks, number, data=block),
            _expire(blocks),
            Command("HEXISTS", blocks, "", reads=True),
        ]
        if not is_open:
            yield Command("UNLINK", blocks)
            raise self._lease_lost()

    def _announce(self, fence: int, file_id: int, description: Description, identity: str) -> Steps[None]:
        """Announce a complete file. From here on its blocks don't expire."""
        blocks = self._blocks(file_id)
        _, stored, _ = yield [
            Command("HDEL", blocks, ""), Command("HLEN", blocks, reads=True), Command("PERSIST", blocks)
        ]  # fmt: skip
        if stored != description.blocks:
            if not (yield from self._is_latest("", fence)):
                raise self._lease_lost()
            raise FileChannelError(
                f"Redis has lost blocks of {description.name!r} while it was published; publish it again."
            )
        args = (fence, file_id, description.dump(), identity, REMEMBERED)
        reply = yield Script("files/announce", self._keys.all, args)
        if reply != 1:
            yield Command("UNLINK", blocks)
        if reply < 0:
            raise self._lease_lost()
        if not reply:
            raise FileChannelError(
                f"The channel {self.channel!r} was deleted while {description.name!r} was published; publish "
                "it again."
            )

    def _close(self, fence: int) -> Steps[MustWait | None]:
        """Declare the last file published. Returns None when all files are freed."""
        status, *rest = yield Script("files/close", self._keys.all, [fence])
        while status == b"wait":
            entry, *trash = rest
            if not (yield from self._sweep(trash)):
                return MustWait(int(entry))
            status, *rest = yield Script("files/close", self._keys.all, [fence])
        self._check_lease(status)
        return None

    @operation
    def _abandon(self, fence: int) -> Steps[None]:
        """Discard the file that is being written."""
        trash = yield Script("files/abandon", self._keys.all, [fence])
        yield from self._sweep(trash)

    _aabandon = asynchronous(_abandon)

    @operation
    def _next(self, session: Session) -> Steps[Announced | None]:
        """The first file that the consumer has not acked; waits for it up to MAX_WAIT seconds. None: there is
        none yet, or, as the session then says, there will be none."""
        args = (session.consumer, session.fence, session.run)
        status, *rest = yield Script("files/next", self._keys.all, args)
        self._check_lease(status)
        if status == b"unknown":
            known = ", ".join(repr(name.decode()) for name in rest) or "no consumers"
            raise UnknownConsumer(
                f"The channel {self.channel!r} has no consumer {session.consumer!r}, but {known}: name it "
                "when publishing."
            )
        session.run, *rest = rest
        if status == b"end":
            yield from self._leave(session)
            return None
        if status == b"file":
            file_id, record = rest
            return Announced(int(file_id), parse_description(record))
        entry, *trash = rest
        if not (yield from self._sweep(trash)):
            yield Listen(self._keys.news, int(entry), seconds=MAX_WAIT)
        return None

    _anext = asynchronous(_next)

    @operation
    def _ack(self, session: Session, file_id: int) -> Steps[None]:
        """Ack a file; ends the session if it was the last one of a final channel."""
        args = (session.consumer, session.fence, file_id)
        status, *trash = yield Script("files/ack", self._keys.all, args)
        self._check_lease(status)
        if status == b"order":
            raise FileChannelError(
                f"An earlier file of the channel {self.channel!r} was not acked: ack the files in order."
            )
        yield from self._sweep(trash)
        if status == b"end":
            yield from self._leave(session)

    _aack = asynchronous(_ack)

    def _leave(self, session: Session) -> Steps[None]:
        """End the session: the consumer has received all files."""
        session.may_continue = False
        if session.run:
            yield Script("files/leave", self._keys.all, [session.consumer, session.run])

    def _sweep(self, trash: Sequence[bytes]) -> Steps[bool]:
        """Delete the blocks of freed files, then give their space back; returns whether there were any. Other
        clients may do it at the same time."""
        has_trash = bool(trash)
        while trash:
            yield [Command("UNLINK", self._blocks(int(member.split()[0]))) for member in trash]
            trash = yield Script("files/purge", self._keys.all, trash)
        return has_trash

    def _is_latest(self, consumer: str, fence: int) -> Steps[bool]:
        """Whether no other process has since received files as this consumer, or, for '', begun to publish;
        False also for a consumer that was released."""
        found = yield Command("HGET", self._keys.consumers, f"f{consumer}", reads=True)
        return bool(found == b"%d" % fence)

    def _blocks(self, file_id: int) -> str:
        return FileKeys(self._prefix, file_name(self.channel, file_id)).blocks

    def _check_lease(self, status: bytes) -> None:
        if status == b"stale":
            raise self._lease_lost()

    def _lease_lost(self) -> LeaseLost:
        return LeaseLost(
            f"The lease on the channel {self.channel!r} was lost: another process may have taken over. Stop; "
            "what was not acked is delivered again."
        )


def _expire(blocks: str) -> Command:
    """Counts as a read: if the server is full, it refuses only the write beside it, and nothing is stored."""
    return Command("PEXPIRE", blocks, WRITING_TTL, reads=True)


def lease_seconds(lease: Duration) -> float:
    """The lease in seconds, at least 0.1."""
    return milliseconds(lease, "lease", minimum=100) / 1000


def _check_acked(file: File) -> None:
    if not file.acked:
        raise FileChannelError(
            f"The file {file.name!r} was not acked: call file.ack() before going on to the next file."
        )


class MustWait(NamedTuple):
    """There is no space, or not all files are freed: wait for an entry after this one in `space`."""

    entry: int


def read_stats(prefix: str, channels: Sequence[str]) -> Steps[list[FileStats | None]]:
    """The state of each channel; None for one that doesn't exist."""
    if not channels:
        return []
    replies = yield [Script("files/stats", FileChannelKeys(prefix, one).all) for one in channels]
    leases = [
        lease_key(prefix, channel, name.decode())
        for channel, reply in zip(channels, replies, strict=True)
        for name, *_ in (reply[5] if reply else [])
    ]
    held = iter((yield [Command("EXISTS", key, reads=True) for key in leases]) if leases else [])
    return [None if reply is None else _parse_stats(reply, held) for reply in replies]


def _parse_stats(reply: Sequence[Any], held: Iterator[int]) -> FileStats:
    """The reply of files/stats.lua, and whether the leases of its consumers are held."""
    used, limit, final, places, files, consumers = reply
    found = [_consumer_stats(consumer, next(held)) for consumer in consumers]
    return FileStats(
        files=files,
        bytes=int(used or 0),
        max_bytes=int(limit or 0),
        final=final is not None,
        open_places=int(places or 0),
        consumers=sorted(found, key=lambda consumer: consumer.name),
    )


def _consumer_stats(consumer: list[Any], held: int) -> ConsumerStats:
    """A consumer in the reply of files/stats.lua, and whether its lease is held."""
    name, waiting, seen = consumer
    return ConsumerStats(
        name=name.decode(), waiting=waiting, seen_at=seen and to_datetime(seen), active=bool(held)
    )


#: seconds by which the last attempt is longer than the lease of a predecessor that was killed
MARGIN = 1.0


class Leasing:
    """The attempts to acquire a lease. A predecessor that was killed holds it until its end, so they go
    on for a little longer than that."""

    def __init__(self, lock: Lock, title: str, stop: Stop | None) -> None:
        self._lock, self._title, self._stop = lock, title, stop
        self._lease = lock.timeout or 0.0
        self._ends = monotonic() + self._lease + MARGIN
        self._process = os.getpid()

    @property
    def must_stop(self) -> bool:
        """Whether to give up without an error."""
        return self._stop is not None and self._stop.is_set()

    def next_wait(self) -> float:
        """Seconds that the next attempt may take; raises LockError if there is no time left."""
        left = self._ends - monotonic()
        if left <= 0:
            raise LockError(
                f"Another process {self._title}. If it was killed, repeat the call when its lease has ended.",
                lock_name=self._lock.name,
            )
        return min(left, MAX_WAIT)

    @property
    def is_copy(self) -> bool:
        """Whether this process is a fork of the one that holds the lease."""
        return os.getpid() != self._process


@contextmanager
def leased(lock: Lock, title: str, stop: Stop | None) -> Iterator[bool]:
    """Acquire the lease, and release it at the end of the block; yields False if it had to stop before.

    `title` says what its holder does, for the LockError that is raised if another process holds the lease.
    """
    leasing, acquired = Leasing(lock, title, stop), False
    while not acquired and not leasing.must_stop:
        acquired = lock.acquire(blocking_timeout=leasing.next_wait())
    with ExitStack() as block:
        if acquired:
            block.push(lock)  # it is released at the end
        try:
            yield acquired
        finally:
            if leasing.is_copy:
                block.pop_all()


@asynccontextmanager
async def aleased(lock: Lock, title: str, stop: Stop | None) -> AsyncIterator[bool]:
    """An async version of `leased`."""
    leasing, acquired = Leasing(lock, title, stop), False
    while not acquired and not leasing.must_stop:
        acquired = await lock.aacquire(blocking_timeout=leasing.next_wait())
    async with AsyncExitStack() as block:
        if acquired:
            block.push_async_exit(lock)
        try:
            yield acquired
        finally:
            if leasing.is_copy:
                block.pop_all()
