"""What pages of lists cost with many things: round trips, bytes out of Redis, the server's time; and that all
pages of a list together have everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_redis_messaging import ConfigurationError, InvalidArgument, conf
from django_redis_messaging.core.operations import Steps, perform
from django_redis_messaging.core.topology import Cluster, endpoint, parse_slots
from django_redis_messaging.services.chats.keys import ChatKeys
from django_redis_messaging.services.common import pages, scanning
from django_redis_messaging.services.locks.lock import LockKeys, lock_key
from django_redis_messaging.services.rates.listing import page_rates
from django_redis_messaging.services.rates.rate_limit import RateKeys
from django_redis_messaging.services.semaphores.semaphore import SemaphoreKeys

from ..support.console import next_page, page
from ..support.round_trips import round_trips
from ..support.server import server

#: what each page may cost: round trips, and bytes out of Redis
MAX_ROUND_TRIPS, MAX_BYTES = 12, 256 * 1024
#: μs of the server for one call
MAX_TIME = 5000
#: locks, chats, and other keys: a tenth of what is promised, and all
SIZES = [
    pytest.param(1_000, 500, 10_000, id="tenth"),
    pytest.param(10_000, 5_000, 100_000, id="full", marks=pytest.mark.long),
]


def fill(locks: int, chats: int, others: int) -> None:
    """Store them, without the operations: that would take minutes."""
    prefix = conf.prefix()
    pipeline = server().pipeline(transaction=False)
    for number in range(locks):
        keys = LockKeys(prefix, lock_key(prefix, f"order {number}"))
        pipeline.set(keys.key, "web1:17:0123456789abcdef")
        pipeline.set(keys.fence, f"{number + 1} - web1:17:0123456789abcdef")
        pipeline.zadd(keys.line, {f"web{place}:17:0123456789abcdef": place for place in range(3)})
        pipeline.set(SemaphoreKeys(prefix, f"order {number}").limit, 3)
        pipeline.hset(RateKeys(prefix, "login", f"10.0.0.{number}", 0).level, mapping={"requests": 1})
    for number in range(chats):
        fill_chat(pipeline, ChatKeys(prefix, f"room {number}"))
    for number in range(others):
        pipeline.set(f"{prefix}:2:{{other:{number}}}:x", "")
        if number % 5000 == 0:
            pipeline.execute()
    pipeline.execute()


def fill_chat(pipeline: Any, keys: ChatKeys) -> None:
    """A chat of 3 members with 20 messages."""
    pipeline.set(keys.newest, "20-1700000000000-1-1700000000000000-1000-2000-0")
    pipeline.hset(
        keys.info, mapping={"title": "T" * 100, "open": 0, "created": 1_700_000_000_000, "owners": 1}
    )
    pipeline.zadd(keys.members, {f"user {number}": number for number in range(3)})
    pipeline.rpush(keys.log, *(f'[1,1,0,3,3,"a","b",{100 * number},100]' for number in range(20)))


def sent() -> int:
    """The bytes that the server has sent."""
    return int(server().info("stats")["total_net_output_bytes"])


def cost(call: Callable[[], object]) -> tuple[int, int]:
    """Round trips, and bytes out of Redis."""
    overhead = -(sent() - sent())
    before = sent()
    trips = round_trips(call)
    return trips, sent() - before - overhead


@pytest.mark.one_server
@pytest.mark.parametrize(("locks", "chats", "others"), SIZES)
def test_no_page_costs_more(boss: Client, locks: int, chats: int, others: int) -> None:
    fill(locks, chats, others)
    page(boss, "locks")  # connects
    server().config_resetstat()
    lists = [("locks", kind) for kind in ("lock", "rwlock", "semaphore", "latch")]
    lists += [("limits", "site"), ("limits", "own"), ("chats", "chat")]
    lists += [("channels", kind) for kind in ("mailbox", "broadcast", "files", "directory", "streams")]
    calls: dict[str, Callable[[], object]] = {
        f"{name} {kind}": lambda name=name, kind=kind: next_page(boss, page(boss, name, kind=kind))
        for name, kind in lists
    }  # each is two pages
    calls["filter"] = lambda: page(boss, "locks", name="order 7")
    calls["chat"] = lambda: page(boss, "chat", thing="chat:room 7")
    calls["lock"] = lambda: page(boss, "lock", thing="lock:order 7")
    for name, call in calls.items():
        trips, size = cost(call)
        number = 2 if " " in name else 1
        assert trips <= number * MAX_ROUND_TRIPS, name
        assert 0 < size <= number * MAX_BYTES, name
    times = server().info("commandstats")
    for command in ("scan", "evalsha"):
        assert times[f"cmdstat_{command}"]["usec_per_call"] < MAX_TIME, command


def collect(page: Callable[[str], Any], name: Callable[[Any], str]) -> tuple[list[str], int]:
    """The names on all pages, and the number of pages."""
    found, cursor, number = list[str](), "", 0
    while not number or cursor:
        one = page(cursor)
        items = one.items if hasattr(one, "items") else one.uses
        assert len(items) <= scanning.MAX_PAGE_KEYS
        found, cursor, number = [*found, *map(name, items)], one.cursor, number + 1
    return found, number


@pytest.mark.parametrize("number", [0, 1, 99, 1_000])
def test_the_pages_list_everything(number: int) -> None:
    fill(number, number, 1_000)
    alias, prefix = conf.alias(), conf.prefix()
    expected = sorted(f"order {one}" for one in range(number))
    for read in (pages.page_locks, pages.page_semaphores):
        found, on = collect(lambda cursor, read=read: read(alias, prefix, "", cursor), lambda one: one.name)
        assert sorted({*found}) == expected and len(found) <= 1.1 * number
        assert on <= 4 + 2 * number // scanning.PAGE_KEYS
    found, _ = collect(lambda cursor: pages.page_chats(alias, prefix, "", cursor), lambda one: one.name)
    assert {*found} == {f"room {one}" for one in range(number)}
    found, _ = collect(lambda cursor: page_rates(alias, prefix, cursor=cursor), lambda one: one.key)
    assert {*found} == {f"10.0.0.{one}" for one in range(number)}
    found, _ = collect(lambda cursor: pages.page_chats(alias, prefix, "9", cursor), lambda one: one.name)
    assert {*found} == {f"room {one}" for one in range(number) if "9" in str(one)}


def test_a_page_goes_from_one_primary_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is scanned with its own cursor, by a key that it owns. A primary that is gone ends the list."""
    slots = [[0, 8000, [b"10.0.0.1", 7000, b"a"]], [8001, 16383, [b"10.0.0.2", 7001, b"b"]]]
    topology = parse_slots(slots, node=None)
    assert topology is not None
    router = Cluster(topology)
    monkeypatch.setattr(endpoint(conf.alias()), "router", router)

    def finish(steps: Steps[scanning.KeyPage], *replies: tuple[bytes, list[bytes]]) -> Any:
        """The page, and the primaries that were asked, each with the cursor."""
        asked, step = [], next(steps)
        for reply in replies:
            asked.append((router.address(step), step.words[1]))
            try:
                step = steps.send(reply)
            except StopIteration as stop:
                return stop.value, asked
        raise AssertionError("more replies are needed")

    one, two = ("10.0.0.1", 7000), ("10.0.0.2", 7001)
    many = [b"k%d" % number for number in range(100)]
    page, asked = finish(scanning.scan_page(conf.alias(), "k*"), (b"0", [b"a"]), (b"7", many))
    assert asked == [(one, "0"), (two, "0")] and page.cursor.endswith(".7.10.0.0.2:7001")
    assert len(page.keys) == 101
    last, asked = finish(scanning.scan_page(conf.alias(), "k*", page.cursor), (b"0", [b"b", b"b"]))
    assert asked == [(two, "7")] and last == (["b"], "")
    with pytest.raises(InvalidArgument, match="Cluster"):
        finish(scanning.scan_page(conf.alias(), "k*", page.cursor.replace("10.0.0.2", "10.0.0.3")))
    with pytest.raises(InvalidArgument, match="not one of this list"):
        finish(scanning.scan_page(conf.alias(), "other*", page.cursor))


def test_a_reply_with_too_many_keys_is_read_again_in_parts() -> None:
    """Keys that are found in one part of the table only: none is left out, and no page is too long."""
    steps = scanning.scan_page(conf.alias(), "k*")
    step: Any = next(steps)
    if step.words == ("TIME",):
        step = steps.send([b"1", b"0"])
    step = steps.send((b"5", []))
    assert step.words[-1] == "3000"
    step = steps.send((b"6", [b"a"]))
    counts = []
    with pytest.raises(StopIteration) as stop:
        while True:
            counts.append((step.words[1], int(step.words[-1])))
            step = steps.send((b"9", [b"k%d" % number for number in range(200)]))
    assert counts == [("6", 3000), ("6", 750), ("6", 187), ("6", 100)]
    assert stop.value.value.keys == ["a"] and ".6" in stop.value.value.cursor


def test_a_key_of_another_type_is_an_error() -> None:
    server().rpush(lock_key(conf.prefix(), "nightly"), "x")
    with pytest.raises(ConfigurationError, match="another type"):
        pages.page_locks(conf.alias(), conf.prefix(), "nightly")
    assert perform(conf.alias(), scanning.scan_page(conf.alias(), "nothing*")).keys == []
