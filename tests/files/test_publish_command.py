"""`manage.py publish_files`."""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError

from django_redis_messaging import FileChannel, FileStats
from django_redis_messaging.management.commands import publish_files
from django_redis_messaging.management.commands.publish_files import Watch
from django_redis_messaging.services.files.publishing import Source
from tests.support.terminal import on_terminal, output_of

pytestmark = pytest.mark.one_server

ARGUMENTS = ("--channel", "logs", "--consumers", "a,b")


def publish(*arguments: object, channel: tuple[str, ...] = ARGUMENTS) -> str:
    return output_of("publish_files", *map(str, arguments), *channel)[0]


def stats() -> FileStats:
    found = FileChannel("logs").stats()
    assert found is not None
    return found


def received(consumer: str, number: int) -> list[tuple[str, bytes]]:
    """Name and content of the next files of a consumer; acks them."""
    found = []
    with closing(FileChannel("logs").consume(consumer)) as files:
        for file in files:
            found.append((file.name, b"".join(file.blocks())))
            file.ack()
            if len(found) == number:
                break
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "b.log").write_bytes(b"second\n")
    (folder / "a.log").write_bytes(b"first\n" * 500)
    (folder / ".hidden").write_bytes(b"hidden\n")
    return folder


def test_files_of_a_folder_are_published_once(folder: Path) -> None:
    assert publish(folder, "--max-bytes", "64K") == (
        "Published 2 files (2.9 KiB); skipped 0 that were published before.\n"
    )
    assert stats().max_bytes == 65536
    for consumer in ("a", "b"):
        assert received(consumer, 2) == [("a.log", b"first\n" * 500), ("b.log", b"second\n")]
    (folder / "c.log").write_bytes(b"third\n")
    assert publish(folder) == "Published 1 file (6 B); skipped 2 that were published before.\n"
    assert publish(folder, "--verbosity", "0") == ""


def test_a_number_of_consumers(folder: Path) -> None:
    publish(folder, channel=("--channel", "logs", "--consumers", "2"))
    assert stats().open_places == 2
    received("anyone", 2)
    assert stats().open_places == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("{}/missing.log",), r"There is no file or directory '.*/missing.log'\."),
        (
            ("{}/a.log", "--max-bytes", "2K"),
            r"a\.log' \(bytes; see max_bytes\): 3000 is over the limit of 2048",
        ),
        (("{}", "--max-bytes", "2X"), "argument --max-bytes: '2X' is not a size"),
        (("{}", "--max-bytes", "0"), "max_bytes must be between 1 and"),
        (("{}", "--consumers", "0"), "consumers must be between 1 and 100, not 0"),
        (("{}", "--consumers", "a,,b"), "consumer is empty"),
        (("{}", "--channel", ""), "channel is empty"),
        (("{}", "--watch", "--final"), "--final can't be used with --watch"),
        (("{}", "--watch", "0"), "--watch must be between 0.1 and 86400 seconds"),
        (("{}", "--watch", "--settle", "nan"), "--settle between 0 and 86400"),
    ],
)
def test_invalid_arguments(arguments: tuple[str, ...], text: str, folder: Path) -> None:
    with pytest.raises(CommandError, match=text):
        output_of("publish_files", *ARGUMENTS, *(one.format(folder) for one in arguments))
    assert FileChannel("logs").stats() is None


def test_other_consumers_are_an_error(folder: Path) -> None:
    publish(folder)
    with pytest.raises(CommandError, match="has the consumers 'a', 'b'"):
        publish(folder, channel=("--channel", "logs", "--consumers", "c"))


def test_an_unreadable_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Source) -> Any:
        raise PermissionError(13, "Permission denied", "a.log")

    monkeypatch.setattr(Source, "open", refuse)
    with pytest.raises(CommandError, match=r"Permission denied: 'a\.log'"):
        publish(folder)
    assert stats().files == 0


