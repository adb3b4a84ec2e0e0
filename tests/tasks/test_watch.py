"""`manage.py messaging_stats --watch`."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_redis_messaging import Unavailable
from django_redis_messaging.management.commands import messaging_stats
from django_redis_messaging.management.commands.messaging_stats import CLEAR

from ..support.processes import Start
from ..support.terminal import output_of
from ..support.workers import PATIENCE

pytestmark = pytest.mark.one_server


class Screen(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored_handlers() -> Iterator[None]:
    old = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    for number, handler in old:
        signal.signal(number, handler)


def reading(*found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the command read this, one after the other, and get a signal while it reads the last one."""
    left = list(found)

    def read() -> Any:
        one = left.pop(0)
        if not left:
            os.kill(os.getpid(), signal.SIGTERM)
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr(messaging_stats, "_all", read)


def test_a_line_of_json_each_time_until_ctrl_c(start: Start) -> None:
    process = start("messaging_stats", "--watch", "0.1", "--json")
    assert process.stdout is not None
    for _ in range(2):
        assert json.loads(process.stdout.readline())[0]["queue"] == "tasks default/default"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")


def test_it_goes_on_while_redis_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    reading([], Unavailable("Redis was not available."), [], monkeypatch=monkeypatch)
    out, errors = output_of("messaging_stats", "--watch", "0.1")
    assert (out, errors) == ("There are no queues yet.\n" * 2, "Redis was not available.\n")


def test_each_table_replaces_the_one_before_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    reading([], [], monkeypatch=monkeypatch)
    screen = Screen()
    call_command("messaging_stats", "--watch", "0.1", stdout=screen, no_color=True)
    assert screen.getvalue() == f"{CLEAR}There are no queues yet.\n" * 2


@pytest.mark.parametrize("interval", ["0.05", "nan", "86401"])
def test_invalid_interval(interval: str) -> None:
    with pytest.raises(CommandError, match=r"--watch must be between 0\.1 and 86400 seconds"):
        output_of("messaging_stats", "--watch", interval)
