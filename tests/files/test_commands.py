"""`manage.py publish_files`, `consume_files` and `messaging_files`."""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
import signal
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured
from django.core.management import CommandError
from django.test import override_settings

from django_redis_messaging import Aggregator, File, FileChannel, FileStats, LeaseLost, Unavailable, conf
from django_redis_messaging.core.encoding import FORMAT
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.management.commands import consume_files, publish_files
from django_redis_messaging.management.commands.publish_files import Watch
from django_redis_messaging.services.files import channel as file_steps
from django_redis_messaging.services.files.publishing import Source

from ..support.server import change, no_server, server
from ..support.terminal import on_terminal, output_of

pytestmark = pytest.mark.one_server

CONSUME = ("consume_files", "--channel", "logs", "--consumer", "a")
TO_BOTH = ("--channel", "logs", "--consumers", "a,b")
AGAIN = "Ending after the current file. Press Ctrl-C again to end at once.\r\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only a little longer than the lease of another process."""
    monkeypatch.setattr(file_steps, "MARGIN", 0.1)


def publish(*arguments: object, to: tuple[str, ...] = TO_BOTH) -> str:
    return output_of("publish_files", *map(str, arguments), *to)[0]


def stats() -> FileStats:
    found = FileChannel("logs").stats()
    assert found is not None
    return found


def waiting() -> int:
    """The number of files that the first consumer has not acked."""
    return stats().consumers[0].waiting


def received(consumer: str, number: int = -1) -> list[str]:
    """The next files of a consumer, by default all until the end; acks them."""
    found: list[str] = []
    with closing(FileChannel("logs").consume(consumer)) as files:
        while len(found) != number and (file := next(files, None)):
            found.append(file.name)
            file.ack()
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files of 3000 and 7 bytes."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "b.log").write_bytes(b"second\n")
    (folder / "a.log").write_bytes(b"first\n" * 500)
    (folder / ".hidden").write_bytes(b"hidden\n")
    return folder


