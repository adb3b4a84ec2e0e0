"""`manage.py messaging_check`: whether the app can work, for health probes."""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from django.core.checks import CheckMessage
from django.core.management.base import BaseCommand, CommandError

from ...checks.caches import check_alias
from ...checks.server import check_server
from ...checks.settings import check_settings
from ...core.retry import deadline
from ...errors import MessagingError
from ...services.health import Consumer, Health
from . import messaging_stats


@dataclass
class Report:
    """What was found."""

    healthy: bool = True
    #: what a write by a script took; None: none came back
    ms: float | None = None
    problems: list[str] = field(default_factory=list)
    #: with --consuming: those that take jobs, and all queues
    workers: int | None = None
    listeners: int | None = None
    queues: list[dict[str, Any]] | None = None

    def add(self, problems: Iterable[str]) -> None:
        """Not healthy, for these reasons, if there are any."""
        self.problems += problems
        self.healthy = not self.problems

    @property
    def line(self) -> str:
        """All in one line."""
        parts = [f"Healthy: Redis wrote and answered in {self.ms:.2f} ms"]
        if self.queues is not None:
            oldest = max((row["oldest_age"] or 0.0 for row in self.queues), default=0.0)
            parts.append(f"{self.workers} workers and {self.listeners} listeners take jobs")
            parts.append(f"the oldest that is ready is so for {oldest:.1f} s")
        return ", ".join(parts) + "."


class Command(BaseCommand):
    """Looks once."""

    help = (
        "Whether Redis answers and can be written; with --consuming, whether jobs are taken, too. Exit code "
        "0: healthy; 1: not, and standard error says what is wrong and what to do."
    )
    requires_system_checks: Sequence[str] = []  # type: ignore[assignment]

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--consuming",
            action="store_true",
            help="also look whether jobs that are ready are taken: tasks, timers, those of delay queues",
        )
        parser.add_argument(
            "--max-age",
            type=float,
            default=60.0,
            help="seconds that a job may be ready where nobody takes any (60)",
        )
        parser.add_argument("--timeout", type=float, default=5.0, help="seconds that Redis has to answer (5)")
        parser.add_argument("--json", action="store_true", help="as JSON, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Look."""
        if not (0 < options["timeout"] < math.inf and 0 <= options["max_age"] < math.inf):
            raise CommandError("--timeout is more than 0 seconds, --max-age 0 or more.")
        report = Report()
        cause = None
        try:
            with deadline(options["timeout"]):
                _look_at_server(report)
                if options["consuming"] and report.healthy:
                    _look_at_queues(report, options["max_age"])
        except Exception as error:  # such as an entry of CACHES or TASKS that its backend can't use
            cause = error
            report.add([f"{type(error).__name__}: {error}"])
        if options["json"]:
            self.stdout.write(json.dumps(asdict(report), indent=2))
        elif report.healthy and options["verbosity"]:
            self.stdout.write(report.line)
        if not report.healthy:
            raise CommandError("\n".join(f"Unhealthy: {problem}" for problem in report.problems)) from cause


def _look_at_server(report: Report) -> None:
    report.add(_told([*check_settings(), *check_alias()]))
    if not report.healthy:
        return
    try:
        health = Health()
        health.probe()  # which connects, and brings the script
        began = perf_counter()
        health.probe()
    except (MessagingError, ValueError) as error:
        report.add([" ".join([str(error), *_hints(check_server())])])
    else:
        report.ms = round(1000 * (perf_counter() - began), 3)
        report.add(_told(check_server()))


def _hints(messages: Iterable[CheckMessage]) -> list[str]:
    """What to do, as the check says that could not ask either, or found something bad."""
    return [str(one.hint) for one in messages if one.is_serious() or one.id == "messaging.W005"]


def _told(messages: Iterable[CheckMessage]) -> list[str]:
    return [f"{one.msg} {one.hint or ''}".strip() for one in messages if one.is_serious()]


def _look_at_queues(report: Report, max_age: float) -> None:
    try:
        listeners = _alive(Health().listeners())
        report.listeners, report.workers, report.queues = len(listeners), 0, []
        for row in messaging_stats.delay_queues():
            report.queues.append(row)
            if not row["leased"]:
                report.add(_overdue(row, max_age, "Nobody pops from it: start what does."))
        for row in messaging_stats.timers():
            report.queues.append(row)
            if not listeners:
                report.add(_overdue(row, max_age, "No listener is alive: start run_listener."))
        for workers, rows in _tasks():
            report.workers += len(workers)
            for row in rows:
                report.queues.append(row)
                if not workers:
                    report.add(_overdue(row, max_age, "No worker is alive: start run_worker."))
    except MessagingError as error:
        report.add([str(error)])


def _tasks() -> Iterator[tuple[list[Consumer], list[dict[str, Any]]]]:
    """Of each backend, the workers that take jobs, and its queues."""
    with suppress(ImportError):  # without Django's Tasks there are none
        from ...tasks.polling import our_backends

        rows = messaging_stats.tasks()
        for backend in our_backends():
            workers = Health(using=backend.chosen["USING"]).workers(backend.alias)
            queues = {f"tasks {backend.alias}/{queue}" for queue in backend.serving()}
            yield _alive(workers), [row for row in rows if row["queue"] in queues]


def _alive(found: Iterable[Consumer]) -> list[Consumer]:
    return [one for one in found if one.alive]


def _overdue(row: dict[str, Any], max_age: float, advice: str) -> list[str]:
    age = row["oldest_age"]
    if age is None or age <= max_age:
        return []
    return [f"A job of {row['queue']} has been ready for {age:.0f} s. {advice}"]
