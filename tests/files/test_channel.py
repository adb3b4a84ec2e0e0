"""File channels: publishing, consuming, space, leases, the end of a channel."""

from __future__ import annotations

import gzip
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing, contextmanager, nullcontext
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
    LeaseLost,
    LimitExceeded,
    LockError,
    Progress,
    Report,
    UnknownConsumer,
    conf,
)
from django_redis_messaging.core.operations import perform
from django_redis_messaging.services.files import channel as file_steps
from django_redis_messaging.services.files.keys import FileChannelKeys, FileKeys, file_name
from django_redis_messaging.services.files.publishing import Publication

from ..conftest import Call
from ..support.server import all_keys, change, server, steps, until

pytestmark = pytest.mark.usefixtures("closing")

#: seconds; the lease of a process that is killed
LEASE = 0.2


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
def channel(messaging_alias: str) -> FileChannel:
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


def keys() -> FileChannelKeys:
    return FileChannelKeys(conf.prefix(), "logs")


def channel_keys() -> list[str]:
    """The keys of channels and files, without those of leases, which expire by themselves."""
    return [key for key in all_keys() if "{lease:" not in key]


def block_keys() -> list[str]:
    return [key for key in all_keys() if "{file:" in key]


def stored_bytes() -> int:
    """Bytes of all blocks in Redis."""
    return sum(len(block) for key in block_keys() for block in server().hvals(key))


def reserved_bytes() -> int:
    return int(server().hget(keys().state, "used") or 0)


def received(channel: FileChannel, consumer: str, **options: Any) -> list[tuple[str, bytes]]:
    """The names and contents of all files that a consumer gets until the end of the channel."""
    found = []
    for file in channel.consume(consumer, **options):
        found.append((file.name, b"".join(file.blocks())))
        file.ack()
    return found


async def each(style: str, channel: FileChannel, consumer: str) -> AsyncIterator[File]:
    """The files of a consumer, in either form."""
    if style == "blocking":
        with closing(channel.consume(consumer)) as files:
            for file in files:
                yield file
    else:
        async with aclosing(channel.aconsume(consumer)) as afiles:
            async for file in afiles:
                yield file


async def listed(style: str, file: File, method: str, *args: Any) -> list[Any]:
    """The items that a method of a file yields, in either form."""
    if style == "blocking":
        return list(getattr(file, method)(*args))
    return [item async for item in getattr(file, f"a{method}")(*args)]


def first(channel: FileChannel, consumer: str, **options: Any) -> File:
    """The first file of a consumer, whose process then dies without an ack."""
    files = channel.consume(consumer, **options)
    file = next(files)
    files.close()
    return file


