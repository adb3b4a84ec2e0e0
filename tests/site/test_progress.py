"""Progress of commands: texts, lines, log records, and the bar."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from tqdm import tqdm

from django_redis_messaging import Progress
from django_redis_messaging.management import output
from django_redis_messaging.management.commands import consume_files
from django_redis_messaging.management.commands.consume_files import ConsumingDisplay
from django_redis_messaging.management.commands.publish_files import PublishingDisplay
from django_redis_messaging.management.output import open_bar
from tests.support.server import DEADLINE, until


class OpenFile:
    """A file as far as a display reads it."""

    name, size, bytes_read = "a\x1b.log", 4_000_000, 0


def publishing(**changes: Any) -> Progress:
    values: dict[str, Any] = {
        "name": "a.log", "files": 1, "total_files": 3, "bytes": 0, "total_bytes": 3 << 20, "waiting": False,
    }  # fmt: skip
    return Progress(**{**values, **changes})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the monotonic clock of the displays."""

    def set_to(seconds: float) -> None:
        for module in (output, consume_files):
            monkeypatch.setattr(module, "monotonic", lambda: seconds)

    return set_to


class TestPublishing:
    def test_files_bytes_rate_and_time_left(self, clock: Callable[[float], None]) -> None:
        display = PublishingDisplay(io.StringIO(), "logs")
        display.update(publishing())
        clock(10.0)
        assert display.state() == ("1 of 3 files, 'a.log'", 0, 3 << 20)
        assert display.line() == "1 of 3 files, 'a.log', 0.0 of 3.0 MiB"
        display.update(publishing(bytes=1 << 20))
        clock(12.0)
        assert display.state() == ("1 of 3 files, 'a.log'", 1 << 20, 3 << 20)
        assert display.line() == "1 of 3 files, 'a.log', 1.0 of 3.0 MiB, 512.0 KiB/s, 0:04 left"

    def test_waiting(self) -> None:
        display = PublishingDisplay(io.StringIO(), "logs")
        assert display.state() == ("starting", 0, 0)
        display.update(publishing(waiting=True))
        assert display.line() == "1 of 3 files, waiting for consumers, 0.0 of 3.0 MiB"
        display.update(None)
        assert display.state() == ("waiting for files", 0, 0)
        assert display.line() == "waiting for files"


class TestConsuming:
    def test_position_lines_and_time_left(self, clock: Callable[[float], None]) -> None:
        display, file = ConsumingDisplay(io.StringIO(), "logs", "a"), OpenFile()
        assert display.state() == ("waiting for files, 0 files done", 0, 0)
        clock(10.0)
        display.begin(file)  # type: ignore[arg-type]
        assert display.line() == r"0 files done, 'a\x1b.log', 0.0 of 3.8 MiB"
        file.bytes_read, display.lines = 1_000_000, 30_000
        clock(12.0)
        assert display.state() == (r"0 files done, 'a\x1b.log', 15,000 lines/s", 1_000_000, 4_000_000)
        assert display.line() == (
            r"0 files done, 'a\x1b.log', 15,000 lines/s, 1.0 of 3.8 MiB, 488.3 KiB/s, 0:06 left"
        )
        display.end()
        assert display.line() == "waiting for files, 1 file done"
        assert display.summary() == "Processed 1 file (3.8 MiB, 30,000 lines)."
        display.malformed = 2
        assert display.summary() == "Processed 1 file (3.8 MiB, 30,000 lines, 2 of them malformed)."

    def test_the_rate_of_a_file_does_not_count_an_earlier_one(self, clock: Callable[[float], None]) -> None:
        display, file = ConsumingDisplay(io.StringIO(), "logs", "a"), OpenFile()
        clock(10.0)
        display.begin(file)  # type: ignore[arg-type]
        display.line()
        display.lines = 30_000
        display.end()
        file.size, file.bytes_read = 8_000_000, 2_000_000
        display.begin(file)  # type: ignore[arg-type]
        clock(12.0)
        assert display.line() == r"1 file done, 'a\x1b.log', 1.9 of 7.6 MiB"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines without an interval."""
    monkeypatch.setattr(output, "BAR_INTERVAL", 0.002)
    monkeypatch.setattr(output, "LINE_INTERVAL", 0.002)


class Closed(io.StringIO):
    """A pipe that nobody reads."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


