"""Listeners in threads of the test's own process, and what they heard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django_redis_messaging import Expired, KeyEvent, conf
from django_redis_messaging.handlers import Handler, KeyHandler, TimerHandler
from django_redis_messaging.services.expiries.keys import TIMERS, timer_key
from django_redis_messaging.services.jobs.keys import JobKeys
from django_redis_messaging.services.jobs.limits import Limits
from django_redis_messaging.services.listening import Listener
from tests.engines import timers

from .asking import server, server_ms, until

#: works without memory too
RING = "redis.call('DEL', KEYS[1]) return redis.call('ZADD', KEYS[1], 0, 'look')"
#: seconds
PATIENCE = 30.0
#: seconds: a timer of a test that waits for it
SOON = 0.05
LATER = 3600
NOTIFY = "notify-keyspace-events"
#: what delivers all that tests wait for
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
    """A listener with these handlers while it listens; at the end it drains."""
    handlers = {name: TimerHandler(name, function, timeout) for name, function in (timers or {}).items()}
    chosen = Limits(**{"concurrency": 2, "drain": 5.0, **limits})
    listener = Listener(handlers, key_events or [], chosen, configure=configure)
    thread = threading.Thread(target=listener.run, daemon=True)
    thread.start()
    try:
        if listener.events is not None:
            until(lambda: listener.events.channels and all(map(ready, listener.events.channels.values())))
        yield listener
    finally:
        listener.stop()
        # who waits at a bell looks now, and not only in a second
        for namespace in handlers:
            server().eval(RING, 1, jobs().queue(namespace).bell)
        thread.join(PATIENCE)
    assert not thread.is_alive(), "it does not stop"
    assert not listener.failed


def told(listener: Any) -> bool:
    """Whether this listener is the one that dispatches."""
    return all(one.fence for one in listener.events.channels.values())


def ready(channel: Any) -> bool:
    return bool(channel.subscribed.is_set())


class Heard(list[Any]):
    """What a handler was called with; as a function, a handler."""

    def __call__(self, told: Expired | KeyEvent) -> None:
        self.append(told)

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


def left_over() -> list[str]:
    """The keys of timers that are there, but for those that age by themselves."""
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
    [made] = [one for one in key_events if one not in before]
    key_events[:] = before
    return made


def claimed(namespace: str = "order", lease: int = 60_000) -> Any:
    """What a listener has when it has claimed a timer that is due, and not begun it."""
    store = timers()
    found: list[Any] = []

    def there() -> bool:
        found.extend(store.claim([namespace], 1, lease).jobs)
        return bool(found)

    until(there)
    return found[0]


def unused(due: int) -> None:
    """Wait until a moment of the server's has gone."""
    until(lambda: server_ms() > due)
