"""`manage.py demo`: runs the site and everything it needs in one command."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from ipaddress import ip_address
from socket import socket
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from market import deliveries
from redis.exceptions import RedisError

from django_redis_messaging import MessagingError
from people import seed
from people.fixtures import USERS
from people.serving import (
    Site,
    bind,
    count_keys,
    handle_stop_signals,
    interruptible,
    key_pattern,
    remove_keys,
    run_background_work,
    run_redis,
    stop_if_requested,
)

#: hosts that Django allows without ALLOWED_HOSTS while DEBUG is on
DEFAULT_HOSTS = {"127.0.0.1", "localhost", "::1"}
BEYOND_LOOPBACK = (
    "anyone who can reach it can sign in as any user but staff, and see the error pages of DEBUG. "
    "Requests for other host names are refused (see --allowed-host)."
)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. Names are not resolved: False, except for localhost."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Command(BaseCommand):
    """Starts Redis, creates the demo data and serves the site until Ctrl-C."""

    help = "Run the demo site on a private Redis server, with users and contacts to try it with."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
        parser.add_argument(
            "--allowed-host",
            action="append",
            default=[],
            metavar="NAME",
            help="another host name that browsers use, as is needed with --host 0.0.0.0; can be repeated",
        )
        parser.add_argument("--port", type=int, default=8000, help="port to listen on (8000)")
        parser.add_argument("--fresh", action="store_true", help="remove the data of earlier demos first")
        parser.add_argument("--contacts", type=int, default=5000, help="more users in the directory (5000)")
        parser.add_argument("--chats", type=int, default=60, help="chats that all demo users share (60)")
        parser.add_argument("--messages", type=int, default=500, help="messages of each of these chats (500)")
        parser.add_argument(
            "--cluster", action="store_true", help="run a Cluster of three primaries, with data of its own"
        )
        parser.add_argument("--no-input", action="store_true", help="don't ask for confirmation")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the demo."""
        host = options["host"]
        for name, least in (("contacts", 0), ("chats", 0), ("messages", 1)):
            if options[name] < least:
                raise CommandError(f"--{name} must be at least {least}, not {options[name]}.")
        with handle_stop_signals(), bind(host, options["port"]) as listening:
            self._restrict_access(host, options["allowed_host"])
            self._serve(listening, host, options)
        self._write("Stopped.")

    def _serve(self, listening: socket, host: str, options: dict[str, Any]) -> None:
        with run_redis(cluster=options["cluster"]) as server:
            self._write(f"Redis: {server}")
            try:
                if options["fresh"]:
                    self._remove_data(ask=not options["no_input"])
                self._create_data(options["contacts"], options["chats"], options["messages"])
            except (MessagingError, RedisError) as error:
                raise CommandError(str(error)) from error
            stop_if_requested()
            port = listening.getsockname()[1]
            with run_background_work():
                Site(lambda: self._announce(host, port)).run(sockets=[listening])

    def _restrict_access(self, host: str, names: list[str]) -> None:
        """Answer requests for this host only; let staff sign in by a click on this machine only."""
        settings.STAFF_SIGN_IN_BY_CLICK = is_loopback(host)
        if host not in DEFAULT_HOSTS or names:
            settings.ALLOWED_HOSTS = [f"[{host}]" if ":" in host else host, *names]
        if not is_loopback(host):
            self._write(self.style.WARNING(f"{host} is not a loopback address: {BEYOND_LOOPBACK}"))

    def _remove_data(self, *, ask: bool) -> None:
        """Remove the data of earlier demos. Without a terminal, an empty input means no."""
        if ask:
            keys = f"{count_keys()} keys {key_pattern()} in Redis"
            self._write(f"Remove the database in {settings.DATA_DIR}, and {keys}? [y/N]")
            with interruptible():
                answer = sys.stdin.readline().strip().lower()
            if answer not in {"y", "yes"}:
                raise CommandError("Nothing was removed. Omit --fresh, or give --no-input to remove it.")
        connections.close_all()
        for leftover in settings.DATA_DIR.glob(f"{settings.DATABASE_FILE.name}*"):
            leftover.unlink()
        self._write(f"Removed the database and {remove_keys()} keys.")

    def _create_data(self, contacts: int, chats: int, messages: int) -> None:
        self._write("Database …")
        call_command("migrate", verbosity=0, interactive=False)
        stop_if_requested()
        seed.create_users(contacts)
        total = seed.fill_directory(self._report_progress)
        self._write(f"Chats: {chats} with {messages} messages each …")
        seed.fill_chats(chats, messages)
        seed.create_chats()
        seed.send_notifications()
        seed.open_market()
        deliveries.send_undelivered()
        self._write(f"Directory: {total} people")
        if not settings.STAFF_SIGN_IN_BY_CLICK:
            staff, password = seed.set_staff_password()
            self._write(f"Only {staff} can use the admin, with this password: {password}")

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
        self._write("The console, for Alice: /admin/django_redis_messaging/overview/.")
        self._write("A market where each item has a lock: /market/. Counts of an access log: /traffic/.")
        self._write("Use a second browser or a private window for a second user. Ctrl-C stops everything.")

    def _write(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()
