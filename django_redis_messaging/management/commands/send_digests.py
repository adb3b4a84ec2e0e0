"""`manage.py send_digests`: mails users what they have not read."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ...errors import LockError, MessagingError
from ...web.digest_mailing import Digest, Mailing, MailingFailed
from ..loops import Stopping
from ..output import Display, State, format_count

#: exit code of a run that was stopped by a signal
EXIT_STOPPED = 3


class Command(BaseCommand):
    """Mails digests to all users who want them."""

    help = (
        "Mail users what is unread for longer than DIGEST_AFTER and was in no earlier digest, except in "
        "muted chats. Exit code 0: complete; 1: an error, or mails that could not be sent (see the log); 3: "
        "stopped by a signal, the next run mails the rest."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--dry-run", action="store_true", help="list the digests; mail and record nothing"
        )
        parser.add_argument(
            "--base-url", default="", metavar="URL", help="beginning of all links (default: DIGEST_BASE_URL)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Mail them."""
        dry_run, silent = options["dry_run"], not options["verbosity"]
        stream = options.get("stderr") or sys.stderr
        display = MailingDisplay(stream, "Sending digests", silent=silent or dry_run)
        stop = Stopping(display.interrupt)
        try:
            mailing = Mailing(
                base_url=options["base_url"],
                dry_run=dry_run,
                stopped=stop.is_set,
                found=self._list if dry_run and not silent else lambda digest: None,
            )
            display.begin(mailing)
            stop.listen()
            with display:
                finished = mailing.run()
        except LockError as error:
            raise CommandError("Another run is in progress.") from error
        except (MessagingError, MailingFailed) as error:
            raise CommandError(str(error)) from error
        self._end(mailing, finished, options)

    def _list(self, digest: Digest) -> None:
        messages, chats = (
            format_count(digest.message_count, "message"),
            format_count(digest.chat_count, "chat"),
        )
        self.stdout.write(f"{digest.member!r}: {messages} in {chats}")

    def _end(self, mailing: Mailing, finished: bool, options: dict[str, Any]) -> None:
        counts = mailing.counts
        what = "to mail" if options["dry_run"] else "mailed"
        summary = f"{format_count(counts.mailed, 'digest')} {what}, {counts.failed} failed."
        if not finished:
            raise CommandError(f"Stopped: {summary} The next run mails the rest.", returncode=EXIT_STOPPED)
        if options["verbosity"]:
            self.stdout.write(summary)
        if counts.failed:
            raise CommandError(f"{counts.failed} failed; see the log.")


class MailingDisplay(Display):
    """Users done and in total, and the digests that were mailed."""

    unit = "user"
    step = "user"

    def begin(self, mailing: Mailing) -> None:
        """Show the progress of this run."""
        self._counts, self._total = mailing.counts, mailing.total()

    def state(self) -> State:
        """How far the run is."""
        return State(f"{self._counts.mailed:,} mailed", self._counts.users, self._total)
