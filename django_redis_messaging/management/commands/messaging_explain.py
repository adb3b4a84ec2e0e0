"""`manage.py messaging_explain`: says why something waits."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ... import Explanation, MessagingError, explain
from ..output import printable


class Command(BaseCommand):
    """Prints an explanation."""

    help = (
        "Explain why a task, a job, a timer, a queue, a lock or a permit waits, or a periodic task is not "
        "enqueued: each line is a cause of the one above it, with what would end it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument(
            "thing",
            metavar="ID",
            help="id of a task, or kind:name, such as task:default/0abc, job:mail/7, timer:order/17, "
            "queue:default/emails, periodic:default/report, lock:nightly, rate:login/ann, chat:42",
        )
        parser.add_argument("--json", action="store_true", help="as JSON, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Explain it."""
        try:
            found = explain(options["thing"])
        except MessagingError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(json.dumps(found.to_json(), indent=2) if options["json"] else _text(found))


def _text(explanation: Explanation) -> str:
    """A line for each cause, and one for what ends it."""
    lines = []
    for cause in explanation.causes:
        lines.append(printable(f"{cause.code}: {cause.text}"))
        if cause.ends:
            lines.append(printable(f"    {cause.ends}"))
    return "\n".join(lines)
