"""Timers by their names: started, extended, cancelled."""

from __future__ import annotations

import os
from typing import Any

from ... import conf
from ...core import keys, payloads
from ...core.operations import Script, Service, Steps, asynchronous, operation
from ...errors import LimitExceeded
from ..arguments import Duration, milliseconds
from ..jobs.engine import Engine
from ..requests import request, settled, window


class Expiry(Service):
    """The timers of a namespace: a kind of timers, which one handler is called for (`on_expiry`).

    >>> orders = Expiry("order")
    >>> timer_id = orders.start("17", 30, {"total": 9.5})
    >>> 29 < orders.remaining("17") <= 30
    True
    >>> orders.extend("17", 3600), orders.cancel("17"), orders.cancel("17")
    (True, True, False)

    A timer that was started, and not cancelled before it was due, is completed once: its handler is called
    until it has returned. That may be late, while no listener runs, and never early, by the server's clock.
    `start`, `extend` and `cancel` hold at once, also for a timer that a listener is about to begin.

    Beside each timer there is a key with its payload and a TTL, for others to see. To make that key live
    longer (EXPIRE, PERSIST) counts when the timer is due: it then waits for as long as the key lives, or
    begins at once where the key would live for ever. To delete it changes nothing.
    """

    def __init__(self, namespace: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.namespace = keys.name(namespace, "namespace")
        self._engine = Engine(self._prefix, *keys.TIMERS)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.namespace!r})"

    @operation
    def start(
        self, name: str, after: Duration, payload: Any = None, *, request_id: str | None = None
    ) -> Steps[str]:
        """Have the handler called with `payload` after this time (more than 0, any horizon); returns the
        id of this start.

        A timer of this name that has not begun is replaced; one that has begun goes on by itself. A repeat
        with the same `request_id` changes nothing and returns the first id. Whether the namespace has a
        handler is known to the listener alone: timers without one wait for it.

        >>> len(Expiry("order").start("18", 0.5, request_id="order 18"))
        24

        Raises LimitExceeded (JOB_MAX_BYTES, JOB_MAX_WAITING).
        """
        unique = self._unique(name)
        wait = milliseconds(after, "after", least=1)
        settings = conf.current()
        stored = payloads.text(
            payloads.dumps(payload), "a timer's payload, JOB_MAX_BYTES", limit=settings.JOB_MAX_BYTES
        )
        reply = yield Script(
            "expiry_start",
            (
                *self._every(name),
                *self._engine.keys.requests,
                keys.namespaces(self._prefix),
            ),
            (
                # one request id may start timers of several names
                f"{unique}:{request(request_id)}",
                window(),
                settings.JOB_MAX_WAITING,
                self.namespace,
                os.urandom(12).hex(),
                payloads.string(name),
                stored,
                wait,
                settings.JOB_MAX_ATTEMPTS,
                unique,
            ),
        )
        if isinstance(reply, int):
            limit = settings.JOB_MAX_WAITING
            raise LimitExceeded("timers waiting in a namespace (JOB_MAX_WAITING)", limit=limit, actual=reply)
        return str(reply.decode())

    astart = asynchronous(start)

    @operation
    def extend(self, name: str, after: Duration) -> Steps[bool]:
        """Let a timer be due so long from now instead, be it later or earlier. False where it has begun,
        or there is none."""
        wait = milliseconds(after, "after", least=1)
        every = (*self._every(name), keys.namespaces(self._prefix))
        return bool((yield Script("expiry_extend", every, (self._unique(name), self.namespace, wait))))

    aextend = asynchronous(extend)

    @operation
    def cancel(self, name: str) -> Steps[bool | None]:
        """Take a timer out: its handler isn't called. False where it has begun, or there is none; None where
        a reply was lost and the repeat found none, so that either may be."""
        words = (self._unique(name),)
        return settled((yield Script("expiry_cancel", self._every(name), words, settles=True)))

    acancel = asynchronous(cancel)

    @operation
    def remaining(self, name: str) -> Steps[float | None]:
        """Seconds until a timer is due, 0 where it is and has not begun; None where it has, or there is
        none.

        >>> print(Expiry("order").remaining("nobody's"))
        None
        """
        jobs = self._engine.keys
        unique = self._unique(name)
        left: int = yield Script(
            "expiry_remaining",
            (jobs.states, jobs.uniques, keys.timer(self._prefix, self.namespace, name)),
            (unique,),
        )
        return None if left < 0 else left / 1000

    aremaining = asynchronous(remaining)

    def _unique(self, name: str) -> str:
        return keys.timer_name(self.namespace, keys.name(name, "name"))

    def _every(self, name: str) -> list[str]:
        """The keys of a timer that may be changed, in the order of the scripts."""
        timer = keys.timer(self._prefix, self.namespace, keys.name(name, "name"))
        return [*self._engine.keys.records, *self._engine.place(self.namespace).all, timer]
