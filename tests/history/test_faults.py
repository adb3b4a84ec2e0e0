"""History and faults: lost replies, a full server, outages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import redis

from django_redis_messaging import MessagingError, OutcomeUnknown, Unavailable, conf
from django_redis_messaging.core.operations import are_observed, perform
from django_redis_messaging.core.outcome import deadline
from django_redis_messaging.services.history import recording
from django_redis_messaging.services.history.history import History
from django_redis_messaging.services.history.keys import Series
from django_redis_messaging.services.history.recording import Counts, Recorder, record
from django_redis_messaging.services.jobs.worker import Worker

from ..support.processes import forked
from ..support.proxy import LossyProxy
from ..support.server import until
from ..support.workers import PATIENCE, backend, worker
from ..tasks import jobs

pytestmark = pytest.mark.one_server
QUEUE = Series("queue", "default", "default")
RUN = ("default", "shop.pack", "done", 12, 0.003)


def total(column: str = "ran") -> float:
    """The sum over the last hour."""
    [line] = History().lines([QUEUE])
    return sum(point.values[column] or 0 for point in line.points)


def recorder_of(*runs: Any) -> Recorder:
    """A recorder that has counted these."""
    made = Recorder(conf.alias(), backend().engine)
    assert made.runs is not None
    made.runs += runs
    made.count()
    return made


def test_a_lost_reply_counts_once(lossy: LossyProxy) -> None:
    for _ in range(20):
        recorder_of(RUN, RUN).flush(60)
    assert lossy.lost > 2
    assert total() == 40


@pytest.mark.parametrize(("error", "recorded"), [(Unavailable, 2), (OutcomeUnknown, 0)])
def test_what_redis_has_not_got_is_recorded_later(
    error: type[MessagingError],
    recorded: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it may have got is not sent again."""

    def fail(*_: object) -> None:
        raise error("planted")

    recorder = recorder_of(RUN, (*RUN[:2], "dead", *RUN[3:]))
    with monkeypatch.context() as patched:
        patched.setattr(recording, "perform", fail)
        recorder.flush(60)
    assert "Recording the history failed, going on in 10 s: planted" in caplog.text
    recorder.flush(60)
    recorder.flush(60)
    assert (total(), total("failed")) == (recorded, recorded / 2)


def test_a_full_server_refuses_it(
    fill: Callable[[], None], raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    History().lines([QUEUE])
    perform(conf.alias(), record(conf.prefix(), {QUEUE: Counts({"ran": 1}, {})}, "first"))
    fill()
    recorder = recorder_of(RUN)
    recorder.flush(60)
    assert "Recording the history failed" in caplog.text
    assert "out of memory" in caplog.text
    raw.config_set("maxmemory", 0)
    recorder.flush(60)
    assert total() == 2


def test_a_recording_that_hangs_delays_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one that fails in an unexpected way."""

    def hang(*_: object, **__: object) -> Any:
        time.sleep(3)
        raise LookupError("planted")

    monkeypatch.setattr(recording, "record", hang)
    monkeypatch.setattr(recording, "FLUSH_INTERVAL", 0.0)
    results = [jobs.noop.enqueue() for _ in range(5)]
    made: Worker = worker(burst=True)
    began = time.monotonic()
    made.run()
    assert time.monotonic() - began < 2.5
    assert made.done == 5
    assert not made.failed
    for result in results:
        result.refresh()
    assert all(result.is_finished for result in results)


def test_counts_are_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(recording, "MAX_COUNTED", 10)
    recorder = recorder_of(*(("default", f"task {number}", "done", 0, 0.0) for number in range(15)))
    with caplog.at_level(logging.WARNING):
        recorder.flush(60)
    assert "5 runs are not in the history" in caplog.text
    assert total() == 10
    assert len(History().series("task")) == 10


def test_one_that_fails_lets_nothing_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "COUNT_INTERVAL", 0.001)
    monkeypatch.setattr(Recorder, "count", mock.Mock(side_effect=LookupError("planted")))
    recorder = Recorder(conf.alias(), backend().engine)
    recorder.start()
    until(lambda: recorder.runs is None)
    assert not are_observed()
    with deadline(PATIENCE):
        recorder.close()
    assert not are_observed()


def test_a_forked_process_notes_no_operations() -> None:
    recorder = Recorder(conf.alias())
    recorder.start()
    assert are_observed()
    with forked(lambda: not are_observed()) as succeeded:
        assert succeeded()
    with deadline(PATIENCE):
        recorder.close()
    assert not are_observed()


def test_of_many_attempts_some_stand_for_all() -> None:
    """Each counts; rare tasks have durations, too."""
    rare = ("default", "shop.report", "dead", 5000, 2.0)
    recorder_of(*[RUN] * 4000, rare, *[RUN] * 4000).flush(60)
    [line] = History().lines([QUEUE])
    [point] = line.points
    assert (point.values["ran"], point.values["failed"]) == (8001, 1)
    tasks = History().lines(History().series("task"))
    found = {one.series.name: one.points[0].values for one in tasks}
    assert (found["shop.pack"]["ran"], found["shop.report"]["ran"]) == (8000, 1)
    assert found["shop.pack"]["run95"] == pytest.approx(0.003, rel=0.2)
    assert found["shop.report"]["run50"] == pytest.approx(2, rel=0.2)
    assert found["shop.report"]["wait50"] == pytest.approx(5, rel=0.2)