@pytest.fixture
def changing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each file is modified when it is read for the first time; returns the names of those that were."""
    changed: list[str] = []
    read_blocks = Source.read_blocks

    def modify(source: Source, *arguments: Any) -> Iterator[bytes]:
        if source.name not in changed:
            changed.append(source.name)
            os.utime(source.path, ns=(0, 0))
        return read_blocks(source, *arguments)

    monkeypatch.setattr(Source, "read_blocks", modify)
    return changed


def test_a_file_that_changes_is_an_error(folder: Path, changing: list[str]) -> None:
    with pytest.raises(CommandError, match=r"a\.log' changed while it was published"):
        publish(folder)
    assert stats().files == 0


class TestWatch:
    def test_a_file_settles(self, folder: Path) -> None:
        watch, path = Watch([str(folder)], 2.0), folder / "a.log"
        assert names(watch.settled(10.0)) == []
        path.write_bytes(b"longer" * 1000)
        assert names(watch.settled(12.0)) == ["b.log"]
        assert names(watch.settled(13.9)) == ["b.log"]
        assert names(watch.settled(14.0)) == ["a.log", "b.log"]

    def test_order_is_that_of_publishing(self, folder: Path) -> None:
        other = folder.parent / "z.log"
        other.touch()
        watch = Watch([str(other), str(folder)], 0.0)
        assert names(watch.settled(1.0)) == ["z.log", "a.log", "b.log"]
        (folder / "aa.log").touch()
        assert names(watch.settled(2.0)) == ["z.log", "a.log", "aa.log", "b.log"]

    def test_published_files_are_left_out_until_they_change(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        watch = Watch([str(folder)], 0.0)
        first, second = watch.settled(1.0)
        watch.mark_done(first)
        assert watch.settled(2.0) == [second]
        (folder / "a.log").write_bytes(b"changed")
        changed, _ = watch.settled(3.0)
        assert changed != first
        watch.mark_done(changed)
        assert re.fullmatch(r"'.*a\.log' had changed since .*", caplog.messages[0])

    def test_a_forgotten_file_settles_again(self, folder: Path) -> None:
        watch = Watch([str(folder)], 1.0)
        watch.settled(1.0)
        first, second = watch.settled(2.0)
        watch.forget(first)
        assert watch.settled(2.5) == [second]
        assert watch.settled(3.5) == [first, second]

    def test_deleted_and_special_files_are_left_out(self, folder: Path) -> None:
        os.mkfifo(folder / "pipe")
        (folder / "a.log").unlink()
        watch = Watch([str(folder), str(folder / "a.log"), str(folder / "pipe")], 0.0)
        assert names(watch.settled(1.0)) == ["b.log"]


def names(files: list[Source]) -> list[str]:
    return [file.name for file in files]


def watching(monkeypatch: pytest.MonkeyPatch, *files: tuple[Path, int]) -> None:
    """Create each file when so many files are published; end the command instead if it has no suffix."""
    waiting = list(files)

    def is_set(_: object) -> bool:
        found = FileChannel("logs").stats()
        while waiting and found and found.files >= waiting[0][1]:
            path, _ = waiting.pop(0)
            if not path.suffix:
                return True
            path.write_bytes(b"new\n")
        return False

    monkeypatch.setattr(publish_files.Stopping, "is_set", is_set)


def test_files_that_appear_are_published(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watching(monkeypatch, (folder / "aa.log", 2), (folder / "c.log", 3), (folder / "end", 4))
    assert publish(folder, "--watch", "0.1", "--settle", "0") == (
        "Published 4 files (2.9 KiB); skipped 0 that were published before.\n"
    )
    assert [name for name, _ in received("a", 4)] == ["a.log", "b.log", "aa.log", "c.log"]


def test_a_file_that_changes_is_published_later(
    folder: Path, changing: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watching(monkeypatch, (folder / "end", 2))
    assert publish(folder, "--watch", "0.1", "--settle", "0").startswith("Published 2 files (2.9 KiB)")
    assert changing == ["a.log", "b.log"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert caplog.messages[0].startswith(f"Publishing {str(folder / 'a.log')!r} failed, trying again when")
    assert [name for name, _ in received("a", 2)] == ["a.log", "b.log"]


def test_a_file_that_can_not_be_published_does_not_end_the_watch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watching(monkeypatch, (folder / "c.log", 1), (folder / "end", 2))
    assert publish(folder, "--watch", "0.1", "--settle", "0", "--max-bytes", "100").startswith(
        "Published 2 files (11 B)"
    )
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "is over the limit of 100" in caplog.text


def test_a_second_run_of_watch_skips_published_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(folder)
    watching(monkeypatch, (folder / "c.log", 2), (folder / "end", 3))
    assert publish(folder, "--watch", "0.1", "--settle", "0") == (
        "Published 1 file (4 B); skipped 2 that were published before.\n"
    )


def test_final_waits_until_all_consumers_are_done(folder: Path) -> None:
    def consume(consumer: str) -> list[str]:
        names = []
        for file in FileChannel("logs").consume(consumer):
            names.append(file.name)
            file.ack()
        return names

    with ThreadPoolExecutor(2) as pool:
        consumed = pool.map(consume, ["a", "b"])
        assert publish(folder, "--final").startswith("Published 2 files")
        assert list(consumed) == [["a.log", "b.log"]] * 2
    assert FileChannel("logs").stats() is None


@pytest.mark.timing
def test_a_signal_ends_waiting_for_space_and_removes_the_bar(folder: Path) -> None:
    bar = r"\r1 of 2 files, waiting for consumers: 100%\|[^|]+\| 2\.93k/2\.94k \["
    with on_terminal("publish_files", str(folder), *ARGUMENTS, "--max-bytes", "3000") as terminal:
        terminal.read_until(lambda text: re.search(bar, text))
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == (1, "Published 1 file (2.9 KiB); skipped 0 that were published before.\n")
    _, _, end = terminal.text.partition(
        "\r\x1b[KEnding after the current file. Press Ctrl-C again to end at once.\r\n"
    )
    assert "CommandError: A signal ended the command before everything was done: run it again." in end
    assert stats().bytes == 3000
    for consumer in ("a", "b"):
        received(consumer, 1)
    assert publish(folder) == "Published 1 file (7 B); skipped 1 that was published before.\n"


def test_a_second_publisher(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_redis_messaging.services.files.channel.lease_seconds", lambda _: 0.1)
    with (
        FileChannel("logs")._lease("", 60, print),
        pytest.raises(CommandError, match=r"^Another process publishes"),
    ):
        publish(folder)
