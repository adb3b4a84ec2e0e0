"""`manage.py consume_broadcast`: calls a function with each event of a channel, or prints them."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ...errors import MessagingError
from ...services.broadcasts import Broadcast, Event
from ..loops import Stopping, imported_function


class Command(BaseCommand):
    """Consumes until a signal ends it."""

    help = "Call a function with each event of a channel, in order; without a function, print the events."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("channel", help="name of the channel")
        parser.add_argument("--handler", help="dotted path of a function of an Event; it may be async")
        parser.add_argument("--name", help="keep the position in Redis under this name, one for each process")
        parser.add_argument(
            "--on-missed", help="dotted path of a function that is called if events may be missing"
        )
        parser.add_argument("--attempts", type=int, default=3, help="calls before an event is skipped (3)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the loop."""
        handler = imported_function(options["handler"], "--handler") if options["handler"] else self._print
        on_missed = imported_function(options["on_missed"], "--on-missed") if options["on_missed"] else None
        stop = Stopping()
        try:
            channel = Broadcast(options["channel"])
            arguments: dict[str, Any] = {
                "name": options["name"],
                "on_missed": on_missed,
                "attempts": options["attempts"],
                "stop": stop,
            }
            stop.listen()
            if options["verbosity"]:
                self.stderr.write(f"Consuming {channel.channel!r}. Ctrl-C ends it.")
            if any(map(inspect.iscoroutinefunction, (handler, on_missed))):
                asyncio.run(channel.aconsume(handler, **arguments))
            else:
                channel.consume(handler, **arguments)
        except MessagingError as error:
            raise CommandError(str(error)) from error

    def _print(self, event: Event) -> None:
        line = {"id": event.id, "published_at": event.published_at.isoformat(), "payload": event.payload}
        try:
            self.stdout.write(json.dumps(line))
            self.stdout.flush()
        except BrokenPipeError:  # as with `| head`: the rest must not be flushed at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit()
