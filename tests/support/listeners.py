"""Listeners in threads of the test process, and what their handlers received."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from django_redis_messaging import Expired, KeyEvent, conf, handlers, on_key_event
from django_redis_messaging.handlers import Handler, KeyHandler, TimerHandler
from django_redis_messaging.services.expiries.timers import TIMERS, timer_key
from django_redis_messaging.services.jobs.keys import JobKeys
from django_redis_messaging.services.jobs.worker import Limits
from django_redis_messaging.services.listening import Listener, listener
from tests.support.engines import timers

from .server import server, until

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
    chosen = {name: TimerHandler(name, function, timeout) for name, function in (timers or {}).items()}
    options = Limits(**{"concurrency": 2, "drain": 5.0, **limits})
    made = Listener(chosen, key_events or [], options, configure=configure)
    thread = threading.Thread(target=made.run, daemon=True)
    with mock.patch.object(listener, "CHECK_INTERVAL", 0.02):
        thread.start()
        try:
            until(lambda: is_subscribed(made))
            yield made
        finally:
            made.stop()
            # clients waiting for a wake-up marker poll now instead of after a second
            for namespace in chosen:
                server().eval(WAKE, 1, jobs().queue(namespace).bell)
            thread.join(PATIENCE)
    assert not thread.is_alive(), "the listener does not stop"
    assert not made.failed


@contextmanager
def following(site: str, handler: Handler, **options: Any) -> Iterator[Listener]:
    """Run a listener with a handler of the event "set" of the site's keys."""
    with listening(key_events=[key_handler(f"{site}*", handler, "set")], **options) as made:
        yield made


def is_subscribed(made: Listener) -> bool:
    """Whether this listener is subscribed to the events of all primaries, if it has handlers of events."""
    if made.events is None:
        return True
    subscriptions = list(made.events.subscriptions.values())
    return bool(subscriptions) and all(one.subscribed.is_set() for one in subscriptions)


def is_dispatcher(made: Any) -> bool:
    """Whether this listener dispatches the events."""
    return all(one.fence for one in made.events.subscriptions.values())


def set_until_received(client: Any, key: str, received: Received) -> None:
    """Set a key until its event arrives."""

    def received_any() -> bool:
        client.set(key, 1)
        return bool(received)

    until(received_any)


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
    """A handler as `on_key_event` registers it, but not registered."""
    with mock.patch.object(handlers, "key_events", []) as registered:
        on_key_event(pattern, events=events, db=db)(function)
    return registered[0]


def claim_due(namespace: str = "order", lease: int = 60_000) -> Any:
    """Claim a due timer without running it, as a listener that stops there."""
    engine = timers()
    found: list[Any] = []

    def has_claimed() -> bool:
        found.extend(engine.claim([namespace], 1, lease).jobs)
        return bool(found)

    until(has_claimed)
    return found[0]
