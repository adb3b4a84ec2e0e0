"""`manage.py run_listener`: calls the handlers of timers and of keyspace events."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ...errors import MessagingError
from .. import loops


class Command(loops.LoopCommand):
    """Runs a listener until a signal ends it."""

    help = "Call the handlers of timers (on_expiry) and of key events (on_key_event) of all apps."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        loops.add_limits(parser, "timer")
        parser.add_argument(
            "--configure",
            action="store_true",
            help="add the flags that handlers need to the server's notify-keyspace-events",
        )

    def run(self, **options: Any) -> None:
        """Run the listener."""
        limits = loops.limits(options)
        try:
            listener = loops.listener(limits, configure=options["configure"])
        except MessagingError as error:
            raise CommandError(str(error)) from error
        if listener is None:
            raise CommandError(loops.NO_HANDLERS)
        loops.at_signals(listener.stop)
        self.say(options, f"Listening for {loops.describe_handlers()}. Ctrl-C ends it.")
        listener.run()
        self.say(options, f"Ended after {listener.done} timers.")
        if listener.failed:
            raise CommandError("The listener ended by an error; see the log.")
