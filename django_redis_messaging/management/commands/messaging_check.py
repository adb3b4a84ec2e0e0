"""`manage.py messaging_check`: whether the app can work, for health probes."""

from __future__ import annotations

import json
import math
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, TextIO

from django.core.checks import CheckMessage
from django.core.management.base import BaseCommand, CommandError

from ... import conf
from ...checks.formats import check_formats, report_formats
from ...checks.servers import check_server
from ...checks.settings import check_alias
from ...checks.values import check_settings
from ...core.outcome import deadline
from ...core.topology import SCAN_COUNT
from ...errors import MessagingError
from ...services.common.operators import Health
from ...services.jobs.heartbeats import alive
from .. import loops
from ..output import Display, State, format_count
from . import messaging_stats

#: exit codes: Redis or a setting; no live worker, listener or poller; a job has waited too long. 2 is that of
#: an unknown option
UNHEALTHY, NO_WORKER, NO_LISTENER, NO_POLLER, TOO_OLD = 1, 3, 4, 5, 6


@dataclass
class Report:
    """The result of the checks."""

    healthy: bool = True
    #: exit code
    code: int = 0
    #: how long a write by a script took; None: it failed
    ms: float | None = None
    problems: list[str] = field(default_factory=list)
    #: what impairs nothing, such as keys of another format
    warnings: list[str] = field(default_factory=list)
    #: with --consuming: workers and listeners that take jobs, and all queues
    workers: int | None = None
    listeners: int | None = None
    queues: list[dict[str, Any]] | None = None

    def add(self, problems: Iterable[str], code: int = UNHEALTHY) -> None:
        """Add problems; with any, the report is unhealthy. The lowest code is that of the report."""
        if found := list(problems):
            self.problems += found
            self.healthy, self.code = False, min(self.code or code, code)

    @property
    def line(self) -> str:
        """The report in one line."""
        parts = [f"Healthy: Redis wrote and answered in {self.ms:.2f} ms"]
        if self.queues is not None:
            oldest = max((row["oldest_age"] or 0.0 for row in self.queues), default=0.0)
            parts.append(f"{self.workers} workers and {self.listeners} listeners take jobs")
            parts.append(f"the oldest ready job has waited {oldest:.1f} s")
        return ", ".join(parts) + "."


