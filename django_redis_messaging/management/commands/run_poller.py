"""`manage.py run_poller`: does what is due by time in queues without a running consumer."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from .. import loops


class Command(loops.LoopCommand):
    """Polls until a signal ends it."""

    help = "Process everything due by time: delayed jobs, expired leases, timers, expired results."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """No options: any number of pollers may run."""

    def run(self, **options: Any) -> None:
        """Run the poller."""
        poller = loops.poller()
        loops.at_signals(poller.stop)
        self.say(options, "Polling. Ctrl-C ends it.")
        poller.run()
        if poller.failed:
            raise CommandError("The poller ended by an error; see the log.")
