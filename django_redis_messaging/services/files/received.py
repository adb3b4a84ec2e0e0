"""A file as a consumer receives it: its description, its content, and its ack."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple, Protocol, overload

from ...core import encoding
from ...core.operations import Command, Steps, asynchronous, operation
from ...errors import FileChannelError, FileCorrupt, LeaseLost
from ..common.arguments import to_datetime
from .keys import FileKeys, file_name
from .reading import ADVICE, Batcher, LineSplitter, Verifier, decompressor, iter_lines


class Session:
    """The lease of a consumer, and what it has learned of its channel: one call of `consume`."""

    def __init__(self, consumer: str) -> None:
        self.consumer = consumer
        #: fence of the lease
        self.fence = 0
        #: run of the channel, see _files.lua; empty until the first reply
        self.run = b""
        self.lost: LeaseLost | None = None
        #: whether there may be further files
        self.may_continue = True

    def lose_lease(self, error: LeaseLost) -> None:
        """Called, in another thread, if the lease is lost."""
        self.lost = error


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """What a consumer needs to know about a file."""

    name: str
    size: int
    #: number of blocks
    blocks: int
    #: kind and digest, such as crc32:1c291ca3; empty: unknown
    checksum: str
    #: compression: gzip, zstd or empty
    encoding: str

    def dump(self) -> str:
        """The description as it is announced: the size, which scripts read, and JSON. A script puts the id
        before it."""
        return f"{self.size} " + encoding.dumps(
            {"name": self.name, "blocks": self.blocks, "sum": self.checksum, "encoding": self.encoding}
        )


def parse_description(record: bytes) -> Description:
    """The description of an announced file, which follows its id."""
    _, size, encoded = record.split(b" ", 2)
    found: dict[str, Any] = json.loads(encoded)
    return Description(
        name=found["name"],
        size=int(size),
        blocks=found["blocks"],
        checksum=found["sum"],
        encoding=found["encoding"],
    )


class Announced(NamedTuple):
    """An announced file."""

    id: int
    description: Description


class ConsumedChannel(Protocol):
    """A file's channel, as the file uses it."""

    channel: str
    _using: str
    _prefix: str

    def _ack(self, session: Session, file_id: int, /) -> None: ...
    def _aack(self, session: Session, file_id: int, /) -> Coroutine[Any, Any, None]: ...
    def _is_latest(self, consumer: str, fence: int) -> Steps[bool]: ...
    def _lease_lost(self) -> LeaseLost: ...


