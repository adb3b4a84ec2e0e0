"""`manage.py messaging_dead`, and `redrive` with what it lists."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.management import CommandError

from django_redis_messaging import DelayQueue, Expiry
from django_redis_messaging.services.jobs.engine import LeasedJob, Outcome

from ..support.engines import timers
from ..support.server import until
from ..support.terminal import output_of
from ..support.workers import burst
from . import jobs

#: a name that would do something to a terminal
HOSTILE = "a\x1b[31m b"


def listed(*arguments: str) -> list[dict[str, Any]]:
    return json.loads(output_of("messaging_dead", *arguments, "--json")[0])  # type: ignore[no-any-return]


@pytest.fixture
def dead() -> list[str]:
    """The ids of a dead job, a dead timer and two dead tasks."""
    queue = DelayQueue("mail")
    queue.push({"to": "ann"}, job_id=HOSTILE)
    queue.fail(queue.pop(1)[0], "no\nsuch host")
    timer_id = Expiry("order").start("17", 0.001)
    claimed: list[LeasedJob] = []
    until(lambda: claimed or claimed.extend(timers().claim(["order"], 1, 60_000).jobs))
    [leased] = claimed
    timers().settle(leased.lease.settlement(Outcome.DEAD, line='F"handler"'))
    ids = [jobs.fail.enqueue().id, jobs.return_object.enqueue().id]
    burst()
    return [HOSTILE, timer_id, *ids]


def test_dead_jobs_are_listed_and_redriven(dead: list[str]) -> None:
    rows = {row["id"]: row for row in listed()}
    assert set(rows) == set(dead)
    job, timer, failed, unserializable = (rows[one] for one in dead)
    assert (job["queue"], job["task"], job["reason"]) == ("mail", None, "no\nsuch host")
    assert (job["arguments"], job["attempts"]) == ('{"to":"ann"}', 1)
    assert (timer["queue"], timer["timer"], timer["reason"]) == ("timers order", "17", "handler")
    assert (failed["queue"], failed["task"]) == ("tasks default/default", jobs.fail.module_path)
    assert failed["reason"] == "builtins.ValueError: no"
    assert unserializable["task"] == jobs.return_object.module_path
    for row in (job, timer, failed):
        queue, *more = row["redrive"].split()
        assert output_of("redrive", queue, row["id"], *more)[0] == f"1 requeued in {queue}.\n"
    assert [row["id"] for row in listed()] == [unserializable["id"]]
    out, _ = output_of("redrive", "default", "--backend", "default", "--delay", "60")
    assert out == "1 requeued in default.\n"
    rows = json.loads(output_of("messaging_stats", "--json")[0])
    assert [row["delayed"] for row in rows if row["queue"] == "tasks default/default"] == [1]  # type: ignore[index]


def test_what_is_listed_can_be_chosen(dead: list[str]) -> None:
    job, timer, failed, other = dead
    assert {row["id"] for row in listed("default")} == {failed, other}
    assert [row["id"] for row in listed("mail")] == [job]
    assert [row["id"] for row in listed("--timers")] == [timer]
    assert {row["id"] for row in listed("--backend", "default")} == {failed, other}
    assert [row["id"] for row in listed("--task", jobs.fail.module_path)] == [failed]
    assert len(listed("--limit", "2")) == 2
    assert listed("unknown") == []
    assert output_of("messaging_dead", "unknown")[0] == "There are no dead jobs.\n"
    bad = [["--limit", "0"], ["--limit", "1001"], ["--backend", "no"], ["--timers", "--backend", "default"]]
    for arguments in bad:
        with pytest.raises(CommandError, match=r"--limit must be|has no entry|can't be used"):
            output_of("messaging_dead", *arguments)


def test_table(dead: list[str]) -> None:
    """Without control characters, and with the command that requeues each."""
    head, *lines = output_of("messaging_dead")[0].splitlines()
    assert head.split() == ["id", "queue", "task", "attempts", "ended", "reason"]
    [line] = [line for line in lines if " mail " in line and "redrive" not in line]
    assert line.startswith(r"a\x1b[31m b")
    assert line.endswith(r"no\nsuch host")
    assert set(lines[-3:]) == {
        "To requeue them: manage.py redrive mail [ID …]",
        "To requeue them: manage.py redrive order [ID …] --timers",
        "To requeue them: manage.py redrive default [ID …] --backend default",
    }
