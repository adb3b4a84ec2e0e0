"""Decompression of gzip and zstd in pieces of bounded size.

The classes read nothing themselves: a caller, sync or async, feeds them one block after another.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from ... import conf
from ...errors import ConfigurationError, FileCorrupt, InvalidArgument, LimitExceeded
from ..arguments import count

#: bytes; the maximum of a decompressed piece
PIECE_BYTES = 1024 * 1024
#: bytes of compressed data that are decompressed at a time; the data after the end of a member is copied, so
#: with larger slices thousands of small members would take quadratic time
SLICE_BYTES = 32 * 1024
#: bytes of output from which on the ratio is checked
RATIO_FROM = 1024 * 1024
#: the maximum of `max_ratio` and `max_output`
MAX_LIMIT = 2**63 - 1

Encoding = Literal["", "gzip", "zstd"]


def gunzip(
    blocks: Iterable[bytes], *, max_ratio: int | None = None, max_output: int | None = None
) -> Iterator[bytes]:
    r"""Decompress the blocks of a gzip file, in pieces of at most 1 MiB.

    >>> import gzip
    >>> file = gzip.compress(b"one\n") + gzip.compress(b"two\n")
    >>> b"".join(gunzip([file[:10], file[10:]]))
    b'one\ntwo\n'
    >>> list(iter_lines(gunzip([file])))
    [b'one', b'two']

    The file can consist of several members, and zeros can follow a member. A file without any byte gives
    nothing. Memory doesn't depend on the size of the output.

    Raises FileCorrupt if the data is damaged, truncated, or followed by something else;
    LimitExceeded if the output is larger than `max_output` bytes (FILES_MAX_OUTPUT_BYTES), or larger than
    1 MiB and `max_ratio` (FILES_MAX_RATIO) times the input. The pieces before an error are yielded.
    """
    return _decompressed(blocks, decompressor("gzip", max_ratio=max_ratio, max_output=max_output))


def unzstd(
    blocks: Iterable[bytes], *, max_ratio: int | None = None, max_output: int | None = None
) -> Iterator[bytes]:
    """Decompress the blocks of a zstd file as `gunzip` does. The file can consist of several frames.
    Damage is detected in frames that have a checksum, as those of the zstd command. The memory for a frame is
    its window, 128 MiB at most.

    Needs Python 3.14 or the extra `zstd`, otherwise it raises ConfigurationError.
    """
    return _decompressed(blocks, decompressor("zstd", max_ratio=max_ratio, max_output=max_output))


def detect_encoding(name: str, head: bytes) -> Encoding:
    """Return how a file is compressed: "gzip", "zstd", or "" if it isn't.

    >>> detect_encoding("access.log", b"GET /"), detect_encoding("access.log.GZ", b"")
    ('', 'gzip')

    `head` is the beginning of its content, 4 bytes or more if it has them. If these bytes don't identify the
    format, the suffix of the name does: .gz or .zst.
    """
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    # a frame, or a skippable frame, with which files of parallel compressors begin
    if head.startswith(b"\x28\xb5\x2f\xfd") or (head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5):
        return "zstd"
    lowered = name.lower()
    return "gzip" if lowered.endswith(".gz") else "zstd" if lowered.endswith(".zst") else ""


class Decompressor(Protocol):
    """Takes the blocks of a file, and returns its content. After an error it can't be used any more."""

    def feed(self, block: bytes) -> Iterator[bytes]:
        """Yield the content of this block. Read all of it before the next call."""
        ...

    def finish(self) -> None:
        """Raise FileCorrupt if the file is truncated. Call it after the last block."""
        ...


def decompressor(
    encoding: str, *, max_ratio: int | None = None, max_output: int | None = None
) -> Decompressor:
    """Return a decompressor for "gzip" or "zstd"; for "", one that returns the blocks as they are."""
    if encoding == "":
        return Uncompressed()
    if encoding == "gzip":
        return Members(_GZIP, max_ratio, max_output)
    if encoding == "zstd":
        return Members(_zstd(), max_ratio, max_output)
    raise InvalidArgument(f"encoding must be '', 'gzip' or 'zstd', not {encoding!r}.")


def _decompressed(blocks: Iterable[bytes], reader: Decompressor) -> Iterator[bytes]:
    for block in blocks:
        yield from reader.feed(block)
    reader.finish()


class Uncompressed:
    """A decompressor for files that aren't compressed."""

    def feed(self, block: bytes) -> Iterator[bytes]:
        """Return the block."""
        return iter((block,))

    def finish(self) -> None:
        """Do nothing: any content is complete."""


