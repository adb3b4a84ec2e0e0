"""What a call of `FileChannel.publish` publishes: local files, found and checked, and how far it is."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from ... import conf
from ...core.encoding import name as checked
from ...errors import FileChanged, InvalidArgument, LeaseLost, LimitExceeded
from ..common.arguments import Stop, count, flag, integer, sequence
from .reading import configured_kind

#: bytes; the maximum of max_bytes, which keeps all sums in the range of exact floats
MAX_BYTES = 2**52
#: number of source files that a channel remembers as published
REMEMBERED = 100_000
#: a path, or several of them
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a publisher is."""

    name: str
    """The file that is being published; empty at the end."""
    files: int
    """Number of files that are done: published, or known from before."""
    total_files: int
    bytes: int
    """Bytes that are done, those of the current file included."""
    total_bytes: int
    waiting: bool
    """Whether the publisher waits for the consumers: for space, or at the end for their acks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The result of publishing."""

    files: int
    """Number of files that were published."""
    bytes: int
    """Their size."""
    skipped: int
    """Number of files that had been published to this channel before."""
    completed: bool
    """Whether everything is done: False if `stop` ended the call before."""


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


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the local disk."""

    path: str
    size: int
    #: ns since the epoch
    modified: int

    @property
    def name(self) -> str:
        """The name that consumers see. Bytes that aren't UTF-8 are escaped."""
        return os.fsencode(os.path.basename(self.path)).decode(errors="backslashreplace")

    @property
    def identity(self) -> str:
        """A digest of path, size and time of modification: a file with the same identity is not published
        again."""
        text = b"%b\0%d\0%d" % (os.fsencode(self.path), self.size, self.modified)
        return hashlib.sha256(text).hexdigest()[:32]

    def open(self) -> BinaryIO:
        """Open the file; raises FileChanged if it has been replaced or has changed."""
        file = open(self.path, "rb", buffering=0)  # noqa: SIM115 (the caller closes it)
        try:
            self.check(file)
        except BaseException:
            file.close()
            raise
        return file

    def read_blocks(self, file: BinaryIO, size: int) -> Iterator[bytes]:
        """The file in blocks of `size` bytes, the last one smaller; raises FileChanged at the end if the file
        has changed meanwhile."""
        left = self.size
        while left:
            block = file.read(min(size, left))
            if not block:
                break
            left -= len(block)
            yield block
        self.check(file)

    def check(self, file: BinaryIO) -> None:
        """Raise FileChanged if the size or the time of modification differ from those found first."""
        found = os.fstat(file.fileno())
        if (found.st_size, found.st_mtime_ns) != (self.size, self.modified):
            raise FileChanged(
                f"{self.path!r} changed while it was published: publish it when it is complete, for example "
                "by renaming it into place."
            )


def find_sources(paths: Paths, limit: int) -> list[Source]:
    """The files to publish, in order: of a directory, its files by name, without hidden ones.

    Raises FileNotFoundError and PermissionError; InvalidArgument for anything else that is no regular file;
    LimitExceeded for a file of more than `limit` bytes.
    """
    given = [paths] if isinstance(paths, str | bytes | os.PathLike) else list(paths)
    found = [_source(path) for name in given for path in expand(_absolute(name))]
    if len(found) > REMEMBERED:
        raise LimitExceeded("files of one call", limit=REMEMBERED, actual=len(found))
    for source in found:
        if source.size > limit:
            raise LimitExceeded(f"{source.path!r} (bytes; see max_bytes)", limit=limit, actual=source.size)
    return found


def _absolute(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"paths must be str or Path, not {type(text).__name__}.")
    if not text or "\0" in text:
        raise InvalidArgument(f"paths contains {text!r}, which is not the name of a file or a directory.")
    return os.path.abspath(text)


def expand(path: str) -> list[str]:
    """The path; of a directory, the paths of its files, by name, without hidden ones."""
    if not os.path.isdir(path):
        return [path]
    with os.scandir(path) as entries:
        names = [entry.name for entry in entries if entry.is_file() and not entry.name.startswith(".")]
    return [os.path.join(path, name) for name in sorted(names)]


def _source(path: str) -> Source:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise InvalidArgument(f"{path!r} is not a regular file: only files and directories are published.")
    if not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return Source(path, found.st_size, found.st_mtime_ns)
