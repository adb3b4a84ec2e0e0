"""`manage.py messaging_rates`: lists what keys have used of rate limits; resets a key."""

from __future__ import annotations

import dataclasses
import heapq
import json
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.urls import get_resolver

from ... import MessagingError, conf
from ...core.encoding import current_prefix
from ...services.rates.listing import RateUse, list_rates, reset_rate
from ...web.limit_rules import declared_services
from ..output import format_count, printable, table

#: columns of the table
COLUMNS = ("limit", "key", "rate", "used", "left", "free_in", "reset_in")
#: rows that are printed without --top
TOP = 100


class Command(BaseCommand):
    """Prints a table, or JSON; or resets a key."""

    help = (
        "List the keys that have used a rate limit: those at their limit first, then by the share that is "
        "used up. With --reset, forget what a key has used."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("name", nargs="?", help="name of a limit (default: all)")
        parser.add_argument("--key", help="only this key, such as a user or an address")
        parser.add_argument("--at-limit", action="store_true", help="only keys that must wait")
        parser.add_argument(
            "--top", type=int, default=TOP, metavar="N", help=f"print at most this many keys (default: {TOP})"
        )
        parser.add_argument(
            "--reset", nargs=2, metavar=("NAME", "KEY"), help="forget what the key has used of the limit"
        )
        parser.add_argument("--using", metavar="ALIAS", help="alias in CACHES (default: that of the app)")
        parser.add_argument("--json", action="store_true", help="as JSON, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print them, or reset one."""
        if options["top"] < 1:
            raise CommandError("--top must be at least 1.")
        using, prefix = options["using"] or conf.alias(), current_prefix()
        try:
            if options["reset"] is not None:
                text = _reset(using, prefix, *options["reset"])
            else:
                text = _listed(using, prefix, options)
        except MessagingError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(text)


def _reset(using: str, prefix: str, name: str, key: str) -> str:
    if not reset_rate(using, prefix, name, key, declared=declared_services()):
        raise CommandError(f"{printable(key)} has used nothing of the rate limit {printable(name)}.")
    return f"Reset {printable(key)} in the rate limit {printable(name)}."


def _listed(using: str, prefix: str, options: dict[str, Any]) -> str:
    if getattr(settings, "ROOT_URLCONF", None):
        get_resolver().url_patterns  # noqa: B018 - imports the views, which declare limits
    declared = declared_services()
    number = 0

    def counted() -> Iterator[RateUse]:
        nonlocal number
        for use in list_rates(using, prefix, options["name"], options["key"], declared=declared):
            if use.is_at_limit or not options["at_limit"]:
                number += 1
                yield use

    uses = heapq.nsmallest(options["top"], counted(), key=lambda use: use.urgency)
    if options["json"]:
        return json.dumps({"rates": [dataclasses.asdict(use) for use in uses], "keys": number}, indent=2)
    return _text(uses, number)


def _text(uses: list[RateUse], number: int) -> str:
    if not uses:
        return "No uses are counted."
    text = table([COLUMNS, *map(_row, uses)], left=2)
    left_out = number - len(uses)
    return f"{text}\n\n{format_count(left_out, 'more key')}: raise --top." if left_out else text


def _row(use: RateUse) -> list[str]:
    return [
        printable(use.name),
        printable(use.key),
        "unknown" if use.rate is None else str(use.rate),
        str(use.used),
        "-" if use.remaining is None else str(use.remaining),
        f"{use.retry_after:.1f} s" if use.is_at_limit else "-",
        "-" if use.reset_after is None else f"{use.reset_after:.1f} s",
    ]
