"""Rate limiters under load and faults: eight processes that use one key, lost replies, and outages.

Server and processes have one clock. A use was counted between the moment when the request was sent and that
when its reply was there. So the number of uses in a period has a lower bound (both moments are in it) and an
upper bound (one of them is), which differ by two uses per process at most.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .harness import processes, table
from .rate_peers import Limiter, Server, Take, set_up

#: processes that use one key
CALLERS = 8
#: its limit: uses, and seconds
LIMIT, PERIOD = 1000, 2
#: for how many periods it is used, from its first use on
STEADY = 3
#: the same after a single use and a pause, so that a burst crosses the end of the first period
PAUSE, LATE = 0.9, 1.5
#: keys that are used in a burst, their limit per minute, and how often each process uses each
BURSTS, BURST_LIMIT, TRIES = 8, 100, 25
#: seconds until the first use, after all processes have connected
LEAD = 0.2
#: calls whose replies may be lost, the share that is, and the period of their limit: nothing refills it
LOSSY_CALLS, LOST_SHARE, DAY = 500, 0.2, 86_400
#: calls while Redis is away, and seconds after which a call has no result
OUTAGE_CALLS, PATIENCE = 8, 60.0

_fork = multiprocessing.get_context("fork")


class Use(NamedTuple):
    """A use that was allowed: seconds."""

    sent: float
    received: float


def shared(limiters: Sequence[Limiter], rounds: int) -> str:
    """What is allowed to eight processes that use one key as fast as they can."""
    rows = [
        [
            "",
            f"most in any {PERIOD} s",
            "promised",
            "certainly above",
            f"in {STEADY} periods",
            "supply",
            f"{BURST_LIMIT}/min, burst",
        ]
    ]
    for one in limiters:
        with Server() as running:
            steady = run(one, running.url, "steady", 0.0, STEADY)
            late = run(one, running.url, "late", PAUSE, LATE)
            bursts = run_bursts(one, running.url)
        least, most = (max(pair) for pair in zip(busiest(steady), busiest(late), strict=True))
        first, later = one.supply
        rows.append(
            [
                one.name,
                f"{least:,} to {most:,}",
                f"{one.promise * LIMIT:,}",
                f"{max(least - one.promise * LIMIT, 0):,}",
                f"{len(steady):,}",
                f"{first * LIMIT + later * LIMIT * (STEADY - 1):,}",
                f"{min(bursts)} to {max(bursts)}",
            ]
        )
    return table(rows)


def run(limiter: Limiter, url: str, key: str, pause: float, periods: float) -> list[Use]:
    """The uses that are allowed when all processes use a key; with a pause, in periods, after one use."""
    barrier, opens = _fork.Barrier(CALLERS), _fork.Value("d")

    def work(number: int) -> list[Use]:
        take = prepare(limiter, url, LIMIT, PERIOD, number)
        if number == 0:
            opens.value = time.time() + LEAD
        barrier.wait()
        if number == 0 and pause:
            wait_until(opens.value)
            take(key)
        begins = opens.value + pause * PERIOD
        wait_until(begins)
        return [*uses(take, key, begins + periods * PERIOD)]

    return sorted(use for found in processes(CALLERS, work) for use in found)


def prepare(limiter: Limiter, url: str, limit: int, period: int, number: int) -> Take:
    """A limiter in a new process, connected."""
    set_up(url)
    take = limiter.make(url, limit, period)
    take(f"connect-{number}")
    return take


def wait_until(moment: float) -> None:
    time.sleep(max(moment - time.time(), 0))


def uses(take: Take, key: str, ends: float) -> Iterator[Use]:
    """The uses that are allowed until a moment."""
    while (sent := time.time()) < ends:
        if take(key):
            yield Use(sent, time.time())


def busiest(allowed: Sequence[Use]) -> tuple[int, int]:
    """The uses in the period that has most: at least, and at most."""
    sent = sorted(use.sent for use in allowed)
    received = sorted(use.received for use in allowed)
    # received before the end, without those sent before the beginning
    least = max(bisect_left(received, begin + PERIOD) - bisect_left(sent, begin) for begin in sent)
    # sent before the end, without those received before the beginning
    most = max(bisect_right(sent, begin + PERIOD) - bisect_left(received, begin) for begin in received)
    return least, most


def run_bursts(limiter: Limiter, url: str) -> list[int]:
    """How many uses of each key are allowed when all processes use it at once."""
    barrier = _fork.Barrier(CALLERS)

    def work(number: int) -> list[int]:
        take = prepare(limiter, url, BURST_LIMIT, 60, number)
        found = []
        for burst in range(BURSTS):
            barrier.wait()
            found.append(sum(take(f"burst-{burst}") for _ in range(TRIES)))
        return found

    return [sum(counts) for counts in zip(*processes(CALLERS, work), strict=True)]


def lost(limiters: Sequence[Limiter], rounds: int) -> str:
    """How uses are counted whose replies are lost with the connection."""
    titles = ["", "calls", "replies lost", "allowed", "errors", "counted", "counted twice"]
    return table([titles, *(row for one in limiters for row in processes(1, lambda _, one=one: lose(one)))])


def lose(limiter: Limiter) -> list[str]:
    from tests.support.proxy import Network

    limit = 3 * LOSSY_CALLS
    with Server() as running, Network(running.socket, asking=limiter.request) as proxy:
        set_up(proxy.url)
        take = limiter.make(proxy.url, limit, DAY)
        take("connect")
        proxy.lose_some(LOST_SHARE)
        allowed = errors = 0
        for _ in range(LOSSY_CALLS):
            try:
                allowed += take("lossy")
            except Exception:
                errors += 1
        replies, left = proxy.lost, 0
        proxy.lose_some(0)
        while take("lossy"):
            left += 1
    counted = limit - left
    cells = (LOSSY_CALLS, replies, allowed, errors, counted, max(counted - LOSSY_CALLS, 0))
    return [limiter.name, *(f"{cell:,}" for cell in cells)]


def away(limiters: Sequence[Limiter], rounds: int) -> str:
    """What calls return, and after how long, while the server is stopped or frozen, and when it is back."""
    cases = [(one, is_frozen) for one in limiters for is_frozen in (False, True)]
    found = processes(len(cases), lambda number: outage(*cases[number]))
    titles = ["", "Redis is", "first call", "last call", f"s, of {OUTAGE_CALLS} calls", "back again"]
    return table([titles, *found])


def outage(limiter: Limiter, is_frozen: bool) -> list[str]:
    with Server() as running:
        set_up(running.url)
        take = limiter.make(running.url, LIMIT, PERIOD)
        take("key")
        running.freeze() if is_frozen else running.stop()
        found = [attempt(take) for _ in range(1 if is_frozen else OUTAGE_CALLS)]
        running.thaw() if is_frozen else running.start()
        back, _seconds = attempt(take)
    seconds = [took for _, took in found]
    times = f"{min(seconds):.2f} to {max(seconds):.2f}" if len(found) > 1 else f"{seconds[0]:.2f}"
    return [limiter.name, "frozen" if is_frozen else "stopped", found[0][0], found[-1][0], times, back]


def attempt(take: Take) -> tuple[str, float]:
    """What a call returns or raises, and after how many seconds."""
    results = []

    def call() -> None:
        try:
            results.append("allowed" if take("key") else "denied")
        except Exception as error:
            results.append(type(error).__name__)

    thread = threading.Thread(target=call, daemon=True)
    began = time.monotonic()
    thread.start()
    thread.join(PATIENCE)
    return (results or ["no result"])[0], time.monotonic() - began
