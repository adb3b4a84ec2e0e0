"""`manage.py consume_files`: calls a function with each line of the files of a channel."""

from __future__ import annotations

import asyncio
import codecs
import inspect
import logging
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import aclosing, closing
from time import monotonic
from typing import Any, TextIO

from django.core.management.base import BaseCommand, CommandError

from ... import (
    Aggregator,
    FileChannel,
    FileCorrupt,
    LimitExceeded,
    MessagingError,
    OutcomeUnknown,
    Unavailable,
)
from ...services.files import File
from ..loops import Stopping, imported_function
from ..output import Display, State, format_count, format_size

logger = logging.getLogger(__name__)

#: beginning of the settings that limit files
FILE_SETTINGS = "FILES_"


class HandlerFailed(Exception):
    """The handler raised the cause."""


class Command(BaseCommand):
    """Consumes until a signal, or the last file of a final channel, ends it."""

    help = (
        "Call a function with each line of the files of a channel, as bytes, and with None at the end of "
        "each file; then ack the file. The first signal ends the command after the current file, the second "
        "at once: the file is then delivered again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--channel", required=True, help="name of the channel")
        parser.add_argument("--consumer", required=True, help="name of the consumer, one for each process")
        parser.add_argument(
            "--handler", required=True, help="dotted path of a function of a line; it may be async"
        )
        parser.add_argument(
            "--aggregate",
            metavar="NAME",
            help="count in this aggregate; the handler returns (period, key) pairs for a line",
        )
        parser.add_argument("--encoding", help="call the handler with str, decoded by this encoding")
        parser.add_argument(
            "--skip-failed",
            action="store_true",
            help="log the exception of a file that can't be processed, ack it, and go on",
        )
        parser.add_argument(
            "--lease",
            type=float,
            default=10.0,
            help="seconds after which a killed consumer can be replaced (default: 10)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the loop."""
        handler = imported_function(options["handler"], "--handler")
        _check(handler, options)
        self._stream, self._silent = options.get("stderr") or sys.stderr, not options["verbosity"]
        display = ConsumingDisplay(self._stream, options["channel"], options["consumer"], silent=self._silent)
        stop = Stopping(display.interrupt)
        try:
            consumer = FileConsumer(handler, options, stop, display)
            stop.listen()
            self._say(f"Consuming {options['channel']!r} as {options['consumer']!r}. Ctrl-C ends it.")
            with display:
                consumer.run()
        except MessagingError as error:
            raise CommandError(str(error)) from error
        self._say(display.summary())

    def _say(self, text: str) -> None:
        # not to standard output, which belongs to the handler
        if not self._silent:
            self.stderr.write(text, str)
            self.stderr.flush()


class ConsumingDisplay(Display):
    """The position in the current file, lines per second, time left in it, and the files that are done."""

    def __init__(self, stream: TextIO, channel: str, consumer: str, *, silent: bool = False) -> None:
        super().__init__(stream, f"Consuming {channel!r} as {consumer!r}", silent=silent)
        #: lines that were passed to the handler, and malformed ones of an aggregate: the command counts them
        self.lines = self.malformed = 0
        self._file: File | None = None
        self._files = self._bytes = 0
        #: when the consumer began with the file, and with which line
        self._began, self._first_line = 0.0, 0

    def begin(self, file: File) -> None:
        """The consumer begins with a file."""
        self._file, self._began, self._first_line = file, monotonic(), self.lines

    def end(self) -> None:
        """The file has been processed."""
        if self._file is not None:
            self._files, self._bytes = self._files + 1, self._bytes + self._file.size
            self._file = None

    def state(self) -> State:
        """How far the consumer is."""
        file, done = self._file, f"{format_count(self._files, 'file')} done"
        if file is None:
            return State(f"waiting for files, {done}")
        lines, seconds = self.lines - self._first_line, monotonic() - self._began
        speed = f", {lines / seconds:,.0f} lines/s" if lines and seconds else ""
        return State(f"{done}, {file.name!r}{speed}", file.bytes_read, file.size)

    def summary(self) -> str:
        """What was processed, as text."""
        malformed = f", {self.malformed} of them malformed" if self.malformed else ""
        lines = f"{format_count(self.lines, 'line')}{malformed}"
        return f"Processed {format_count(self._files, 'file')} ({format_size(self._bytes)}, {lines})."


class FileConsumer:
    """Calls the handler with the lines of the files of a channel, and acks the files."""

    def __init__(
        self, handler: Callable[..., Any], options: dict[str, Any], stop: Stopping, display: ConsumingDisplay
    ) -> None:
        self._channel = FileChannel(options["channel"])
        self._aggregate = Aggregator(options["aggregate"]) if options["aggregate"] is not None else None
        self._handler = handler
        self._options = options
        self._display = display
        self._arguments = {"lease": options["lease"], "stop": stop}

    def run(self) -> None:
        """Consume until a signal, or the last file of a final channel."""
        if is_async(self._handler):
            asyncio.run(self._aconsume())
        else:
            self._consume()

    def _consume(self) -> None:
        with closing(self._channel.consume(self._options["consumer"], **self._arguments)) as files:
            for file in files:
                self._display.begin(file)
                try:
                    self._process(file)
                except Exception as error:
                    self._fail(file, error)
                file.ack()
                self._display.end()

    def _process(self, file: File) -> None:
        if self._aggregate is not None:
            self._display.malformed += self._aggregate.add_file(file, self._parse).malformed
            return
        handler, display = self._handler, self._display
        for line in file.lines(self._options["encoding"]):
            try:
                handler(line)
            except Exception as error:
                raise HandlerFailed from error
            display.lines += 1
        self._end_of_file()

    def _end_of_file(self) -> None:
        try:
            self._handler(None)
        except Exception as error:
            raise HandlerFailed from error

    def _parse(self, line: bytes) -> Any:
        self._display.lines += 1
        return self._handler(line)

    async def _aconsume(self) -> None:
        """An async version of `_consume`."""
        async with aclosing(self._channel.aconsume(self._options["consumer"], **self._arguments)) as files:
            async for file in files:
                self._display.begin(file)
                try:
                    await self._aprocess(file)
                except Exception as error:
                    self._fail(file, error)
                await file.aack()
                self._display.end()

    async def _aprocess(self, file: File) -> None:
        async for line in file.alines(self._options["encoding"]):
            await self._acall(line)
            self._display.lines += 1
        await self._acall(None)

    async def _acall(self, line: bytes | str | None) -> None:
        try:
            await self._handler(line)
        except Exception as error:
            raise HandlerFailed from error

    def _fail(self, file: File, error: Exception) -> None:
        """Log that a file can't be processed; raises unless such files are skipped."""
        cause = error.__cause__ if isinstance(error, HandlerFailed) else error
        if isinstance(cause, Unavailable | OutcomeUnknown):
            raise cause  # also of the handler: with an unavailable Redis, no file can be processed
        if isinstance(error, MessagingError) and not _is_unreadable(error):
            raise error
        skips = self._options["skip_failed"]
        logger.error(
            "Processing file %d (%r) of channel %r failed, %s.",
            file.id, file.name, file.channel,
            "skipping it" if skips else "it is not acked and will be delivered again",
            exc_info=cause,
        )  # fmt: skip
        if not skips:
            raise CommandError(
                f"Processing file {file.id} ({file.name!r}) failed: {_reason(cause)}."
            ) from cause


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether the handler is an async function, or an object with an async `__call__`."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _reason(error: BaseException | None) -> str:
    """What to tell of an exception; the text of a handler's exception may contain lines, so only its type."""
    return str(error).rstrip(".") if _is_unreadable(error) else type(error).__name__


def _is_unreadable(error: BaseException | None) -> bool:
    """Whether this is an error of a file, not of Redis, the consumer or an aggregate."""
    is_limit = isinstance(error, LimitExceeded) and error.setting.startswith(FILE_SETTINGS)
    return is_limit or isinstance(error, FileCorrupt)


def _check(handler: Callable[..., Any], options: dict[str, Any]) -> None:
    if options["encoding"] is not None:
        try:
            codecs.lookup(options["encoding"])
        except LookupError:
            raise CommandError(f"--encoding {options['encoding']!r} is not known to Python.") from None
    if options["aggregate"] is not None and options["encoding"] is not None:
        raise CommandError("--encoding can't be used with --aggregate: the handler gets bytes.")
    if options["aggregate"] is not None and is_async(handler):
        raise CommandError("With --aggregate, the handler must be a sync function.")
