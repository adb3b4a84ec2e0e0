"""Where a tracer (otel.py) takes part: when a call is made, and in the attempts at it. By default there is
none, which costs nothing.

A tracer stores where a call was made in two fields of its job, `trace` and `tracestate`: the headers of W3C
Trace Context.
"""

from __future__ import annotations

from typing import Protocol

from ..services.jobs.engine import LeasedJob
from .compat import Task


class AttemptSpan(Protocol):
    """What is recorded of one attempt, from when this is made."""

    def fail(self, error: BaseException) -> None:
        """Note that the task has raised an error."""

    def end(self, outcome: str) -> None:
        """End with an outcome (services/jobs/engine.py)."""


class Tracer(Protocol):
    """Follows calls from where they are enqueued to the attempts at them."""

    def create(self, task: Task, result_id: str) -> str:
        """Note that a call is made; its id may be empty. Returns fields of its job, each after a space."""
        ...

    def begin(self, task: Task, leased: LeasedJob) -> AttemptSpan:
        """Note that an attempt begins. It is in a context of its own."""
        ...


#: the tracer of this process
tracer: Tracer | None = None
