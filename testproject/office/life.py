"""The traffic of the demo: calls of tasks, and a lock that is held for long while others wait for it."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable

from people.background import start_thread

from django_redis_messaging import Lock, MessagingError
from django_redis_messaging.tasks.backend import our_backends

from . import tasks

logger = logging.getLogger(__name__)

#: seconds between two rounds
INTERVAL = 1.0
#: rounds after which the parts of the traffic that must not grow without end are repeated
LONG = 60
CUSTOMERS = ("Ann", "Bob", "Cat", "Dan", "Eve", "Fay")
INVENTORY = Lock("inventory", timeout=120, renew=True)


def start() -> Callable[[], None]:
    """Start the threads; returns a function that stops them."""
    stops = [start_thread(_run, "office"), start_thread(_hold, "office-inventory")]

    def stop_all() -> None:
        for stop in stops:
            stop()

    return stop_all


def begin() -> None:
    """What the console shows from the beginning: a paused queue, and tasks of the coming days."""
    [backend] = our_backends()
    backend.pause("reports", "The archive is being moved.", by="alice")
    tasks.write_report.enqueue("2026-10", pages=12)
    tasks.write_report.enqueue("2026-11", pages=9)
    tasks.order_from.using(delay=86_400).enqueue("Green & Sons", "pencils", api_key="5f2c-9a")


def play(number: int) -> None:
    """One round of the traffic."""
    for customer in CUSTOMERS[: 1 + number % len(CUSTOMERS)]:
        tasks.send_newsletter.enqueue(customer, issue=number // LONG)
    tasks.print_invoice.enqueue(number)
    if number % 12 == 0:
        for _ in range(2):  # the second one waits for the lock of the first
            tasks.count_shelf.enqueue(shelf=number % 5, seconds=5)
    if number % LONG == 0:
        tasks.order_from.enqueue("Nowhere Ltd.", "paper", api_key="5f2c-9a")


def _run(stop: threading.Event) -> None:
    for number in itertools.count():
        try:
            if number == 0:
                begin()
            play(number)
        except MessagingError as error:
            logger.warning("The traffic of the demo failed, trying again in %s s: %s", INTERVAL, error)
        if stop.wait(INTERVAL):
            return


def _hold(stop: threading.Event) -> None:
    """Hold the lock of the inventory, for which a second thread waits."""
    while not stop.is_set():
        try:
            with INVENTORY:
                waiting = threading.Thread(target=_wait_for_lock, name="office-waiting", daemon=True)
                waiting.start()
                stop.wait(LONG)
            waiting.join()
        except MessagingError as error:
            logger.warning("The lock of the inventory failed, trying again in %s s: %s", INTERVAL, error)
            stop.wait(INTERVAL)


def _wait_for_lock() -> None:
    other = Lock("inventory", timeout=5, blocking_timeout=2 * LONG)
    if other.acquire():
        other.release()