class Command(BaseCommand):
    """Checks once."""

    help = (
        "Check that Redis answers and can be written; with --consuming, that jobs are taken, too. Exit code "
        "0: healthy; otherwise, with the problems and what to do on standard error, 1: Redis or a setting; "
        "3: no worker; 4: no listener; 5: no poller; 6: a job has waited too long."
    )
    requires_system_checks: Sequence[str] = []  # type: ignore[assignment]

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--consuming",
            action="store_true",
            help="also check that ready jobs of delay queues, timers and tasks are taken, and that a poller "
            "enqueues the periodic tasks",
        )
        parser.add_argument(
            "--max-age",
            type=float,
            default=60.0,
            help="seconds that a job may be ready in a queue without consumers (default: 60)",
        )
        parser.add_argument(
            "--timeout", type=float, default=5.0, help="seconds in which Redis has to answer (5)"
        )
        parser.add_argument(
            "--all-keys",
            action="store_true",
            help="search all keys, not only a sample, for keys that other versions of this app have stored",
        )
        parser.add_argument("--json", action="store_true", help="as JSON, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Check."""
        if not (0 < options["timeout"] < math.inf and 0 <= options["max_age"] < math.inf):
            raise CommandError("--timeout must be more than 0 seconds, --max-age at least 0.")
        report = Report()
        cause = None
        try:
            with deadline(options["timeout"]):
                _check_server(report)
                if report.healthy:
                    report.warnings += _text_of(self._check_formats(**options))
                if options["consuming"] and report.healthy:
                    _check_queues(report, options["max_age"])
        except Exception as error:  # such as an entry of CACHES or TASKS that its backend rejects
            cause = error
            report.add([f"{type(error).__name__}: {error}"])
        if options["json"]:
            self.stdout.write(json.dumps(asdict(report), indent=2))
        elif report.healthy and options["verbosity"]:
            self.stdout.write(report.line)
        if options["verbosity"]:
            self.stderr.write("".join(f"Warning: {warning}\n" for warning in report.warnings), ending="")
        if not report.healthy:
            problems = "\n".join(f"Unhealthy: {problem}" for problem in report.problems)
            raise CommandError(problems, returncode=report.code) from cause

    def _check_formats(
        self, *, all_keys: bool, verbosity: int, stderr: TextIO | None = None, **_: Any
    ) -> list[CheckMessage]:
        if not all_keys:
            return check_formats()
        with Search(stderr or sys.stderr, "Searching keys", silent=not verbosity) as search:
            return list(report_formats(conf.alias(), on_page=search.count_page))


class Search(Display):
    """Shows how many keys have been searched."""

    unit = "key"
    _pages = 0

    def count_page(self) -> None:
        """Count the keys of one more reply to SCAN."""
        self._pages += 1

    def state(self) -> State:
        """The keys so far: their total isn't known."""
        searched = self._pages * SCAN_COUNT
        return State(f"about {searched:,} keys", searched)


def _check_server(report: Report) -> None:
    report.add(_serious([*check_settings(), *check_alias()]))
    if not report.healthy:
        return
    try:
        health = Health()
        health.probe()  # connects, and loads the script
        began = perf_counter()
        health.probe()
    except MessagingError as error:
        report.add([" ".join([str(error), *_hints(check_server())])])
    else:
        report.ms = round(1000 * (perf_counter() - began), 3)
        report.add(_serious(check_server()))


def _hints(messages: Iterable[CheckMessage]) -> list[str]:
    """What to do, by the server check, which failed too or found a problem."""
    return [str(one.hint) for one in messages if one.is_serious() or one.id == "messaging.W005"]


def _serious(messages: Iterable[CheckMessage]) -> list[str]:
    return _text_of(one for one in messages if one.is_serious())


def _text_of(messages: Iterable[CheckMessage]) -> list[str]:
    return [f"{one.msg} {one.hint or ''}".strip() for one in messages]


def _check_queues(report: Report, max_age: float) -> None:
    try:
        listeners = alive(Health().listeners())
        workers = {
            alias: alive(Health(using=backend.using).workers(alias))
            for alias, backend in loops.backends().items()
        }
        report.listeners, report.workers = len(listeners), sum(map(len, workers.values()))
        report.queues = []
        for queue, row in messaging_stats.all_rows():
            report.queues.append(row)
            if queue.kind == "delay" and not row["leased"]:
                advice = "No client pops from it: start its consumers."
                report.add(_overdue(row, max_age, advice), TOO_OLD)
            elif queue.kind == "timers" and not listeners:
                advice = "No listener is running: start run_listener."
                report.add(_unserved(row, max_age, advice), NO_LISTENER)
            elif queue.kind == "tasks" and not workers[queue.where]:
                advice = "No worker is running: start run_worker."
                report.add(_unserved(row, max_age, advice), NO_WORKER)
        report.add(_without_poller(), NO_POLLER)
    except MessagingError as error:
        report.add([str(error)])


def _without_poller() -> Iterator[str]:
    """A problem for each backend whose periodic tasks no poller enqueues."""
    if not loops.tasks_installed():
        return
    from ...tasks.occurrences import unpolled

    for one in unpolled():
        yield (
            f"No poller has enqueued the periodic tasks of {one.alias!r}, such as {one.schedule}, "
            f"{one.since}: start run_poller."
        )


def _unserved(row: dict[str, Any], max_age: float, advice: str) -> list[str]:
    """A problem if jobs wait in a queue of a slot without consumers, due or not."""
    waiting = row["ready"] + row["delayed"] + row["parked"]
    if not waiting:
        return []
    jobs = format_count(waiting, "job")
    verb = "waits" if waiting == 1 else "wait"
    return _overdue(row, max_age, advice) or [f"{jobs} of {row['queue']} {verb}. {advice}"]


def _overdue(row: dict[str, Any], max_age: float, advice: str) -> list[str]:
    age = row["oldest_age"]
    if age is None or age <= max_age:
        return []
    return [f"A job of {row['queue']} has been ready for {age:.0f} s. {advice}"]
