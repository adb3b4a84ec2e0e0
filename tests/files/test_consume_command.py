"""`manage.py consume_files`."""

from __future__ import annotations

import gzip
import logging
import re
import signal
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError

from django_redis_messaging import Aggregator, File, FileChannel, Report, Unavailable
from django_redis_messaging.management.commands import consume_files
from tests.support.processes import PATIENCE, Start, commands
from tests.support.terminal import on_terminal, output_of

pytestmark = pytest.mark.one_server

ARGUMENTS = ("--channel", "logs", "--consumer", "a")

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


def publish(tmp_path: Path, *contents: bytes) -> list[Path]:
    """Publish files 0.log, 1.log, … for the consumer a."""
    paths = [tmp_path / f"{number}.log" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    FileChannel("logs").publish(paths, consumers=["a"])
    return paths


def waiting() -> int:
    """The number of files that the consumer has not acked."""
    stats = FileChannel("logs").stats()
    assert stats is not None
    return stats.consumers[0].waiting


def consume(handler: str, *arguments: str) -> str:
    """Run the command; returns what it has written to standard error."""
    out, errors = output_of("consume_files", *ARGUMENTS, "--handler", f"{__name__}.{handler}", *arguments)
    assert out == ""
    return errors


@pytest.fixture
def until_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends when it has acked all files."""
    monkeypatch.setattr(consume_files.Stopping, "is_set", lambda _: waiting() == 0)


@pytest.mark.parametrize("handler", ["record", "arecord", "recorder"])
def test_handler_is_called_with_lines_and_the_end(handler: str, tmp_path: Path, until_empty: None) -> None:
    compressed = gzip.compress(b"three")
    publish(tmp_path, b"one\r\ntwo\n", compressed, b"")
    assert consume(handler) == (
        f"Consuming 'logs' as 'a'. Ctrl-C ends it.\nProcessed 3 files ({9 + len(compressed)} B, 3 lines).\n"
    )
    assert seen == [b"one", b"two", None, b"three", None, None]
    assert waiting() == 0


@pytest.mark.parametrize("handler", ["record", "arecord"])
def test_lines_are_decoded(handler: str, tmp_path: Path, until_empty: None) -> None:
    publish(tmp_path, "Zoë\nß\n".encode("latin-1"))
    assert consume(handler, "--encoding", "latin-1", "--verbosity", "0") == ""
    assert seen == ["Zoë", "ß", None]


@pytest.mark.parametrize("handler", ["record", "arecord"])
def test_the_command_ends_after_the_last_file(handler: str, tmp_path: Path) -> None:
    (tmp_path / "0.log").write_bytes(b"one\n")
    with ThreadPoolExecutor(1) as pool:
        report = pool.submit(FileChannel("logs").publish, tmp_path / "0.log", consumers=["a"], final=True)
        consume(handler)
        assert report.result(PATIENCE) == Report(files=1, bytes=4, skipped=0, completed=True)
    assert seen == [b"one", None]


class TestFailures:
    @pytest.mark.parametrize("handler", ["refuse", "arefuse", "refuse_end"])
    def test_a_handler_that_fails(
        self, handler: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        publish(tmp_path, b"one\ntwo\n", b"three\n")
        with pytest.raises(CommandError, match=r"^Processing file \d+ \('0.log'\) failed: KeyError\.$"):
            consume(handler)
        assert waiting() == 2
        [failure] = caplog.records
        assert failure.levelno == logging.ERROR
        assert failure.message.endswith(
            "('0.log') of channel 'logs' failed, it is not acked and will be delivered again."
        )
        assert failure.exc_info
        assert failure.exc_info[0] is KeyError

    @pytest.mark.parametrize("handler", ["refuse", "arefuse", "refuse_end"])
    def test_failed_files_are_skipped(
        self, handler: str, tmp_path: Path, until_empty: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        publish(tmp_path, b"one\ntwo\n", b"three\n")
        consume(handler, "--skip-failed")
        assert seen[-2:] == [b"three", None]
        [failure] = caplog.records
        assert failure.message.endswith("('0.log') of channel 'logs' failed, skipping it.")
        assert failure.exc_info

    @pytest.mark.parametrize("handler", ["record", "arecord"])
    def test_a_truncated_file(
        self, handler: str, tmp_path: Path, until_empty: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        publish(tmp_path, gzip.compress(b"one\ntwo\n")[:-9], b"three\n")
        with pytest.raises(CommandError, match=r"'0.log'\) failed: .* truncated"):
            consume(handler)
        assert waiting() == 2
        consume(handler, "--skip-failed")
        assert seen[-2:] == [b"three", None]
        assert len(caplog.records) == 2

    def test_a_file_that_can_not_be_decoded(self, tmp_path: Path) -> None:
        publish(tmp_path, b"\xff\n")
        with pytest.raises(CommandError, match="failed: UnicodeDecodeError"):
            consume("record", "--encoding", "utf-8")

    def test_a_consumer_that_was_released(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its file is neither acked nor skipped."""
        publish(tmp_path, b"one\n")
        monkeypatch.setattr(f"{__name__}.record", lambda _: FileChannel("logs").release("a"))
        with pytest.raises(CommandError, match="lease on the channel 'logs' was lost"):
            consume("record", "--skip-failed")

    def test_errors_of_redis_do_not_skip_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*_: object) -> None:
            raise Unavailable("Redis was not available.")

        publish(tmp_path, b"one\n")
        monkeypatch.setattr(File, "_read", fail)
        with pytest.raises(CommandError, match=r"^Redis was not available\.$"):
            consume("record", "--skip-failed")
        assert waiting() == 1
        assert caplog.records == []

    def test_a_handler_that_needs_redis_does_not_skip_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(_: object) -> None:
            raise Unavailable("Redis was not available.")

        publish(tmp_path, b"one\n")
        monkeypatch.setattr(f"{__name__}.record", fail)
        with pytest.raises(CommandError, match=r"^Redis was not available\.$"):
            consume("record", "--skip-failed")
        assert waiting() == 1
        assert caplog.records == []

    def test_an_unknown_consumer(self, tmp_path: Path) -> None:
        publish(tmp_path, b"one\n")
        with pytest.raises(CommandError, match="has no consumer 'b', but 'a'"):
            consume("record", "--consumer", "b")

    def test_a_second_consumer_of_the_same_name(self, tmp_path: Path) -> None:
        publish(tmp_path, b"one\n")
        with closing(FileChannel("logs").consume("a")) as files:
            next(files)
            with pytest.raises(CommandError, match=r"^Another process consumes the channel 'logs' as 'a'"):
                consume("record", "--lease", "0.1")


