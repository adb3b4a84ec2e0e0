"""A mailbox on a server that is out of memory, and behind a proxy that drops replies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redis_messaging import Mailbox, MailboxStatus, Unavailable, forget, notify
from tests.support.proxy import LossyProxy

from ..conftest import Call
from ..support.faults import Connect, results_around_a_loss
from ..support.server import snapshot

pytestmark = pytest.mark.one_server

Fill = Callable[[], None]
numbers = itertools.count()


@pytest.fixture
def messaging() -> dict[str, Any]:
    """A small limit for the length of a mailbox."""
    return {"MAILBOX_MAX_LENGTH": 4}


@pytest.fixture
def box(fill: Fill) -> Mailbox:
    """A full mailbox: one mail was dropped by the limit, one belongs to a group."""
    box = Mailbox("ann")
    for number in range(4):
        box.send(number)
    box.send("news", group="g", request_id="known")
    return box


SENDS: dict[str, Callable[[Mailbox], object]] = {
    "send": lambda box: box.send("more"),
    "send to a group": lambda box: box.send("more", group="g"),
    "send of a request": lambda box: box.send("more", request_id="r"),
    "the first mail": lambda box: Mailbox("bob").send("more"),
    "notify": lambda box: notify("ann", "more"),
}


def test_send_is_refused_and_changes_nothing(box: Mailbox, fill: Fill, raw: redis.Redis) -> None:
    fill()
    before = snapshot()
    for operation, send in SENDS.items():
        with pytest.raises(Unavailable, match="out of memory"):
            send(box)
        assert snapshot() == before, operation
    raw.config_set("maxmemory", 0)
    assert all(send(box) for send in SENDS.values())


def test_reading_and_removing_work(box: Mailbox, fill: Fill) -> None:
    fill()
    with pytest.raises(Unavailable):
        box.send("more")
    assert box.send("more", request_id="known").payload == "news"
    page = box.fetch()
    assert ([mail.payload for mail in page.messages], page.gap) == ([1, 2, 3, "news"], 1)
    assert box.status().last_fetched_at is not None
    assert (box.mark_read([3]), box.unread(), box.ack(2), box.unread()) == (1, 3, 2, 2)
    assert (box.discard(4), box.unread(), box.status().full) == (True, 1, False)
    assert (box.clear(), box.unread(), box.status().acked_id) == (3, 0, 5)
    forget("ann")
    assert box.status() == MailboxStatus(unread=0, acked_id=0, last_fetched_at=None, full=False)


def three_mails() -> Mailbox:
    """A new mailbox."""
    box = Mailbox(f"ann-{next(numbers)}")
    for number in range(3):
        box.send(number)
    return box


@pytest.mark.parametrize(
    ("verb", "arguments", "results"),
    [("mark_read", [[1, 2]], [2, 2, 0]), ("clear", [], [3, 3, 0]), ("discard", [1], [True, None, False])],
)
async def test_a_repeat_returns_the_first_result_or_none(
    verb: str, arguments: list[Any], results: list[Any], call: Call, lossy: LossyProxy
) -> None:
    """None means that the result is unknown."""
    found = await results_around_a_loss(call, lossy, lambda: (three_mails(), verb, *arguments))
    assert found == results


async def test_lost_reply_duplicates_nothing(call: Call, connect: Connect, proxy: LossyProxy) -> None:
    connect(proxy, COMMAND_DEADLINE=60)
    box = Mailbox("ann")
    for number in range(5):
        proxy.lose_next(1)
        mail = await call(box, "send", number, group="g")
        assert (mail.id, mail.count) == (number + 1, number + 1)
    proxy.lose_next(1)
    assert await call(box, "ack", 5) == 5
    assert await call(box, "send", "last", group="g") == (await call(box, "fetch", unread=True)).messages[0]
    assert proxy.lost == 6
