"""File channels: publishing, consuming, space, the end of a channel, damage."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from django_redis_messaging import (
    ConfigurationError,
    ConsumerStats,
    File,
    FileChanged,
    FileChannel,
    FileChannelError,
    FileCorrupt,
    InvalidArgument,
    LimitExceeded,
    Lock,
    Progress,
    Report,
    UnknownConsumer,
    conf,
)
from django_redis_messaging.services.files import channel as file_steps
from django_redis_messaging.services.files import publishing
from django_redis_messaging.services.files.keys import FileKeys, file_name

from ..conftest import Call
from ..support.file_channels import block_keys, each, first, keys, received, reserved_bytes, stored_bytes
from ..support.server import all_keys, change, server, until

pytestmark = pytest.mark.usefixtures("closing")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A directory with three files, one of them compressed, and a hidden one."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "b.log").write_bytes(b"two\r\n\nthree")
    (folder / "a.log").write_bytes(b"one\n")
    (folder / "c.log.gz").write_bytes(gzip.compress(b"four\nfive\n"))
    (folder / ".d.log.swp").write_bytes(b"hidden")
    return folder


@pytest.fixture
def channel(messaging_alias: str, monkeypatch: pytest.MonkeyPatch) -> FileChannel:
    """A channel whose waits end often, also to look whether they must stop."""
    monkeypatch.setattr(file_steps, "MAX_WAIT", 0.05)
    return FileChannel("logs")


def size_of(folder: Path) -> int:
    """Bytes of the files that are published."""
    return sum(path.stat().st_size for path in folder.iterdir() if not path.name.startswith("."))


def write(folder: Path, *sizes: int) -> Path:
    """Files of these sizes in a new directory."""
    folder.mkdir()
    for number, size in enumerate(sizes):
        (folder / f"{number}.log").write_bytes(os.urandom(size))
    return folder


def channel_keys() -> list[str]:
    """The keys of channels and files, without those of leases, which expire by themselves."""
    return [key for key in all_keys() if "{lease:" not in key]


async def listed(style: str, file: File, method: str, *args: Any) -> list[Any]:
    """The items that a method of a file yields, in either form."""
    if style == "blocking":
        return list(getattr(file, method)(*args))
    return [item async for item in getattr(file, f"a{method}")(*args)]


@contextmanager
def consumers(channel: FileChannel, *names: str) -> Iterator[list[Future[Any]]]:
    """Each of them receives all files, in a thread."""
    with ThreadPoolExecutor(len(names)) as pool:
        futures = [pool.submit(received, channel, name) for name in names]
        until(lambda: all(any(name in key for key in all_keys()) for name in names))
        yield futures


class TestPublishing:
    async def test_each_consumer_gets_each_file_in_order(
        self, call: Call, call_style: str, channel: FileChannel, logs: Path, settings: Any
    ) -> None:
        change(settings, FILES_BLOCK_BYTES=4)
        report = await call(channel, "publish", logs, consumers=["ann", "bob"])
        assert report == Report(files=3, bytes=size_of(logs), skipped=0, completed=True)
        for consumer in ("ann", "bob"):
            names, lines = [], []
            async for file in each(call_style, channel, consumer):
                names.append(file.name)
                lines += await listed(call_style, file, "lines")
                if file.name == "b.log":
                    assert await listed(call_style, file, "blocks") == [b"two\r", b"\n\nth", b"ree"]
                    assert file.bytes_read == file.size == 11
                    assert await listed(call_style, file, "lines", "utf-8") == ["two", "", "three"]
                    assert await listed(call_style, file, "batches", 2) == [[b"two", b""], [b"three"]]
                    assert (file.channel, file.consumer, file.encoding) == ("logs", consumer, "")
                await call(file, "ack")
                if len(names) == 3:
                    break
            assert names == ["a.log", "b.log", "c.log.gz"]
            assert lines == [b"one", b"two", b"", b"three", b"four", b"five"]
        assert (block_keys(), reserved_bytes()) == ([], 0)

    def test_compressed_and_empty_files(self, channel: FileChannel, logs: Path, settings: Any) -> None:
        """Compressed files are decompressed by lines only, and recognised in blocks of one byte."""
        change(settings, FILES_BLOCK_BYTES=1)
        (logs / "a.log").write_bytes(b"")
        (logs / "b.log").write_bytes(gzip.compress(b"line"))
        channel.publish(logs, consumers=["ann"])
        with closing(channel.consume("ann")) as files:
            file = next(files)
            assert (file.size, list(file.lines()), list(file.blocks())) == (0, [], [])
            file.ack()
            file = next(files)
            assert (file.encoding, list(file.lines())) == ("gzip", [b"line"])
            file.ack()
            file = next(files)
            assert b"".join(file.blocks()) == (logs / "c.log.gz").read_bytes()
            assert list(file.batches(5)) == [[b"four", b"five"]]

    async def test_a_file_is_not_published_twice(self, call: Call, channel: FileChannel, logs: Path) -> None:
        """Unless it changes; with equal names and contents, two files are two."""
        await call(channel, "publish", logs / "a.log", consumers=["ann"])
        report = await call(channel, "publish", logs, consumers=["ann"])
        assert (report.files, report.skipped) == (2, 1)
        (logs / "a.log").write_bytes(b"changed\n")
        (logs / "other").mkdir()
        (logs / "other" / "a.log").write_bytes(b"changed\n")
        assert channel.publish([logs, logs / "other"], consumers=["ann"]).files == 2
        assert received(channel, "ann", 5)[3:] == [("a.log", b"changed\n")] * 2
        assert block_keys() == []

    def test_progress_counts_files_and_bytes(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs / "a.log", consumers=["ann"])
        shown: list[Progress] = []
        channel.publish(logs, consumers=["ann"], on_progress=shown.append)
        assert [(one.name, one.files, one.bytes) for one in shown if one.files == 1] == [
            ("a.log", 1, 4), ("b.log", 1, 4), ("b.log", 1, 15),
        ]  # fmt: skip
        assert (shown[-1].files, shown[-1].bytes) == (3, size_of(logs))
        totals = {(one.total_files, one.total_bytes, one.waiting) for one in shown}
        assert totals == {(3, size_of(logs), False)}

    def test_it_stops_before_the_next_file_or_while_it_waits(self, channel: FileChannel, logs: Path) -> None:
        for number, moment in enumerate(["files", "waiting"], 1):
            stop = threading.Event()
            report = channel.publish(
                logs, consumers=["ann"], max_bytes=size_of(logs) - 1, stop=stop,
                on_progress=lambda now: getattr(now, moment) and stop.set(),  # noqa: B023
            )  # fmt: skip
            assert (report.files, report.completed) == (1, False)
            assert len(block_keys()) == number
            assert reserved_bytes() == stored_bytes()

    def test_consumers_are_named_or_counted(self, channel: FileChannel, logs: Path) -> None:
        """Names take the open places of a number. Consumers can be added but not dropped."""
        channel.publish(logs / "a.log", consumers=2)
        found = channel.stats()
        assert found is not None and found.open_places == 2
        for wrong in (["ann"], 1):
            with pytest.raises(FileChannelError, match="has the consumers 2 more"):
                channel.publish(logs, consumers=wrong)
        channel.publish(logs / "b.log", consumers=["ann", "bob", "cid"])
        assert [first(channel, name).name for name in ("ann", "bob", "cid")] == ["a.log", "a.log", "b.log"]
        with pytest.raises(UnknownConsumer, match=r"no consumer 'eve', but 'ann', 'bob', 'cid'"):
            first(channel, "eve")
        with pytest.raises(FileChannelError, match="has the consumers 'ann', 'bob', 'cid'"):
            channel.publish(logs, consumers=["bob"])


class TestTheEnd:
    """Of a channel whose last file was published."""

    def test_it_ends_consumers_and_leaves_nothing(self, channel: FileChannel, logs: Path) -> None:
        """Also without any file; then the channel can be used again."""
        for paths, names in [(logs, ["a.log", "b.log", "c.log.gz"]), ([], []), (logs / "a.log", ["a.log"])]:
            with consumers(channel, "ann", "bob") as (ann, bob):
                report = channel.publish(paths, consumers=["ann", "bob"], final=True)  # type: ignore[arg-type]
            assert (report.files, report.skipped, report.completed) == (len(names), 0, True)
            assert [name for name, _ in ann.result()] == names
            assert ann.result() == bob.result()
            until(lambda: channel_keys() == [])
            assert channel.stats() is None

    def test_a_consumer_that_was_away_notices_it_later(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs, consumers=["ann", "bob"])
        assert len(received(channel, "ann", 3)) == 3
        with consumers(channel, "bob"):
            channel.publish([], consumers=["ann", "bob"], final=True)
        assert all(server().pttl(key) > 0 for key in channel_keys())
        assert received(channel, "ann") == []
        assert channel_keys() == []

    def test_nothing_follows_the_last_file(self, channel: FileChannel, logs: Path) -> None:
        stop = threading.Event()
        report = channel.publish(
            logs / "a.log", consumers=["ann"], final=True, stop=stop,
            on_progress=lambda now: now.waiting and stop.set(),
        )  # fmt: skip
        assert not report.completed
        with pytest.raises(FileChannelError, match="last file of the channel 'logs' has been published"):
            channel.publish(logs, consumers=["ann"])
        with pytest.raises(UnknownConsumer):
            first(channel, "anne")
        # the same files again: the publisher was killed while it waited
        with consumers(channel, "ann") as [ann]:
            assert channel.publish(logs / "a.log", consumers=["ann"], final=True).skipped == 1
        assert len(ann.result()) == 1

    def test_a_consumer_ends_before_the_next_channel_of_the_same_name(
        self, channel: FileChannel, logs: Path
    ) -> None:
        with closing(channel.consume("ann")) as files:
            channel.publish(logs / "a.log", consumers=["ann", "bob"])
            next(files).ack()
            channel.release("bob")
            channel.publish([], consumers=["ann"], final=True)
            channel.publish(logs, consumers=["ann", "bob"])
            assert next(files, None) is None
        assert first(channel, "ann").name == "a.log"

    def test_the_last_file_is_acked_twice(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs / "a.log", consumers=["ann"])
        with ThreadPoolExecutor() as pool, closing(channel.consume("ann")) as files:
            file = next(files)
            pool.submit(channel.publish, [], consumers=["ann"], final=True)
            until(lambda: (found := channel.stats()) and found.final)
            file.ack()
            file.ack()
            with pytest.raises(FileChannelError, match="was acked and may be deleted"):
                list(file.lines())

    def test_the_scenario_of_the_original(self, channel: FileChannel, tmp_path: Path) -> None:
        """Three files under a limit of their total size and one byte: all lines are counted."""
        numbers = [1, 1000, 20_000]
        for number in numbers:
            content = b"line\n" * number
            compressed = number == 1000
            path = tmp_path / (f"{number:05d}.log" + ".gz" * compressed)
            path.write_bytes(gzip.compress(content) if compressed else content)

        def count(consumer: str) -> list[int]:
            found = []
            for file in channel.consume(consumer):
                found.append(sum(line == b"line" for line in file.lines()))
                file.ack()
            return found

        with ThreadPoolExecutor(2) as pool:
            counts = pool.map(count, ["one", "other"])
            channel.publish(tmp_path, consumers=2, max_bytes=size_of(tmp_path) + 1, final=True)
        assert list(counts) == [numbers, numbers]
        until(lambda: channel_keys() == [])


class TestSpace:
    def test_never_more_than_max_bytes_are_stored(self, channel: FileChannel, tmp_path: Path) -> None:
        sizes = [300, 500, 400, 900, 100, 1000, 50]
        seen: list[int] = []
        with consumers(channel, "ann", "bob") as (ann, _):
            channel.publish(
                write(tmp_path / "files", *sizes), consumers=["ann", "bob"], max_bytes=1000, final=True,
                on_progress=lambda _: seen.append(max(stored_bytes(), reserved_bytes())),
            )  # fmt: skip
        assert [len(content) for _, content in ann.result()] == sizes
        assert 900 <= max(seen) <= 1000

    def test_publishers_and_consumers_wait_and_are_woken(
        self, channel: FileChannel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A consumer may come before the first file."""
        monkeypatch.setattr(file_steps, "MAX_WAIT", 3600)
        shown: list[Progress] = []
        with ThreadPoolExecutor(1) as pool, consumers(channel, "bob") as [bob]:
            publishing = pool.submit(
                channel.publish, write(tmp_path / "files", 10, 10), consumers=["ann", "bob"], max_bytes=15,
                final=True, on_progress=shown.append,
            )  # fmt: skip
            until(lambda: shown and shown[-1].waiting)
            assert not publishing.done()
            assert len(received(channel, "ann")) == 2
            assert publishing.result().files == 2
        assert len(bob.result()) == 2

    def test_hundreds_of_files_are_freed(self, channel: FileChannel, tmp_path: Path) -> None:
        channel.publish(write(tmp_path / "files", *[1] * 600), consumers=["ann"])
        assert channel.release("ann") is True
        assert (block_keys(), reserved_bytes()) == ([], 0)