class Member(Protocol):
    """A decompressor of one gzip member or zstd frame."""

    @property
    def eof(self) -> bool:
        """Whether its end was reached."""
        ...

    @property
    def needs_input(self) -> bool:
        """Whether the next call must pass further data; otherwise it must pass none."""
        ...

    @property
    def unused_data(self) -> bytes:
        """The data after its end."""
        ...

    def decompress(self, data: bytes | memoryview, max_length: int, /) -> bytes:
        """Return at most `max_length` bytes of the content."""
        ...


@dataclass(frozen=True, slots=True)
class Format:
    """A format of compressed files."""

    name: str
    new_member: Callable[[], Member]
    #: what members raise when the data is invalid
    error: type[Exception]
    #: whether zeros can follow a member
    padding: bool


class Members:
    """Decompresses the members of a gzip file, or the frames of a zstd file, one after another."""

    def __init__(self, form: Format, max_ratio: int | None, max_output: int | None) -> None:
        if max_ratio is None:
            max_ratio = conf.current().FILES_MAX_RATIO
        if max_output is None:
            max_output = conf.current().FILES_MAX_OUTPUT_BYTES
        self._max_ratio = count(max_ratio, "max_ratio", maximum=MAX_LIMIT)
        self._max_output = count(max_output, "max_output", maximum=MAX_LIMIT)
        self._form = form
        # None: between two members
        self._member: Member | None = None
        self._is_first = True
        self._input = self._output = 0

    def feed(self, block: bytes) -> Iterator[bytes]:
        """Yield the content of this block, in pieces of at most 1 MiB. Read all before the next call."""
        if not isinstance(block, bytes):
            raise TypeError(f"blocks must be an iterable of bytes, not of {type(block).__name__}.")
        view = memoryview(block)
        for start in range(0, len(block), SLICE_BYTES):
            data = view[start : start + SLICE_BYTES]
            self._input += len(data)
            yield from self._slice(data)

    def finish(self) -> None:
        """Raise FileCorrupt if the file is truncated. Call it after the last block."""
        if self._member is not None:
            raise FileCorrupt(f"The {self._form.name} data ends before its end marker: it is truncated.")

    def _slice(self, data: bytes | memoryview) -> Iterator[bytes]:
        while data:
            if self._member is None:
                if self._form.padding and not self._is_first:
                    data = bytes(data).lstrip(b"\0")
                    if not data:
                        return
                self._member, self._is_first = self._form.new_member(), False
            yield from self._pieces(self._member, data)
            data = b""
            if self._member.eof:
                data, self._member = self._member.unused_data, None

    def _pieces(self, member: Member, data: bytes | memoryview) -> Iterator[bytes]:
        while True:
            try:
                piece = member.decompress(data, PIECE_BYTES)
            except self._form.error as error:
                raise FileCorrupt(
                    f"The {self._form.name} data is damaged within its first {self._input} bytes: {error}."
                ) from None
            if piece:
                self._count(len(piece))
                yield piece
            if member.eof or member.needs_input:
                return
            data = b""

    def _count(self, size: int) -> None:
        self._output += size
        output, limit = self._output, self._max_output
        if output > limit:
            what, setting = "decompressed data (bytes)", "FILES_MAX_OUTPUT_BYTES"
            raise LimitExceeded(what, limit=limit, actual=output, setting=setting)
        ratio = -(-output // self._input)
        if output > RATIO_FROM and ratio > self._max_ratio:
            what, setting = "ratio of decompressed to compressed data", "FILES_MAX_RATIO"
            raise LimitExceeded(what, limit=self._max_ratio, actual=ratio, setting=setting)


class GzipMember:
    """A gzip member, with the interface of `compression.zstd.ZstdDecompressor`."""

    def __init__(self) -> None:
        # 31: the largest window, and a gzip header and trailer, which zlib verifies
        self._stream = zlib.decompressobj(wbits=31)
        self.eof = False
        self.needs_input = True
        self.unused_data = b""

    def decompress(self, data: bytes | memoryview, max_length: int) -> bytes:
        """Return at most `max_length` bytes of the content."""
        stream = self._stream
        piece = stream.decompress(data if self.needs_input else stream.unconsumed_tail, max_length)
        # A full piece can leave input in `unconsumed_tail`, and output in zlib that needs no input.
        self.needs_input = len(piece) < max_length
        self.eof, self.unused_data = stream.eof, stream.unused_data
        return piece


_GZIP = Format("gzip", GzipMember, zlib.error, padding=True)


def _zstd() -> Format:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise ConfigurationError(
            "zstd files need Python 3.14, or the extra zstd: pip install 'django-redis-messaging[zstd]'."
        ) from None
    return Format("zstd", zstd.ZstdDecompressor, zstd.ZstdError, padding=False)