class File:
    """A file that `FileChannel.consume` yields: read it, then `ack` it."""

    def __init__(self, channel: ConsumedChannel, session: Session, announced: Announced) -> None:
        self._steps, self._session = channel, session
        self._using = channel._using
        description = announced.description
        #: greater than that of every earlier file of the channel; never used again
        self.id = announced.id
        #: the name of the published file, without its folder; use it for display, not as a path
        self.name = description.name
        #: bytes, as stored
        self.size = description.size
        #: the compression: "gzip", "zstd" or ""
        self.encoding = description.encoding
        self.channel = channel.channel
        self.consumer = session.consumer
        self._count, self._sum = description.blocks, description.checksum
        self._key = FileKeys(channel._prefix, file_name(self.channel, self.id)).blocks
        #: bytes that were read so far, as stored, by the latest iteration
        self.bytes_read = 0
        self.acked = False

    def __repr__(self) -> str:
        return f"File({self.id}, {self.name!r})"

    @property
    def published_at(self) -> datetime:
        """When space was reserved for the file, by the server's clock."""
        return to_datetime(self.id / 1000)

    def blocks(self) -> Iterator[bytes]:
        """The bytes of the file as published, not decompressed, in blocks of FILES_BLOCK_BYTES or less.

        Raises FileCorrupt at the end if they are not those that were published; LeaseLost if another process
        has taken over.
        """
        verifier = self._verifier()
        for number in range(self._count):
            yield self._add(verifier, self._read(number))
        verifier.finish()

    async def ablocks(self) -> AsyncIterator[bytes]:
        """An async version of `blocks`."""
        verifier = self._verifier()
        for number in range(self._count):
            yield self._add(verifier, await self._aread(number))
        verifier.finish()

    @overload
    def lines(self, encoding: None = None) -> Iterator[bytes]: ...
    @overload
    def lines(self, encoding: str) -> Iterator[str]: ...
    def lines(self, encoding: str | None = None) -> Iterator[Any]:
        r"""The lines of the file, decompressed, without their endings ("\n" or "\r\n").

        They are bytes, or str if an `encoding` is given. Raises the errors of `blocks`; FileCorrupt for a
        truncated or damaged compressed file; LimitExceeded for a line of more than FILES_MAX_LINE_BYTES, and
        for a file that grows too much by decompression.
        """
        return iter_lines(self._pieces(), encoding=encoding)

    @overload
    def alines(self, encoding: None = None) -> AsyncIterator[bytes]: ...
    @overload
    def alines(self, encoding: str) -> AsyncIterator[str]: ...
    async def alines(self, encoding: str | None = None) -> AsyncIterator[Any]:
        """An async version of `lines`."""
        async for lines in self._alines(encoding):
            for line in lines:
                yield line

    @overload
    def batches(self, n: int, encoding: None = None) -> Iterator[list[bytes]]: ...
    @overload
    def batches(self, n: int, encoding: str) -> Iterator[list[str]]: ...
    def batches(self, n: int, encoding: str | None = None) -> Iterator[list[Any]]:
        """The lines of the file in lists of `n`; the last list may be shorter. Faster than `lines`; raises
        the same errors."""
        batcher = Batcher[Any](n)
        return chain(batcher.feed(self.lines(encoding)), batcher.finish())

    @overload
    def abatches(self, n: int, encoding: None = None) -> AsyncIterator[list[bytes]]: ...
    @overload
    def abatches(self, n: int, encoding: str) -> AsyncIterator[list[str]]: ...
    async def abatches(self, n: int, encoding: str | None = None) -> AsyncIterator[list[Any]]:
        """An async version of `batches`."""
        batcher = Batcher[Any](n)
        async for lines in self._alines(encoding):
            for batch in batcher.feed(lines):
                yield batch
        for batch in batcher.finish():
            yield batch

    def ack(self) -> None:
        """Record that the file is processed; it is not delivered to this consumer again. Idempotent.

        Raises LeaseLost if another process has taken over.
        """
        if not self.acked:
            self._steps._ack(self._session, self.id)
            self.acked = True

    async def aack(self) -> None:
        """An async version of `ack`."""
        if not self.acked:
            await self._steps._aack(self._session, self.id)
            self.acked = True

    def _pieces(self) -> Iterator[bytes]:
        """The content of the file, decompressed."""
        unpacked = decompressor(self.encoding)
        for block in self.blocks():
            yield from unpacked.feed(block)
        unpacked.finish()

    async def _alines(self, encoding: str | None) -> AsyncIterator[Iterator[Any]]:
        """The lines of the file, decompressed, as they become complete."""
        splitter, unpacked = LineSplitter[Any](encoding), decompressor(self.encoding)
        async for block in self.ablocks():
            for piece in unpacked.feed(block):
                yield splitter.feed(piece)
        unpacked.finish()
        yield splitter.finish()

    def _verifier(self) -> Verifier:
        self.bytes_read = 0
        return Verifier(self.name, self.size, self._sum)

    def _add(self, verifier: Verifier, block: bytes) -> bytes:
        verifier.add(block)
        self.bytes_read = verifier.read
        return block

    @operation
    def _read(self, number: int) -> Steps[bytes]:
        if self._session.lost is not None:
            raise self._session.lost
        block: bytes | None = yield Command("HGET", self._key, number, reads=True)
        if block is not None:
            return block
        if self.acked:
            raise FileChannelError(f"{self.name!r} was acked and may be deleted: read it before ack().")
        if not (yield from self._steps._is_latest(self.consumer, self._session.fence)):
            raise self._steps._lease_lost()  # the successor has acked it
        raise FileCorrupt(f"Redis has lost block {number} of {self.name!r}. {ADVICE}")

    _aread = asynchronous(_read)
