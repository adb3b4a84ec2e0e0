"""This app: several processes by `--processes`, or as several commands."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterable

import django
from django.apps import apps

from . import work

os.environ.setdefault("DJANGO_SETTINGS_MODULE", f"{__package__}.django_settings")
if not apps.ready:
    django.setup()

from django_redis_messaging.tasks import task  # after the setup

#: what a worker is started with
RUN = ["-m", "django", "run_worker", "--verbosity", "0"]


@task
def noop(number: int) -> int:
    return work.noop(number)


@task
async def anoop(number: int) -> int:
    return work.note(number)


@task
def cpu(number: int) -> int:
    return work.cpu(number)


@task
def fail(number: int) -> int:
    return work.fail(number)


TASKS = {"noop": noop, "anoop": anoop, "cpu": cpu, "fail": fail}


def push(kind: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        TASKS[kind].enqueue(number)


@functools.cache
def has_processes() -> bool:
    """Whether one command can start several processes."""
    described = subprocess.run(
        [sys.executable, *RUN[:3], "--help"], capture_output=True, text=True, check=True
    )
    return "--processes" in described.stdout


def command(processes: int) -> list[list[str]]:
    if has_processes():
        return [[*RUN, "--processes", str(processes)]]
    if not processes:
        raise NotImplementedError("run_worker has no option --processes.")
    return [RUN] * processes
