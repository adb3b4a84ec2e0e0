"""The public class of file channels."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import suppress

from ...core.keys import name as checked
from ...core.operations import Command, Script, Steps, asynchronous, operation
from ...core.retry import deadline
from ...errors import FileChannelError, MessagingError
from ..arguments import Duration, Stop, milliseconds
from .file import File
from .keys import lease_key
from .leases import aleased, leased
from .publishing import Publication, Publisher
from .sources import Paths
from .steps import Session
from .values import STATS_HEAD, FileStats, Progress, Report, parse_stats

#: seconds; the deadline for discarding a file after an error
ABANDON_DEADLINE = 2.0


class FileChannel(Publisher):
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

    @property
    def _publishing(self) -> str:
        """What the holder of the publisher's lease does."""
        return f"publishes to the channel {self.channel!r}"

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

    def _consuming(self, consumer: str) -> str:
        """What the holder of a consumer's lease does."""
        return f"consumes the channel {self.channel!r} as {consumer!r}"

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
        found, *trash = yield Script("files_release", self._keys.consuming, [name], once=once)
        yield from self._sweep(trash)
        return bool(found)

    arelease = asynchronous(release)

    @operation
    def stats(self) -> Steps[FileStats | None]:
        """The files and consumers of the channel; None if nothing was published to it, or it has ended.

        >>> FileChannel("nothing").stats() is None
        True
        """
        keys = self._keys
        reply = yield Script("files_stats", [keys.state, keys.consumers, keys.positions, keys.files])
        if reply is None:
            return None
        names = [name.decode() for name in reply[STATS_HEAD::3]]
        leases = [lease_key(self._prefix, self.channel, name) for name in names]
        locks = yield [Command("EXISTS", key, reads=True) for key in leases]
        return parse_stats(reply, [bool(held) for held in locks])

    astats = asynchronous(stats)


def lease_seconds(lease: Duration) -> float:
    """The lease in seconds, at least 0.1."""
    return milliseconds(lease, "lease", minimum=100) / 1000


def _check_acked(file: File) -> None:
    if not file.acked:
        raise FileChannelError(
            f"The file {file.name!r} was not acked: call file.ack() before going on to the next file."
        )
