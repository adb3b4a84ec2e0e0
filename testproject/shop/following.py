"""The threads in which a process hears of what the others do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django.core.cache import cache

from django_redis_messaging import Broadcast, Event, OutcomeUnknown, Unavailable

from . import caching, options

logger = logging.getLogger(__name__)

#: channel → what to do with an event, and what to do where events may have been missed
FOLLOWED: dict[str, tuple[Callable[[Event], object], Callable[[], object]]] = {
    options.CHANNEL: (lambda _: options.load(), options.load),
    caching.CHANNEL: (lambda event: cache.delete(event.payload), cache.clear),
}


def start() -> Callable[[], None]:
    """Begin to follow; call it once in each process that serves, after it was forked. Call what it returns
    to end it."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=_follow, args=(channel, stop), name=f"shop-{channel}", daemon=True)
        for channel in FOLLOWED
    ]
    for thread in threads:
        thread.start()

    def end() -> None:
        stop.set()
        for thread in threads:
            thread.join()

    return end


def _follow(name: str, stop: threading.Event) -> None:
    """First the place, then the state: so no change falls in between."""
    channel, (changed, begin) = Broadcast(name), FOLLOWED[name]
    cursor = _place(channel, stop)
    if cursor is not None:
        begin()
        channel.consume(changed, cursor=cursor, on_missed=begin, stop=stop)


def _place(channel: Broadcast, stop: threading.Event) -> str | None:
    """Where the channel is now, once Redis can be reached."""
    while not stop.is_set():
        try:
            return channel.cursor()
        except (Unavailable, OutcomeUnknown) as error:
            logger.warning("Channel %r can't be followed yet: %s", channel.channel, error)
            stop.wait(1)
    return None
