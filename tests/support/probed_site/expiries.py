"""The handlers for timers and key events, found by the commands."""

from __future__ import annotations

from django_redis_messaging import Expired, KeyEvent, on_expiry, on_key_event

from . import record


@on_expiry("probe")
def fire(expired: Expired) -> None:
    record("timer", expired.name)


@on_key_event("probe:*", events={"set"})
def see(event: KeyEvent) -> None:
    record("key event", event.key)
