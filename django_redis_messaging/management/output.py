"""What commands print: sizes, durations, tables, progress."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stderr, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

from ..core.encoding import printable as printable

if TYPE_CHECKING:
    from tqdm import tqdm

logger = logging.getLogger(__name__)

#: bytes of a unit
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMG]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """The bytes of a size: a number with an optional unit K, M or G. Raises ValueError.

    >>> parse_size("64M"), parse_size("1.5 GiB"), parse_size("100")
    (67108864, 1610612736, 100)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size: write bytes, or a number with K, M or G, such as 64M.")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def format_count(number: int, what: str) -> str:
    """A number of things as text.

    >>> format_count(1, "file"), format_count(25_000, "line")
    ('1 file', '25,000 lines')
    """
    return f"1 {what}" if number == 1 else f"{number:,} {what}s"


def format_share(done: int, total: int) -> str:
    """A part of a number of bytes as text, in the unit of the whole.

    >>> format_share(0, 5), format_share(1_000_000, 2_500_000)
    ('0 of 5 B', '1.0 of 2.4 MiB')
    """
    size, divisor, unit = _scaled(total)
    digits = 0 if divisor == 1 else 1
    return f"{done / divisor:.{digits}f} of {size:.{digits}f} {unit}"


def format_size(size: float) -> str:
    """A number of bytes as text.

    >>> format_size(0), format_size(1023), format_size(2_500_000), format_size(3 << 40)
    ('0 B', '1023 B', '2.4 MiB', '3072.0 GiB')
    """
    scaled, divisor, unit = _scaled(size)
    return f"{scaled:.{0 if divisor == 1 else 1}f} {unit}"


def _scaled(size: float) -> tuple[float, int, str]:
    """The size in a unit in which it has at most four digits, the bytes of the unit, and its name."""
    exponent = next((at for at in range(3) if size < 1024 ** (at + 1)), 3)
    divisor = 1024**exponent
    return size / divisor, divisor, ("B", "KiB", "MiB", "GiB")[exponent]


def format_duration(seconds: float) -> str:
    """A duration as text.

    >>> format_duration(7.6), format_duration(75), format_duration(3700)
    ('0:08', '1:15', '1:01:40')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def table(lines: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Align the cells of lines, of which the first is the head; the first `left` columns to the left.

    >>> print(table([("queue", "ready"), ("mail", "12"), ("a", "7")]))
    queue  ready
    mail      12
    a          7
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


#: seconds between two updates of the bar
BAR_INTERVAL = 0.25
#: seconds between two lines
LINE_INTERVAL = 10.0
#: written over the bar at the first signal
ENDING = "\r\x1b[KEnding after the current {}. Press Ctrl-C again to end at once.\n"


class State(NamedTuple):
    """How far a command is."""

    #: what it does now
    text: str
    #: what is done, in the unit of the display
    done: int = 0
    #: what there is to do; 0: unknown
    total: int = 0


class Display(ABC):
    """Shows the progress of a command while its `with` block runs. A thread reads the state, so that the
    command does not have to check the time after each line.

    On a terminal, a bar of tqdm. Without tqdm or a terminal, a line every LINE_INTERVAL seconds, if anything
    has changed: logged (INFO) if the site logs this level, otherwise written to `stream`.
    """

    #: what is counted
    unit = "B"
    #: what the command completes after the first signal
    step = "file"

    def __init__(self, stream: TextIO, title: str, *, silent: bool = False) -> None:
        self._stream, self._title, self._silent = stream, title, silent
        self._bar: tqdm[Any] | None = None
        # of the bar; reentrant, because a signal handler may run while its thread holds it
        self._lock = threading.RLock()
        self._cleanup = ExitStack()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._last_line, self._last_state, self._last_time = "", State(""), 0.0

    @abstractmethod
    def state(self) -> State:
        """How far the command is at this moment."""

    def line(self) -> str:
        """The progress as text; of bytes, with their rate since the last line."""
        state, now = self.state(), monotonic()
        last, seconds = self._last_state, now - self._last_time
        self._last_state, self._last_time = state, now
        if not state.total:
            return state.text
        if self.unit != "B":
            return f"{state.done:,} of {format_count(state.total, self.unit)}, {state.text}"
        parts = [state.text, format_share(state.done, state.total)]
        if last.total == state.total and state.done > last.done and seconds:  # else it is another file
            rate = (state.done - last.done) / seconds
            left = (state.total - state.done) / rate
            parts += [f"{format_size(rate)}/s", f"{format_duration(left)} left"]
        return ", ".join(parts)

    def __enter__(self) -> Self:
        if not self._silent:
            self._bar = open_bar(self._stream, self.unit, self._lock, self._cleanup)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if not self._silent:
            self._thread.join()
        self._cleanup.close()

    def interrupt(self) -> None:
        """Remove the bar for good, in a signal handler: the next signal ends the process at once."""
        bar, self._bar = self._bar, None
        if bar is not None:
            with self._lock:
                bar.disable = True
        if not self._silent and self._stream.isatty():
            # not by the stream: the signal may have interrupted one of its writes
            os.write(self._stream.fileno(), ENDING.format(self.step).encode())

    def _run(self) -> None:
        with suppress(OSError, ValueError):  # the stream was closed: nobody reads
            while not self._ended.wait(LINE_INTERVAL if self._bar is None else BAR_INTERVAL):
                bar = self._bar
                if bar is None:
                    self._report(self.line())
                else:
                    self._draw(bar)

    def _draw(self, bar: tqdm[Any]) -> None:
        state = self.state()
        with self._lock:  # tqdm doesn't draw a bar that was disabled before
            bar.set_description_str(state.text, refresh=False)
            if state.total != bar.total or state.done < bar.n:  # of another file
                bar.reset(state.total)
            bar.update(state.done - bar.n)

    def _report(self, line: str) -> None:
        """Log or write a line, unless it is the same as the last one."""
        if line == self._last_line:
            return
        self._last_line = line
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s: %s", self._title, line)
        else:
            self._stream.write(f"{self._title}: {line}\n")
            self._stream.flush()


def open_bar(stream: TextIO, unit: str, lock: threading.RLock, cleanup: ExitStack) -> tqdm[Any] | None:
    """A bar on the terminal, and log lines above it, until the cleanup. None without tqdm or a terminal."""
    if not stream.isatty():
        return None
    try:
        from tqdm import tqdm
        from tqdm.contrib import DummyTqdmFile
    except ImportError:
        return None
    tqdm.set_lock(lock)  # otherwise tqdm makes a lock for several processes
    bar = tqdm(
        total=0, unit=unit, unit_scale=unit == "B", unit_divisor=1024,
        file=stream, dynamic_ncols=True, leave=False, miniters=0,
    )  # fmt: skip
    cleanup.enter_context(bar)
    # not tqdm's logging_redirect_tqdm: it replaces only one handler of a logger, by one without its level
    for handler in _handlers_of_the_terminal():
        cleanup.callback(handler.setStream, handler.setStream(DummyTqdmFile(handler.stream)))
    above: Any = DummyTqdmFile(sys.stderr)
    cleanup.enter_context(redirect_stderr(above))  # for records without a handler
    return bar


def _handlers_of_the_terminal() -> set[logging.StreamHandler[Any]]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [handler for one in loggers if isinstance(one, logging.Logger) for handler in one.handlers]
    streams = [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]
    return {one for one in handlers if isinstance(one, logging.StreamHandler) and one.stream in streams}
