"""A file channel on a server that is out of memory, or can't write to its disk: publishing is refused
entirely, the rest continues or fails without a change."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from django_redis_messaging import Unavailable, conf
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.files import FileChannel, FileStats, Report
from django_redis_messaging.services.files.keys import FileChannelKeys, FileKeys
from django_redis_messaging.services.files.publishing import Publication
from tests.support.server import reply_to, steps

from ..support.faults import Connect

pytestmark = pytest.mark.one_server


#: bytes
SIZE, LIMIT = 2500, 10_000
Fill = Callable[[], None]


@pytest.fixture
def messaging() -> dict[str, Any]:
    return {"FILES_BLOCK_BYTES": 1000}


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(path.name.encode() * SIZE)
    return paths


def block_keys(raw: redis.Redis) -> set[bytes]:
    """The keys of all files."""
    tag = FileKeys(conf.prefix(), "logs").tag[:-1]
    return set(raw.scan_iter(match=f"{tag}/*", count=1000))


def channel_keys(raw: redis.Redis) -> list[bytes]:
    return list(raw.scan_iter(match=f"{FileChannelKeys(conf.prefix(), 'logs').tag}*", count=1000))


def drop_filler(raw: redis.Redis) -> None:
    for key in raw.scan_iter(match=f"{conf.prefix()}:filler:*", count=1000):
        raw.delete(key)


def attempt(channel: FileChannel, paths: list[Path], fence: int) -> Generator[Any, Any, Report]:
    run = Publication(paths, ["ann"], LIMIT, False, None, None)
    body: Generator[Any, Any, Report] = steps(channel._publish, run, fence)
    return body


def test_publishing_is_refused_at_each_step(fill: Fill, raw: redis.Redis, logs: list[Path]) -> None:
    """Nothing is announced and nothing is left, whenever the memory is full; later it succeeds."""
    channel, refused = FileChannel("logs"), 0
    channel.publish(logs[:1], consumers=["ann"], max_bytes=LIMIT)
    before, blocks = channel.stats(), block_keys(raw)
    while channel.stats() == before:
        fence = 2**52 + refused
        body = attempt(channel, logs[:2], fence)
        step = next(body)
        with contextlib.suppress(StopIteration):
            for _ in range(refused):
                step = body.send(reply_to(step))
        fill()
        try:
            while True:
                step = body.send(reply_to(step))
        except Unavailable:
            body.close()
            channel._abandon(fence)
            assert block_keys(raw) == blocks
            refused += 1
        except StopIteration:
            pass
        drop_filler(raw)
    # begin, two reservations, open, a check, three blocks, the last pipeline, announce
    assert refused == 10
    assert [stats.waiting for stats in channel.stats().consumers] == [2]  # type: ignore[union-attr]


def test_call_that_runs_out_of_memory(fill: Fill, raw: redis.Redis, logs: list[Path]) -> None:
    channel = FileChannel("logs")
    with pytest.raises(Unavailable, match="out of memory"):
        channel.publish(
            logs, consumers=["ann"], max_bytes=LIMIT, on_progress=lambda now: now.bytes and fill()
        )
    stats = channel.stats()
    assert stats is not None
    assert (stats.files, stats.bytes, block_keys(raw)) == (0, 0, set())
    with pytest.raises(Unavailable, match="out of memory"):
        channel.publish(logs, consumers=["ann"], max_bytes=LIMIT)
    drop_filler(raw)
    assert channel.publish(logs, consumers=["ann"], max_bytes=LIMIT).files == 3


def test_refused_first_publication_leaves_no_key(fill: Fill, raw: redis.Redis, logs: list[Path]) -> None:
    channel = FileChannel("logs")
    fill()
    with pytest.raises(Unavailable):
        channel._publish(Publication(logs, ["ann"], LIMIT, False, None, None), 1)
    channel._abandon(1)
    assert channel_keys(raw) == []


def test_consumers_continue_until_the_end(fill: Fill, raw: redis.Redis, logs: list[Path]) -> None:
    channel, reports = FileChannel("logs"), list[Report]()
    publisher = threading.Thread(
        target=lambda: reports.append(channel.publish(logs, consumers=["ann"], max_bytes=LIMIT, final=True)),
        daemon=True,
    )
    publisher.start()
    found = []
    for file in channel.consume("ann"):
        if not found:
            fill()
        found.append((file.name, sum(map(len, file.blocks()))))
        file.ack()
    publisher.join(30)
    assert found == [(name, SIZE) for name in "abc"]
    assert reports == [Report(files=3, bytes=3 * SIZE, skipped=0, completed=True)]
    assert (channel_keys(raw), block_keys(raw)) == ([], set())


async def test_operators_continue(fill: Fill, raw: redis.Redis, logs: list[Path]) -> None:
    channel = FileChannel("logs")
    channel.publish(logs, consumers=["ann", "bob"], max_bytes=LIMIT)
    other = FileChannel("other")
    other.publish(logs, consumers=1, max_bytes=LIMIT)
    fill()
    assert other.release(None)
    assert other.stats() == FileStats(
        files=0, bytes=0, max_bytes=LIMIT, final=False, open_places=0, consumers=[]
    )
    assert channel.release("ann")
    assert len(block_keys(raw)) == 3
    assert await channel.arelease("bob")
    stats = await channel.astats()
    assert stats is not None
    assert (stats.files, stats.bytes, block_keys(raw)) == (0, 0, set())


@pytest.fixture
def failing(tmp_path: Path, connect: Connect) -> Iterator[EmbeddedServer]:
    """A server that refuses all writes, since it could not save its data."""
    data = tmp_path / "data"
    data.mkdir()
    with EmbeddedServer(options={"save": "3600 1", "dir": str(data)}) as server:
        connect(server, FILES_BLOCK_BYTES=1000, COMMAND_DEADLINE=0.1)
        yield server
        server.kill()  # it would not stop before it has saved its data


def test_full_disk(
    failing: EmbeddedServer, tmp_path: Path, logs: list[Path], until: Callable[[Callable[[], object]], None]
) -> None:
    """No file is lost, published in part, or acked."""
    channel = FileChannel("logs")
    channel.publish(logs[0], consumers=["ann"], max_bytes=LIMIT)
    with failing.client() as raw:

        def fail(_: object = None) -> None:
            shutil.rmtree(tmp_path / "data", ignore_errors=True)
            raw.config_set("stop-writes-on-bgsave-error", "yes")
            raw.bgsave()
            until(lambda: raw.info("persistence")["rdb_last_bgsave_status"] == "err")

        def recover() -> None:
            raw.config_set("stop-writes-on-bgsave-error", "no")

        with pytest.raises(Unavailable, match="MISCONF"):
            channel.publish(logs, consumers=["ann"], max_bytes=LIMIT, on_progress=fail, lease=0.1)
        with pytest.raises(Unavailable):
            next(iter(channel.consume("ann")))
        recover()
        stats = channel.stats()
        assert stats is not None
        assert stats.files == 1
        consumed = channel.consume("ann", lease=100)
        file = next(consumed)
        fail()
        assert sum(map(len, file.blocks())) == SIZE
        with pytest.raises(Unavailable):
            file.ack()
        recover()
        file.ack()
        consumed.close()
        assert channel.publish(logs, consumers=["ann"], max_bytes=LIMIT).files == 2
        assert len(block_keys(raw)) == 2
