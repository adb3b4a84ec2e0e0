"""Threads that receive the broadcasts of other processes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django.core.cache import cache

from django_redis_messaging import Broadcast, Event, OutcomeUnknown, Unavailable

from . import caching, options

logger = logging.getLogger(__name__)

#: seconds between two attempts to read the cursor of a channel
RETRY_DELAY = 1
#: channel → handler of an event, and handler to call when events may have been missed
HANDLERS: dict[str, tuple[Callable[[Event], object], Callable[[], object]]] = {
    options.CHANNEL: (lambda _: options.load(), options.load),
    caching.CHANNEL: (lambda event: cache.delete(event.payload), cache.clear),
}


def start() -> Callable[[], None]:
    """Start a thread for each channel; returns a function that stops them.

    Call it once in each server process, after the fork: threads don't survive a fork.
    """
    stop = threading.Event()
    threads = [
        threading.Thread(target=_consume, args=(channel, stop), name=f"shop-{channel}", daemon=True)
        for channel in HANDLERS
    ]
    for thread in threads:
        thread.start()

    def stop_threads() -> None:
        stop.set()
        for thread in threads:
            thread.join()

    return stop_threads


def _consume(name: str, stop: threading.Event) -> None:
    """Read the cursor before the state: a change in between is then received as an event."""
    channel, (on_event, on_missed) = Broadcast(name), HANDLERS[name]
    cursor = _read_cursor(channel, stop)
    if cursor is not None:
        on_missed()
        channel.consume(on_event, cursor=cursor, on_missed=on_missed, stop=stop)


def _read_cursor(channel: Broadcast, stop: threading.Event) -> str | None:
    """The current cursor of the channel, once Redis is available; None if `stop` was set before."""
    while not stop.is_set():
        try:
            return channel.cursor()
        except (Unavailable, OutcomeUnknown) as error:
            logger.warning(
                "Subscribing to channel %r failed, retrying in %s s: %s", channel.channel, RETRY_DELAY, error
            )
            stop.wait(RETRY_DELAY)
    return None
