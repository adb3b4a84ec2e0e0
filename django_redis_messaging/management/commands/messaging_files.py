"""`manage.py messaging_files`: shows file channels with their consumers; releases the share of one."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from ... import FileChannel, FileStats, MessagingError, conf
from ...core.encoding import current_prefix
from ...services.common.operators import list_file_channels
from ..output import format_duration, format_size, printable, table

Row = dict[str, Any]
#: columns of the tables
CHANNEL_COLUMNS = ("channel", "files", "bytes", "max_bytes", "final", "open_places")
CONSUMER_COLUMNS = ("channel", "consumer", "state", "waiting", "seen")


class Command(BaseCommand):
    """Prints tables, or JSON; or releases a share."""

    help = (
        "Show the file channels: stored files and bytes, and for each consumer the files that it has not "
        "acked, when it was last seen, and whether it is active. With --release, release the share of a "
        "consumer that does not come back."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("channels", nargs="*", help="names of channels (default: all)")
        parser.add_argument(
            "--release", metavar="CONSUMER", help="release the share of this consumer: no file waits for it"
        )
        parser.add_argument(
            "--release-place",
            action="store_true",
            help="release a place that no consumer has taken, of a channel with a number of consumers",
        )
        parser.add_argument(
            "--force", action="store_true", help="with --release: even if the consumer is active"
        )
        parser.add_argument("--using", metavar="ALIAS", help="alias in CACHES (default: that of the app)")
        parser.add_argument("--json", action="store_true", help="as JSON, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print them, or release a share."""
        using, names = options["using"] or conf.alias(), options["channels"]
        try:
            if options["release"] is not None or options["release_place"]:
                text = _release(options, using)
            else:
                rows = list(_named(names, using) if names else _all(using))
                text = json.dumps(rows, indent=2) if options["json"] else _text(rows)
        except MessagingError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(text)


def _named(names: Sequence[str], using: str) -> Iterator[Row]:
    for name in names:
        yield _row(name, _stats(FileChannel(name, using=using)))


def _all(using: str) -> Iterator[Row]:
    for channel in sorted(list_file_channels(using, current_prefix()), key=lambda one: one.name):
        yield _row(channel.name, channel.stats)


def _stats(channel: FileChannel) -> FileStats:
    stats = channel.stats()
    if stats is None:
        raise CommandError(f"There is no file channel {channel.channel!r}.")
    return stats


def _row(name: str, stats: FileStats) -> Row:
    return {
        "channel": name,
        "files": stats.files,
        "bytes": stats.bytes,
        "max_bytes": stats.max_bytes,
        "final": stats.final,
        "open_places": stats.open_places,
        "consumers": [
            {
                "consumer": consumer.name,
                "waiting": consumer.waiting,
                "seen_at": consumer.seen_at and consumer.seen_at.isoformat(),
                "active": consumer.active,
            }
            for consumer in stats.consumers
        ],
    }


def _text(rows: Sequence[Row]) -> str:
    if not rows:
        return "There are no file channels."
    consumers = [_consumer_cells(row["channel"], one) for row in rows for one in row["consumers"]]
    text = table([CHANNEL_COLUMNS, *map(_channel_cells, rows)])
    if consumers:
        text += "\n\n" + table([CONSUMER_COLUMNS, *consumers], left=3)
    return text


def _channel_cells(row: Row) -> Sequence[str]:
    return (
        printable(row["channel"]),
        str(row["files"]),
        format_size(row["bytes"]),
        format_size(row["max_bytes"]),
        "yes" if row["final"] else "no",
        str(row["open_places"]),
    )


def _consumer_cells(channel: str, row: Row) -> Sequence[str]:
    if row["seen_at"] is None:
        state, seen = "not started", "-"
    else:
        age = (timezone.now() - datetime.fromisoformat(row["seen_at"])).total_seconds()
        state, seen = "vanished", f"{format_duration(max(age, 0))} ago"
    if row["active"]:
        state = "active"
    return printable(channel), printable(row["consumer"]), state, str(row["waiting"]), seen


def _release(options: dict[str, Any], using: str) -> str:
    """Release the share of a consumer, or a place."""
    consumer = options["release"]
    if consumer is not None and options["release_place"]:
        raise CommandError("--release and --release-place can't be used together.")
    if len(options["channels"]) != 1:
        raise CommandError("Name the channel, and only one.")
    channel = FileChannel(options["channels"][0], using=using)
    stats = _stats(channel)
    if consumer is None:
        if not channel.release(None):
            raise CommandError(f"The channel {channel.channel!r} has no place that a consumer could take.")
        return f"Released a place of the channel {channel.channel!r}."
    _check_consumer(channel, stats, consumer, force=options["force"])
    if not channel.release(consumer):
        raise CommandError(f"The channel {channel.channel!r} has no consumer {consumer!r} any more.")
    return f"Released {consumer!r}: no file of the channel {channel.channel!r} waits for it."


def _check_consumer(channel: FileChannel, stats: FileStats, consumer: str, *, force: bool) -> None:
    found = {one.name: one for one in stats.consumers}.get(consumer)
    if found is None:
        known = ", ".join(repr(one.name) for one in stats.consumers) or "none"
        raise CommandError(f"The channel {channel.channel!r} has no consumer {consumer!r} (found: {known}).")
    if found.active and not force:
        raise CommandError(
            f"The consumer {consumer!r} is active: stop its process first, or add --force to release it from "
            "under the process."
        )
