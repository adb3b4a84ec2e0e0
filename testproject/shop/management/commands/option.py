"""`manage.py option`: shows the shop's options, or changes one in all processes."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from shop import caching, options
from shop.views import PRICES, OptionsForm


class Command(BaseCommand):
    """Shows all, or changes one."""

    help = "Show the shop's options; with a name and a value, change one in all processes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("name", nargs="?", choices=options.DEFAULTS, help="of the option")
        parser.add_argument("value", nargs="?", help="such as 20, true or false")

    def handle(self, *args: Any, **given: Any) -> None:
        """Change, and show."""
        name, value = given["name"], given["value"]
        if (name is None) != (value is None):
            raise CommandError("Give both a name and a value, or nothing.")
        if name is not None:
            form = OptionsForm({**{each: options.get(each) for each in options.DEFAULTS}, name: value})
            if not form.is_valid():
                raise CommandError(f"{name} can't be {value!r}: {form.errors[name][0]}")
            options.change(name, form.cleaned_data[name])
            caching.drop(PRICES)
        self.stdout.write(json.dumps({each: options.get(each) for each in options.DEFAULTS}))
