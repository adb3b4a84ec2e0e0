"""The values of file channels, and the description with which a file is announced."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...core import payloads
from ..moments import to_datetime

#: number of items of the reply of files_stats.lua before those of the consumers
STATS_HEAD = 5


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
        return f"{self.size} " + payloads.dumps(
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


def parse_stats(reply: list[Any], active: list[bool]) -> FileStats:
    """The reply of files_stats.lua; `active`: whether each consumer's lease is held."""
    used, limit, final, places, files, *consumers = reply  # STATS_HEAD items first
    names, waiting, seen = consumers[::3], consumers[1::3], consumers[2::3]
    return FileStats(
        files=files,
        bytes=int(used or 0),
        max_bytes=int(limit or 0),
        final=final is not None,
        open_places=int(places or 0),
        consumers=[
            ConsumerStats(
                name=name.decode(), waiting=count, seen_at=moment and to_datetime(moment), active=is_active
            )
            for name, count, moment, is_active in sorted(zip(names, waiting, seen, active, strict=True))
        ],
    )
