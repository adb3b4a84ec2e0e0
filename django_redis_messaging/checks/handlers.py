"""Checks that the handlers of timers and of keyspace events can be called."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from django.core.checks import CheckMessage, Error, Warning

from .. import conf, handlers
from ..core import clients, keys, keyspace
from ..core.steps import Command
from ..errors import ConfigurationError, MessagingError
from .caches import check_alias, chosen_alias


def check_handlers(**_: object) -> list[CheckMessage]:
    """Import `expiries.py` of all apps and check their handlers."""
    try:
        handlers.discover()
    except ConfigurationError as error:
        return [Error(str(error), id="messaging.E009")]
    return [message for one in handlers.key_events for message in _check_handler(one)]


def _check_handler(one: handlers.KeyHandler) -> Iterator[CheckMessage]:
    ours = f"{_prefix()}:{keys.FORMAT}:{{"
    if keyspace.literal_prefix(one.pattern).startswith(ours):
        yield Warning(
            f"{handlers.title(one.function)} is never called: its pattern {one.pattern!r} matches this app's "
            "own keys, whose events are not delivered.",
            hint="Use on_expiry for timers, or a pattern of the site's own keys.",
            id="messaging.W009",
        )
    for event in sorted(one.events - keyspace.FLAGS.keys()):
        near = difflib.get_close_matches(event, keyspace.FLAGS, n=1)
        yield Warning(
            f"{handlers.title(one.function)} waits for the event {event!r}, which Redis doesn't publish. "
            "A Redis module may publish it; its flags are not checked.",
            hint=f"Did you mean {near[0]!r}?" if near else "See the table of events in docs/expiry.md.",
            id="messaging.W010",
        )


def _prefix() -> object:
    try:
        return conf.prefix()
    except ConfigurationError:  # another check reports it
        return None


def check_flags(**_: object) -> list[CheckMessage]:
    """Check that the server's notify-keyspace-events enables the events of all handlers."""
    alias = chosen_alias()
    if any(message.is_serious() for message in [*check_handlers(), *check_alias()]):
        return []
    if alias is None or not handlers.key_events:
        return []
    try:
        found = clients.execute(alias, Command("CONFIG", "GET", "notify-keyspace-events", reads=True))
    except MessagingError:
        return []  # another check reports that the server can't be queried
    enabled = found[1].decode() if len(found) == 2 else ""
    return [
        _missing_flags(alias, one, enabled)
        for one in handlers.key_events
        if keyspace.missing(enabled, one.flags)
    ]


def _missing_flags(alias: str, one: handlers.KeyHandler, enabled: str) -> CheckMessage:
    return Warning(
        f"notify-keyspace-events of CACHES[{alias!r}] is {enabled!r}: {handlers.title(one.function)} "
        f"({one.pattern}) misses events without {keyspace.missing(enabled, one.flags)!r}.",
        hint="Run the listener with --configure, or set it to "
        f"{keyspace.merged(enabled, one.flags)!r} in the server's configuration.",
        id="messaging.W011",
    )