@contextmanager
def in_thread(function: Callable[..., Any], *args: Any, **options: Any) -> Iterator[Any]:
    """Run a function in a thread; yields its future."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(function, *args, **options)


class Stopper:
    """A `stop` that a test sets."""

    def __init__(self) -> None:
        self.stopped = False

    def is_set(self) -> bool:
        return self.stopped


class TestPublishing:
    async def test_each_consumer_gets_each_file_in_order(
        self, call: Call, call_style: str, channel: FileChannel, logs: Path
    ) -> None:
        report = await call(channel, "publish", logs, consumers=["ann", "bob"])
        assert report == Report(files=3, bytes=size_of(logs), skipped=0, completed=True)
        for consumer in ("ann", "bob"):
            names, lines = [], []
            async for file in each(call_style, channel, consumer):
                names.append(file.name)
                lines += await listed(call_style, file, "lines")
                await call(file, "ack")
                if len(names) == 3:
                    break
            assert names == ["a.log", "b.log", "c.log.gz"]
            assert lines == [b"one", b"two", b"", b"three", b"four", b"five"]
        assert block_keys() == []
        assert reserved_bytes() == 0

    async def test_a_file_is_read_as_blocks_lines_and_batches(
        self, call: Call, call_style: str, channel: FileChannel, logs: Path, settings: Any
    ) -> None:
        change(settings, FILES_BLOCK_BYTES=4)
        await call(channel, "publish", logs / "b.log", consumers=["ann"])
        async for file in each(call_style, channel, "ann"):
            assert await listed(call_style, file, "blocks") == [b"two\r", b"\n\nth", b"ree"]
            assert file.bytes_read == file.size == 11
            assert await listed(call_style, file, "lines", "utf-8") == ["two", "", "three"]
            assert await listed(call_style, file, "batches", 2) == [[b"two", b""], [b"three"]]
            assert (file.channel, file.consumer, file.encoding) == ("logs", "ann", "")
            await call(file, "ack")
            break

    def test_compressed_files_are_decompressed_by_lines_only(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs / "c.log.gz", consumers=["ann"])
        file = first(channel, "ann")
        assert file.encoding == "gzip"
        assert b"".join(file.blocks()) == (logs / "c.log.gz").read_bytes()
        assert list(file.batches(5)) == [[b"four", b"five"]]

    def test_an_empty_file_has_no_lines(self, channel: FileChannel, tmp_path: Path) -> None:
        channel.publish(write(tmp_path / "empty", 0), consumers=["ann"], max_bytes=1)
        file = first(channel, "ann")
        assert (file.size, list(file.lines()), list(file.blocks())) == (0, [], [])

    async def test_a_file_is_not_published_twice(self, call: Call, channel: FileChannel, logs: Path) -> None:
        await call(channel, "publish", logs / "a.log", consumers=["ann"])
        report = await call(channel, "publish", logs, consumers=["ann"])
        assert (report.files, report.skipped) == (2, 1)
        (logs / "a.log").write_bytes(b"changed\n")
        assert channel.publish(logs, consumers=["ann"]).files == 1

    def test_the_final_publish_ends_consumers_and_leaves_nothing(
        self, channel: FileChannel, logs: Path
    ) -> None:
        with in_thread(received, channel, "ann") as ann, in_thread(received, channel, "bob") as bob:
            channel.publish(logs, consumers=["ann", "bob"], final=True)
        assert [name for name, _ in ann.result()] == ["a.log", "b.log", "c.log.gz"]
        assert ann.result() == bob.result()
        until(lambda: channel_keys() == [])
        assert channel.stats() is None

    def test_a_final_publish_without_files_ends_waiting_consumers(self, channel: FileChannel) -> None:
        with in_thread(received, channel, "ann") as ann:
            until(lambda: any("ann" in key for key in all_keys()))
            assert channel.publish([], consumers=["ann"], final=True) == Report(
                files=0, bytes=0, skipped=0, completed=True
            )
        assert ann.result() == []
        until(lambda: channel_keys() == [])

    def test_a_consumer_that_was_away_notices_the_end_later(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs, consumers=["ann", "bob"])
        for file in channel.consume("ann"):
            file.ack()
            if file.name == "c.log.gz":
                break
        with in_thread(received, channel, "bob"):
            channel.publish([], consumers=["ann", "bob"], final=True)
        assert all(server().pttl(key) > 0 for key in channel_keys())
        assert received(channel, "ann") == []
        assert channel_keys() == []

    def test_after_its_end_a_channel_can_be_used_again(self, channel: FileChannel, logs: Path) -> None:
        for _ in range(2):
            with in_thread(received, channel, "ann") as ann:
                assert channel.publish(logs, consumers=["ann"], final=True).files == 3
            assert len(ann.result()) == 3

    def test_nothing_follows_the_last_file(self, channel: FileChannel, logs: Path) -> None:
        stop = Stopper()

        def show(progress: Progress) -> None:
            stop.stopped = not progress.name and progress.waiting

        report = channel.publish(logs / "a.log", consumers=["ann"], final=True, on_progress=show, stop=stop)
        assert not report.completed
        with pytest.raises(FileChannelError, match="last file of the channel 'logs' has been published"):
            channel.publish(logs, consumers=["ann"])
        # the same files again: the publisher was killed while it waited
        with in_thread(received, channel, "ann") as ann:
            assert channel.publish(logs / "a.log", consumers=["ann"], final=True).skipped == 1
        assert len(ann.result()) == 1

    def test_any_names_up_to_a_number_of_consumers(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs, consumers=2)
        found = channel.stats()
        assert found is not None and found.open_places == 2
        assert first(channel, "ann").name == first(channel, "bob").name == "a.log"
        with pytest.raises(UnknownConsumer, match=r"no consumer 'cid', but 'ann', 'bob'"):
            first(channel, "cid")

    def test_consumers_can_be_added_but_not_dropped(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs / "a.log", consumers=["ann"])
        channel.publish(logs / "b.log", consumers=["ann", "bob"])
        assert first(channel, "ann").name == "a.log"
        assert first(channel, "bob").name == "b.log"
        with pytest.raises(FileChannelError, match="has the consumers 'ann', 'bob'"):
            channel.publish(logs, consumers=["bob"])
        with pytest.raises(FileChannelError, match="has the consumers"):
            channel.publish(logs, consumers=1)

    def test_progress_counts_files_and_bytes(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs / "a.log", consumers=["ann"])
        shown: list[Progress] = []
        channel.publish(logs, consumers=["ann"], on_progress=shown.append)
        assert [(one.name, one.files, one.bytes) for one in shown if one.files == 1] == [
            ("a.log", 1, 4),
            ("b.log", 1, 4),
            ("b.log", 1, 15),
        ]
        assert (shown[-1].files, shown[-1].bytes) == (3, size_of(logs))
        assert {(one.total_files, one.total_bytes, one.waiting) for one in shown} == {
            (3, size_of(logs), False)
        }

    def test_stop_ends_before_the_next_file(self, channel: FileChannel, logs: Path) -> None:
        stop = Stopper()

        def show(progress: Progress) -> None:
            stop.stopped = progress.files == 1

        assert channel.publish(logs, consumers=["ann"], on_progress=show, stop=stop).files == 1
        assert reserved_bytes() == stored_bytes() == 4


class TestOriginalScenario:
    """The test of the original design: three files under a limit of their total size and one byte."""

    def test_all_lines_of_three_files_are_counted(self, channel: FileChannel, tmp_path: Path) -> None:
        for number, lines in enumerate([1, 10_000, 100_000]):
            content = b"".join(b"line %d\n" % line for line in range(lines))
            if lines == 10_000:
                (tmp_path / f"{number}.log.gz").write_bytes(gzip.compress(content))
            else:
                (tmp_path / f"{number}.log").write_bytes(content)
        with in_thread(self.count, channel, "0") as one, in_thread(self.count, channel, "1") as other:
            channel.publish(tmp_path, consumers=2, max_bytes=size_of(tmp_path) + 1, final=True)
        assert one.result() == other.result() == [1, 10_000, 100_000]
        until(lambda: channel_keys() == [])

    def count(self, channel: FileChannel, consumer: str) -> list[int]:
        found = []
        for file in channel.consume(consumer):
            found.append(sum(1 for line in file.lines() if line.startswith(b"line ")))
            file.ack()
        return found


class TestSpace:
    def test_never_more_than_max_bytes_are_stored(self, channel: FileChannel, tmp_path: Path) -> None:
        folder = write(tmp_path / "files", 300, 500, 400, 900, 100, 1000, 50)
        seen: list[int] = []
        with in_thread(received, channel, "ann") as ann, in_thread(received, channel, "bob"):
            channel.publish(
                folder, consumers=["ann", "bob"], max_bytes=1000, final=True,
                on_progress=lambda _: seen.append(max(stored_bytes(), reserved_bytes())),
            )  # fmt: skip
        assert [len(content) for _, content in ann.result()] == [300, 500, 400, 900, 100, 1000, 50]
        assert 900 <= max(seen) <= 1000

    def test_publishing_waits_for_space_and_is_woken(
        self, channel: FileChannel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_redis_messaging.services.files.channel.MAX_WAIT", 3600)
        folder = write(tmp_path / "files", 10, 10)
        shown: list[Progress] = []
        with in_thread(
            channel.publish, folder, consumers=["ann"], max_bytes=15, on_progress=shown.append
        ) as publishing:
            until(lambda: shown and shown[-1].waiting)
            assert not publishing.done()
            with closing(channel.consume("ann")) as files:
                next(files).ack()
                assert next(files).name == "1.log"
        assert publishing.result().files == 2

    def test_a_waiting_publisher_stops(self, channel: FileChannel, tmp_path: Path) -> None:
        stop = Stopper()

        def show(progress: Progress) -> None:
            stop.stopped = progress.waiting

        folder = write(tmp_path / "files", 10, 10)
        report = channel.publish(folder, consumers=["ann"], max_bytes=15, on_progress=show, stop=stop)
        assert report.files == 1

    def test_the_number_of_files_is_limited(
        self, channel: FileChannel, tmp_path: Path, settings: Any
    ) -> None:
        change(settings, FILES_MAX_WAITING=2)
        folder = write(tmp_path / "files", 0, 0, 0)
        waits: list[int] = []
        with in_thread(received, channel, "ann") as ann:
            channel.publish(
                folder, consumers=["ann"], final=True,
                on_progress=lambda _: waits.append(server().zcard(keys().files)),
            )  # fmt: skip
        assert len(ann.result()) == 3
        assert max(waits) <= 2

    def test_a_publisher_deletes_what_a_consumer_left_in_the_trash(
        self, channel: FileChannel, tmp_path: Path
    ) -> None:
        folder = write(tmp_path / "files", 10, 10)
        channel.publish(folder / "0.log", consumers=["ann"], max_bytes=15)
        file = first(channel, "ann")
        file._session.fence += 1
        ack = steps(channel._ack, file._session, file.id)
        perform(conf.alias(), one_step(ack))  # the consumer dies before it deletes the blocks
        assert stored_bytes() == 10
        assert channel.publish(folder / "1.log", consumers=["ann"], max_bytes=15).files == 1
        assert len(block_keys()) == 1


def one_step(body: Any) -> Any:
    """Only the first step of an operation."""
    return (yield next(body))


class TestBadInput:
    def test_a_missing_file_is_an_error_before_anything_is_sent(
        self, channel: FileChannel, logs: Path
    ) -> None:
        with pytest.raises(FileNotFoundError):
            channel.publish([logs, logs / "missing"], consumers=["ann"])
        assert all_keys() == []

    def test_a_file_above_the_limit_is_an_error_before_anything_is_sent(
        self, channel: FileChannel, logs: Path
    ) -> None:
        with pytest.raises(
            LimitExceeded, match=r"b\.log' \(bytes; see max_bytes\): 11 is over the limit of 10"
        ) as caught:
            channel.publish(logs, consumers=["ann"], max_bytes=10)
        assert (caught.value.limit, caught.value.actual) == (10, 11)
        assert all_keys() == []

    def test_only_regular_files_are_published(self, channel: FileChannel, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InvalidArgument, match="not a regular file"):
            channel.publish(tmp_path / "pipe", consumers=["ann"])
        assert channel.publish(tmp_path, consumers=["ann"]).files == 0

    @pytest.mark.parametrize(
        ("options", "error", "problem"),
        [
            ({"consumers": []}, ValueError, "consumers is empty"),
            ({"consumers": 0}, ValueError, "consumers must be between 1 and 100"),
            ({"consumers": 101}, ValueError, "consumers must be between 1 and 100"),
            ({"consumers": True}, TypeError, "consumers must be an int"),
            ({"consumers": "ann"}, TypeError, "consumers must be a list"),
            ({"consumers": [""]}, ValueError, "consumer is empty"),
            ({"consumers": [str(number) for number in range(101)]}, LimitExceeded, "FILES_MAX_CONSUMERS"),
            ({"max_bytes": 0}, ValueError, "max_bytes must be between"),
            ({"max_bytes": 1.5}, TypeError, "max_bytes must be an int"),
            ({"final": 1}, TypeError, "final must be True or False"),
            ({"lease": 0}, ValueError, "lease must be between"),
        ],
    )
    def test_wrong_arguments(
        self, channel: FileChannel, logs: Path, options: dict[str, Any], error: type[Exception], problem: str
    ) -> None:
        with pytest.raises(error, match=problem):
            channel.publish(logs, **{"consumers": ["ann"], **options})
        assert all_keys() == []

    def test_the_name_of_a_consumer_is_checked_at_once(self, channel: FileChannel) -> None:
        with pytest.raises(InvalidArgument, match="consumer is empty"):
            channel.consume("")
        with pytest.raises(InvalidArgument, match="lease must be"):
            channel.consume("ann", lease=-1)

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
        assert block_keys() == []
        assert reserved_bytes() == 0
        report = await call(channel, "publish", path, consumers=["ann"])
        assert report.files == 1

    def test_a_name_that_is_not_utf8_is_escaped(self, channel: FileChannel, tmp_path: Path) -> None:
        path = os.path.join(os.fsencode(tmp_path), b"caf\xe9.log")
        Path(os.fsdecode(path)).write_bytes(b"x")
        channel.publish(os.fsdecode(path), consumers=["ann"])
        assert first(channel, "ann").name == r"caf\xe9.log"

    def test_an_unknown_checksum_is_a_configuration_error(
        self, channel: FileChannel, logs: Path, settings: Any
    ) -> None:
        change(settings, FILES_CHECKSUM="md4")
        with pytest.raises(ConfigurationError, match="'crc32', 'sha256' or None, not 'md4'"):
            channel.publish(logs, consumers=["ann"])


class TestPublisherCrashes:
    def copying(self, channel: FileChannel, path: Path, lease: Any) -> Any:
        """A publisher that has stored the first block of a file and then hangs."""
        run = Publication(path, ["ann"], 1000, False, None, None)
        body = steps(channel._publish, run, lease.fence)
        step = next(body)
        while not block_keys() or not stored_bytes():
            step = body.send(perform(conf.alias(), sent(step)))
        return body, step

    @pytest.fixture
    def file(self, tmp_path: Path, settings: Any) -> Path:
        change(settings, FILES_BLOCK_BYTES=4)
        path = tmp_path / "file.log"
        path.write_bytes(b"twelve bytes")
        return path

    def test_a_half_written_file_is_discarded_by_the_next_publisher(
        self, channel: FileChannel, file: Path
    ) -> None:
        lock = channel._lease("", LEASE, print)
        lock.acquire()
        self.copying(channel, file, lock)
        assert (stored_bytes(), reserved_bytes()) == (4, 12)
        assert 0 < server().pttl(block_keys()[0]) <= file_steps.WRITING_TTL
        lock.release()
        assert channel.publish(file, consumers=["ann"]).files == 1
        assert stored_bytes() == reserved_bytes() == 12
        assert server().pttl(block_keys()[0]) == -1
        assert list(first(channel, "ann").lines()) == [b"twelve bytes"]

    def test_a_publisher_that_was_suspended_changes_nothing_any_more(
        self, channel: FileChannel, file: Path
    ) -> None:
        lock = channel._lease("", LEASE, lambda error: None)
        lock.acquire()
        body, step = self.copying(channel, file, lock)
        lock.release()  # as at the end of the lease
        channel.publish(file, consumers=["ann"])
        with pytest.raises(LeaseLost, match="another process may have taken over"):
            while True:
                step = body.send(perform(conf.alias(), sent(step)))
        assert stored_bytes() == reserved_bytes() == 12
        assert len(block_keys()) == 1

    def test_an_interrupt_discards_the_file(self, channel: FileChannel, file: Path) -> None:
        def show(progress: Progress) -> None:
            if progress.bytes == 8:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            channel.publish(file, consumers=["ann"], on_progress=show)
        assert (stored_bytes(), reserved_bytes(), block_keys()) == (0, 0, [])

    def test_a_second_publisher_is_refused(self, channel: FileChannel, file: Path) -> None:
        with channel._lease("", 10, print), pytest.raises(LockError):
            channel.publish(file, consumers=["ann"], lease=0.1)

    @pytest.mark.timing
    def test_a_killed_publisher_delays_the_next_one_by_its_lease(
        self, channel: FileChannel, file: Path
    ) -> None:
        lock = channel._lease("", LEASE, print)
        lock.acquire()
        lock._holding.end_renewal()  # as if its process was killed
        assert channel.publish(file, consumers=["ann"], lease=LEASE).files == 1


def sent(step: Any) -> Any:
    return (yield step)


class TestConsuming:
    def test_a_file_is_delivered_again_until_it_is_acked(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs, consumers=["ann"])
        assert first(channel, "ann").id == first(channel, "ann").id
        with closing(channel.consume("ann")) as files:
            next(files).ack()
        assert first(channel, "ann").name == "b.log"

    async def test_the_next_file_needs_an_ack_of_the_previous_one(
        self, call: Call, call_style: str, channel: FileChannel, logs: Path
    ) -> None:
        await call(channel, "publish", logs, consumers=["ann"])
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

    @pytest.mark.parametrize("wait", [3600])
    def test_a_consumer_may_come_first_and_is_woken(
        self, channel: FileChannel, logs: Path, monkeypatch: pytest.MonkeyPatch, wait: float
    ) -> None:
        monkeypatch.setattr(file_steps, "MAX_WAIT", wait)
        with in_thread(received, channel, "ann") as ann:
            until(lambda: any("ann" in key for key in all_keys()))
            channel.publish(logs, consumers=["ann"], final=True)
        assert len(ann.result()) == 3

    def test_stop_ends_a_waiting_consumer(self, channel: FileChannel, monkeypatch: Any) -> None:
        monkeypatch.setattr(file_steps, "MAX_WAIT", 0.01)
        stop = Stopper()
        with in_thread(received, channel, "ann", stop=stop) as ann:
            until(lambda: any("ann" in key for key in all_keys()))
            stop.stopped = True
        assert ann.result() == []

    def test_an_unknown_consumer_is_refused(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs, consumers=["ann"])
        with pytest.raises(UnknownConsumer, match="has no consumer 'eve', but 'ann'"):
            first(channel, "eve")

    def test_a_second_process_under_one_name_is_refused(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs, consumers=["ann"])
        with closing(channel.consume("ann")) as files:
            next(files)
            with pytest.raises(LockError):
                first(channel, "ann", lease=0.1)

    async def test_a_consumer_that_lost_its_lease_can_not_ack(
        self, call: Call, channel: FileChannel, logs: Path
    ) -> None:
        await call(channel, "publish", logs, consumers=["ann"])
        old = first(channel, "ann")
        new = first(channel, "ann")
        with pytest.raises(LeaseLost):
            await call(old, "ack")
        assert first(channel, "ann").id == new.id

    def test_a_consumer_reads_nothing_after_the_loss_of_its_lease(
        self, channel: FileChannel, logs: Path
    ) -> None:
        channel.publish(logs, consumers=["ann"])
        file = first(channel, "ann")
        file._session.lose_lease(LeaseLost("lost"))
        with pytest.raises(LeaseLost):
            list(file.lines())

    @pytest.mark.timing
    def test_a_killed_consumer_delays_the_next_one_by_its_lease(
        self, channel: FileChannel, logs: Path
    ) -> None:
        channel.publish(logs, consumers=["ann"])
        lock = channel._lease("ann", LEASE, print)
        lock.acquire()
        lock._holding.end_renewal()  # as if its process was killed
        assert first(channel, "ann", lease=LEASE).name == "a.log"


class TestDamage:
    @pytest.fixture
    def file(self, channel: FileChannel, tmp_path: Path, settings: Any) -> File:
        change(settings, FILES_BLOCK_BYTES=4)
        return self.published(channel, tmp_path)

    def published(self, channel: FileChannel, tmp_path: Path) -> File:
        path = tmp_path / "file.log"
        path.write_bytes(b"twelve bytes")
        channel.publish(path, consumers=["ann"])
        return first(channel, "ann")

    async def test_a_missing_block(self, call_style: str, call: Call, file: File) -> None:
        server().hdel(block_keys()[0], 1)
        with pytest.raises(FileCorrupt, match=r"lost block 1 of 'file\.log'"):
            await listed(call_style, file, "blocks")

    async def test_a_changed_block(self, call_style: str, call: Call, file: File) -> None:
        server().hset(block_keys()[0], 1, b"XXXX")
        with pytest.raises(FileCorrupt, match=r"checksum of 'file\.log' differs"):
            await listed(call_style, file, "lines")

    async def test_a_truncated_block(self, call_style: str, call: Call, file: File) -> None:
        server().hset(block_keys()[0], 2, b"by")
        with pytest.raises(FileCorrupt, match="10 bytes instead of 12"):
            await listed(call_style, file, "blocks")

    @pytest.mark.parametrize(("kind", "detected"), [("sha256", True), (None, False)])
    def test_checksums_can_be_chosen(
        self, channel: FileChannel, tmp_path: Path, settings: Any, kind: str | None, detected: bool
    ) -> None:
        change(settings, FILES_CHECKSUM=kind)
        file = self.published(channel, tmp_path)
        assert list(file.lines()) == [b"twelve bytes"]
        server().hset(block_keys()[0], 0, b"XXXXXXXXXXXX")
        with pytest.raises(FileCorrupt) if detected else nullcontext():
            assert list(file.lines()) == [b"XXXXXXXXXXXX"]
            assert not detected

    def test_blocks_that_vanish_while_publishing(self, channel: FileChannel, tmp_path: Path) -> None:
        path = tmp_path / "file.log"
        path.write_bytes(b"twelve bytes")

        def show(progress: Progress) -> None:
            if progress.bytes:
                server().hdel(block_keys()[0], 0)

        with pytest.raises(FileChannelError, match="lost blocks"):
            channel.publish(path, consumers=["ann"], on_progress=show)
        assert (block_keys(), reserved_bytes()) == ([], 0)

    def test_a_truncated_gzip_file(self, channel: FileChannel, tmp_path: Path) -> None:
        path = tmp_path / "file.log.gz"
        path.write_bytes(gzip.compress(b"one\ntwo\n")[:-1])
        channel.publish(path, consumers=["ann"])
        with pytest.raises(FileCorrupt):
            list(first(channel, "ann").lines())


class TestVanishedConsumers:
    async def test_their_share_is_released_by_a_call(
        self, call: Call, channel: FileChannel, logs: Path
    ) -> None:
        await call(channel, "publish", logs, consumers=["ann", "bob"])
        for file in channel.consume("ann"):
            file.ack()
            if file.name == "c.log.gz":
                break
        assert len(block_keys()) == 3
        assert await call(channel, "release", "bob") is True
        assert await call(channel, "release", "bob") is False
        assert (block_keys(), reserved_bytes()) == ([], 0)

    def test_hundreds_of_files_are_freed(self, channel: FileChannel, tmp_path: Path) -> None:
        channel.publish(write(tmp_path / "files", *[1] * 600), consumers=["ann"])
        assert channel.release("ann") is True
        assert (block_keys(), reserved_bytes()) == ([], 0)

    def test_a_place_that_nobody_takes_is_released(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs / "a.log", consumers=2)
        file = next(files := channel.consume("ann"))
        file.ack()
        files.close()
        assert len(block_keys()) == 1
        assert channel.release(None) is True
        assert channel.release(None) is False
        assert block_keys() == []

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
    def test_an_idle_channel_expires_and_one_with_files_does_not(
        self, channel: FileChannel, logs: Path
    ) -> None:
        # without the streams: waiting clients miss nothing if these expire
        lasting = [keys().state, keys().consumers, keys().positions, keys().files, keys().published]
        channel.publish(logs / "a.log", consumers=["ann"])
        assert {server().pttl(key) for key in [*lasting, *block_keys()]} == {-1}
        with closing(channel.consume("ann")) as files:
            next(files).ack()
        assert channel_keys()
        assert all(server().pttl(key) > 0 for key in channel_keys())
        channel.publish(logs / "b.log", consumers=["ann"])
        assert {server().pttl(key) for key in [*lasting, *block_keys()]} == {-1}

    def test_each_file_has_a_slot_of_its_own(self, channel: FileChannel, logs: Path) -> None:
        channel.publish(logs, consumers=["ann"])
        with closing(channel.consume("ann")) as files:
            file = next(files)
        assert FileKeys(conf.prefix(), file_name("logs", file.id)).blocks in block_keys()
        assert len({key.partition("}")[0] for key in block_keys()}) == 3

    def test_names_are_encoded(self, messaging_alias: str, logs: Path) -> None:
        channel = FileChannel("a:{b} %" + "é" * 100)
        name = "x:{y}" + "ü" * 100
        channel.publish(logs / "a.log", consumers=[name], lease=1)
        assert list(first(channel, name).lines()) == [b"one"]
