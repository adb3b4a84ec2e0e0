"""Helpers for tests of the file channel "logs": its consumers and its keys."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, closing

from django_redis_messaging import File, FileChannel, conf
from django_redis_messaging.services.files.keys import FileChannelKeys

from .server import all_keys, server


def keys() -> FileChannelKeys:
    return FileChannelKeys(conf.prefix(), "logs")


def block_keys() -> list[str]:
    return [key for key in all_keys() if "{file:" in key]


def stored_bytes() -> int:
    """Bytes of all blocks in Redis."""
    return sum(len(block) for key in block_keys() for block in server().hvals(key))


def reserved_bytes() -> int:
    return int(server().hget(keys().state, "used") or 0)


def first(channel: FileChannel, consumer: str = "ann", *, lease: float = 10) -> File:
    """The first file of a consumer, whose process then ends without an ack."""
    with closing(channel.consume(consumer, lease=lease)) as files:
        return next(files)


def received(channel: FileChannel, consumer: str, count: int = 0) -> list[tuple[str, bytes]]:
    """The names and contents of files that a consumer gets: of so many, or until the end of the channel."""
    found = []
    with closing(channel.consume(consumer)) as files:
        for file in files:
            found.append((file.name, b"".join(file.blocks())))
            file.ack()
            if len(found) == count:
                break
    return found


async def each(style: str, channel: FileChannel, consumer: str) -> AsyncGenerator[File]:
    """The files of a consumer, in either form. A loop that breaks must close it."""
    if style == "blocking":
        with closing(channel.consume(consumer)) as files:
            for file in files:
                yield file
    else:
        async with aclosing(channel.aconsume(consumer)) as afiles:
            async for file in afiles:
                yield file
