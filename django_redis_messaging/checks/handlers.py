"""Whether handlers of timers and of key events can ever be called."""

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
    """`expiries.py` of all apps: imported, and their handlers looked at."""
    try:
        handlers.discover()
    except ConfigurationError as error:
        return [Error(str(error), id="messaging.E009")]
    return [message for one in handlers.key_events for message in _about(one)]


def _about(one: handlers.KeyHandler) -> Iterator[CheckMessage]:
    ours = f"{_prefix()}:{keys.FORMAT}:{{"
    if keyspace.beginning(one.pattern).startswith(ours):
        yield Warning(
            f"{handlers.title(one.function)} waits for keys {one.pattern!r}, which are this app's own: "
            "nobody is told of those.",
            hint="Use on_expiry for timers; for other keys, a pattern that matches them.",
            id="messaging.W009",
        )
    for event in sorted(one.events - keyspace.FLAGS.keys()):
        near = difflib.get_close_matches(event, keyspace.FLAGS, n=1)
        yield Warning(
            f"{handlers.title(one.function)} waits for the event {event!r}, which Redis does not send; "
            "a module may, with flags that nobody here knows.",
            hint=f"Did you mean {near[0]!r}?" if near else "See the table of events in docs/expiry.md.",
            id="messaging.W010",
        )


def _prefix() -> object:
    try:
        return conf.prefix()
    except ConfigurationError:  # which is for another check to say
        return None


def check_flags(**_: object) -> list[CheckMessage]:
    """The server's notify-keyspace-events: which handlers it tells nothing."""
    alias = chosen_alias()
    if any(message.is_serious() for message in [*check_handlers(), *check_alias()]):
        return []
    if alias is None or not handlers.key_events:
        return []
    try:
        found = clients.ask(alias, Command("CONFIG", "GET", "notify-keyspace-events", reads=True))
    except MessagingError:
        return []  # whether it can be asked at all is for another check to say
    there = found[1].decode() if len(found) == 2 else ""
    return [_untold(alias, one, there) for one in handlers.key_events if keyspace.missing(there, one.flags)]


def _untold(alias: str, one: handlers.KeyHandler, there: str) -> CheckMessage:
    lacking = keyspace.missing(there, one.flags)
    return Warning(
        f"notify-keyspace-events of CACHES[{alias!r}] is {there!r}: {handlers.title(one.function)} "
        f"({one.pattern}) is told nothing, or not all, without {lacking!r}.",
        hint="Run the listener with --configure, or set it to "
        f"{keyspace.merged(there, one.flags)!r} in the server's configuration.",
        id="messaging.W011",
    )
