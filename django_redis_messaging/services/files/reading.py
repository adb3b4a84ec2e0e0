"""Reads files: checksums, decompressed data, lines and batches of lines.

The classes read nothing themselves: a caller, sync or async, feeds them one block after another.
"""

from __future__ import annotations

import codecs
import hashlib
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import Any, Generic, Literal, Protocol, TypeVar, cast, overload

from ... import conf
from ...errors import ConfigurationError, FileCorrupt, InvalidArgument, LimitExceeded
from ..common.arguments import count


class Checksum(Protocol):
    """A checksum that is computed block by block."""

    def update(self, block: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


class Crc32:
    """CRC-32: more than twice as fast as SHA-256."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, block: bytes) -> None:
        """Add a block."""
        self._value = zlib.crc32(block, self._value)

    def hexdigest(self) -> str:
        """The checksum of all blocks."""
        return f"{self._value:08x}"


class NoChecksum:
    """Verifies nothing."""

    def update(self, block: bytes) -> None:
        """Ignore a block."""

    def hexdigest(self) -> str:
        """Return an empty checksum."""
        return ""


#: by name, as in the setting FILES_CHECKSUM and in descriptions of files
KINDS: dict[str, Callable[[], Checksum]] = {"": NoChecksum, "crc32": Crc32, "sha256": hashlib.sha256}


def configured_kind() -> str:
    """The checksum for new files."""
    kind = conf.current().FILES_CHECKSUM or ""
    if kind not in KINDS:
        raise ConfigurationError(f"FILES_CHECKSUM must be 'crc32', 'sha256' or None, not {kind!r}.")
    return kind


def new_checksum(kind: str) -> Checksum:
    """A checksum of this kind; an unknown kind, of a newer version of this app, verifies nothing."""
    return KINDS.get(kind, NoChecksum)()


#: what to do about a file that was damaged in Redis
ADVICE = "Ack the file to skip it; `touch` the original and publish it again."


class Verifier:
    """Checks the blocks of a file: their number, their size, and the checksum of all."""

    def __init__(self, name: str, size: int, checksum: str) -> None:
        self._name, self._size = name, size
        kind, _, self._digest = checksum.partition(":")
        self._checksum = new_checksum(kind)
        self.read = 0

    def add(self, block: bytes) -> bytes:
        """Add a block; returns it."""
        self.read += len(block)
        self._checksum.update(block)
        return block

    def finish(self) -> None:
        """Raise FileCorrupt if the blocks are not those that were published."""
        if self.read != self._size:
            raise FileCorrupt(f"{self._name!r} has {self.read} bytes instead of {self._size}. {ADVICE}")
        if self._checksum.hexdigest() not in (self._digest, ""):
            raise FileCorrupt(f"The checksum of {self._name!r} differs. {ADVICE}")


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


#: lines; the maximum of a batch
MAX_BATCH = 1_000_000
#: bytes; with a lower average, splitlines() is faster
SHORT_LINE = 80
#: bytes of a block whose lines are counted
SAMPLE_BYTES = 4096
#: bytes that splitlines() splits at a time
LINES_SLICE_BYTES = 128 * 1024
#: bytes; the maximum of `max_bytes`
MAX_LINE_BYTES = 1024**3

T = TypeVar("T")
#: a line: bytes, or str if there is an encoding
Line = TypeVar("Line")

_without_newline = itemgetter(slice(None, -1))


@overload
def iter_lines(
    blocks: Iterable[bytes], *, encoding: None = None, max_bytes: int | None = None
) -> Iterator[bytes]: ...
@overload
def iter_lines(blocks: Iterable[bytes], *, encoding: str, max_bytes: int | None = None) -> Iterator[str]: ...
def iter_lines(
    blocks: Iterable[bytes], *, encoding: str | None = None, max_bytes: int | None = None
) -> Iterator[Any]:
    r"""Split blocks of bytes into lines, without their endings.

    >>> list(iter_lines([b"one\r", b"\ntwo\n\nfo", b"ur"]))
    [b'one', b'two', b'', b'four']
    >>> list(iter_lines([b"caf\xc3", b"\xa9\n"], encoding="utf-8"))
    ['café']

    A line ends with "\n" or "\r\n"; "\r" alone is not an ending. The last line needs no ending. Blocks can
    have any size and end anywhere. Memory is bounded by `max_bytes` plus the size of a block.

    With `encoding`, lines are str. A line that is not valid in this encoding raises UnicodeDecodeError, after
    the lines before it. "utf-8-sig" skips a byte order mark at the beginning.

    Raises LimitExceeded (FILES_MAX_LINE_BYTES) at a line that is longer than `max_bytes`, whose default is
    that setting; InvalidArgument, before anything is read, if Python doesn't know the encoding or if "\n" is
    not the byte 0x0A in it, as in UTF-16.
    """
    splitter: LineSplitter[Any] = LineSplitter(encoding, max_bytes)
    return chain.from_iterable(_fed(splitter, blocks))


def _fed(splitter: LineSplitter[Any], blocks: Iterable[bytes]) -> Iterator[Iterator[Any]]:
    for block in blocks:
        yield splitter.feed(block)
    yield splitter.finish()


class LineSplitter(Generic[Line]):
    r"""Splits blocks into lines, as `iter_lines` does, for callers with a loop of their own.

    >>> splitter = LineSplitter()
    >>> list(splitter.feed(b"one\ntw")), list(splitter.feed(b"o\nthree")), list(splitter.finish())
    ([b'one'], [b'two'], [b'three'])

    After an error it can't be used any more.
    """

    @overload
    def __init__(self: LineSplitter[bytes], encoding: None = None, max_bytes: int | None = None) -> None: ...
    @overload
    def __init__(self: LineSplitter[str], encoding: str, max_bytes: int | None = None) -> None: ...
    @overload
    def __init__(self: LineSplitter[Any], encoding: str | None, max_bytes: int | None = None) -> None: ...
    def __init__(self, encoding: str | None = None, max_bytes: int | None = None) -> None:
        self._encoding = None if encoding is None else _text_encoding(encoding)
        if max_bytes is None:
            max_bytes = conf.current().FILES_MAX_LINE_BYTES
        self._max_bytes = count(max_bytes, "max_bytes", maximum=MAX_LINE_BYTES)
        # the beginning of a line whose end is in a later block
        self._tail = bytearray()

    def feed(self, block: bytes) -> Iterator[Line]:
        """Return the lines that end in this block. They can be read later, also after further calls.

        Raises LimitExceeded, possibly only when the lines are read.
        """
        if not isinstance(block, bytes):
            raise TypeError(f"blocks must be an iterable of bytes, not of {type(block).__name__}.")
        start = block.find(b"\n") + 1
        if not start:
            self._extend_tail(block)
            return iter(())
        end = block.rfind(b"\n") + 1
        first = self._first_line(block[:start])
        self._tail += block[end:]
        lines = _split(block[start:end])
        if len(block) > self._max_bytes:  # otherwise no line but the first can be too long
            lines = self._checked(lines)
        return self._decoded(chain((first,), lines))

    def finish(self) -> Iterator[Line]:
        """Return the last line if it has no ending. Call it after the last block."""
        line = self._take_tail()
        self._check(len(line))
        return self._decoded(iter((line,) if line else ()))

    def _extend_tail(self, block: bytes) -> None:
        if block:
            # "\r" doesn't count yet: it can belong to the ending
            self._check(len(self._tail) + len(block) - block.endswith(b"\r"))
            self._tail += block

    def _first_line(self, end: bytes) -> bytes:
        line = self._take_tail(end)
        line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        self._check(len(line))
        return line

    def _take_tail(self, end: bytes = b"") -> bytes:
        line = bytes(self._tail + end)
        self._tail.clear()
        if self._encoding == "utf-8-sig":  # only before the first line
            self._encoding = "utf-8"
            line = line.removeprefix(codecs.BOM_UTF8)
        return line

    def _checked(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        for line in lines:
            self._check(len(line))
            yield line

    def _check(self, size: int) -> None:
        limit = self._max_bytes
        if size > limit:
            raise LimitExceeded("a line (bytes)", limit=limit, actual=size, setting="FILES_MAX_LINE_BYTES")

    def _decoded(self, lines: Iterator[bytes]) -> Iterator[Line]:
        if self._encoding is None:
            return cast("Iterator[Line]", lines)
        return cast("Iterator[Line]", map(bytes.decode, lines, repeat(self._encoding)))


class Batcher(Generic[T]):
    """Collects items in lists of `n`.

    >>> batcher = Batcher(2)
    >>> list(batcher.feed("abc")), list(batcher.feed("de")), list(batcher.finish())
    ([['a', 'b']], [['c', 'd']], [['e']])
    """

    def __init__(self, n: int) -> None:
        self._n = count(n, "n", maximum=MAX_BATCH)
        self._batch: list[T] = []

    def feed(self, items: Iterable[T]) -> Iterator[list[T]]:
        """Yield the batches that these items complete. Read all of them before the next call."""
        items = iter(items)
        while True:
            self._batch += islice(items, self._n - len(self._batch))
            if len(self._batch) < self._n:
                return
            batch, self._batch = self._batch, []
            yield batch

    def finish(self) -> Iterator[list[T]]:
        """Yield the last batch if it has fewer than `n` items. Call it after the last items."""
        batch, self._batch = self._batch, []
        if batch:
            yield batch


def _split(data: bytes) -> Iterator[bytes]:
    """Return the lines of data that ends with a newline. Few exist at a time and stay in the CPU's cache."""
    if b"\r" in data:
        return map(bytes.removesuffix, _long_lines(data), repeat(b"\r"))
    sample = min(len(data), SAMPLE_BYTES)
    if data.count(b"\n", 0, sample) * SHORT_LINE > sample:
        return chain.from_iterable(map(bytes.splitlines, _slices(data)))
    return _long_lines(data)


def _long_lines(data: bytes) -> Iterator[bytes]:
    # BytesIO finds newlines by memchr(); split() and splitlines() compare each byte.
    return map(_without_newline, BytesIO(data))


def _slices(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        end = data.rfind(b"\n", start, start + LINES_SLICE_BYTES) + 1 or data.index(b"\n", start) + 1
        yield data[start:end]
        start = end


def _text_encoding(encoding: str) -> str:
    """Return the name that Python uses for an encoding, if the byte 0x0A is "\n" in it and nothing else."""
    if not isinstance(encoding, str):
        raise TypeError(f"encoding must be a str, not {type(encoding).__name__}.")
    try:
        name = codecs.lookup(encoding).name
        newline = "\n".encode(name)
    except (LookupError, ValueError):
        raise InvalidArgument(
            f"encoding must be a text encoding that Python knows, for example 'utf-8', not {encoding!r}."
        ) from None
    if newline != b"\n" and name != "utf-8-sig":
        raise InvalidArgument(
            f"encoding must have the single byte 0x0A for a newline, which {encoding!r} has not: read blocks"
            " and decode them as a whole."
        )
    return name
