"""The market of the demo: buyers and consumers in several processes, which change the same rows."""

from __future__ import annotations

import random
import re
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from django_redis_messaging.devserver.server import EmbeddedServer

from ..support import market_processes as market
from ..support.demo import NOTIFICATIONS, Browser, Demo
from ..support.faults import processes
from ..support.market_processes import FUNDS, SELLER

# Each process forks from one that has imported these: starting eight of them would take seconds otherwise.
processes.set_forkserver_preload(
    [
        "__main__",
        "tests.support.child_processes",
        "django.db.backends.sqlite3.base",
        "django.urls",
        "django.views.generic",
    ]
)

PROCESSES = 8
BUYERS = [f"buyer {number}" for number in range(PROCESSES)]
#: purchases of each buyer in the test of overlapping sets
ROUNDS = 6
#: seconds within which calls must end; a deadlock lasts for at least LOCK_TIMEOUT (10 s)
PATIENCE = 120.0


class Site:
    """Processes of the demo site with one database and one server."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def do(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function in one process."""
        return self._pool.submit(function, *arguments, **options).result(PATIENCE)

    def all_at_once(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a function in all processes at the same moment."""
        futures = [self._pool.submit(market.begin, function, *each) for each in arguments]
        return [future.result(PATIENCE) for future in futures]

    def open(self, *prices: int) -> list[int]:
        """Open a market where the seller offers items of these prices; the item ids."""
        return list(self.do(market.reset, list(prices), ["buyer", *BUYERS]))

    def trade(self, *arguments: Any, **options: Any) -> str:
        """Buy, sell or withdraw in one process; the name of the error, or nothing."""
        return str(self.do(market.trade, *arguments, **options))

    def state(self) -> market.State:
        state = self.do(market.state)
        assert isinstance(state, market.State)
        return state


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory, barrier = str(tmp_path_factory.mktemp("market")), processes.Barrier(PROCESSES)
    with (
        EmbeddedServer() as server,
        ProcessPoolExecutor(PROCESSES, processes, market.enter, (directory, server.url, barrier)) as pool,
    ):
        yield Site(pool)


def total(state: market.State) -> int:
    return sum(state.funds.values())


class TestBuying:
    def test_money_and_items_change_their_owners(self, site: Site) -> None:
        lamp, _, chair = site.open(15, 25, 20)
        before = total(site.state())
        assert site.trade("buy", "buyer", [chair, lamp], prices={lamp: 15, chair: 20}) == ""
        state = site.state()
        assert (state.funds["buyer"], state.funds[SELLER], total(state)) == (65, 135, before)
        assert state.items[lamp] == state.items[chair] == ("buyer", "sold")
        assert state.sales == [(chair, SELLER, "buyer", 20), (lamp, SELLER, "buyer", 15)]

    def test_bought_items_can_be_sold_and_withdrawn(self, site: Site) -> None:
        [lamp] = site.open(15)
        assert site.trade("buy", "buyer", [lamp]) == ""
        assert site.trade("sell", "buyer", lamp, 30) == ""
        assert site.trade("buy", SELLER, [lamp]) == ""
        state = site.state()
        assert (state.funds["buyer"], state.items[lamp]) == (FUNDS - 15 + 30, (SELLER, "sold"))
        assert site.trade("sell", SELLER, lamp, 1) == ""
        assert site.trade("withdraw", SELLER, lamp) == ""
        assert site.trade("buy", "buyer", [lamp]) == "NotForSale"

    def test_refusals_change_nothing(self, site: Site) -> None:
        cheap, dear, sold, kept = site.open(10, FUNDS, 5, 5)
        assert site.trade("buy", "buyer 0", [sold]) == ""
        assert site.trade("withdraw", SELLER, kept) == ""
        before = site.state()
        refused: list[tuple[str, str, tuple[Any, ...]]] = [
            ("TooExpensive", "buy", ("buyer", [cheap, dear])),
            ("AlreadySold", "buy", ("buyer", [cheap, sold])),
            ("NotForSale", "buy", ("buyer", [cheap, kept])),
            ("NotForSale", "buy", ("buyer", [cheap, 10**18])),
            ("OwnItem", "buy", (SELLER, [cheap])),
            ("OwnItem", "buy", ("buyer 0", [sold])),
            ("TooExpensive", "buy", ("a stranger without a wallet", [cheap])),
            ("InvalidSelection", "buy", ("buyer", [])),
            ("InvalidSelection", "buy", ("buyer", range(1, 22))),
            ("InvalidPrice", "sell", (SELLER, cheap, 0)),
            ("InvalidPrice", "sell", (SELLER, cheap, 1_000_001)),
            ("NotYours", "sell", ("buyer", cheap, 5)),
            ("NotYours", "withdraw", ("buyer", cheap)),
            ("NotYours", "withdraw", ("buyer", 10**18)),
        ]
        for expected, action, arguments in refused:
            assert site.trade(action, *arguments) == expected, (action, arguments)
        assert site.trade("buy", "buyer", [cheap], prices={cheap: 9}) == "PriceChanged"
        assert site.state() == before

    def test_an_item_whose_lock_stays_taken_is_refused(self, site: Site) -> None:
        [lamp] = site.open(15)
        before = site.state()
        assert site.do(market.buy_while_held, "buyer", lamp, 0.05) == "Busy"
        assert site.state() == before

    def test_a_write_with_an_outdated_fence_is_refused(self, site: Site) -> None:
        [lamp] = site.open(15)
        before = site.state()
        assert site.do(market.buy_too_late, "buyer", lamp, 15) == "StaleLock"
        assert site.state() == before
        assert site.trade("buy", "buyer", [lamp]) == ""


@pytest.mark.promise
class TestRaces:
    def test_one_of_eight_buyers_gets_the_item(self, site: Site) -> None:
        [bicycle] = site.open(60)
        before = total(site.state())
        results = site.all_at_once(market.trade, [("buy", buyer, [bicycle]) for buyer in BUYERS])
        state = site.state()
        assert Counter(results) == {"": 1, "AlreadySold": PROCESSES - 1}
        winner = BUYERS[results.index("")]
        assert state.items == {bicycle: (winner, "sold")}
        assert state.sales == [(bicycle, SELLER, winner, 60)]
        assert (state.funds[winner], state.funds[SELLER], total(state)) == (40, 160, before)
        assert [state.funds[buyer] for buyer in BUYERS if buyer != winner] == [FUNDS] * (PROCESSES - 1)

    def test_buyers_of_overlapping_sets_do_not_wait_for_each_other(self, site: Site) -> None:
        chance = random.Random(1)
        items = site.open(*[4] * 4 * ROUNDS)
        rounds = [items[4 * number : 4 * number + 4] for number in range(ROUNDS)]
        wanted = [[chance.sample(offered, 3) for offered in rounds] for _ in BUYERS]
        before = total(site.state())
        results = site.all_at_once(market.buy_in_rounds, list(zip(BUYERS, wanted, strict=True)))
        state = site.state()
        outcomes = Counter(result for each in results for result in each)
        # Any two sets of a round overlap, so one buyer gets all of a set, and the others nothing.
        assert outcomes == {"": ROUNDS, "AlreadySold": ROUNDS * (PROCESSES - 1)}
        bought = {
            item: buyer
            for buyer, sets, each in zip(BUYERS, wanted, results, strict=True)
            for chosen, result in zip(sets, each, strict=True)
            for item in chosen
            if not result
        }
        assert {item: owner for item, (owner, how) in state.items.items() if how == "sold"} == bought
        assert sorted(sale[0] for sale in state.sales) == sorted(bought)
        assert total(state) == before
        assert all(state.funds[buyer] == FUNDS - 4 * list(bought.values()).count(buyer) for buyer in BUYERS)


class TestDeliveries:
    def test_a_sale_is_delivered(self, site: Site) -> None:
        [lamp] = site.open(15)
        assert site.trade("buy", "buyer", [lamp]) == ""
        [sale] = site.state().undelivered
        assert site.do(market.deliver_once) == [(f"sale-{sale}", 1)]
        assert site.state().undelivered == []
        assert site.do(market.remaining) == 0

    def test_a_job_whose_item_is_locked_waits_and_loses_no_attempt(self, site: Site) -> None:
        [lamp] = site.open(15)
        assert site.trade("buy", "buyer", [lamp]) == ""
        assert site.do(market.deliver_while_held, lamp) == []
        [sale] = site.state().undelivered
        assert site.do(market.deliver_once) == [(f"sale-{sale}", 1)]

    @pytest.mark.promise
    def test_deliveries_lost_by_a_crash_are_started_once(self, site: Site) -> None:
        sales = site.do(market.record_sales, site.open(15, 20))
        assert [site.do(market.send_undelivered) for _ in range(2)] == [2, 2]
        done = [one for _ in sales for one in site.do(market.deliver_once)]
        assert sorted(done) == [(f"sale-{sale}", 1) for sale in sales]
        assert site.do(market.send_undelivered) == 0

    @pytest.mark.promise
    def test_consumers_of_the_same_rows_lose_no_job_and_no_attempt(self, site: Site) -> None:
        sales = site.do(market.record_sales, sorted(site.open(15, 20, 25) * 12))
        assert site.do(market.send_undelivered) == len(sales)
        found = site.all_at_once(market.deliver_all, [(0.05,)] * PROCESSES)
        delivered = [job for done, _, _ in found for job in done]
        assert sorted(delivered) == sorted((f"sale-{sale}", 1) for sale in sales)
        assert sum(overlaps for _, overlaps, _ in found) == 0
        assert sum(releases for _, _, releases in found) > 0, "no job had to wait: the test is inconclusive"
        assert site.state().undelivered == []


def offers(page: str) -> dict[str, str]:
    """Name of an item → value of its button."""
    found = re.findall(r'<button type="submit" name="offer" value="([\d:]+)" aria-label="Buy ([^"]+)"', page)
    return {name: value for value, name in found}


def test_the_page(demo: Demo) -> None:
    carol, dave = Browser(demo.address), Browser(demo.address, "dave")
    carol.get("/market/")
    assert carol.where == "/"
    carol.sign_in("carol", next="/market/")
    page = dave.get("/market/")
    assert (carol.where, len(offers(page))) == ("/market/", 8)
    assert "You have <b>100</b> coins." in page

    bicycle = offers(page)["Blue bicycle"]
    page = carol.post("/market/buy/", at="/market/", offer=bicycle)
    assert carol.where == "/market/"
    assert "Bought: Blue bicycle." in page and "You have <b>40</b> coins." in page
    assert "Carol Okafor bought <b>Blue bicycle</b> from Bob Lindqvist for 60 coins." in page
    page = dave.post("/market/buy/", at="/market/", offer=bicycle)
    assert "Sold to somebody else a moment ago: Blue bicycle." in page
    assert "You have <b>100</b> coins." in page
    carol.until("/market/", "Not for sale</span>")
    assert "Bicycle" not in offers(page)
    for offer in ("", "x", "1", f"1:{10**30}", "1:2:3"):
        assert "Select between 1 and 20 items." in dave.post("/market/buy/", at="/market/", offer=offer)

    item = bicycle.partition(":")[0]
    assert "whole number" in carol.post(f"/market/{item}/sell/", at="/market/", price="1.5")
    assert "for sale now" in carol.post(f"/market/{item}/sell/", at="/market/", price="99")
    assert "The price has changed" in dave.post("/market/buy/", at="/market/", offer=bicycle)
    assert "only sell what you own" in dave.post(f"/market/{item}/withdraw/", at="/market/")
    assert "not for sale any more" in carol.post(f"/market/{item}/withdraw/", at="/market/")
    assert "Sold at the market: Blue bicycle. Price: 60." in Browser(demo.address, "bob").until(
        NOTIFICATIONS, "Sold at the market"
    )
    with pytest.raises(urllib.error.HTTPError, match="405"):
        carol.get("/market/buy/")
