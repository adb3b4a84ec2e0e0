"""fire(): one timer and its handler, in the tests of a site."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_redis_messaging import Expired, Expiry, handlers, on_expiry
from django_redis_messaging.errors import ConfigurationError, InvalidArgument
from django_redis_messaging.testing import fire

called: list[str] = []


def fail(expired: Expired) -> None:
    raise LookupError(f"no order {expired.name}")


async def fail_later(expired: Expired) -> None:
    fail(expired)


def note(expired: Expired) -> None:
    called.append(expired.name)


@pytest.fixture(autouse=True)
def no_handlers(messaging_prefix: str) -> Iterator[None]:
    before = dict(handlers.timers)
    called.clear()
    yield
    handlers.timers.clear()
    handlers.timers.update(before)


def register(handler: Callable[[Expired], Any]) -> Expiry:
    on_expiry("fired order")(handler)
    return Expiry("fired order")


def test_the_timer_is_called_though_another_one_is_due_before() -> None:
    orders = register(note)
    orders.start("16", 0.001)
    orders.start("17", 1800)
    orders.start("18", 1800)
    assert fire(orders, "17")
    assert called == ["16", "17"]


@pytest.mark.parametrize("handler", [fail, fail_later])
def test_what_the_handler_raises_is_raised(handler: Callable[[Expired], Any]) -> None:
    orders = register(handler)
    orders.start("17", 1800)
    with pytest.raises(LookupError, match="no order 17"):
        fire(orders, "17")


def test_there_must_be_a_timer_and_a_handler() -> None:
    with pytest.raises(ConfigurationError, match="have no handler"):
        fire(Expiry("nobody's"), "17")
    orders = register(note)
    assert not fire(orders, "17")
    with pytest.raises(InvalidArgument, match="alias"):
        fire(Expiry("fired order", using="default"), "17")