class TestAggregate:
    def test_a_full_aggregate_does_not_skip_files(
        self, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(f"{__name__}.first_letter", lambda line: (line.decode(), "one period each"))
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "AGGREGATE_MAX_PERIODS": 1}
        publish(tmp_path, b"one\ntwo\n")
        with pytest.raises(CommandError, match="AGGREGATE_MAX_PERIODS"):
            consume("first_letter", "--aggregate", "letters", "--skip-failed")
        assert waiting() == 1

    def test_lines_are_counted(self, tmp_path: Path, until_empty: None) -> None:
        publish(tmp_path, b"one\ntwo\nthree\n", b"o\n")
        errors = consume("first_letter", "--aggregate", "letters")
        assert errors.endswith("Processed 2 files (16 B, 4 lines, 1 of them malformed).\n")
        letters = Aggregator("letters")
        assert [(count.key, count.count) for count in letters.top("2026")] == [("o", 2), ("t", 1)]
        assert letters.malformed() == 1

    def test_a_handler_that_fails(self, tmp_path: Path, until_empty: None) -> None:
        publish(tmp_path, b"one\n", b"three\n")
        seen.append("refuse")
        with pytest.raises(CommandError, match=r"'0.log'\) failed: KeyError"):
            consume("first_letter", "--aggregate", "letters")
        assert waiting() == 2
        consume("first_letter", "--aggregate", "letters", "--skip-failed")
        assert Aggregator("letters").total("2026") == 1


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
def test_invalid_options(arguments: tuple[str, ...], text: str) -> None:
    with pytest.raises(CommandError, match=text):
        consume("record", *arguments)


@pytest.fixture
def handlers(tmp_path: Path) -> Path:
    """A folder with a module of a handler that prints each line and then waits for the file `go`."""
    (tmp_path / "printing.py").write_text(
        textwrap.dedent(f"""
        import time
        from pathlib import Path

        def show(line):
            if line == b"bad":
                raise ValueError
            print(line, flush=True)
            while line and not Path({str(tmp_path)!r}, "go").exists():
                time.sleep(0.005)
        """)
    )
    return tmp_path


@pytest.fixture
def start(own_prefix: str) -> Iterator[Start]:
    with commands() as run:
        yield run


SHOW = ("consume_files", *ARGUMENTS, "--handler", "printing.show")


@pytest.mark.timing
def test_the_first_signal_completes_the_current_file(tmp_path: Path, handlers: Path) -> None:
    """Log lines appear above the bar, which is removed at the signal."""
    publish(tmp_path, b"bad\n", b"one\ntwo\n", b"three\n")
    with on_terminal(*SHOW, "--skip-failed", path=str(handlers)) as terminal:
        terminal.read_until(lambda text: re.search(r"'1\.log'.*\| 8\.00/8\.00 \[", text))
        terminal.process.send_signal(signal.SIGTERM)
        terminal.read_until(lambda text: "again to end at once.\r\n" in text)
        (handlers / "go").touch()
        assert terminal.end() == (0, "b'one'\nb'two'\nNone\n")
    assert re.search(r"\rProcessing file \d+ \('0.log'\) .* skipping it.\r\nTraceback", terminal.text)
    assert terminal.text.endswith("again to end at once.\r\nProcessed 2 files (12 B, 2 lines).\r\n")
    assert waiting() == 1


@pytest.mark.promise
def test_the_second_signal_ends_the_command_at_once(tmp_path: Path, handlers: Path, start: Start) -> None:
    """The bar is removed at the first signal. A successor gets the same file when the lease has ended."""
    [path] = publish(tmp_path, b"one\ntwo\n")
    with on_terminal(*SHOW, "--lease", "1", path=str(handlers)) as terminal:
        terminal.read_until(lambda text: re.search(r"'0\.log'.*\| 8\.00/8\.00 \[", text))
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until(lambda text: "again to end at once.\r\n" in text)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == (-signal.SIGINT, "b'one'\n")
    assert terminal.text.endswith(
        "\x1b[KEnding after the current file. Press Ctrl-C again to end at once.\r\n"
    )
    (handlers / "go").touch()
    successor = start(*SHOW, "--lease", "1", path=handlers)
    FileChannel("logs").publish(path, consumers=["a"], final=True)
    assert successor.wait(PATIENCE) == 0
    assert successor.communicate()[0] == "b'one'\nb'two'\nNone\n"
    assert FileChannel("logs").stats() is None
