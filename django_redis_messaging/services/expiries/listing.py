"""The timers of a namespace as operators see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import unquote

from ... import conf
from ...core.commands import Argument
from ...core.encoding import current_prefix
from ...core.encoding import name as checked
from ...core.operations import Command, Script, Steps
from ..jobs.engine import parse_state
from ..jobs.listing import JobRow, Jobs, text_of
from .timers import TimerEngine, namespaces_key, timer_name, with_timer


class Timers(Jobs):
    """The timers of a namespace. The delayed ones are due later, or overdue where neither a poller nor a
    listener runs; the ready ones are overdue; the leased ones are about to start, or have started.
    `reschedule` fires them, unless it gets a due time; it and `cancel` don't touch those that have started.

    >>> timers = Timers("order")
    >>> timers.page("delayed").rows
    []
    """

    _waiting = _cancellable = ("ready", "delayed", "leased")

    def __init__(self, namespace: str, *, using: str | None = None) -> None:
        self._prefix, name = current_prefix(), checked(namespace, "namespace")
        super().__init__(
            TimerEngine(self._prefix),
            name,
            name=name,
            registry=namespaces_key(self._prefix),
            using=conf.alias() if using is None else using,
        )

    def _completed(self, row: JobRow, payload: str) -> JobRow:
        name, _, data = payload.partition("\n")
        return replace(row, name=text_of(name), arguments=data)

    def _cancel(self, ids: Sequence[str]) -> Steps[int]:
        return self._call("expiries/cancel", ids)

    def _reschedule(self, ids: Sequence[str], delay: int | str, line: str) -> Steps[int]:
        return self._call("expiries/extend", ids, self._name, delay)

    def _call(self, script: str, ids: Sequence[str], *words: Argument) -> Steps[int]:
        """Call a script for each timer with one of these ids. Returns how many have not started."""
        states = yield Command("HMGET", self._engine.keys.states, *ids, reads=True)
        found = [
            (job_id, parse_state(raw.partition(b"\n")[0]).unique)
            for job_id, raw in zip(ids, states, strict=True)
            if raw is not None
        ]
        queue, calls = self._engine.keys.queue(self._name).with_records, list[Script]()
        for job_id, unique in found:
            namespace, _, name = unique.partition(":")
            if unquote(namespace) == self._name:
                keys = with_timer(queue, self._prefix, self._name, unquote(name))
                calls.append(Script(script, keys, (timer_name(self._name, unquote(name)), *words, job_id)))
        return sum((yield calls)) if calls else 0