#: options of a call, its error and a part of the message
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"consumers": []}, ValueError, "consumers is empty"),
    ({"consumers": 0}, ValueError, "consumers must be between 1 and 100"),
    ({"consumers": 101}, ValueError, "consumers must be between 1 and 100"),
    ({"consumers": True}, TypeError, "consumers must be an int"),
    ({"consumers": "ann"}, TypeError, "consumers must be a list"),
    ({"consumers": [""]}, ValueError, "consumer is empty"),
    ({"consumers": [str(number) for number in range(101)]}, LimitExceeded, "FILES_MAX_CONSUMERS"),
    ({"max_bytes": 0}, ValueError, "max_bytes must be between"),
    ({"max_bytes": 1.5}, TypeError, "max_bytes must be an int"),
    ({"max_bytes": 10}, LimitExceeded, r"b\.log' \(bytes; see max_bytes\): 11 is over the limit of 10"),
    ({"final": 1}, TypeError, "final must be True or False"),
    ({"lease": 0}, ValueError, "lease must be between"),
    ({"paths": ["missing"]}, FileNotFoundError, "missing"),
    ({"paths": ""}, InvalidArgument, "not the name of a file or a directory"),
    ({"paths": "a\0b"}, InvalidArgument, "not the name of a file or a directory"),
    ({"paths": b"/tmp"}, TypeError, "path"),
    ({"paths": [b"/tmp"]}, TypeError, "path"),
    ({"paths": [7]}, TypeError, "PathLike object, not int"),
]


