"""What commands print: sizes, tables, progress."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

from ..services.files import File, Progress

if TYPE_CHECKING:
    from tqdm import tqdm


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


def printable(text: str) -> str:
    """A name as one line for a terminal: control characters are escaped.

    >>> printable("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


logger = logging.getLogger(__name__)

#: seconds between two updates of the bar
TICK = 0.25
#: seconds between two lines
LINE_INTERVAL = 10.0
#: ticks over which rates are measured
RATE_TICKS = 40
#: what the bar shows; tqdm replaces the fields
BAR_FORMAT = "{percentage:3.0f}%|{bar:15}| {desc}"
#: written over the bar at the first signal
ENDING = b"\r\x1b[KEnding after the current file. Press Ctrl-C again to end at once.\n"


class Snapshot(NamedTuple):
    """What a display shows at a moment."""

    #: bytes that are done
    done: int
    #: bytes in total; 0: unknown
    total: int
    text: str


class Rate:
    """How fast a number grows, per second over the last ticks.

    >>> rate = Rate()
    >>> [rate.measure(total, now) for total, now in ((10, 0.0), (30, 1.0), (30, 2.0))]
    [0.0, 20.0, 10.0]
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_TICKS)

    def measure(self, total: int, now: float) -> float:
        """Add a sample; returns the rate."""
        self._samples.append((now, total))
        then, before = self._samples[0]
        return (total - before) / (now - then) if now > then else 0.0


class Display(ABC):
    """Shows the progress of a command while its `with` block runs. A thread draws, so that the command does
    not have to look at the clock after each line.

    On a terminal, a bar. Without tqdm, or if `stream` is not a terminal, a line every LINE_INTERVAL seconds,
    if anything has changed: logged (INFO) if the site logs this level, otherwise written to `stream`.
    """

    def __init__(self, stream: TextIO, title: str, *, silent: bool = False) -> None:
        self._stream = stream
        self._title = title
        self._silent = silent
        self._bar: tqdm[Any] | None = None
        # also the lock of the bar; reentrant, because a signal handler may run while its thread holds it
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._cleanup = ExitStack()
        self._line = ""

    @abstractmethod
    def snapshot(self, now: float) -> Snapshot:
        """What to show at this moment of the monotonic clock."""

    def __enter__(self) -> Self:
        if not self._silent:
            if self._is_terminal():
                self._bar = open_bar(self._stream, self._lock)
            if self._bar is not None:
                self._cleanup.enter_context(console_logs_to(_AboveBar(self)))
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if not self._silent:
            self._thread.join()
        self._cleanup.close()
        with self._lock:
            if self._bar is not None:
                self._bar.close()

    def interrupt(self) -> None:
        """Remove the bar for good, in a signal handler: the next signal ends the process at once."""
        with self._lock:
            if self._bar is not None:
                self._bar.disable = True
                self._bar = None
            if not self._silent and self._is_terminal():
                # not by the stream: the signal may have interrupted one of its writes
                os.write(self._stream.fileno(), ENDING)

    def write_above(self, text: str) -> None:
        """Write text, without disturbing the bar."""
        with self._lock:
            if self._bar is not None:
                self._bar.clear(nolock=True)
            self._stream.write(text)
            self._stream.flush()

    def _is_terminal(self) -> bool:
        return self._stream.isatty()

    def _run(self) -> None:
        line_at = monotonic() + LINE_INTERVAL
        while not self._ended.wait(TICK):
            now = monotonic()
            snapshot = self.snapshot(now)
            try:
                if not self._draw(snapshot) and now >= line_at:
                    line_at = now + LINE_INTERVAL
                    self._report(snapshot.text)
            except (OSError, ValueError):  # the stream was closed: nobody reads
                return

    def _draw(self, snapshot: Snapshot) -> bool:
        """Draw the bar; returns whether there is one."""
        with self._lock:
            if self._bar is None:
                return False
            self._bar.n, self._bar.total = min(snapshot.done, snapshot.total), snapshot.total
            self._bar.set_description_str(snapshot.text, refresh=False)
            self._bar.refresh(nolock=True)
            return True

    def _report(self, text: str) -> None:
        """Log or write a line, unless it is the same as the last one."""
        if text == self._line:
            return
        self._line = text
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s: %s", self._title, text)
        else:
            self._stream.write(f"{self._title}: {text}\n")
            self._stream.flush()


class PublishingDisplay(Display):
    """Files done and in total, bytes, rate, time left; or that the publisher waits for consumers."""

    def __init__(self, stream: TextIO, channel: str, *, silent: bool = False) -> None:
        super().__init__(stream, f"Publishing to {channel!r}", silent=silent)
        self._progress: Progress | None = None
        self._idle = "starting"
        self._rate = Rate()

    def update(self, progress: Progress | None) -> None:
        """Show this progress from now on; None: no files are known that have to be published."""
        self._progress, self._idle = progress, "waiting for files"

    def snapshot(self, now: float) -> Snapshot:
        """What to show at this moment."""
        progress = self._progress
        if progress is None:
            self._rate = Rate()
            return Snapshot(0, 0, self._idle)
        rate = self._rate.measure(progress.bytes, now)
        parts = [
            f"{progress.files} of {progress.total_files} files",
            format_share(progress.bytes, progress.total_bytes),
        ]
        if progress.waiting:
            parts.append("waiting for consumers")
        else:
            parts += _speed(f"{format_size(rate)}/s", progress.total_bytes - progress.bytes, rate)
            parts += [repr(progress.name)] if progress.name else []
        return Snapshot(progress.bytes, progress.total_bytes, ", ".join(parts))


class ConsumingDisplay(Display):
    """The position in the current file, lines per second, time left in it, and the files that are done."""

    def __init__(self, stream: TextIO, channel: str, consumer: str, *, silent: bool = False) -> None:
        super().__init__(stream, f"Consuming {channel!r} as {consumer!r}", silent=silent)
        #: lines that were passed to the handler, and malformed ones of an aggregate: the command counts them
        self.lines = self.malformed = 0
        self._file: File | None = None
        self._files = 0
        self._bytes = 0
        self._line_rate = Rate()
        #: when the consumer began with the file
        self._began = 0.0

    def begin(self, file: File) -> None:
        """The consumer begins with a file."""
        self._file, self._began = file, monotonic()

    def end(self) -> None:
        """The file has been processed."""
        if self._file is not None:
            self._files, self._bytes = self._files + 1, self._bytes + self._file.size
            self._file = None

    def summary(self) -> str:
        """What was processed, as text."""
        malformed = f", {self.malformed} of them malformed" if self.malformed else ""
        lines = f"{format_count(self.lines, 'line')}{malformed}"
        return f"Processed {format_count(self._files, 'file')} ({format_size(self._bytes)}, {lines})."

    def snapshot(self, now: float) -> Snapshot:
        """What to show at this moment."""
        file = self._file
        done = f"{format_count(self._files, 'file')} done"
        if file is None:
            self._line_rate = Rate()
            return Snapshot(0, 0, f"waiting for files, {done}")
        read = file.bytes_read
        lines = self._line_rate.measure(self.lines, now)
        parts = [f"{file.name!r}: {format_share(read, file.size)}"]
        parts += _speed(f"{lines:,.0f} lines/s", file.size - read, read / max(now - self._began, TICK))
        return Snapshot(read, file.size, ", ".join([*parts, done]))


def _speed(rate_text: str, left: int, rate: float) -> list[str]:
    """A rate, and the time that so many bytes will take; nothing if the rate is not known."""
    return [rate_text, f"{format_duration(left / rate)} left"] if rate > 0 else []


def open_bar(stream: TextIO, lock: threading.RLock) -> tqdm[Any] | None:
    """A bar on the terminal; None without tqdm."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    tqdm.set_lock(lock)  # otherwise tqdm makes a lock for several processes
    return tqdm(total=0, file=stream, dynamic_ncols=True, leave=False, miniters=0, bar_format=BAR_FORMAT)


class _AboveBar(io.TextIOBase):
    """A stream for log handlers that writes above the bar."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def write(self, text: str) -> int:
        self._display.write_above(text)
        return len(text)


@contextmanager
def console_logs_to(stream: Any) -> Iterator[None]:
    """Let log handlers that write to the terminal write to this stream."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = {handler for one in loggers if isinstance(one, logging.Logger) for handler in one.handlers}
    consoles = [one for one in handlers if isinstance(one, logging.StreamHandler) and _is_console(one.stream)]
    streams = [handler.setStream(stream) for handler in consoles]
    last_resort, logging.lastResort = logging.lastResort, logging.StreamHandler(stream)
    logging.lastResort.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logging.lastResort = last_resort
        for handler, old in zip(consoles, streams, strict=True):
            handler.setStream(old)


def _is_console(stream: Any) -> bool:
    return stream in (sys.stdout, sys.stderr) and stream.isatty()
