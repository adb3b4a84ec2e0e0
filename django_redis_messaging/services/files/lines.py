"""Lines and batches of lines from blocks of bytes.

The classes read nothing themselves: a caller, sync or async, feeds them one block after another.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import Any, Generic, TypeVar, cast, overload

from ... import conf
from ...errors import InvalidArgument, LimitExceeded
from ..arguments import count

#: lines; the maximum of a batch
MAX_BATCH = 1_000_000
#: bytes; with a lower average, splitlines() is faster
SHORT_LINE = 80
#: bytes of a block whose lines are counted
SAMPLE_BYTES = 4096
#: bytes that splitlines() splits at a time
SLICE_BYTES = 128 * 1024
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
        end = data.rfind(b"\n", start, start + SLICE_BYTES) + 1 or data.index(b"\n", start) + 1
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