class TestBadInput:
    @pytest.mark.parametrize(("options", "error", "problem"), BAD)
    def test_it_is_an_error_before_anything_is_sent(
        self, channel: FileChannel, logs: Path, options: dict[str, Any], error: type[Exception], problem: str
    ) -> None:
        with pytest.raises(error, match=problem) as caught:
            channel.publish(**{"paths": logs, "consumers": ["ann"], **options})
        assert all_keys() == []
        if options == {"max_bytes": 10}:
            assert isinstance(caught.value, LimitExceeded)
            assert (caught.value.limit, caught.value.actual) == (10, 11)

    def test_of_consumers_and_settings(
        self, channel: FileChannel, logs: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(InvalidArgument, match="consumer is empty"):
            channel.consume("")
        with pytest.raises(InvalidArgument, match="lease must be"):
            channel.consume("ann", lease=-1)
        with monkeypatch.context() as patches, pytest.raises(LimitExceeded, match="2 is over the limit of 1"):
            patches.setattr(publishing, "REMEMBERED", 1)
            channel.publish([logs / "a.log", logs / "b.log"], consumers=["ann"])
        change(settings, FILES_CHECKSUM="md4")
        with pytest.raises(ConfigurationError, match="'crc32', 'sha256' or None, not 'md4'"):
            channel.publish(logs, consumers=["ann"])

    def test_only_regular_files_are_published(self, channel: FileChannel, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InvalidArgument, match="not a regular file"):
            channel.publish(tmp_path / "pipe", consumers=["ann"])
        assert channel.publish(tmp_path, consumers=["ann"]).files == 0

    @pytest.mark.parametrize("change_file", [
        lambda path: path.write_bytes(b"longer than before"),
        lambda path: path.write_bytes(b"shorter"),
        lambda path: os.utime(path, ns=(1, 1)),
        lambda path: os.truncate(path, 0),
    ])  # fmt: skip
    async def test_a_file_that_changes_is_not_published(
        self, call: Call, channel: FileChannel, tmp_path: Path, settings: Any, change_file: Any
    ) -> None:
        change(settings, FILES_BLOCK_BYTES=4)
        path = tmp_path / "growing.log"
        path.write_bytes(b"twelve bytes")

        def show(progress: Progress) -> None:
            if progress.bytes == 4:
                change_file(path)

        with pytest.raises(FileChanged, match=r"growing\.log' changed while it was published"):
            await call(channel, "publish", path, consumers=["ann"], on_progress=show)
        assert (block_keys(), reserved_bytes()) == ([], 0)
        assert (await call(channel, "publish", path, consumers=["ann"])).files == 1

    def test_unusual_names(self, messaging_alias: str, logs: Path) -> None:
        """Those of channels and consumers are encoded; those of files that are not UTF-8 are escaped."""
        channel, name = FileChannel("a:{b} %" + "é" * 100), "x:{y}" + "ü" * 100
        path = os.path.join(os.fsencode(logs), b"caf\xe9.log")
        Path(os.fsdecode(path)).write_bytes(b"one")
        channel.publish(os.fsdecode(path), consumers=[name], lease=1)
        assert received(channel, name, 1) == [(r"caf\xe9.log", b"one")]


class TestConsuming:
    async def test_the_next_file_needs_an_ack_of_the_previous_one(
        self, call: Call, call_style: str, channel: FileChannel, logs: Path
    ) -> None:
        await call(channel, "publish", logs, consumers=["ann"])
        for _ in range(2):  # until then it is delivered again
            with pytest.raises(FileChannelError, match=r"'a\.log' was not acked: call file\.ack\(\)"):
                async for _ in each(call_style, channel, "ann"):
                    pass

    def test_acks_are_idempotent_and_in_order(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs, consumers=["ann"])
        with closing(channel.consume("ann")) as files:
            one = next(files)
            one.ack()
            one.ack()
            other = next(files)
            with pytest.raises(FileChannelError, match="ack the files in order"):
                channel._ack(other._session, other.id + 10_000_000)
            other.ack()
            one.ack()
            assert next(files).name == "c.log.gz"

    def test_stop_ends_waiting_consumers(self, channel: FileChannel, logs: Path) -> None:
        """For files, or for the lease of another process; that of a publisher, too."""
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(list, channel.consume("ann", stop=stop))
            until(all_keys)
            stop.set()
            assert waiting.result() == []
        channel.publish(logs, consumers=["ann"])
        with closing(channel.consume("ann")) as files:
            next(files)
            assert list(channel.consume("ann", stop=stop)) == []
        report = channel.publish(logs, consumers=["ann"], stop=stop)
        assert (report.files, report.skipped, report.completed) == (0, 0, False)


class TestDamage:
    @pytest.fixture
    def path(self, tmp_path: Path, settings: Any) -> Path:
        change(settings, FILES_BLOCK_BYTES=4)
        path = tmp_path / "file.log"
        path.write_bytes(b"twelve bytes")
        return path

    @pytest.mark.parametrize(
        ("number", "block", "method", "problem"),
        [
            (1, None, "blocks", r"lost block 1 of 'file\.log'"),
            (1, b"XXXX", "lines", r"checksum of 'file\.log' differs"),
            (2, b"by", "blocks", "10 bytes instead of 12"),
        ],
    )
    async def test_a_lost_or_changed_block(
        self, number: int, block: bytes | None, method: str, problem: str,
        call_style: str, call: Call, channel: FileChannel, path: Path,
    ) -> None:  # fmt: skip
        channel.publish(path, consumers=["ann"])
        file, [key] = first(channel, "ann"), block_keys()
        server().hset(key, number, block) if block else server().hdel(key, number)
        with pytest.raises(FileCorrupt, match=problem):
            await listed(call_style, file, method)

    @pytest.mark.parametrize(("kind", "detected"), [("sha256", True), (None, False)])
    def test_checksums_can_be_chosen(
        self, channel: FileChannel, path: Path, settings: Any, kind: str | None, detected: bool
    ) -> None:
        change(settings, FILES_CHECKSUM=kind)
        channel.publish(path, consumers=["ann"])
        file = first(channel, "ann")
        assert list(file.lines()) == [b"twelve bytes"]
        server().hset(block_keys()[0], 0, b"XXXX")
        with pytest.raises(FileCorrupt) if detected else nullcontext():
            assert list(file.lines()) == [b"XXXXve bytes"]
            assert not detected

    def test_blocks_that_vanish_while_publishing(self, channel: FileChannel, path: Path) -> None:
        with pytest.raises(FileChannelError, match="lost blocks"):
            channel.publish(
                path, consumers=["ann"],
                on_progress=lambda now: now.bytes and server().hdel(block_keys()[0], 0),
            )  # fmt: skip
        assert (block_keys(), reserved_bytes()) == ([], 0)

    def test_a_truncated_gzip_file(self, channel: FileChannel, path: Path) -> None:
        path.write_bytes(gzip.compress(b"one\ntwo\n")[:-1])
        channel.publish(path, consumers=["ann"])
        with pytest.raises(FileCorrupt):
            list(first(channel, "ann").lines())


class TestVanishedConsumers:
    async def test_their_share_is_released_by_a_call(
        self, call: Call, channel: FileChannel, logs: Path
    ) -> None:
        await call(channel, "publish", logs, consumers=["ann", "bob"])
        received(channel, "ann", 3)
        assert len(block_keys()) == 3
        assert await call(channel, "release", "bob") is True
        assert await call(channel, "release", "bob") is False
        assert (block_keys(), reserved_bytes()) == ([], 0)

    def test_a_place_that_nobody_takes_is_released(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs / "a.log", consumers=2)
        received(channel, "ann", 1)
        assert len(block_keys()) == 1
        assert (channel.release(None), channel.release(None), block_keys()) == (True, False, [])

    def test_the_statistics_name_them(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs, consumers=["ann", "bob"], max_bytes=1000)
        with closing(channel.consume("ann")) as files:
            next(files).ack()
            found = channel.stats()
            assert found is not None
            ann, bob = found.consumers
        assert (found.files, found.bytes, found.max_bytes) == (3, size_of(logs), 1000)
        assert (ann.name, ann.waiting, ann.active) == ("ann", 2, True)
        assert ann.seen_at is not None
        assert bob == ConsumerStats(name="bob", waiting=3, seen_at=None, active=False)
        assert (found.final, found.open_places) == (False, 0)


class TestKeys:
    def test_a_channel_with_files_is_kept_and_others_expire(self, channel: FileChannel, logs: Path) -> None:
        # without the streams: waiting clients miss nothing if these expire
        lasting = [keys().state, keys().positions, keys().files, keys().published]
        channel.publish([], consumers=["ann"])
        for name in ("a.log", "b.log"):
            assert channel_keys()
            assert all(server().pttl(key) > 0 for key in channel_keys())
            channel.publish(logs / name, consumers=["ann"])
            assert {server().pttl(key) for key in [*lasting, keys().consumers, *block_keys()]} == {-1}
            received(channel, "ann", 1)

    def test_each_file_has_a_slot_of_its_own(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs, consumers=["ann"])
        file = first(channel, "ann")
        assert FileKeys(conf.prefix(), file_name("logs", file.id)).blocks in block_keys()
        assert len({key.partition("}")[0] for key in block_keys()}) == 3

    def test_leases_and_locks_have_different_names(self, channel: FileChannel, logs: Path) -> None:
        with Lock("files:logs"), Lock("files:logs:ann"):
            channel.publish(logs, consumers=["ann"], lease=0.2)
            assert first(channel, "ann").name == "a.log"
