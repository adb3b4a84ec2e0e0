"""The original algorithm of files for several consumers, from its description."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .chat import Original as OriginalChat
from .harness import driver

#: bytes that it reads and writes at once
BLOCK_BYTES = 2**17


class OriginalFiles:
    """A key for each file, announced by group chat."""

    def __init__(self, channel: str, consumers: Sequence[str]) -> None:
        self.client, self.chat = driver(), OriginalChat()
        self.channel, self.consumers = channel, consumers
        self.waiting: list[tuple[str, int]] = []
        self.used = 0

    def copy(self, folder: Path, limit: int = 1024**3) -> None:
        """Store the files of a folder and send their names; delete the oldest when there is no space."""
        self.chat.create(self.channel, self.consumers)
        for name in sorted(os.listdir(folder)):
            size = os.stat(folder / name).st_size
            while self.used + size > limit:
                if not self._clean():
                    time.sleep(0.25)
            with open(folder / name, "rb") as file:
                block = b" "
                while block:
                    block = file.read(BLOCK_BYTES)
                    self.client.append(self.channel + name, block)
            self.announce(name)
            self.used += size
            self.waiting.append((name, size))

    def announce(self, name: str) -> None:
        self.chat.send(self.channel, "source", name)

    def _clean(self) -> bool:
        if not self.waiting:
            return False
        name, size = self.waiting[0]
        if int(self.client.get(f"{self.channel}{name}:done") or 0) < len(self.consumers):
            return False
        self.client.delete(self.channel + name, f"{self.channel}{name}:done")
        self.waiting.pop(0)
        self.used -= size
        return True

    def process(self, consumer: str, callback: Callable[[bytes | None], object]) -> None:
        """Process all files up to the message ":done"."""
        while True:
            found = self.chat.fetch(consumer)
            for channel, messages in found:
                for message in messages:
                    name = message["message"]
                    if name == ":done":
                        return
                    read = self._gunzipped if name.endswith(".gz") else self._blocks
                    for line in self._lines(read(channel + name)):
                        callback(line)
                    callback(None)
                    self.client.incr(f"{channel}{name}:done")
            if not found:
                time.sleep(0.1)

    def _blocks(self, key: str) -> Iterator[bytes]:
        start, size = 0, BLOCK_BYTES
        while size == BLOCK_BYTES:
            block = self.client.substr(key, start, start + BLOCK_BYTES - 1)
            yield block
            size = len(block)
            start += size
        yield b""

    def _gunzipped(self, key: str) -> Iterator[bytes]:
        """Read the header by hand and inflate the rest; the checksum at the end is ignored."""
        head, inflater = b"", None
        for block in self._blocks(key):
            if inflater is None:
                head += block
                start = _header_size(head)
                if start > len(head):
                    continue
                inflater = zlib.decompressobj(-zlib.MAX_WBITS)
                block = head[start:]
                if not block:
                    continue
            if not block:
                yield inflater.flush()
                yield b""
                return
            yield inflater.decompress(block)

    @staticmethod
    def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
        rest = b""
        for block in blocks:
            rest += block
            end = rest.rfind(b"\n")
            if end >= 0:
                for line in rest[:end].split(b"\n"):
                    yield line + b"\n"
                rest = rest[end + 1 :]
            if not block:
                yield rest
                return


def _header_size(head: bytes) -> int:
    """Bytes of a gzip header; more than there are if it is incomplete."""
    if not head.startswith(b"\x1f\x8b\x08"):
        raise OSError("This is not gzip data.")
    try:
        flags, size = head[3], 10
        if flags & 4:
            size += 2 + head[size] + 256 * head[size + 1]
        for flag in (8, 16):
            if flags & flag:
                size = head.index(b"\0", size) + 1
        return size + 2 * bool(flags & 2)
    except (IndexError, ValueError):
        return len(head) + 1
