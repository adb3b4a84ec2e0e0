"""Pops that nobody waits for now: found again by their words, and gone once they have ended."""

from __future__ import annotations

from time import monotonic

from django_redis_messaging.core.waiting import Outstanding, Pop


def pop(name: str, number: int) -> Pop:
    return Pop(("BLPOP", name), number, None, monotonic())


def test_one_is_found_by_its_words_and_taken_once() -> None:
    outstanding = Outstanding()
    for number, name in enumerate("aba"):
        outstanding.keep(pop(name, number), lambda connection: False)
    taken = [outstanding.take(("BLPOP", "a")) for _ in range(3)]
    assert sorted(one.connection for one in taken if one) == [0, 2]
    assert outstanding.take_all() == [1]
    assert outstanding.take(("BLPOP", "b")) is None


def test_those_that_ended_are_given_back_and_nothing_of_them_stays() -> None:
    outstanding, ended = Outstanding(), []
    for number in range(1000):
        ended += outstanding.keep(pop(str(number), number), lambda connection: True)
    assert [one.connection for one in ended] == list(range(999))
    assert outstanding.take_all() == [999]
    assert outstanding.take_all() == []
