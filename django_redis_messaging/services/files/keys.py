"""The keys of file channels, their files and their leases."""

from __future__ import annotations

import hashlib

from ...core.encoding import MAX_NAME_BYTES, encoded, tag


class FileChannelKeys:
    """The keys of one channel, in one slot; _files.lua explains them. All expire when the channel has had
    no file for 30 days, and a day after it was closed, unless the last consumer deletes them before."""

    def __init__(self, prefix: str, channel: str) -> None:
        self.tag = tag(prefix, "files", channel)

    @property
    def state(self) -> str:
        """HASH of counters, limits, and the file that is being written."""
        return self.tag + ":state"

    @property
    def consumers(self) -> str:
        """HASH: fence and ms of the last call of each consumer; the fence of the publisher."""
        return self.tag + ":consumers"

    @property
    def positions(self) -> str:
        """ZSET consumer → id of the last file that it has acked."""
        return self.tag + ":positions"

    @property
    def files(self) -> str:
        """ZSET "id size description" → id: announced files that not all consumers have acked. At most
        FILES_MAX_WAITING."""
        return self.tag + ":files"

    @property
    def trash(self) -> str:
        """ZSET "id size" → id: files whose blocks are to be deleted. Every ack, and every publisher, deletes
        those that it finds."""
        return self.tag + ":trash"

    @property
    def published(self) -> str:
        """ZSET identity of a source file → ms at which it was published: the latest REMEMBERED ones."""
        return self.tag + ":published"

    @property
    def news(self) -> str:
        """STREAM of one entry, whose id is a number of the channel: wakes the waiting consumers."""
        return self.tag + ":news"

    @property
    def space(self) -> str:
        """STREAM of one entry, whose id is a number of the channel: wakes the waiting publisher."""
        return self.tag + ":space"

    @property
    def all(self) -> list[str]:
        """All keys, in the order of channel_at in _files.lua: each script takes them."""
        return [
            self.state, self.consumers, self.positions, self.files, self.trash, self.published, self.news,
            self.space,
        ]  # fmt: skip


class FileKeys:
    """The keys of one file. Its name is `file_name(channel, id)`."""

    def __init__(self, prefix: str, file: str) -> None:
        self.tag = tag(prefix, "file", file)

    @property
    def blocks(self) -> str:
        """HASH number → block, from 0; an empty field while the file is being written. Until the file is
        announced it expires an hour after the latest block; then the ack of the last consumer deletes it."""
        return self.tag + ":blocks"


def file_name(channel: str, file_id: int) -> str:
    """The name of a file in its keys."""
    return f"{channel}/{file_id}"


def lease_key(prefix: str, channel: str, consumer: str = "") -> str:
    """STRING token of the consumer of a channel, or of its publisher if none is named: the key of a Lock.
    Expires with the lease.

    >>> lease_key("site", "logs"), lease_key("site", "logs", "country:day")
    ('site:2:{lease:files%3Alogs}', 'site:2:{lease:files%3Alogs%3Acountry%253Aday}')
    """
    parts = [encoded(channel), *([encoded(consumer)] if consumer else [])]
    key = tag(prefix, "lease", ":".join(["files", *parts]))
    if len(key.encode()) <= MAX_NAME_BYTES:
        return key
    return tag(prefix, "lease", f"files:{hashlib.sha256(key.encode()).hexdigest()}")
