"""Listeners in threads of the test process, and what their handlers received."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django_redis_messaging import Expired, KeyEvent, conf
from django_redis_messaging.handlers import Handler, KeyHandler, TimerHandler
from django_redis_messaging.services.expiries.timers import TIMERS, timer_key
from django_redis_messaging.services.jobs.keys import JobKeys
from django_redis_messaging.services.jobs.worker import Limits
from django_redis_messaging.services.listening import Listener
from tests.support.engines import timers

from .server import server, server_ms, until

#: works without free memory too
WAKE = "redis.call('DEL', KEYS[1]) return redis.call('ZADD', KEYS[1], 0, 'look')"
#: seconds
PATIENCE = 30.0
#: seconds: the delay of a timer that the test waits for
SOON = 0.05
LATER = 3600
NOTIFY = "notify-keyspace-events"
#: flags for all events that tests wait for
ALL = "KEA"


@contextmanager
def listening(
    timers: dict[str, Handler] | None = None,
    key_events: list[KeyHandler] | None = None,
    *,
    timeout: float | None = None,
    configure: bool = False,
    **limits: Any,
) -> Iterator[Listener]:
    """Run a listener with these handlers during the block and drain it at the end."""
    handlers = {name: TimerHandler(name, function, timeout) for name, function in (timers or {}).items()}
    chosen = Limits(**{"concurrency": 2, "drain": 5.0, **limits})
    listener = Listener(handlers, key_events or [], chosen, configure=configure)
    thread = threading.Thread(target=listener.run, daemon=True)
    thread.start()
    try:
        if listener.events is not None:
            until(
                lambda: (
                    listener.events.subscriptions and all(map(ready, listener.events.subscriptions.values()))
                )
            )
        yield listener
    finally:
        listener.stop()
        # clients waiting for a wake-up marker poll now instead of after a second
        for namespace in handlers:
            server().eval(WAKE, 1, jobs().queue(namespace).bell)
        thread.join(PATIENCE)
    assert not thread.is_alive(), "the listener does not stop"
    assert not listener.failed


def is_dispatcher(listener: Any) -> bool:
    """Whether this listener dispatches the events."""
    return all(one.fence for one in listener.events.subscriptions.values())


def ready(channel: Any) -> bool:
    return bool(channel.subscribed.is_set())


class Received(list[Any]):
    """The arguments that a handler was called with. The list itself is the handler."""

    def __call__(self, received: Expired | KeyEvent) -> None:
        self.append(received)

    @property
    def names(self) -> list[str]:
        return [one.name for one in self]

    @property
    def keys(self) -> list[tuple[str, str]]:
        return [(one.key, one.event) for one in self]


def real_key(namespace: str, name: str) -> str:
    return timer_key(conf.prefix(), namespace, name)


def jobs() -> JobKeys:
    return JobKeys(conf.prefix(), *TIMERS)


def remaining_keys() -> list[str]:
    """Names of the existing timer keys, except those that expire by themselves."""
    found = server().scan_iter(match=f"{jobs().tag}:*", count=1000)
    names = [key.decode().removeprefix(jobs().tag + ":") for key in found]
    return sorted(
        one
        for one in names
        if not one.startswith(("requests:", "namespaces", "workers")) and not one.endswith(":bell")
    )


def key_handler(
    pattern: str, function: Callable[[KeyEvent], Any], *events: str, db: int | None = None
) -> KeyHandler:
    from django_redis_messaging import on_key_event
    from django_redis_messaging.handlers import key_events

    before = list(key_events)
    on_key_event(pattern, events=events, db=db)(function)
    [added] = [handler for handler in key_events if handler not in before]
    key_events[:] = before
    return added


def claim_due(namespace: str = "order", lease: int = 60_000) -> Any:
    """Claim a due timer without running it, as a listener that stops there."""
    engine = timers()
    found: list[Any] = []

    def has_claimed() -> bool:
        found.extend(engine.claim([namespace], 1, lease).jobs)
        return bool(found)

    until(has_claimed)
    return found[0]


def wait_until_past(due: int) -> None:
    """Wait until a time of the server, in ms, has passed."""
    until(lambda: server_ms() > due)
