"""`manage.py messaging_pause`: has workers start no jobs of a queue, or of a task."""

from __future__ import annotations

import getpass
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ... import DelayQueue, InvalidArgument, MessagingError, conf
from ...core.encoding import current_prefix
from ...core.operations import perform
from ...services.jobs.engine import registered_queues
from ...services.jobs.keys import queues_key
from .. import loops


class Command(BaseCommand):
    """Pauses a queue or a task."""

    help = "Have workers start no jobs of a queue, or of a task in all queues, until messaging_resume."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        add_what(parser)
        parser.add_argument("--reason", default="", metavar="TEXT", help="why, for other operators")
        parser.add_argument("--by", metavar="NAME", help="who pauses it (default: the user of the system)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Pause it."""
        reason, by = options["reason"], user_name() if options["by"] is None else options["by"]
        try:
            check_queue(options)
            if options["delay_queue"]:
                is_new = DelayQueue(options["queue"]).pause(reason, by)
            else:
                backend = loops.chosen_backend(options["backend"])
                is_new = backend.pause(options["queue"], reason, by, task=options["task"])
        except MessagingError as error:
            raise CommandError(str(error)) from error
        what = options["task"] or options["queue"]
        self.stdout.write(
            f"{what} is paused." if is_new else f"{what} was paused already; the reason is new."
        )


def add_what(parser: ArgumentParser) -> None:
    """Add the options that say what is paused."""
    parser.add_argument("queue", nargs="?", default="", help="name of the queue")
    parser.add_argument("--task", metavar="PATH", help="dotted name of a task, instead of a queue")
    parser.add_argument("--backend", default="default", metavar="ALIAS", help="in TASKS (default: default)")
    parser.add_argument("--delay-queue", action="store_true", help="the queue is a DelayQueue")


def check_queue(options: dict[str, Any]) -> None:
    """Raise InvalidArgument if nothing was ever pushed to the queue, and TASKS doesn't name it."""
    queue = options["queue"]
    if options["task"] and options["delay_queue"]:
        raise InvalidArgument("--task can't be used with --delay-queue.")
    if not queue and not options["task"]:
        raise InvalidArgument("Name a queue, or a task with --task.")
    if options["delay_queue"]:
        known = perform(conf.alias(), registered_queues(queues_key(current_prefix())))
    elif queue:
        known = loops.chosen_backend(options["backend"]).serving()
    else:
        return
    if queue not in known:
        names = ", ".join(sorted(known)[:20]) or "none"
        raise InvalidArgument(f"There is no queue {queue!r} (found: {names}).")


def user_name() -> str:
    """The user of the operating system; empty if it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