class TestPublishing:
    def test_files_of_a_folder_are_published_once(self, folder: Path) -> None:
        assert publish(folder, "--max-bytes", "64K") == (
            "Published 2 files (2.9 KiB); skipped 0 that were published before.\n"
        )
        assert stats().max_bytes == 65536
        assert received("a", 2) == received("b", 2) == ["a.log", "b.log"]
        (folder / "c.log").write_bytes(b"third\n")
        assert publish(folder) == "Published 1 file (6 B); skipped 2 that were published before.\n"
        assert publish(folder, "--verbosity", "0") == ""
        with pytest.raises(CommandError, match="has the consumers 'a', 'b'"):
            publish(folder, to=("--channel", "logs", "--consumers", "c"))

    def test_a_number_of_consumers(self, folder: Path) -> None:
        publish(folder, to=("--channel", "logs", "--consumers", "2"))
        assert stats().open_places == 2
        received("anyone", 2)
        assert stats().open_places == 1

    def test_final_waits_until_all_consumers_are_done(self, folder: Path) -> None:
        with ThreadPoolExecutor(2) as pool:
            consumed = pool.map(received, ["a", "b"])
            assert publish(folder, "--final").startswith("Published 2 files")
            assert list(consumed) == [["a.log", "b.log"]] * 2
        assert FileChannel("logs").stats() is None

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ("{}/missing.log", r"There is no file or directory '.*/missing.log'\."),
            ("{}/a.log --max-bytes 2K", r"a\.log' \(bytes; see max_bytes\): 3000 is over the limit of 2048"),
            ("{} --max-bytes 2X", "argument --max-bytes: '2X' is not a size"),
            ("{} --max-bytes 0", "max_bytes must be between 1 and"),
            ("{} --consumers 0", "consumers must be between 1 and 100, not 0"),
            ("{} --consumers a,,b", "consumer is empty"),
            ("{} --channel ", "channel is empty"),
            ("{} --watch --final", "--final can't be used with --watch"),
            ("{} --watch 0", "--watch must be between 0.1 and 86400 seconds"),
            ("{} --watch --settle nan", "--settle between 0 and 86400"),
        ],
    )
    def test_invalid_arguments(self, arguments: str, text: str, folder: Path) -> None:
        with pytest.raises(CommandError, match=text):
            output_of("publish_files", *TO_BOTH, *arguments.format(folder).split(" "))
        assert FileChannel("logs").stats() is None

    def test_an_unreadable_file(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: Source) -> Any:
            raise PermissionError(13, "Permission denied", "a.log")

        monkeypatch.setattr(Source, "open", refuse)
        with pytest.raises(CommandError, match=r"Permission denied: 'a\.log'"):
            publish(folder)
        assert stats().files == 0

    def test_a_second_publisher(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(file_steps, "lease_seconds", lambda _: 0.1)
        with (
            FileChannel("logs")._lease("", 60, print),
            pytest.raises(CommandError, match=r"^Another process publishes"),
        ):
            publish(folder)

    @pytest.mark.timing
    def test_a_signal_ends_waiting_for_space_and_removes_the_bar(self, folder: Path) -> None:
        bar = r"\r1 of 2 files, waiting for consumers: 100%\|[^|]+\| 2\.93k/2\.94k \["
        with on_terminal("publish_files", str(folder), *TO_BOTH, "--max-bytes", "3000") as terminal:
            terminal.read_until(lambda text: re.search(bar, text))
            terminal.process.send_signal(signal.SIGTERM)
            done = "Published 1 file (2.9 KiB); skipped 0 that were published before.\n"
            assert terminal.end() == (1, done)
        _, _, end = terminal.text.partition(f"\r\x1b[K{AGAIN}")
        assert "CommandError: A signal ended the command before everything was done: run it again." in end
        assert stats().bytes == 3000
        assert received("a", 1) == received("b", 1) == ["a.log"]
        assert publish(folder) == "Published 1 file (7 B); skipped 1 that was published before.\n"


@pytest.fixture
def changing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each file is modified when it is read for the first time; returns the names of those that were."""
    changed: list[str] = []
    read_blocks = Source.read_blocks

    def modify(source: Source, *arguments: Any) -> Iterator[bytes]:
        if source.name not in changed:
            changed.append(source.name)
            os.utime(source.path, ns=(0, os.stat(source.path).st_mtime_ns - 1))
        return read_blocks(source, *arguments)

    monkeypatch.setattr(Source, "read_blocks", modify)
    return changed


class TestWatching:
    def names(self, watch: Watch, now: float) -> list[str]:
        return [file.name for file in watch.settled(now)]

    def test_a_file_settles(self, folder: Path) -> None:
        watch = Watch([str(folder)], 2.0)
        assert self.names(watch, 10.0) == []
        (folder / "a.log").write_bytes(b"longer" * 1000)
        assert self.names(watch, 12.0) == self.names(watch, 13.9) == ["b.log"]
        first, second = watch.settled(14.0)
        assert (first.name, second.name) == ("a.log", "b.log")
        watch.forget(first)
        assert watch.settled(15.0) == [second]
        assert watch.settled(17.0) == [first, second]

    def test_order_is_that_of_publishing(self, folder: Path) -> None:
        other = folder.parent / "z.log"
        other.touch()
        watch = Watch([str(other), str(folder)], 0.0)
        assert self.names(watch, 1.0) == ["z.log", "a.log", "b.log"]
        (folder / "aa.log").touch()
        assert self.names(watch, 2.0) == ["z.log", "a.log", "aa.log", "b.log"]

    def test_published_deleted_and_special_files_are_left_out(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Published ones until they change."""
        os.mkfifo(folder / "pipe")
        watch = Watch([str(folder), str(folder / "b.log"), str(folder / "pipe")], 0.0)
        first, second = watch.settled(1.0)
        watch.mark_done(first)
        assert watch.settled(2.0) == [second]
        (folder / "a.log").write_bytes(b"changed")
        changed, _ = watch.settled(3.0)
        assert changed != first
        watch.mark_done(changed)
        assert re.fullmatch(r"'.*a\.log' had changed since .*", caplog.messages[0])
        (folder / "b.log").unlink()
        assert watch.settled(4.0) == []

    def watch(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *files: tuple[str, int], options: str = ""
    ) -> str:
        """Run the command. Creates each file when so many are published; ends it at the one without name."""
        pending = list(files)

        def is_set(_: object) -> bool:
            found = FileChannel("logs").stats()
            while pending and found and found.files >= pending[0][1]:
                name, _ = pending.pop(0)
                if not name:
                    return True
                (folder / name).write_bytes(b"new\n")
            return False

        monkeypatch.setattr(publish_files.Stopping, "is_set", is_set)  # type: ignore[attr-defined]
        return publish(folder, "--watch", "0.1", "--settle", "0", *options.split())

    def test_files_that_appear_are_published(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A second run skips them."""
        assert self.watch(folder, monkeypatch, ("aa.log", 2), ("c.log", 3), ("", 4)) == (
            "Published 4 files (2.9 KiB); skipped 0 that were published before.\n"
        )
        assert self.watch(folder, monkeypatch, ("d.log", 4), ("", 5)) == (
            "Published 1 file (4 B); skipped 4 that were published before.\n"
        )
        assert received("a", 5) == ["a.log", "b.log", "aa.log", "c.log", "d.log"]

    def test_a_file_that_changes_is_published_later(
        self, folder: Path, changing: list[str], monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        """Without --watch it is an error."""
        with pytest.raises(CommandError, match=r"a\.log' changed while it was published"):
            publish(folder)
        assert stats().files == 0
        changing.clear()
        assert self.watch(folder, monkeypatch, ("", 2)).startswith("Published 2 files (2.9 KiB)")
        assert changing == ["a.log", "b.log"]
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
        assert caplog.messages[0].startswith(
            f"Publishing {str(folder / 'a.log')!r} failed, trying again when"
        )
        assert received("a", 2) == ["a.log", "b.log"]

    def test_a_file_that_can_not_be_published_does_not_end_the_watch(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        output = self.watch(folder, monkeypatch, ("c.log", 1), ("", 2), options="--max-bytes 100")
        assert output.startswith("Published 2 files (11 B)")
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert "is over the limit of 100" in caplog.text


seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


def record(line: bytes | str | None) -> None:
    seen.append(line)


async def arecord(line: bytes | str | None) -> None:
    seen.append(line)


class Recorder:
    async def __call__(self, line: bytes | None) -> None:
        seen.append(line)


recorder = Recorder()


def refuse(line: bytes | None) -> None:
    """A handler that fails at the first line of the first file."""
    if line == b"one":
        raise KeyError("user text")
    seen.append(line)


async def arefuse(line: bytes | None) -> None:
    refuse(line)


def refuse_end(line: bytes | None) -> None:
    if line is None and b"three" not in seen:
        raise KeyError("user text")
    seen.append(line)


def first_letter(line: bytes) -> tuple[str, str]:
    if line == b"two":
        raise ValueError("malformed")
    if line == b"one" and "refuse" in seen:
        raise KeyError("user text")
    return "2026", line[:1].decode()


async def aparse(line: bytes) -> None:
    """Refused: parse functions are sync."""


def published(folder: Path, *contents: bytes, **options: Any) -> FileChannel:
    """Publish files 0.log, 1.log, … for the consumer a."""
    for number, content in enumerate(contents):
        (folder / f"{number}.log").write_bytes(content)
    channel = FileChannel("logs")
    paths = [folder / f"{number}.log" for number in range(len(contents))]
    channel.publish(paths, consumers=["a"], **options)
    return channel


def consume(handler: str, *arguments: str) -> str:
    """Run the command; returns what it has written to standard error."""
    out, errors = output_of(*CONSUME, "--handler", f"{__name__}.{handler}", *arguments)
    assert out == ""
    return errors


@pytest.fixture
def until_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends when it has acked all files."""
    monkeypatch.setattr(consume_files.Stopping, "is_set", lambda _: waiting() == 0)  # type: ignore[attr-defined]


class TestConsuming:
    @pytest.mark.parametrize("handler", ["record", "arecord", "recorder"])
    def test_the_handler_is_called_with_lines_and_the_end(
        self, handler: str, tmp_path: Path, until_empty: None
    ) -> None:
        compressed = gzip.compress(b"three")
        published(tmp_path, b"one\r\ntwo\n", compressed, b"")
        size = 9 + len(compressed)
        assert consume(handler) == (
            f"Consuming 'logs' as 'a'. Ctrl-C ends it.\nProcessed 3 files ({size} B, 3 lines).\n"
        )
        assert seen == [b"one", b"two", None, b"three", None, None]
        assert waiting() == 0

    @pytest.mark.parametrize("handler", ["record", "arecord"])
    def test_lines_are_decoded_until_the_last_file(self, handler: str, tmp_path: Path) -> None:
        with ThreadPoolExecutor(1) as pool:
            channel = pool.submit(published, tmp_path, "Zoë\nß\n".encode("latin-1"), final=True)
            assert consume(handler, "--encoding", "latin-1", "--verbosity", "0") == ""
            assert channel.result().stats() is None
        assert seen == ["Zoë", "ß", None]

    def test_lines_are_counted(self, tmp_path: Path, until_empty: None) -> None:
        published(tmp_path, b"one\ntwo\nthree\n", b"o\n")
        errors = consume("first_letter", "--aggregate", "letters")
        assert errors.endswith("Processed 2 files (16 B, 4 lines, 1 of them malformed).\n")
        letters = Aggregator("letters")
        assert [(count.key, count.count) for count in letters.top("2026")] == [("o", 2), ("t", 1)]
        assert letters.malformed() == 1

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (("--handler", "nowhere.at.all"), "--handler 'nowhere.at.all' can't be imported"),
            (("--handler", "json.__name__"), "--handler 'json.__name__' is not a function"),
            (("--channel", ""), "channel is empty"),
            (("--consumer", ""), "consumer is empty"),
            (("--aggregate", ""), "name is empty"),
            (("--encoding", "latin-0"), "--encoding 'latin-0' is not known"),
            (("--encoding", "utf-8", "--aggregate", "x"), "--encoding can't be used with --aggregate"),
            (("--aggregate", "x", "--handler", f"{__name__}.aparse"), "the handler must be a sync function"),
            (("--lease", "0"), "lease must be"),
        ],
    )
    def test_invalid_options(self, arguments: tuple[str, ...], text: str) -> None:
        with pytest.raises(CommandError, match=text):
            consume("record", *arguments)


