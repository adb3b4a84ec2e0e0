"""File channels when processes crash or lose their lease, replies are lost, or the server can't write."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest
import redis

from django_redis_messaging import (
    File,
    FileChannel,
    FileStats,
    LeaseLost,
    Lock,
    LockError,
    Report,
    Unavailable,
    conf,
)
from django_redis_messaging.core.operations import Listen, Script
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.files import channel as file_steps
from django_redis_messaging.services.files.channel import aleased, leased
from django_redis_messaging.services.files.keys import FileChannelKeys, FileKeys
from django_redis_messaging.services.files.publishing import Publication
from django_redis_messaging.services.files.received import Session
from tests.support.proxy import LossyProxy

from ..conftest import Call
from ..support.faults import GENEROUS, SHARE, Connect
from ..support.file_channels import block_keys, each, first, keys, reserved_bytes, stored_bytes
from ..support.processes import forked
from ..support.server import all_keys, change, finish, reply_to, server, server_ms, steps, until

#: seconds; the lease of a process that is killed
LEASE = 0.2
#: bytes
SIZE, LIMIT = 2500, 10_000
#: for lost replies: a file of three blocks, one without any, and one of one
CONTENTS = {"a": b"x" * 250, "b": b"", "c": b"abc"}
Fill = Callable[[], None]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Three files of three blocks each."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for name in "abc":
        (folder / name).write_text(name * SIZE)
    return folder


@pytest.fixture
def messaging() -> dict[str, Any]:
    return {"FILES_BLOCK_BYTES": 1000}


@pytest.fixture
def channel(messaging_alias: str, settings: Any, messaging: dict[str, Any]) -> FileChannel:
    change(settings, **messaging)
    return FileChannel("logs")


def channel_keys() -> list[str]:
    return [key for key in all_keys() if key.startswith(keys().tag)]


def publishing(
    channel: FileChannel, paths: Any, fence: int = 1, *, final: bool = False, stop: Any = None
) -> Generator[Any, Any, Report]:
    """The steps of a publisher."""
    run = Publication(paths, ["ann"], LIMIT, final, None, stop)
    body: Generator[Any, Any, Report] = steps(channel._publish, run, fence)
    return body


def until_script(body: Generator[Any, Any, Any], verb: str) -> Any:
    """Run a call until its next step is this script, and return that step."""
    step = next(body)
    while not (isinstance(step, Script) and step.source.name == f"files/{verb}"):
        step = body.send(reply_to(step))
    return step


class TestPublishers:
    """That crash. test_machine.py kills and overtakes them at any step."""

    def test_a_half_written_file_is_discarded_by_the_next_one(self, channel: FileChannel, logs: Path) -> None:
        lock = channel._lease("", LEASE, print)
        lock.acquire()
        body = publishing(channel, logs / "a", lock.fence)
        step = next(body)
        while not stored_bytes():
            step = body.send(reply_to(step))
        assert (stored_bytes(), reserved_bytes()) == (1000, SIZE)
        assert 0 < server().pttl(block_keys()[0]) <= file_steps.WRITING_TTL
        lock.release()
        assert channel.publish(logs / "a", consumers=["ann"]).files == 1
        with pytest.raises(LeaseLost, match="another process may have taken over"):
            finish(body, step)
        [key] = block_keys()
        assert stored_bytes() == reserved_bytes() == SIZE
        assert server().pttl(key) == -1

    def test_an_interrupt_discards_the_file(self, channel: FileChannel, logs: Path) -> None:
        def show(progress: Any) -> None:
            if progress.bytes == 2000:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            channel.publish(logs / "a", consumers=["ann"], on_progress=show)
        assert (stored_bytes(), reserved_bytes(), block_keys()) == (0, 0, [])

    @pytest.mark.parametrize("final", [False, True])
    def test_they_wait_without_polling(self, channel: FileChannel, logs: Path, final: bool) -> None:
        """Also if no file of the channel was ever freed."""
        for name in "abc":
            (logs / name).write_bytes(b"x" * LIMIT)
        body, verbs = publishing(channel, logs / "a" if final else logs, final=final), list[str]()
        step = next(body)
        while not isinstance(step, Listen):
            verbs += [step.source.name] if isinstance(step, Script) else []
            assert len(verbs) < 10
            step = body.send(reply_to(step))
        assert verbs[-2:] == ["files/announce", "files/close" if final else "files/reserve"]

    def test_stop_while_space_is_reserved_leaves_no_reservation(
        self, channel: FileChannel, logs: Path
    ) -> None:
        stop = threading.Event()
        body = publishing(channel, logs, stop=stop)
        step = until_script(body, "reserve")
        stop.set()
        report = finish(body, step)
        stats = channel.stats()
        assert stats is not None
        assert report == Report(files=stats.files, bytes=stats.bytes, skipped=0, completed=False)
        assert stats.bytes == SIZE * stats.files

    def test_a_repeat_of_an_announcement_after_a_takeover(self, channel: FileChannel, logs: Path) -> None:
        """The reply was lost, the lease ended, and another publisher began: the file remains announced."""
        body = publishing(channel, logs / "a")
        step = until_script(body, "announce")
        reply_to(step)
        assert channel.publish(logs / "a", consumers=["ann"], max_bytes=LIMIT).skipped == 1
        finish(body, step)
        assert list(first(channel).lines()) == [b"a" * SIZE]

    def test_after_a_killed_final_one_the_channel_can_be_used_again(
        self, channel: FileChannel, logs: Path
    ) -> None:
        reply_to(until_script(publishing(channel, logs / "a", final=True), "close"))  # it dies
        for file in channel.consume("ann"):
            file.ack()
        report = channel.publish([logs / "a", logs / "b"], consumers=["ann"])
        assert (report.files, report.skipped) == (1, 1)
        assert first(channel).name == "b"

    def test_ids_grow_although_the_clock_was_set_back(self, channel: FileChannel, logs: Path) -> None:
        """The fence of the publisher's lease is ahead of the clock."""
        fence = 2 * server_ms() * 1000
        body = publishing(channel, logs / "a", fence)
        finish(body, next(body))
        assert first(channel).id > fence

    def test_blocks_that_a_consumer_has_not_deleted(self, channel: FileChannel, logs: Path) -> None:
        """It died after its ack: a publisher that needs the space deletes them."""
        channel.publish(logs / "a", consumers=["ann"], max_bytes=SIZE)
        session = Session("ann")
        session.fence = 2**52
        reply_to(next(steps(channel._ack, session, first(channel).id)))
        assert stored_bytes() == SIZE
        assert channel.publish(logs / "b", consumers=["ann"], max_bytes=SIZE).files == 1
        assert len(block_keys()) == 1


