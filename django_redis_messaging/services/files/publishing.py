"""Publishes files: reserves space, stores blocks, announces the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ... import conf
from ...core.keys import name as checked
from ...core.operations import Listen, Steps, asynchronous, operation
from ...errors import InvalidArgument, LeaseLost, LimitExceeded
from ..arguments import Stop, count, flag, integer, sequence
from .checksums import configured_kind, new_checksum
from .decompression import detect_encoding
from .sources import Paths, Source, find_sources
from .steps import MAX_WAIT, ChannelSteps, MustWait
from .values import Description, Progress, Report

#: bytes; the maximum of max_bytes, which keeps all sums in the range of exact floats
MAX_BYTES = 2**52
#: bytes at the beginning of a file that show how it is compressed
HEAD_BYTES = 4


class Publication:
    """The arguments of a call of `publish`, checked, and how far it is."""

    def __init__(
        self,
        paths: Paths,
        consumers: Sequence[str] | int,
        max_bytes: int,
        final: bool,
        on_progress: Callable[[Progress], object] | None,
        stop: Stop | None,
    ) -> None:
        self.limit = integer(max_bytes, "max_bytes", minimum=1, maximum=MAX_BYTES)
        self.names, self.number = _checked_consumers(consumers)
        self.final = bool(flag(final, "final"))
        self._stop, self._on_progress = stop, on_progress
        self.block_size = integer(
            conf.current().FILES_BLOCK_BYTES, "FILES_BLOCK_BYTES", minimum=1, maximum=2**29
        )
        self.checksum = configured_kind()
        self.sources = find_sources(paths, self.limit)
        self._total = sum(source.size for source in self.sources)
        self._done = self._files = self._bytes = self._skipped = 0
        self._name = ""
        self.completed = False
        self._lost: LeaseLost | None = None

    @property
    def report(self) -> Report:
        """What was published so far."""
        return Report(files=self._files, bytes=self._bytes, skipped=self._skipped, completed=self.completed)

    def check_stop(self) -> bool:
        """Whether to end before the next file. Raises LeaseLost if the publisher's lease is lost."""
        if self._lost is not None:
            raise self._lost
        return self._stop is not None and self._stop.is_set()

    def lose_lease(self, error: LeaseLost) -> None:
        """Called, in another thread, if the lease is lost."""
        self._lost = error

    def start(self, name: str) -> None:
        """Begin with a file, or, with an empty name, wait for the end."""
        self._name = name
        self.report_progress()

    def advance(self, size: int) -> None:
        """A block of this size is stored."""
        self._done += size
        self.report_progress()

    def finish(self, source: Source, *, skipped: bool) -> None:
        """A file is announced, or was published before."""
        if skipped:
            self._skipped += 1
            self._done += source.size
        else:
            self._files += 1
            self._bytes += source.size
        self.report_progress()

    def report_progress(self, *, waiting: bool = False) -> None:
        """Call `on_progress`."""
        if self._on_progress is not None:
            progress = Progress(
                name=self._name,
                files=self._files + self._skipped,
                total_files=len(self.sources),
                bytes=self._done,
                total_bytes=self._total,
                waiting=waiting,
            )
            self._on_progress(progress)


class Publisher(ChannelSteps):
    """The publisher's part of a channel."""

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


def _checked_consumers(consumers: Sequence[str] | int) -> tuple[list[str], int]:
    """The names of consumers, and their number if they are not named, else 0."""
    limit = conf.current().FILES_MAX_CONSUMERS
    if isinstance(consumers, int):
        return [], count(consumers, "consumers", maximum=limit)
    names = list(dict.fromkeys(checked(name, "consumer") for name in sequence(consumers, "consumers")))
    if not names:
        raise InvalidArgument("consumers is empty: name at least one, or give their number.")
    if len(names) > limit:
        raise LimitExceeded("consumers", limit=limit, actual=len(names), setting="FILES_MAX_CONSUMERS")
    return names, 0
