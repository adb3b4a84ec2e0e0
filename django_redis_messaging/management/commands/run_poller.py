"""`manage.py run_poller`: does what is due by time."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from .. import loops


class Command(loops.LoopCommand):
    """Polls until a signal ends it."""

    help = "Move everything that is due: delayed jobs, leases that ran out, results that are over."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """There is nothing to choose: any number of pollers does the same."""

    def run(self, **options: Any) -> None:
        """Run the poller."""
        poller = loops.poller()
        loops.at_signals(poller.stop)
        self.say(options, "Polling. Ctrl-C ends it.")
        poller.run()
