"""A file channel behind a proxy that drops the reply to any one of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from django_redis_messaging import conf
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.files import FileChannel, Report
from django_redis_messaging.services.files.keys import FileChannelKeys, FileKeys
from tests.support.proxy import LossyProxy

from ..conftest import Call
from ..support.faults import GENEROUS, SHARE, Connect

pytestmark = pytest.mark.one_server


BLOCK = 100
#: a file of three blocks, one without any, and one of one
CONTENTS = {"a": b"x" * 250, "b": b"", "c": b"abc"}


@pytest.fixture
def proxy(lasting: EmbeddedServer) -> Iterator[LossyProxy]:
    """A proxy that drops replies about the channel and its files, also those to plain commands."""
    with LossyProxy(lasting.socket, asking=b"{file") as started:
        yield started


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


async def consume(channel: FileChannel, call_style: str, most: int) -> list[tuple[str, bytes]]:
    """Receive and ack files: `most` of them, or all."""
    found = []
    if call_style == "blocking":
        for file in channel.consume("ann"):
            found.append((file.name, b"".join(file.blocks())))
            file.ack()
            if len(found) == most:
                break
        return found
    async with aclosing(channel.aconsume("ann")) as files:
        async for file in files:
            found.append((file.name, b"".join([block async for block in file.ablocks()])))
            await file.aack()
            if len(found) == most:
                break
    return found


async def distribute(channel: FileChannel, call: Call, call_style: str, logs: Path) -> None:
    """Publish, consume, and end a channel."""
    names = ["ann", "bob"]
    report = Report(files=3, bytes=253, skipped=0, completed=True)
    assert await call(channel, "publish", logs, consumers=names, max_bytes=253) == report
    assert await consume(channel, call_style, len(CONTENTS)) == [*CONTENTS.items()]
    await call(channel, "release", "bob")
    assert (await call(channel, "stats")).bytes == 0
    report = Report(files=0, bytes=0, skipped=3, completed=True)
    assert await call(channel, "publish", logs, consumers=["ann"], max_bytes=253, final=True) == report
    assert await consume(channel, call_style, len(CONTENTS)) == []


def is_deleted(server: EmbeddedServer, channel: FileChannel) -> bool:
    with server.client() as client:
        keys = FileChannelKeys(conf.prefix(), channel.channel), FileKeys(conf.prefix(), channel.channel)
        return not any(any(client.scan_iter(f"{key.tag[:-1]}*", count=1000)) for key in keys)


async def test_any_lost_reply_changes_nothing(
    call: Call, call_style: str, connect: Connect, proxy: LossyProxy, lasting: EmbeddedServer, logs: Path
) -> None:
    connect(proxy, COMMAND_DEADLINE=GENEROUS, FILES_BLOCK_BYTES=BLOCK)
    lost = -1
    while proxy.lost > lost:
        lost = proxy.lost
        channel = FileChannel(f"c{lost}")
        proxy.lose_one_after(lost)
        await distribute(channel, call, call_style, logs)
        assert is_deleted(lasting, channel)
    assert lost > 25


async def test_lost_replies_one_after_the_other(
    call: Call, call_style: str, connect: Connect, proxy: LossyProxy, lasting: EmbeddedServer, logs: Path
) -> None:
    connect(proxy, COMMAND_DEADLINE=GENEROUS, FILES_BLOCK_BYTES=BLOCK)
    proxy.lose_some(SHARE)
    channel = FileChannel("logs")
    await distribute(channel, call, call_style, logs)
    assert proxy.lost > 5
    assert is_deleted(lasting, channel)