class TestLeases:
    def test_a_second_process_is_refused(
        self, channel: FileChannel, logs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file_steps, "MARGIN", 0.1)
        channel.publish(logs, consumers=["ann"])
        with channel._lease("", 10, print), pytest.raises(LockError):
            channel.publish(logs, consumers=["ann"], lease=0.1)
        with closing(channel.consume("ann")) as files, pytest.raises(LockError):
            next(files)
            first(channel, lease=0.1)

    @pytest.mark.timing
    def test_a_killed_process_delays_the_next_one_by_its_lease(
        self, channel: FileChannel, logs: Path
    ) -> None:
        for name in ("", "ann"):
            lock = channel._lease(name, LEASE, print)
            lock.acquire()
            lock._holding.end_renewal()  # as if its process was killed
        assert channel.publish(logs, consumers=["ann"], lease=LEASE).files == 3
        assert first(channel, lease=LEASE).name == "a"

    async def test_a_consumer_that_lost_its_lease_can_not_ack_or_read(
        self, call: Call, channel: FileChannel, logs: Path
    ) -> None:
        await call(channel, "publish", logs, consumers=["ann"])
        old, new = first(channel), first(channel)
        with pytest.raises(LeaseLost):
            await call(old, "ack")
        assert first(channel).id == new.id
        new._session.lose_lease(LeaseLost("lost"))
        with pytest.raises(LeaseLost):
            list(new.lines())

    def test_a_late_consumer_does_not_report_damage(self, channel: FileChannel, logs: Path) -> None:
        """Its successor has acked the file that it reads."""
        channel.publish(logs / "a", consumers=["ann"], max_bytes=LIMIT)
        session, successor = Session("ann"), Session("ann")
        session.fence, successor.fence = 1, 2
        found = channel._next(session)
        assert found is not None
        channel._next(successor)
        channel._ack(successor, found.id)
        with pytest.raises(LeaseLost):
            list(File(channel, session, found).blocks())

    def test_a_channel_without_files_expires(self, channel: FileChannel) -> None:
        channel.publish([], consumers=2)
        reply_to(next(steps(channel._next, Session("ann"))))  # it takes a place, and ends
        assert channel_keys()
        assert all(server().pttl(key) > 0 for key in channel_keys())

    def test_a_fork_does_not_release_the_lease(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs, consumers=["ann"])
        files = channel.consume("ann")
        file = next(files)
        with forked(lambda: files.close() is None) as succeeded:
            assert succeeded()
        stats = channel.stats()
        assert stats is not None
        assert stats.consumers[0].active
        file.ack()
        files.close()

    async def test_the_error_of_a_block_is_not_replaced_by_that_of_the_release(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(lock: Lock, token: bytes) -> Any:
            raise Unavailable("away")

        monkeypatch.setattr(Lock, "_release", fail)
        with pytest.raises(ZeroDivisionError), leased(Lock("one"), "publishes", None):
            raise ZeroDivisionError
        with pytest.raises(asyncio.CancelledError):
            async with aleased(Lock("other"), "publishes", None):
                raise asyncio.CancelledError
        assert caplog.text.count("was not released: away") == 2
        with pytest.raises(Unavailable), leased(Lock("third"), "publishes", None):
            pass


@pytest.mark.one_server
class TestLostReplies:
    """The proxy drops the reply to any one step, or to many of them."""

    @pytest.fixture
    def proxy(self, lasting: EmbeddedServer, connect: Connect) -> Iterator[LossyProxy]:
        """A proxy that drops replies about the channel and its files, also those to plain commands."""
        with LossyProxy(lasting.socket, asking=b"{file") as started:
            connect(started, COMMAND_DEADLINE=GENEROUS, FILES_BLOCK_BYTES=100)
            yield started

    @pytest.fixture
    def logs(self, tmp_path: Path) -> Path:
        for name, content in CONTENTS.items():
            (tmp_path / name).write_bytes(content)
        return tmp_path

    async def consume(self, channel: FileChannel, call: Call, style: str) -> list[tuple[str, bytes]]:
        """Receive and ack all files."""
        found = []
        async with aclosing(each(style, channel, "ann")) as files:
            async for file in files:
                blocks = file.blocks() if style == "blocking" else [block async for block in file.ablocks()]
                found.append((file.name, b"".join(blocks)))
                await call(file, "ack")
                if len(found) == len(CONTENTS):
                    break
        return found

    async def distribute(
        self, channel: FileChannel, call: Call, call_style: str, logs: Path, lasting: EmbeddedServer
    ) -> None:
        """Publish, consume, and end a channel."""
        report = Report(files=3, bytes=253, skipped=0, completed=True)
        assert await call(channel, "publish", logs, consumers=["ann", "bob"], max_bytes=253) == report
        assert await self.consume(channel, call, call_style) == [*CONTENTS.items()]
        await call(channel, "release", "bob")
        assert (await call(channel, "stats")).bytes == 0
        report = Report(files=0, bytes=0, skipped=3, completed=True)
        assert await call(channel, "publish", logs, consumers=["ann"], max_bytes=253, final=True) == report
        assert await self.consume(channel, call, call_style) == []
        with lasting.client() as client:
            for kind in (FileChannelKeys, FileKeys):
                tag = kind(conf.prefix(), channel.channel).tag[:-1]
                assert not any(client.scan_iter(f"{tag}*", count=1000))

    async def test_they_change_nothing(
        self, call: Call, call_style: str, proxy: LossyProxy, lasting: EmbeddedServer, logs: Path
    ) -> None:
        lost = -1
        while proxy.lost > lost:
            lost = proxy.lost
            proxy.lose_one_after(lost)
            await self.distribute(FileChannel(f"c{lost}"), call, call_style, logs, lasting)
        assert lost > 25
        proxy.lose_some(SHARE)
        await self.distribute(FileChannel("logs"), call, call_style, logs, lasting)
        assert proxy.lost > lost + 5


@pytest.mark.one_server
class TestFullMemory:
    """Publishing is refused entirely, the rest continues."""

    @pytest.fixture
    def channel(self, fill: Fill) -> FileChannel:
        return FileChannel("logs")

    @pytest.fixture
    def free(self, raw: redis.Redis) -> Callable[[], None]:
        """Free the memory that was filled."""

        def drop_filler() -> None:
            for key in raw.scan_iter(match="filler:*", count=1000):
                raw.delete(key)

        return drop_filler

    def test_publishing_is_refused_at_each_step(
        self, channel: FileChannel, fill: Fill, free: Fill, logs: Path
    ) -> None:
        """Nothing is announced and nothing is left, whenever the memory is full; later it succeeds."""
        channel.publish(logs / "a", consumers=["ann"], max_bytes=LIMIT)
        before, blocks, refused = channel.stats(), block_keys(), 0
        while channel.stats() == before:
            fence = 2**52 + refused
            body = publishing(channel, [logs / "a", logs / "b"], fence)
            step = next(body)
            with contextlib.suppress(StopIteration):
                for _ in range(refused):
                    step = body.send(reply_to(step))
            fill()
            try:
                finish(body, step)
            except Unavailable:
                channel._abandon(fence)
                assert block_keys() == blocks
                refused += 1
            free()
        # begin, two reservations, open, a check, three blocks, the last pipeline, announce
        assert refused == 10
        assert [stats.waiting for stats in channel.stats().consumers] == [2]  # type: ignore[union-attr]

    def test_a_call_that_runs_out_of_memory(
        self, channel: FileChannel, fill: Fill, free: Fill, logs: Path
    ) -> None:
        """A refused first publication leaves no key."""
        fill()
        body = publishing(channel, logs)
        with pytest.raises(Unavailable):
            finish(body, next(body))
        channel._abandon(1)
        assert channel_keys() == []
        free()
        for show in (lambda now: now.bytes and fill(), None):
            with pytest.raises(Unavailable, match="out of memory"):
                channel.publish(logs, consumers=["ann"], max_bytes=LIMIT, on_progress=show)
            stats = channel.stats()
            assert stats is not None
            assert (stats.files, stats.bytes, block_keys()) == (0, 0, [])
        free()
        assert channel.publish(logs, consumers=["ann"], max_bytes=LIMIT).files == 3

    def test_consumers_continue_until_the_end(self, channel: FileChannel, fill: Fill, logs: Path) -> None:
        reports, found = list[Report](), list[tuple[str, int]]()

        def publish() -> None:
            reports.append(channel.publish(logs, consumers=["ann"], max_bytes=LIMIT, final=True))

        publisher = threading.Thread(target=publish, daemon=True)
        publisher.start()
        for file in channel.consume("ann"):
            if not found:
                fill()
            found.append((file.name, sum(map(len, file.blocks()))))
            file.ack()
        publisher.join(30)
        assert found == [(name, SIZE) for name in "abc"]
        assert reports == [Report(files=3, bytes=3 * SIZE, skipped=0, completed=True)]
        assert (channel_keys(), block_keys()) == ([], [])

    async def test_operators_continue(self, channel: FileChannel, fill: Fill, logs: Path) -> None:
        other = FileChannel("other")
        channel.publish(logs, consumers=["ann", "bob"], max_bytes=LIMIT)
        other.publish(logs, consumers=1, max_bytes=LIMIT)
        fill()
        empty = FileStats(files=0, bytes=0, max_bytes=LIMIT, final=False, open_places=0, consumers=[])
        assert other.release(None)
        assert other.stats() == empty
        assert channel.release("ann")
        assert len(block_keys()) == 3
        assert await channel.arelease("bob")
        assert await channel.astats() == empty
        assert block_keys() == []


@pytest.mark.one_server
class TestFullDisk:
    @pytest.fixture
    def failing(self, tmp_path: Path, connect: Connect) -> Iterator[EmbeddedServer]:
        """A server that refuses all writes when it could not save its data."""
        data = tmp_path / "data"
        data.mkdir()
        with EmbeddedServer(options={"save": "3600 1", "dir": str(data)}) as server:
            connect(server, FILES_BLOCK_BYTES=1000, COMMAND_DEADLINE=0.1)
            yield server
            server.kill()  # it would not stop before it has saved its data

    def test_no_file_is_lost_published_in_part_or_acked(
        self, failing: EmbeddedServer, tmp_path: Path, logs: Path
    ) -> None:
        def fail(_: object = None) -> None:
            shutil.rmtree(tmp_path / "data", ignore_errors=True)
            raw.config_set("stop-writes-on-bgsave-error", "yes")
            raw.bgsave()
            until(lambda: raw.info("persistence")["rdb_last_bgsave_status"] == "err")

        channel = FileChannel("logs")
        channel.publish(logs / "a", consumers=["ann"], max_bytes=LIMIT)
        with failing.client() as raw:
            with pytest.raises(Unavailable, match="MISCONF"):
                channel.publish(logs, consumers=["ann"], max_bytes=LIMIT, on_progress=fail, lease=0.1)
            with pytest.raises(Unavailable):
                first(channel)
            raw.config_set("stop-writes-on-bgsave-error", "no")
            stats = channel.stats()
            assert stats is not None
            assert stats.files == 1
            with closing(channel.consume("ann", lease=100)) as files:
                file = next(files)
                fail()
                assert sum(map(len, file.blocks())) == SIZE
                with pytest.raises(Unavailable):
                    file.ack()
                raw.config_set("stop-writes-on-bgsave-error", "no")
                file.ack()
            assert channel.publish(logs, consumers=["ann"], max_bytes=LIMIT).files == 2
            assert len(block_keys()) == 2
