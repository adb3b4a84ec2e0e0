"""The files of the local disk that are published: found, identified, and read in blocks."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from ...errors import FileChanged, InvalidArgument, LimitExceeded

#: number of source files that a channel remembers as published
REMEMBERED = 100_000
#: a path, or several of them
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


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
