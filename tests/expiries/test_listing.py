"""Pages of timers; firing and cancelling them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from django_redis_messaging import Expiry, conf
from django_redis_messaging.core.operations import Steps, perform
from django_redis_messaging.errors import InvalidArgument
from django_redis_messaging.handlers import Expired
from django_redis_messaging.services.expiries.listing import Timers
from django_redis_messaging.services.jobs.engine import LeasedJob, Outcome
from django_redis_messaging.services.jobs.listing import JobFilter

from ..conftest import Call
from ..support.engines import timers
from ..support.listeners import listening
from ..support.server import until


async def test_timers_are_listed_fired_and_cancelled(call: Call) -> None:
    orders, listed = Expiry("order"), Timers("order")
    for at, name in enumerate(("a:b", "é", "c")):
        orders.start(name, 3600 + at, {"total": at})
    page = await call(listed, "page", "delayed", limit=2)
    assert [(row.name, row.arguments) for row in page.rows] == [("a:b", '{"total":0}'), ("é", '{"total":1}')]
    rest = await call(listed, "page", "delayed", cursor=page.cursor)
    assert [row.name for row in rest.rows] == ["c"]
    first, second = (row.id for row in page.rows)
    assert (await call(listed, "reschedule", [first, "unknown"])).count == 1
    assert orders.remaining("a:b") == 0
    assert [row.name for row in listed.page("ready").rows] == ["a:b"]
    assert (await call(listed, "cancel", [second, second])).count == 1
    assert orders.remaining("é") is None
    later = rest.rows[0].due_at + timedelta(hours=2)
    assert (await call(listed, "reschedule", JobFilter(), later)).count == 1
    assert [row.due_at for row in listed.page("delayed").rows] == [later]
    with pytest.raises(InvalidArgument, match="cursor"):
        Timers("other").page("delayed", cursor=page.cursor)


def test_neither_one_that_was_replaced_nor_one_that_has_started_is_changed() -> None:
    orders, listed = Expiry("order"), Timers("order")
    old = orders.start("a", 3600)
    orders.start("a", 3600)
    other = Expiry("other").start("a", 3600)
    assert listed.cancel([old, other]).count == listed.reschedule([old, other]).count == 0
    new = orders.start("a", 0.001)
    claimed: list[LeasedJob] = []
    until(lambda: claimed or claimed.extend(timers().claim(["order"], 1, 60_000).jobs))
    [leased] = claimed
    assert leased.lease.id == new
    timers().confirm(leased, "a")
    [row] = listed.page("leased").rows
    assert (row.id, row.name, row.status) == (new, "a", "running")
    assert listed.cancel([new]).count == listed.reschedule([new]).count == 0
    assert timers().settle(leased.lease.settlement(Outcome.DEAD, line='F"no"'))
    [dead] = listed.page("dead").rows
    assert (dead.reason, listed.redrive([dead.id]).count) == ("no", 1)


def test_a_timer_that_is_replaced_meanwhile_stays_as_it_is() -> None:
    """After its name was read, before the script is called."""
    orders = Expiry("order")

    def reply(step: Any) -> Steps[Any]:
        return (yield step)

    for change in (Timers("order")._cancel, partial(Timers("order")._reschedule, delay=0, line="")):
        steps = change([orders.start("a", 3600)])
        states = perform(conf.alias(), reply(next(steps)))
        orders.start("a", 3600)
        assert perform(conf.alias(), reply(steps.send(states))) == [0]
    assert (orders.remaining("a") or 0) > 3000


def test_a_fired_timer_is_started_by_a_listener() -> None:
    started: list[Expired] = []
    timer_id = Expiry("order").start("17", 3600, "payload")
    with listening({"order": started.append}):
        assert Timers("order").reschedule([timer_id]).count == 1
        until(lambda: started)
    assert (started[0].name, started[0].payload) == ("17", "payload")
