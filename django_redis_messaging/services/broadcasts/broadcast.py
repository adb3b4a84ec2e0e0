"""The public class of broadcasts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from time import monotonic_ns, time_ns
from typing import Any

from ... import conf
from ...core import payloads
from ...core.keys import name as checked
from ...core.operations import Script, Steps, asynchronous, operation
from ...errors import LimitExceeded, OutcomeUnknown, Unavailable
from ..arguments import Stop, count, request, window
from . import consuming
from .base import ChannelReader
from .values import Event, events

_logger = logging.getLogger(__name__)
#: alias → µs by which its server's clock is ahead of the monotonic clock, as of the last publish. A publisher
#: guesses the current buckets from it, and repeats the call if the server replies with another number
_offsets: dict[str, int] = {}


class Broadcast(ChannelReader):
    """A channel: every reader gets the events that were published in the last minutes.

    >>> channel = Broadcast("settings")
    >>> start = channel.cursor()
    >>> channel.publish({"theme": "dark"}).id
    1
    >>> batch = channel.fetch(start)
    >>> [event.payload for event in batch.events], batch.missed
    ([{'theme': 'dark'}], False)
    >>> channel.fetch(batch.cursor).events
    []

    A reader that fetches at least every BROADCAST_RETENTION seconds gets every event once, in the same
    order as all readers, independent of clocks. If events may have been lost for it, `missed` is true.
    Events are stored in buckets of time, which expire; a counter defines their order.
    """

    @operation
    def publish(self, payload: Any, *, request_id: str | None = None) -> Steps[Event]:
        """Publish a payload that JSON can encode; waiting readers get it within milliseconds.

        Two calls with equal payloads publish two events. A repeat with the same `request_id` publishes
        nothing and returns the first event, as far as it is still stored. Request ids belong to the channel:
        put the user into an id that a user has chosen.

        >>> Broadcast("prices").publish({"apple": 3}, request_id="import-17").id
        1
        >>> Broadcast("prices").publish({"apple": 3}, request_id="import-17").id
        1

        Raises LimitExceeded (BROADCAST_MAX_BYTES).
        """
        settings = conf.current()
        encoded, request_id = _encode(payload, settings.BROADCAST_MAX_BYTES), request(request_id)
        limits = (self._bucket, self._retention, settings.BROADCAST_MAX_LENGTH, self._idle_ttl)
        number = self._bucket_now()
        while True:
            keys = (*self._keys.publishing, *self._keys.buckets_from(number, 2))
            reply = yield Script("broadcast_publish", keys, (encoded, request_id, window(), *limits, number))
            if reply == b"none":
                yield from self._open()
            elif isinstance(reply, int):  # the bucket to give
                number = reply
            else:
                break
        reply, is_repeat, first = reply.partition(b" ")
        published, us, epoch = map(int, reply.rstrip(b"+").split(b"-"))
        if is_repeat:
            stored = payloads.loads_all([first])[0] if first else (published, us, 0, payload)
            return events(self._channel_id, epoch, [stored])[0]
        _offsets[self._using] = us - monotonic_ns() // 1000
        if reply.endswith(b"+"):
            yield from self._trim()
        return events(self._channel_id, epoch, [(published, us, 0, payload)])[0]

    apublish = asynchronous(publish)

    def consume(
        self,
        handler: Callable[[Event], object],
        *,
        name: str | None = None,
        cursor: str | None = None,
        on_missed: Callable[[], object] | None = None,
        attempts: int = 3,
        stop: Stop | None = None,
    ) -> None:
        """Call `handler` with each event, in order, until `stop` is set.

        It begins at `cursor`; without one, at the position that is kept in Redis for the consumer `name`;
        without that, with the next event published. The position is kept after each batch, and after each
        second: after a crash, later events are handled again. `on_missed` is called before the events if
        some may be missing. If a callback raises, the error is logged and the call is repeated after a
        growing pause; after so many `attempts` the event is logged and skipped. During an outage of Redis
        the loop retries.
        """
        callbacks = consuming.Callbacks(handler, on_missed, count(attempts, "attempts"))
        start = self._check(name, cursor)
        consuming.consume(self, callbacks, start, name, stop or threading.Event())

    async def aconsume(
        self,
        handler: Callable[[Event], object | Awaitable[object]],
        *,
        name: str | None = None,
        cursor: str | None = None,
        on_missed: Callable[[], object | Awaitable[object]] | None = None,
        attempts: int = 3,
        stop: Stop | None = None,
    ) -> None:
        """An async version of `consume`, for plain and coroutine functions; `stop` is any object with
        is_set."""
        callbacks = consuming.Callbacks(handler, on_missed, count(attempts, "attempts"))
        start = self._check(name, cursor)
        await consuming.aconsume(self, callbacks, start, name, stop or threading.Event())

    def _bucket_now(self) -> int:
        """The number of the current bucket, or of the previous one."""
        offset = _offsets.get(self._using)
        us = time_ns() // 1000 if offset is None else monotonic_ns() // 1000 + offset
        return us // 1000 // self._bucket

    def _trim(self) -> Steps[None]:
        """Remove the events in excess of the maximum length; if that fails, a later publish repeats it."""
        limits = (self._bucket, conf.current().BROADCAST_MAX_LENGTH, self._idle_ttl)
        try:
            yield Script("broadcast_trim", [self._keys.head, *self._keys.buckets], limits)
        except (Unavailable, OutcomeUnknown) as error:
            _logger.warning("Trimming channel %r failed; a later publish repeats it: %s", self.channel, error)

    def _check(self, name: str | None, cursor: str | None) -> str | None:
        if name is not None:
            checked(name, "name")
        return None if cursor is None else self._normalize(cursor)


def _encode(payload: Any, limit: int) -> str:
    encoded = payloads.dumps(payload)
    if len(encoded) > limit or (not encoded.isascii() and len(encoded.encode()) > limit):
        actual = len(encoded.encode())
        raise LimitExceeded(
            "an event's payload (bytes)", limit=limit, actual=actual, setting="BROADCAST_MAX_BYTES"
        )
    return encoded
