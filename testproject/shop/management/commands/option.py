"""`manage.py option`: shows the options of the shop, or changes one in all processes."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from shop import caching, options
from shop.views import PRICES, OptionsForm


class Command(BaseCommand):
    """Shows all options, or changes one."""

    help = "Show the shop's options; with a name and a value, change one in all processes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("name", nargs="?", choices=options.DEFAULTS, help="name of the option")
        parser.add_argument("value", nargs="?", help="new value, such as 20, true or false")

    def handle(self, *args: Any, **arguments: Any) -> None:
        """Change the option, and show all."""
        name, value = arguments["name"], arguments["value"]
        if (name is None) != (value is None):
            raise CommandError("Give both a name and a value, or nothing.")
        if name is not None:
            form = OptionsForm({**{option: options.get(option) for option in options.DEFAULTS}, name: value})
            if not form.is_valid():
                raise CommandError(f"{name} can't be {value!r}: {form.errors[name][0]}")
            options.change(name, form.cleaned_data[name])
            caching.invalidate(PRICES)
        self.stdout.write(json.dumps({option: options.get(option) for option in options.DEFAULTS}))