class TestFailures:
    @pytest.mark.parametrize(
        "handler", ["refuse", "arefuse", "refuse_end", "first_letter --aggregate letters"]
    )
    def test_a_handler_that_fails(
        self, handler: str, tmp_path: Path, until_empty: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        seen.append("refuse")
        published(tmp_path, b"one\ntwo\n", b"three\n")
        with pytest.raises(CommandError, match=r"^Processing file \d+ \('0.log'\) failed: KeyError\.$"):
            consume(*handler.split())
        assert waiting() == 2
        consume(*handler.split(), "--skip-failed")
        if "--aggregate" in handler:
            assert Aggregator("letters").total("2026") == 1
        else:
            assert seen[-2:] == [b"three", None]
        failed, skipped = caplog.records
        for failure, text in [
            (failed, "failed, it is not acked and will be delivered again."),
            (skipped, "failed, skipping it."),
        ]:
            assert failure.levelno == logging.ERROR
            assert failure.message.endswith(f"('0.log') of channel 'logs' {text}")
            assert failure.exc_info
            assert failure.exc_info[0] is KeyError

    @pytest.mark.parametrize("handler", ["record", "arecord"])
    def test_an_unreadable_file(
        self, handler: str, tmp_path: Path, until_empty: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Truncated, or in another encoding."""
        published(tmp_path, gzip.compress(b"one\ntwo\n")[:-9], b"three\n")
        with pytest.raises(CommandError, match=r"'0.log'\) failed: .* truncated"):
            consume(handler)
        assert waiting() == 2
        consume(handler, "--skip-failed")
        assert seen[-2:] == [b"three", None]
        assert len(caplog.records) == 2
        published(tmp_path, b"\xff\n")
        with pytest.raises(CommandError, match="failed: UnicodeDecodeError"):
            consume(handler, "--encoding", "utf-8")

    @pytest.mark.parametrize("owner", ["file", "handler"])
    def test_errors_of_redis_do_not_skip_files(
        self, owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*_: object) -> None:
            raise Unavailable("Redis was not available.")

        published(tmp_path, b"one\n")
        monkeypatch.setattr(*((File, "_read", fail) if owner == "file" else (f"{__name__}.record", fail)))
        with pytest.raises(CommandError, match=r"^Redis was not available\.$"):
            consume("record", "--skip-failed")
        assert (waiting(), caplog.records) == (1, [])

    def test_a_full_aggregate_does_not_skip_files(
        self, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(f"{__name__}.first_letter", lambda line: (line.decode(), "one period each"))
        change(settings, AGGREGATE_MAX_PERIODS=1)
        published(tmp_path, b"one\ntwo\n")
        with pytest.raises(CommandError, match="AGGREGATE_MAX_PERIODS"):
            consume("first_letter", "--aggregate", "letters", "--skip-failed")
        assert waiting() == 1

    def test_other_consumers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        channel = published(tmp_path, b"one\n")
        with pytest.raises(CommandError, match="has no consumer 'b', but 'a'"):
            consume("record", "--consumer", "b")
        with closing(channel.consume("a")) as files:
            next(files)
            with pytest.raises(CommandError, match=r"^Another process consumes the channel 'logs' as 'a'"):
                consume("record", "--lease", "0.1")
        # released meanwhile: its file is neither acked nor skipped
        monkeypatch.setattr(f"{__name__}.record", lambda _: channel.release("a"))
        with pytest.raises(CommandError, match="lease on the channel 'logs' was lost"):
            consume("record", "--skip-failed")


@pytest.mark.promise
def test_signals_end_a_consumer_after_the_current_file_or_at_once(tmp_path: Path) -> None:
    """Log lines appear above the bar, which is removed at the first signal. After the second one, a successor
    gets the same file when the lease has ended."""
    code = f"""
        import time
        from pathlib import Path

        def show(line):
            if line == b"bad":
                raise ValueError
            print(line, flush=True)
            while line and not Path({str(tmp_path)!r}, "go").exists():
                time.sleep(0.005)
        """
    (tmp_path / "printing.py").write_text(textwrap.dedent(code))
    published(tmp_path, b"bad\n", b"one\ntwo\n", b"three\n")
    show = (*CONSUME, "--handler", "printing.show", "--skip-failed", "--lease", "0.5")
    for number in (signal.SIGINT, signal.SIGTERM):
        with on_terminal(*show, path=str(tmp_path)) as terminal:
            terminal.read_until(lambda text: re.search(r"'1\.log'.*\| 8\.00/8\.00 \[", text))
            terminal.process.send_signal(number)
            terminal.read_until(lambda text: text.endswith(f"\x1b[K{AGAIN}"))
            if number == signal.SIGINT:
                terminal.process.send_signal(number)
                assert terminal.end() == (-signal.SIGINT, "b'one'\n")
                assert terminal.text.endswith(f"\x1b[K{AGAIN}")
                assert re.search(
                    r"\rProcessing file \d+ \('0.log'\) .* skipping it.\r\nTraceb", terminal.text
                )
            else:
                (tmp_path / "go").touch()
                assert terminal.end() == (0, "b'one'\nb'two'\nNone\n")
    assert terminal.text.endswith(f"{AGAIN}Processed 1 file (8 B, 2 lines).\r\n")
    assert waiting() == 1


def files(*arguments: str) -> str:
    return output_of("messaging_files", *arguments)[0]


def rows(*arguments: str) -> Any:
    return json.loads(files("--json", *arguments))


class TestAdministration:
    @pytest.fixture
    def channel(self, tmp_path: Path) -> Any:
        """Publish two files of 5 and 2500 bytes to a channel."""
        paths = [tmp_path / "a.log", tmp_path / "b.log"]
        paths[0].write_bytes(b"line\n")
        paths[1].write_bytes(b"line\n" * 500)

        def publish(name: str, consumers: list[str] | int, using: str | None = None) -> FileChannel:
            published = FileChannel(name, using=using)
            published.publish(paths, consumers=consumers, max_bytes=4096)
            return published

        return publish

    @pytest.mark.worlds
    def test_channels_are_listed(self, channel: Any) -> None:
        assert (files(), rows()) == ("There are no file channels.\n", [])
        channel("b: {x}", 2)
        logs = channel("a", ["one", "two"])
        server().set(f"{conf.prefix()}:{FORMAT}:{{file:a}}:state", "x")  # another key
        before = datetime.now(UTC)
        with closing(logs.consume("two")) as consumed:
            next(consumed).ack()
            next(consumed)
            first, second = rows()
        seen_at = first["consumers"][1].pop("seen_at")
        assert abs(datetime.fromisoformat(seen_at) - before) < timedelta(minutes=1)
        assert first == {
            "channel": "a", "files": 2, "bytes": 2505, "max_bytes": 4096, "final": False, "open_places": 0,
            "consumers": [
                {"consumer": "one", "waiting": 2, "seen_at": None, "active": False},
                {"consumer": "two", "waiting": 1, "active": True},
            ],
        }  # fmt: skip
        assert (second["channel"], second["open_places"], second["consumers"]) == ("b: {x}", 2, [])
        assert [row["channel"] for row in rows("b: {x}", "a")] == ["b: {x}", "a"]
        with pytest.raises(CommandError, match="There is no file channel 'd'"):
            files("a", "d")
        with pytest.raises(CommandError, match="channel is empty"):
            files("")

    def test_tables_are_printed(self, channel: Any) -> None:
        channel("logs", ["one", "two", "three"])
        received("two", 1)
        with closing(FileChannel("logs").consume("three")) as consumed:
            next(consumed)
            lines = [line.split() for line in files().splitlines()]
        assert lines[:4] == [
            ["channel", "files", "bytes", "max_bytes", "final", "open_places"],
            ["logs", "2", "2.4", "KiB", "4.0", "KiB", "no", "0"],
            [],
            ["channel", "consumer", "state", "waiting", "seen"],
        ]
        found = {line[1]: line[2:] for line in lines[4:]}
        assert found["one"] == ["not", "started", "2", "-"]
        assert (found["two"][:2], found["two"][-1]) == (["vanished", "1"], "ago")
        assert found["three"][:2] == ["active", "2"]

    def test_names_are_escaped_for_the_terminal(self, channel: Any) -> None:
        channel("a\x1b[31m", ["b\n"])
        assert "a\\x1b[31m" in files()
        assert "b\\n" in files()
        assert "\x1b" not in files()
        assert rows()[0]["channel"] == "a\x1b[31m"

    def test_channels_of_another_alias(self, channel: Any) -> None:
        with EmbeddedServer() as other:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": other.url}
            with override_settings(CACHES={**configured.CACHES, "other": entry}):
                channel("logs", ["one"], using="other")
                assert rows() == []
                for arguments in (["--using", "other"], ["--using", "other", "logs"]):
                    assert [row["channel"] for row in rows(*arguments)] == ["logs"]
                files("--using", "other", "logs", "--release", "one")
                assert rows("--using", "other")[0]["consumers"] == []
        with pytest.raises(CommandError, match="CACHES has no django-redis entry 'unknown'"):
            files("--using", "unknown")

    def test_a_released_consumer(self, channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """An active one is refused without --force."""
        logs = channel("logs", ["one", "two"])
        received("one", 1)
        assert files("logs", "--release", "two") == (
            "Released 'two': no file of the channel 'logs' waits for it.\n"
        )
        assert ([one.name for one in stats().consumers], stats().files) == (["one"], 1)
        with closing(logs.consume("one")) as consumed:
            file = next(consumed)
            with pytest.raises(CommandError, match="'one' is active: stop its process first"):
                files("logs", "--release", "one")
            assert len(stats().consumers) == 1
            files("logs", "--release", "one", "--force")
            with pytest.raises(LeaseLost):
                file.ack()
        assert stats().files == 0
        channel("logs", ["three"])
        monkeypatch.setattr(FileChannel, "release", lambda *_: False)
        with pytest.raises(CommandError, match="has no consumer 'three' any more"):
            files("logs", "--release", "three")

    def test_a_released_place(self, channel: Any) -> None:
        channel("logs", 1)
        assert files("logs", "--release-place") == "Released a place of the channel 'logs'.\n"
        assert stats().open_places == 0
        with pytest.raises(CommandError, match="The channel 'logs' has no place"):
            files("logs", "--release-place")

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ("logs --release three", r"has no consumer 'three' \(found: 'one', 'two'\)"),
            ("--release one", "Name the channel"),
            ("logs logs --release-place", "Name the channel"),
            ("logs --release one --release-place", "can't be used together"),
            ("other --release one", "There is no file channel 'other'"),
        ],
    )
    def test_invalid_arguments(self, arguments: str, text: str, channel: Any) -> None:
        channel("logs", ["one", "two"])
        with pytest.raises(CommandError, match=text):
            files(*arguments.split())
        assert len(stats().consumers) == 2

    def test_an_unreachable_server(self) -> None:
        with no_server(), pytest.raises(CommandError, match="Redis was not available"):
            files()
