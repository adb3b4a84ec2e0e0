"""Timers by their names: started, extended, cancelled."""

from __future__ import annotations

import os
from typing import Any

from ... import conf
from ...core import keys, payloads
from ...core.operations import Script, Service, Steps, asynchronous, operation
from ...errors import LimitExceeded
from ..arguments import Duration, milliseconds, request, settled, window
from ..jobs.keys import JobKeys, request_offset, request_shard
from .keys import TIMERS, namespaces_key, timer_key, timer_name


class Expiry(Service):
    """The timers of a namespace: a kind of timers, with one handler (`on_expiry`).

    >>> orders = Expiry("order")
    >>> timer_id = orders.start("17", 30, {"total": 9.5})
    >>> 29 < orders.remaining("17") <= 30
    True
    >>> orders.extend("17", 3600), orders.cancel("17"), orders.cancel("17")
    (True, True, False)

    A timer that was started, and not cancelled before it was due, is completed once: its handler is called
    until it has returned. That may be late, while no listener runs, but never early by the server's clock.
    `start`, `extend` and `cancel` take effect at once, even for a timer that a listener is about to start.

    Beside each timer there is a key with its payload and a TTL, for other clients to read. If they extend the
    life of that key (EXPIRE, PERSIST), that counts when the timer is due: the timer then waits until the key
    expires, or starts at once if the key has no TTL. Deleting the key changes nothing.
    """

    def __init__(self, namespace: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.namespace = keys.name(namespace, "namespace")
        self._jobs = JobKeys(self._prefix, *TIMERS)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.namespace!r})"

    @operation
    def start(
        self, name: str, after: Duration, payload: Any = None, *, request_id: str | None = None
    ) -> Steps[str]:
        """Have the handler called with `payload` after this time (more than 0; no upper limit in practice).
        Returns the id of this start.

        It replaces a timer of the same name that has not started; one that has started runs on. A repeat with
        the same `request_id` changes nothing and returns the first id. Request ids belong to the namespace
        and name: put the user into an id that a user has chosen. Only the listener knows which namespaces
        have handlers: timers of a namespace without a handler wait for one.

        >>> len(Expiry("order").start("18", 0.5, request_id="order 18"))
        24

        Raises LimitExceeded (JOB_MAX_BYTES, JOB_MAX_WAITING).
        """
        unique, job_id = self._unique(name), os.urandom(12).hex()
        ms = milliseconds(after, "after", minimum=1)
        stored = payloads.text(payloads.dumps(payload), "a timer's payload", setting="JOB_MAX_BYTES")
        settings = conf.current()
        limit = settings.JOB_MAX_WAITING
        # one request id may start timers of several names
        request_key = f"{unique}:{request(request_id)}"
        job = (job_id, payloads.string(name), stored, settings.JOB_MAX_ATTEMPTS)
        shard = request_shard(request_key)
        offset = request_offset(shard, window())
        words = (request_key, window(), offset, limit, self.namespace, unique, ms, *job)
        changed = [*self._jobs.for_request(shard, self.namespace), *self._timer_keys(name)]
        reply = yield Script("expiry_start", changed, words)
        if isinstance(reply, int):
            raise LimitExceeded(
                "timers waiting in a namespace", limit=limit, actual=reply, setting="JOB_MAX_WAITING"
            )
        return str(reply.decode())

    astart = asynchronous(start)

    @operation
    def extend(self, name: str, after: Duration) -> Steps[bool]:
        """Make a timer due this long from now, whether that is later or earlier. False if it has started or
        doesn't exist."""
        ms = milliseconds(after, "after", minimum=1)
        return bool(
            (yield Script("expiry_extend", self._keys(name), (self._unique(name), self.namespace, ms)))
        )

    aextend = asynchronous(extend)

    @operation
    def cancel(self, name: str) -> Steps[bool | None]:
        """Cancel a timer: its handler isn't called. False if it has started or doesn't exist; None if a reply
        was lost and the repeat found no timer, so that either may be true."""
        *changed, _ = self._keys(name)
        return settled((yield Script("expiry_cancel", changed, (self._unique(name),), settles=True)))

    acancel = asynchronous(cancel)

    @operation
    def remaining(self, name: str) -> Steps[float | None]:
        """Seconds until a timer is due, 0 if it is due and has not started; None if it has started or doesn't
        exist.

        >>> print(Expiry("order").remaining("no such timer"))
        None
        """
        unique = self._unique(name)
        timer = timer_key(self._prefix, self.namespace, name)
        ms: int = yield Script("expiry_remaining", [*self._jobs.records, timer], (unique,))
        return None if ms < 0 else ms / 1000

    aremaining = asynchronous(remaining)

    def _unique(self, name: str) -> str:
        return timer_name(self.namespace, keys.name(name, "name"))

    def _keys(self, name: str) -> list[str]:
        """The keys of a change, in the order of the scripts."""
        return [*self._jobs.queue(self.namespace).with_records, *self._timer_keys(name)]

    def _timer_keys(self, name: str) -> list[str]:
        return [
            timer_key(self._prefix, self.namespace, keys.name(name, "name")),
            namespaces_key(self._prefix),
        ]