class TestLines:
    TEXT = "Publishing to 'logs': 1 of 3 files, waiting for consumers, 0.0 of 3.0 MiB"

    def test_a_line_is_written_when_something_has_changed(self, often: None) -> None:
        stream = io.StringIO()
        with PublishingDisplay(stream, "logs") as display:
            until(stream.getvalue)
            display.update(None)
            until(lambda: "files" in stream.getvalue())
            display.update(publishing(waiting=True))
            until(lambda: "consumers" in stream.getvalue())
        assert stream.getvalue() == (
            f"Publishing to 'logs': starting\nPublishing to 'logs': waiting for files\n{self.TEXT}\n"
        )

    def test_a_line_is_not_repeated_and_may_be_silent(self, often: None) -> None:
        stream, silent = io.StringIO(), io.StringIO()
        display = PublishingDisplay(stream, "logs")
        for text in ("a", "a", "b"):
            display._report(text)
        assert stream.getvalue() == "Publishing to 'logs': a\nPublishing to 'logs': b\n"
        with PublishingDisplay(silent, "logs", silent=True) as display:
            assert not display._thread.is_alive()
        assert silent.getvalue() == ""

    def test_lines_are_logged_if_the_site_logs_them(
        self, often: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, output.__name__)
        stream = io.StringIO()
        with PublishingDisplay(stream, "logs") as display:
            display.update(publishing(waiting=True))
            until(lambda: self.TEXT in caplog.messages)
        assert stream.getvalue() == ""

    def test_lines_have_an_interval(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(output, "BAR_INTERVAL", 0.002)
        stream, waits = io.StringIO(), []
        display = PublishingDisplay(stream, "logs")

        def wait(seconds: float) -> bool:
            waits.append(seconds)
            return True

        monkeypatch.setattr(display._ended, "wait", wait)
        with display:
            until(lambda: waits)
        assert waits == [output.LINE_INTERVAL] and output.LINE_INTERVAL == 10.0
        assert stream.getvalue() == ""

    def test_a_closed_stream_does_no_harm(self, often: None) -> None:
        with PublishingDisplay(Closed(), "logs") as display:
            display._thread.join(DEADLINE)
            assert not display._thread.is_alive()


class Screen(io.StringIO):
    """A terminal."""

    def __init__(self, descriptor: int = -1) -> None:
        super().__init__()
        self._descriptor = descriptor

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor


class TestBar:
    #: of the bar; tqdm adds the time that has passed, and the rate
    TEXT = "\r1 of 3 files, waiting for consumers:  50%|"

    @pytest.mark.parametrize("fails", [False, True])
    def test_the_bar_is_removed_at_the_end(self, often: None, fails: bool) -> None:
        screen = Screen()
        with ExitStack() as stack:
            if fails:
                stack.enter_context(pytest.raises(ZeroDivisionError))
            display = stack.enter_context(PublishingDisplay(screen, "logs"))
            display.update(publishing(bytes=3 << 19, waiting=True))
            until(lambda: self.TEXT in screen.getvalue())
            if fails:
                raise ZeroDivisionError
            tqdm.write("a line", file=screen)
            until(lambda: screen.getvalue().rpartition("a line\n")[2].startswith(self.TEXT))
            assert re.search(r"\r +\ra line\n", screen.getvalue())
        assert "| 1.50M/3.00M [00:0" in screen.getvalue()
        assert re.search(r"\r +\r$", screen.getvalue())

    def test_each_file_has_a_bar_from_its_beginning(self, often: None) -> None:
        screen, file = Screen(), OpenFile()
        with ConsumingDisplay(screen, "logs", "a") as display:
            until(lambda: "waiting for files, 0 files done: 0.00B [" in screen.getvalue())
            file.bytes_read = 2_000_000
            display.begin(file)  # type: ignore[arg-type]
            until(lambda: "| 1.91M/3.81M [" in screen.getvalue())
            display.end()
            file.bytes_read = 1_000_000
            display.begin(file)  # type: ignore[arg-type]
            until(lambda: "1 file done, 'a\\x1b.log':  25%|" in screen.getvalue())

    def test_a_signal_removes_the_bar_for_good(self, often: None) -> None:
        reading, writing = os.pipe()
        screen = Screen(writing)
        with PublishingDisplay(screen, "logs") as display:
            display.update(publishing(bytes=3 << 19, waiting=True))
            until(lambda: self.TEXT in screen.getvalue())
            display.interrupt()
            screen.truncate(0)
            until(lambda: "Publishing to 'logs': 1 of 3 files" in screen.getvalue())
        assert "|" not in screen.getvalue()
        assert os.read(reading, 100) == (
            b"\r\x1b[KEnding after the current file. Press Ctrl-C again to end at once.\n"
        )
        os.close(reading)
        os.close(writing)

    def test_lines_are_written_without_tqdm_and_to_a_pipe(
        self, often: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for stream in (io.StringIO(), Screen()):
            with PublishingDisplay(stream, "logs"):
                until(stream.getvalue)
            assert stream.getvalue() == "Publishing to 'logs': starting\n"
            monkeypatch.setitem(sys.modules, "tqdm", None)


def test_log_handlers_of_the_terminal_write_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, file = Screen(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    console, other = logging.StreamHandler(), logging.StreamHandler(file)
    console.setLevel(logging.WARNING)
    logger = logging.getLogger("tests.progress")
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    monkeypatch.setattr(logger, "handlers", [console, other])
    monkeypatch.setattr(logger, "propagate", False)
    with ExitStack() as cleanup:
        assert open_bar(screen, "B", threading.RLock(), cleanup) is not None
        logger.warning("first")
        logger.info("not on the console")
        monkeypatch.setattr(logger, "handlers", [])
        logger.warning("second")
        monkeypatch.setattr(logger, "handlers", [console, other])
    logger.warning("third")
    assert re.search(r"\r +\rfirst\n\r0.00B .*\r +\rsecond\n\r0.00B .*\r +\rthird\n$", screen.getvalue())
    assert file.getvalue() == "first\nnot on the console\nthird\n"
    assert sys.stderr is screen and console.stream is screen
