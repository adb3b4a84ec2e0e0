"""`manage.py demo`: runs the site and everything it needs in one command."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from market import deliveries

from django_redis_messaging import MessagingError
from people import seed
from people.fixtures import USERS
from people.serving import (
    Site,
    bind,
    handle_stop_signals,
    remove_keys,
    run_background_work,
    run_redis,
    stop_if_requested,
)

LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class Command(BaseCommand):
    """Starts Redis, creates the demo data and serves the site until Ctrl-C."""

    help = "Run the demo site on a private Redis server, with users and contacts to try it with."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
        parser.add_argument("--port", type=int, default=8000, help="port to listen on (8000)")
        parser.add_argument("--fresh", action="store_true", help="remove the data of earlier demos first")
        parser.add_argument("--contacts", type=int, default=5000, help="more users in the directory (5000)")
        parser.add_argument("--no-input", action="store_true", help="don't ask for confirmation")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the demo."""
        host, fresh, contacts = options["host"], options["fresh"], options["contacts"]
        if contacts < 0:
            raise CommandError("--contacts must not be negative: give 0 or more.")
        if fresh and not options["no_input"]:
            self._confirm()
        with handle_stop_signals(), bind(host, options["port"]) as listening, run_redis() as server:
            self._write(f"Redis: {server}")
            try:
                self._create_data(contacts, fresh=fresh)
            except MessagingError as error:
                raise CommandError(str(error)) from error
            settings.ALLOWED_HOSTS += [] if host in LOOPBACK else ["*"]
            port = listening.getsockname()[1]
            with run_background_work():
                Site(lambda: self._announce(host, port)).run(sockets=[listening])
        self._write("Stopped.")

    def _confirm(self) -> None:
        if sys.stdin.isatty():
            answer = input(f"Remove all data in {settings.DATA_DIR}, including chats? [y/N] ")
            if answer.strip().lower() not in {"y", "yes"}:
                raise CommandError("Nothing was removed. Omit --fresh to use the existing data.")

    def _create_data(self, contacts: int, *, fresh: bool) -> None:
        if fresh:
            connections.close_all()
            for leftover in settings.DATA_DIR.glob(f"{settings.DATABASE_FILE.name}*"):
                leftover.unlink()
            remove_keys()
        self._write("Database …")
        call_command("migrate", verbosity=0, interactive=False)
        seed.create_users(contacts)
        total = seed.fill_directory(self._report_progress)
        seed.create_chats()
        seed.send_notifications()
        seed.open_market()
        deliveries.send_undelivered()
        self._write(f"Directory: {total} people")

    def _report_progress(self, done: int, total: int) -> None:
        stop_if_requested()
        text = f"Directory: {done} of {total}"
        if self.stdout.isatty():
            self.stdout.write(f"\r{text}", ending="\n" if done == total else "")
            self.stdout.flush()
        elif done == total or done % seed.PROGRESS_INTERVAL == 0:
            self._write(text)

    def _announce(self, host: str, port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        self._write(self.style.SUCCESS(f"\nOpen http://{shown}:{port}/"))
        self._write(f"and sign in with one click as {', '.join(user.full_name for user in USERS)}.")
        self._write("Background tasks and timers: /orders/. Options shared by all processes: /shop/.")
        self._write("A market where each item has a lock: /market/. Counts of an access log: /traffic/.")
        self._write("Use a second browser or a private window for a second user. Ctrl-C stops everything.")
        if host not in LOOPBACK:
            self._write(self.style.WARNING("Anyone who can reach this address can sign in as any user."))

    def _write(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()
