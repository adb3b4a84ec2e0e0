"""Progress of files: texts, lines and log records. For the bar see the tests of the commands."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from typing import Any

import pytest

from django_redis_messaging import Progress
from django_redis_messaging.management import output
from django_redis_messaging.management.output import (
    ENDING,
    ConsumingDisplay,
    PublishingDisplay,
    console_logs_to,
)
from tests.support.server import DEADLINE, until


class OpenFile:
    """A file as far as a display reads it."""

    name, size, bytes_read = "a\x1b.log", 4_000_000, 0


def publishing(**changes: Any) -> Progress:
    values: dict[str, Any] = {
        "name": "a.log", "files": 1, "total_files": 3, "bytes": 0, "total_bytes": 3 << 20, "waiting": False,
    }  # fmt: skip
    return Progress(**{**values, **changes})


class TestPublishing:
    def test_files_bytes_rate_and_time_left(self) -> None:
        display = PublishingDisplay(io.StringIO(), "logs")
        display.update(publishing())
        assert display.snapshot(10.0) == (0, 3 << 20, "1 of 3 files, 0.0 of 3.0 MiB, 'a.log'")
        display.update(publishing(bytes=1 << 20))
        assert display.snapshot(12.0) == (
            1 << 20, 3 << 20, "1 of 3 files, 1.0 of 3.0 MiB, 512.0 KiB/s, 0:04 left, 'a.log'",
        )  # fmt: skip

    def test_waiting(self) -> None:
        display = PublishingDisplay(io.StringIO(), "logs")
        assert display.snapshot(0.0) == (0, 0, "starting")
        display.update(publishing(waiting=True))
        assert display.snapshot(0.0).text == "1 of 3 files, 0.0 of 3.0 MiB, waiting for consumers"
        display.update(None)
        assert display.snapshot(1.0) == (0, 0, "waiting for files")


class TestConsuming:
    def test_position_lines_and_time_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(output, "monotonic", lambda: 10.0)
        display, file = ConsumingDisplay(io.StringIO(), "logs", "a"), OpenFile()
        assert display.snapshot(10.0) == (0, 0, "waiting for files, 0 files done")
        display.begin(file)  # type: ignore[arg-type]
        assert display.snapshot(10.0).text == r"'a\x1b.log': 0.0 of 3.8 MiB, 0 files done"
        file.bytes_read, display.lines = 1_000_000, 30_000
        assert display.snapshot(12.0) == (
            1_000_000, 4_000_000,
            r"'a\x1b.log': 1.0 of 3.8 MiB, 15,000 lines/s, 0:06 left, 0 files done",
        )  # fmt: skip
        display.end()
        assert display.snapshot(13.0).text == "waiting for files, 1 file done"
        assert display.summary() == "Processed 1 file (3.8 MiB, 30,000 lines)."
        display.malformed = 2
        assert display.summary() == "Processed 1 file (3.8 MiB, 30,000 lines, 2 of them malformed)."


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines without an interval."""
    monkeypatch.setattr(output, "TICK", 0.002)
    monkeypatch.setattr(output, "LINE_INTERVAL", 0.0)


class Closed(io.StringIO):
    """A pipe that nobody reads."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


class TestLines:
    TEXT = "Publishing to 'logs': 1 of 3 files, 0.0 of 3.0 MiB, waiting for consumers"

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

    def test_a_line_is_not_repeated(self) -> None:
        stream = io.StringIO()
        display = PublishingDisplay(stream, "logs")
        for text in ("a", "a", "b"):
            display._report(text)
        assert stream.getvalue() == "Publishing to 'logs': a\nPublishing to 'logs': b\n"

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
        monkeypatch.setattr(output, "TICK", 0.002)
        shown: list[float] = []
        stream = io.StringIO()
        with PublishingDisplay(stream, "logs") as display:
            monkeypatch.setattr(display, "snapshot", lambda now: shown.append(now) or (0, 0, "x"))
            until(lambda: len(shown) > 20)
        assert stream.getvalue() == ""

    def test_a_closed_stream_does_no_harm(self, often: None) -> None:
        with PublishingDisplay(Closed(), "logs") as display:
            display._thread.join(DEADLINE)
            assert not display._thread.is_alive()

    def test_silence(self, often: None) -> None:
        stream = io.StringIO()
        with PublishingDisplay(stream, "logs", silent=True) as display:
            assert not display._thread.is_alive()
        assert stream.getvalue() == ""


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
    TEXT = "| 1 of 3 files, 1.5 of 3.0 MiB, waiting for consumers"

    def test_the_bar_is_removed_at_the_end(self, often: None) -> None:
        screen = Screen()
        with PublishingDisplay(screen, "logs") as display:
            display.update(publishing(bytes=3 << 19, waiting=True))
            until(lambda: self.TEXT in screen.getvalue())
            display.write_above("a line\n")
            until(lambda: screen.getvalue().endswith("consumers"))
        assert "\r 50%|" in screen.getvalue()
        assert re.search(r"\r +\ra line\n", screen.getvalue())
        assert re.search(r"\r +\r$", screen.getvalue())

    def test_the_bar_is_removed_after_an_error(self, often: None) -> None:
        screen = Screen()
        with pytest.raises(ZeroDivisionError), PublishingDisplay(screen, "logs") as display:
            display.update(publishing(bytes=3 << 19, waiting=True))
            until(lambda: self.TEXT in screen.getvalue())
            _ = 1 / 0
        assert re.search(r"\r +\r$", screen.getvalue())

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
        assert os.read(reading, 100) == ENDING
        os.close(reading)
        os.close(writing)

    def test_lines_are_written_without_tqdm(self, often: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "tqdm", None)
        screen = Screen()
        with PublishingDisplay(screen, "logs"):
            until(screen.getvalue)
        assert screen.getvalue() == "Publishing to 'logs': starting\n"


def test_log_handlers_of_the_terminal_are_redirected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Screen())
    above, file = io.StringIO(), io.StringIO()
    console, other = logging.StreamHandler(), logging.StreamHandler(file)
    logger = logging.getLogger("tests.progress")
    monkeypatch.setattr(logger, "handlers", [console, other])
    monkeypatch.setattr(logger, "propagate", False)
    last_resort = logging.lastResort
    with console_logs_to(above):
        logger.warning("first")
        monkeypatch.setattr(logger, "handlers", [])
        logger.warning("second")
        monkeypatch.setattr(logger, "handlers", [console, other])
    logger.warning("third")
    assert above.getvalue() == "first\nsecond\n"
    assert file.getvalue() == "first\nthird\n"
    assert sys.stderr.getvalue() == "third\n"  # type: ignore[attr-defined]
    assert logging.lastResort is last_resort
