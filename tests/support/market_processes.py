"""Functions that processes of the demo site run, for the tests of its market."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any, NamedTuple

import django

#: seconds that a process may wait for the others
PATIENCE = 60.0
#: the owner of the items
SELLER = "seller"
#: coins of each member at the beginning
FUNDS = 100
_barriers: list[Barrier] = []


class State(NamedTuple):
    """What is stored of the market."""

    #: member → coins
    funds: dict[str, int]
    #: item id → (owner, state)
    items: dict[int, tuple[str, str]]
    #: (item id, seller, buyer, price)
    sales: list[tuple[int, str, str, int]]
    #: sale ids
    undelivered: list[int]


def enter(directory: str, url: str, barrier: Barrier) -> None:
    """Configure this process as one of the demo, on this server."""
    os.environ |= {"DEMO_DIR": directory, "REDIS_URL": url, "DJANGO_SETTINGS_MODULE": "testproject.settings"}
    sys.path.insert(0, str(Path(__file__).parents[2] / "testproject"))
    django.setup()
    _barriers.append(barrier)


def begin(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function once all processes have started."""
    _barriers[0].wait(PATIENCE)
    return function(*arguments)


def reset(prices: list[int], members: Iterable[str]) -> list[int]:
    """Remove all data, then give the seller items of these prices, and all members funds; the item ids."""
    from django.core.management import call_command
    from market.models import Item, Wallet
    from people.serving import remove_keys

    call_command("migrate", "market", verbosity=0)
    remove_keys()
    Item.objects.all().delete()
    Wallet.objects.all().delete()
    Wallet.objects.bulk_create(Wallet(member=member, funds=FUNDS) for member in [SELLER, *members])
    names = [f"item {number}" for number in range(len(prices))]
    made = [
        Item.objects.create(name=name, price=price, owner=SELLER, location=SELLER)
        for name, price in zip(names, prices, strict=True)
    ]
    return [item.pk for item in made]


def state() -> State:
    from market.models import Item, Sale, Wallet

    return State(
        dict(Wallet.objects.values_list("member", "funds")),
        {pk: (owner, state) for pk, owner, state in Item.objects.values_list("pk", "owner", "state")},
        list(Sale.objects.values_list("item", "seller", "buyer", "price").order_by("pk")),
        list(Sale.objects.filter(delivered_at=None).values_list("pk", flat=True)),
    )


def trade(action: str, *arguments: Any, **options: Any) -> str:
    """Buy, sell or withdraw; the name of the error, or nothing."""
    from market import trading
    from market.errors import TradeError

    try:
        getattr(trading, action)(*arguments, **options)
    except TradeError as error:
        return type(error).__name__
    return ""


def buy_in_rounds(buyer: str, rounds: list[list[int]]) -> list[str]:
    """Buy several sets of items, one after the other; the results of `trade`."""
    results = []
    for chosen in rounds:
        _barriers[0].wait(PATIENCE)
        results.append(trade("buy", buyer, chosen))
    return results


def buy_while_held(buyer: str, item_id: int, timeout: float) -> str:
    """Buy an item that another client trades for the whole time."""
    from market import locks

    with changed(locks, "LOCK_TIMEOUT", timeout), locks.hold_items([item_id]):
        return trade("buy", buyer, [item_id])


def buy_too_late(buyer: str, item_id: int, price: int) -> str:
    """Buy an item. Between the acquire and the write, the lease ends and the seller offers it once more."""
    from django_redis import get_redis_connection
    from market import locks, trading

    @contextmanager
    def freeze(item_ids: Iterable[int]) -> Iterator[dict[int, int]]:
        with locks.hold_items(item_ids) as fences:
            get_redis_connection("messaging").delete(locks.item_lock(item_id).key)
            with changed(trading, "hold_items", locks.hold_items):
                trading.sell(SELLER, item_id, price)
            yield fences

    with changed(trading, "hold_items", freeze):
        return trade("buy", buyer, [item_id])


def record_sales(item_ids: list[int]) -> list[int]:
    """Sell items to a buyer who owns them already, without a delivery; the sale ids."""
    from market.models import Sale

    sold = [
        Sale.objects.create(item_id=item_id, seller=SELLER, buyer="buyer", price=1) for item_id in item_ids
    ]
    return [sale.pk for sale in sold]


def send_undelivered() -> int:
    """Start all deliveries that are missing; the number of jobs."""
    from market import deliveries

    deliveries.send_undelivered()
    return remaining()


def remaining() -> int:
    """The number of jobs that are not done."""
    from market import deliveries

    stats = deliveries.queue.stats()
    return stats.ready + stats.delayed + stats.leased


def deliver_once() -> list[tuple[str, int]]:
    """Deliver the next job, if any is ready; its id and attempts."""
    from market import deliveries

    return [(job.id, job.attempts) for job in deliveries.deliver_next()]


def deliver_while_held(item_id: int) -> list[tuple[str, int]]:
    """Try to deliver while another client trades the item."""
    from market import deliveries
    from market.locks import hold_items

    with hold_items([item_id]), changed(deliveries, "RETRY_DELAY", 0):
        return [delivered for _ in range(20) for delivered in deliver_once()]


def deliver_all(delay: float) -> tuple[list[tuple[str, int]], int, int]:
    """Deliver until nothing is left: the jobs, the overlaps on a row, and how often a job had to wait."""
    from django_redis import get_redis_connection
    from market import deliveries

    client, store, release = get_redis_connection("messaging"), deliveries._store, deliveries.queue.release
    done: list[tuple[str, int]] = []
    overlaps = releases = 0

    def watch(sale_id: int, fence: int) -> bool:
        nonlocal overlaps
        row = f"row:{deliveries.Sale.objects.get(pk=sale_id).item_id}"
        overlaps += client.incr(row) > 1
        stored = store(sale_id, fence)
        client.decr(row)
        return stored

    def count_release(job: Any, delay: float) -> bool | None:
        nonlocal releases
        releases += 1
        return release(job, delay)

    with (
        changed(deliveries, "_store", watch),
        changed(deliveries, "RETRY_DELAY", delay),
        changed(deliveries.queue, "release", count_release),
    ):
        deadline = time.monotonic() + PATIENCE
        while remaining() and time.monotonic() < deadline:
            done += [(job.id, job.attempts) for job in deliveries.deliver_next(wait=0.05)]
    return done, overlaps, releases


@contextmanager
def changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute in the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
