"""`manage.py publish_files`: publishes files on a file channel."""

from __future__ import annotations

import dataclasses
import logging
import os
import stat
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TextIO

from django.core.management.base import BaseCommand, CommandError

from ... import FileChanged, FileChannel, LimitExceeded, MessagingError
from ...services.files import Progress, Report
from ...services.files.publishing import Source, expand
from ..loops import MAX_SECONDS, Stopping
from ..output import Display, State, format_count, format_size, parse_size

logger = logging.getLogger(__name__)

#: seconds between two listings of the directories
WATCH_INTERVAL = 2.0
#: seconds; a pause checks this often whether the command must end
POLL_INTERVAL = 0.1


class Command(BaseCommand):
    """Publishes files; with --watch, until a signal ends it."""

    help = (
        "Publish files to the consumers of a file channel, in order; a directory stands for its files, by "
        "name. Files that were published before are skipped. The first signal ends the command after the "
        "current file, the second at once; the next run continues."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("paths", nargs="+", metavar="PATH", help="a file, or a directory")
        parser.add_argument("--channel", required=True, help="name of the channel")
        parser.add_argument(
            "--consumers",
            required=True,
            type=_consumers,
            help="names of all consumers, separated by commas, or their number",
        )
        parser.add_argument(
            "--max-bytes",
            type=_size,
            default="1G",
            help="bytes that the channel may store, with an optional unit K, M or G (default: 1G)",
        )
        parser.add_argument(
            "--final",
            action="store_true",
            help="no more files will follow: wait until all consumers have processed all files",
        )
        parser.add_argument(
            "--watch",
            type=float,
            nargs="?",
            const=WATCH_INTERVAL,
            metavar="SECONDS",
            help="go on publishing files that appear; look for them this often (default: 2)",
        )
        parser.add_argument(
            "--settle",
            type=float,
            default=2.0,
            help="with --watch: publish a file that has not changed for this many seconds (default: 2)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Publish the files."""
        paths = options["paths"]
        _check(paths, options)
        stream, silent = options.get("stderr") or sys.stderr, not options["verbosity"]
        display = PublishingDisplay(stream, options["channel"], silent=silent)
        stop = Stopping(display.interrupt)
        try:
            run = PublishRun(FileChannel(options["channel"]), options, stop, display)
            stop.listen()
            with display:
                if options["watch"] is None:
                    completed = run.publish(paths).completed
                else:
                    run.watch(Watch(paths, options["settle"]))
                    completed = True  # it always ends by a signal
        except (MessagingError, OSError) as error:
            raise CommandError(str(error)) from error
        if not silent:
            self.stdout.write(run.summary())
        if not completed:
            raise CommandError("A signal ended the command before everything was done: run it again.")


class PublishRun:
    """Publishes files and counts them."""

    def __init__(
        self, channel: FileChannel, options: dict[str, Any], stop: Stopping, display: PublishingDisplay
    ) -> None:
        self._channel = channel
        self._options = options
        self._stop = stop
        self._display = display
        self._files = self._bytes = self._skipped = 0

    def publish(
        self, paths: Sequence[str], on_progress: Callable[[Progress], object] | None = None
    ) -> Report:
        """Publish these files."""
        report = self._channel.publish(
            paths,
            consumers=self._options["consumers"],
            max_bytes=self._options["max_bytes"],
            final=self._options["final"],
            on_progress=on_progress or self._display.update,
            stop=self._stop,
        )
        self._files += report.files
        self._bytes += report.bytes
        self._skipped += report.skipped
        return report

    def watch(self, watch: Watch) -> None:
        """Publish files when they appear, until a signal."""
        while not self._stop.is_set():
            found = watch.settled(time.monotonic())
            sizes = [0, *accumulate(file.size for file in found)]
            for at, file in enumerate(found):
                self._publish_settled(watch, file, Round(at, len(found), sizes[at], sizes[-1]))
                if self._stop.is_set():
                    return
            self._display.update(None)
            self._pause()

    def _publish_settled(self, watch: Watch, file: Source, current: Round) -> None:
        """Publish one file; leave one that is changed or deleted meanwhile for later, and one that can't be
        published until it changes."""
        try:
            report = self.publish([file.path], lambda progress: self._display.update(current.add(progress)))
        except (FileChanged, FileNotFoundError) as error:
            logger.warning("Publishing %r failed, trying again when it has settled: %s", file.path, error)
            watch.forget(file)
        except (LimitExceeded, OSError) as error:
            if isinstance(error, LimitExceeded) and error.setting:  # not the size of this file
                raise
            logger.error("Publishing %r failed, trying again when it has changed: %s", file.path, error)
            watch.mark_done(file)
        else:
            if report.completed:  # else a signal ended it before
                watch.mark_done(file)

    def _pause(self) -> None:
        ends = time.monotonic() + self._options["watch"]
        while not self._stop.is_set() and (left := ends - time.monotonic()) > 0:
            time.sleep(min(left, POLL_INTERVAL))

    def summary(self) -> str:
        """What was published, as text."""
        return (
            f"Published {format_count(self._files, 'file')} ({format_size(self._bytes)}); "
            f"skipped {self._skipped} that {'was' if self._skipped == 1 else 'were'} published before."
        )


class Watch:
    """Watches files and directories by listing them; a directory stands for the files that
    `FileChannel.publish` takes of it.

    A file has settled when its size and modification time have not changed for `settle` seconds while they
    were watched. The modification time is not compared with the clock: that of a file server may differ.
    """

    def __init__(self, paths: Sequence[str], settle: float) -> None:
        self._paths = paths
        self._settle = settle
        #: when each file was found first as it is now
        self._since: dict[Source, float] = {}
        self._done: dict[str, Source] = {}

    def settled(self, now: float) -> list[Source]:
        """The files that have settled and are not published, in order. Raises OSError."""
        present = list(self._find())
        paths = {file.path for file in present}
        self._done = {path: file for path, file in self._done.items() if path in paths}
        found = [file for file in present if self._done.get(file.path) != file]
        self._since = {file: self._since.get(file, now) for file in found}
        return [file for file, since in self._since.items() if now - since >= self._settle]

    def mark_done(self, file: Source) -> None:
        """Leave this file out from now on, until it changes."""
        if file.path in self._done:
            logger.warning("%r had changed since it was published: published again.", file.path)
        self._done[file.path] = file

    def forget(self, file: Source) -> None:
        """Let this file settle again."""
        self._since.pop(file, None)

    def _find(self) -> Iterator[Source]:
        for path in [path for given in self._paths for path in expand(os.path.abspath(given))]:
            try:
                found = os.stat(path)
            except FileNotFoundError:  # deleted since it was listed
                continue
            if stat.S_ISREG(found.st_mode):
                yield Source(path, found.st_size, found.st_mtime_ns)


class PublishingDisplay(Display):
    """Files done and in total, bytes, rate, time left; or that the publisher waits for consumers."""

    def __init__(self, stream: TextIO, channel: str, *, silent: bool = False) -> None:
        super().__init__(stream, f"Publishing to {channel!r}", silent=silent)
        self._state = State("starting")

    def update(self, progress: Progress | None) -> None:
        """Show this progress from now on; None: no files are known that have to be published."""
        if progress is None:
            self._state = State("waiting for files")
            return
        text = f"{progress.files} of {progress.total_files} files"
        if progress.waiting:
            text += ", waiting for consumers"
        elif progress.name:
            text += f", {progress.name!r}"
        self._state = State(text, progress.bytes, progress.total_bytes)

    def state(self) -> State:
        """How far the publisher is."""
        return self._state


class Round(NamedTuple):
    """The settled files of a directory: how many of them, and of their bytes, are done."""

    files: int
    total_files: int
    bytes: int
    total_bytes: int

    def add(self, progress: Progress) -> Progress:
        """The progress of the round from that of one file."""
        return dataclasses.replace(
            progress,
            files=self.files + progress.files,
            total_files=self.total_files,
            bytes=self.bytes + progress.bytes,
            total_bytes=self.total_bytes,
        )


def _consumers(text: str) -> int | list[str]:
    return int(text) if text.isdecimal() else [name.strip() for name in text.split(",")]


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _check(paths: Sequence[str], options: dict[str, Any]) -> None:
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        raise CommandError(f"There is no file or directory {missing[0]!r}.")
    if options["watch"] is None:
        return
    if options["final"]:
        raise CommandError(
            "--final can't be used with --watch: when no more files follow, run the command with --final "
            "instead."
        )
    if not POLL_INTERVAL <= options["watch"] <= MAX_SECONDS or not 0 <= options["settle"] <= MAX_SECONDS:
        raise CommandError(
            f"--watch must be between {POLL_INTERVAL:g} and {MAX_SECONDS} seconds, --settle between 0 and "
            f"{MAX_SECONDS}."
        )
