"""PendingWait waits: found by their words, and removed once they have ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest

from django_redis_messaging.core.commands import Hint
from django_redis_messaging.core.connection import Address, BlockingConnection
from django_redis_messaging.core.operations import PopHint
from django_redis_messaging.core.pool import ENDED, PendingWait, PendingWaits


def pending(name: str, *, age: float = 0, address: Address | None = None) -> PendingWait:
    return PendingWait(("BZPOPMIN", name), BlockingConnection(address), monotonic() - age)


def test_a_wait_is_found_by_its_words_and_taken_once() -> None:
    waits, kept = PendingWaits(), [pending(name) for name in "aba"]
    for one in kept:
        waits.keep(one)
    assert [waits.take(("BZPOPMIN", "a")) for _ in range(3)] == [kept[0], kept[2], None]
    assert waits.take_all() == [kept[1]]
    assert waits.take(("BZPOPMIN", "b")) is None


def test_ended_waits_are_returned_oldest_first() -> None:
    waits, old, young = PendingWaits(), [pending(name, age=ENDED) for name in "ab"], pending("a")
    for one in (*old, young):
        waits.keep(one)
    assert [waits.take_ended() for _ in range(3)] == [*old, None]
    assert waits.take(("BZPOPMIN", "a")) == young
    assert len(waits) == 0


def test_take_any_returns_one_of_that_server() -> None:
    waits, here, there = PendingWaits(), pending("a"), pending("b", address=("there", 1))
    waits.keep(here)
    waits.keep(there)
    assert waits.take_any(("there", 1)) is there
    assert waits.take_any(("there", 1)) is None
    assert waits.take_any(None) is here


def test_nothing_is_kept_for_removed_names() -> None:
    waits = PendingWaits()
    for number in range(1000):
        waits.keep(pending(str(number)))
        assert waits.take(("BZPOPMIN", str(number)))
    assert not waits._by_words
    assert not waits._in_order


def test_a_wait_kept_during_take_all_is_not_lost() -> None:
    waits, taken = PendingWaits(), []

    def keep(thread: int) -> None:
        for number in range(500):
            waits.keep(pending(f"{thread}-{number % 7}"))

    def take(_: int) -> list[PendingWait]:
        return [one for _ in range(500) for one in waits.take_all()]

    with ThreadPoolExecutor(4) as threads:
        keeping = threads.map(keep, range(2))
        for some in threads.map(take, range(2)):
            taken += some
        list(keeping)
    taken += waits.take_all()
    assert len({id(one) for one in taken}) == len(taken) == 1000


class Counted(tuple[str, ...]):
    """Words that count how often any are compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = tuple.__hash__


def test_the_cost_of_a_wait_is_independent_of_the_number_of_names() -> None:
    waits = PendingWaits()
    for number in range(1000):
        waits.keep(PendingWait(Counted(("BZPOPMIN", str(number))), None, monotonic()))
    Counted.compared = 0
    for _ in range(10):
        waits.keep(PendingWait(Counted(("BZPOPMIN", "mine")), None, monotonic()))
        assert waits.take(Counted(("BZPOPMIN", "mine")))
        assert waits.take_ended() is None
    assert Counted.compared <= 50


@pytest.mark.parametrize("key", ["a", b"a", 1], ids=repr)
def test_only_hints_can_be_popped(key: Any) -> None:
    assert PopHint(Hint("a"), seconds=1).words == ("BZPOPMIN", "a")
    with pytest.raises(TypeError, match="not a Hint"):
        PopHint(key, seconds=1)
