"""`manage.py demo`: the whole site, with everything it needs, in one command."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from django_redis_messaging import MessagingError
from people import crowd
from people.cast import CAST
from people.serving import Site, bind, redis, remove_keys, stop_if_asked, stoppable, working

LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class Command(BaseCommand):
    """Starts Redis, fills the site with people and serves it until Ctrl-C."""

    help = "Run the chat site on a private Redis, with people and contacts to try it with."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
        parser.add_argument("--port", type=int, default=8000, help="port to listen on (8000)")
        parser.add_argument("--fresh", action="store_true", help="remove what earlier demos left first")
        parser.add_argument("--contacts", type=int, default=5000, help="people in the directory (5000)")
        parser.add_argument("--no-input", action="store_true", help="ask nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the demo."""
        host, fresh, contacts = options["host"], options["fresh"], options["contacts"]
        if contacts < 0:
            raise CommandError("--contacts is a number of people: give 0 or more.")
        if fresh and not options["no_input"]:
            self._confirm()
        with stoppable(), bind(host, options["port"]) as listening, redis() as where:
            self._say(f"Redis: {where}")
            try:
                self._fill(contacts, fresh=fresh)
            except MessagingError as error:
                raise CommandError(str(error)) from error
            settings.ALLOWED_HOSTS += [] if host in LOOPBACK else ["*"]
            port = listening.getsockname()[1]
            with working():
                Site(lambda: self._announce(host, port)).run(sockets=[listening])
        self._say("Stopped.")

    def _confirm(self) -> None:
        if sys.stdin.isatty():
            answer = input(f"Remove everything in {settings.DATA_DIR}, chats included? [y/N] ")
            if answer.strip().lower() not in {"y", "yes"}:
                raise CommandError("Nothing was removed. Leave out --fresh to go on with what is there.")

    def _fill(self, contacts: int, *, fresh: bool) -> None:
        if fresh:
            connections.close_all()
            for leftover in settings.DATA_DIR.glob(f"{settings.DATABASE_FILE.name}*"):
                leftover.unlink()
            remove_keys()
        self._say("Database …")
        call_command("migrate", verbosity=0, interactive=False)
        crowd.make_users(contacts)
        total = crowd.fill_directory(self._progress)
        crowd.start_talks()
        crowd.welcome()
        self._say(f"Directory: {total} people")

    def _progress(self, done: int, total: int) -> None:
        stop_if_asked()
        text = f"Directory: {done} of {total}"
        if self.stdout.isatty():
            self.stdout.write(f"\r{text}", ending="\n" if done == total else "")
            self.stdout.flush()
        elif done == total or done % crowd.REPORT == 0:
            self._say(text)

    def _announce(self, host: str, port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        self._say(self.style.SUCCESS(f"\nOpen http://{shown}:{port}/"))
        self._say(f"and sign in by a click as {', '.join(person.full_name for person in CAST)}.")
        self._say("Background tasks and timers: see /orders/. Options of all processes: see /shop/.")
        self._say("Use two browsers, or a private window, to be two people. Ctrl-C stops everything.")
        if host not in LOOPBACK:
            self._say(self.style.WARNING("Whoever reaches this address can sign in as anybody."))

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()
