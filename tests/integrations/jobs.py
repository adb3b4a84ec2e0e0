"""Tasks of the tests of traces."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace

from django_redis_messaging.tasks import task


def _current() -> list[str]:
    """The trace and the span that are current here, as in a traceparent."""
    context = trace.get_current_span().get_span_context()
    return [f"{context.trace_id:032x}", f"{context.span_id:016x}"]


@task
def current() -> list[str]:
    return _current()


@task
async def acurrent() -> list[str]:
    return _current()


@task(lock="traced")
async def acurrent_with_lock() -> list[str]:
    return _current()


@task
def follow(before: list[str]) -> list[str]:
    return _current()


@task(max_attempts=2, backoff=0)
def fail(text: str) -> None:
    raise LookupError(text)


@task
def ended(batch_id: str) -> Any:
    return _current()
