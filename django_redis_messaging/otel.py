"""OpenTelemetry: a span for each operation, and for each attempt at a task.

    from django_redis_messaging import otel

    class ShopConfig(AppConfig):
        def ready(self) -> None:
            otel.instrument()

Needs the extra `otel`. `enqueue` stores the trace context with a call, in the form of W3C Trace Context, so
that the attempts are in the same trace, in whichever process they are made. No span has keys, arguments,
bodies, or the text of an error, which may contain these.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from importlib.util import find_spec
from traceback import format_tb
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(
        "Traces need the package opentelemetry-api: pip install 'django-redis-messaging[otel]'."
    ) from error

from .core.commands import titles
from .core.operations import LoopGuard, name_of, observe, observed_steps, unobserve

if TYPE_CHECKING:
    from .services.jobs.engine import LeasedJob
    from .tasks.compat import Task

logger = logging.getLogger(__name__)

__all__ = ["instrument", "uninstrument"]

#: bytes of a tracestate that is stored: W3C asks for at least this many to be passed on
MAX_TRACESTATE = 512
#: characters of a traceback; the beginning of a longer one is left out
MAX_TRACEBACK = 16 * 1024
#: characters that list the scripts and commands of an operation
MAX_SUMMARY = 255

_propagator = TraceContextTextMapPropagator()
#: None: no spans are made
_tracer: trace.Tracer | None = None


def instrument(tracer_provider: trace.TracerProvider | None = None) -> None:
    """Make spans from now on; a second call changes nothing. `tracer_provider`: by default the global one.

    Call it in each process of the site, such as in `AppConfig.ready()`.
    """
    global _tracer
    if _tracer is not None:
        return
    _tracer = trace.get_tracer("django_redis_messaging", tracer_provider=tracer_provider)
    observe(_record_operation)
    if _has_tasks():
        from .tasks import tracing

        tracing.tracer = _TaskTracer(_tracer)


def uninstrument() -> None:
    """Make no more spans."""
    global _tracer
    if _tracer is None:
        return
    _tracer = None
    unobserve(_record_operation)
    if _has_tasks():
        from .tasks import tracing

        tracing.tracer = None


def _has_tasks() -> bool:
    """Whether Django's Tasks framework, or its backport, is installed."""
    return any(find_spec(name) is not None for name in ("django.tasks", "django_tasks"))


def _record_operation(operation: str, seconds: float, outcome: str) -> None:
    """Make the span of an operation that has ended; its parent is what runs now."""
    tracer, ended = _tracer, time.time_ns()
    if tracer is None or (_is_of_loop(operation) and not _is_within_span()):
        return
    attributes = {
        "db.system.name": "redis",
        "db.operation.name": operation,
        "db.query.summary": _summary(),
    }
    span = tracer.start_span(
        operation,
        kind=trace.SpanKind.CLIENT,
        attributes=attributes,
        start_time=ended - round(seconds * 1e9),
    )
    if outcome != "ok":
        span.set_attribute("error.type", outcome)
        span.set_status(trace.StatusCode.ERROR)
    span.end(ended)


def _is_of_loop(operation: str) -> bool:
    """Whether workers, pollers or listeners repeat an operation for as long as they run."""
    owner, dot, _ = operation.partition(".")
    return not dot or owner.endswith("Engine")


def _is_within_span() -> bool:
    return trace.get_current_span().get_span_context().is_valid


def _summary() -> str:
    """The names of the scripts and commands of the operation, each once."""
    names = dict.fromkeys(name for step in observed_steps() for name in titles(step))
    return ", ".join(names)[:MAX_SUMMARY]


class _TaskTracer:
    """Makes the spans of tasks; see tasks/tracing.py."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def create(self, task: Task, result_id: str) -> str:
        """Make the span of a call that is about to be sent. The operation that sends it has its own."""
        attributes = _attributes(task, "enqueue", "create", result_id)
        name, kind = f"enqueue {task.module_path}", trace.SpanKind.PRODUCER
        with self._tracer.start_as_current_span(name, kind=kind, attributes=attributes):
            carrier: dict[str, str] = {}
            _propagator.inject(carrier)
        return _fields(carrier)

    def begin(self, task: Task, leased: LeasedJob) -> _AttemptSpan:
        """Begin the span of an attempt, which becomes the current one of this context."""
        attributes: Mapping[str, str | int] = {
            **_attributes(task, "run", "process", leased.lease.id),
            "task.attempt": leased.state.attempts,
        }
        span = self._tracer.start_span(
            f"run {task.module_path}",
            context=_stored_context(leased),
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
        )
        contexts.attach(trace.set_span_in_context(span))
        return _AttemptSpan(span)


class _AttemptSpan:
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def fail(self, error: BaseException) -> None:
        """Record where an error was raised, and its class; not its text."""
        kind = name_of(type(error))
        self._span.set_attribute("error.type", kind)
        self._span.set_status(trace.StatusCode.ERROR)
        with LoopGuard(logger, "Recording the traceback of a task failed."):
            frames = "".join(format_tb(error.__traceback__))[-MAX_TRACEBACK:]
            self._span.add_event("exception", {"exception.type": kind, "exception.stacktrace": frames})

    def end(self, outcome: str) -> None:
        """End the span."""
        self._span.set_attribute("task.outcome", outcome)
        self._span.end()


def _attributes(task: Task, operation: str, kind: str, result_id: str) -> dict[str, str | int]:
    """Those that the semantic conventions for messaging have."""
    found: dict[str, str | int] = {
        "messaging.system": "redis",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": str(task.queue_name),
        "code.function.name": task.module_path,
    }
    return {**found, "messaging.message.id": result_id} if result_id else found


def _fields(carrier: Mapping[str, str]) -> str:
    """The fields of a job for these headers; empty without a valid context."""
    if "traceparent" not in carrier:
        return ""
    fields, state = f" trace={carrier['traceparent']}", carrier.get("tracestate", "")
    return f"{fields} tracestate={quote(state)}" if 0 < len(state.encode()) <= MAX_TRACESTATE else fields


def _stored_context(leased: LeasedJob) -> contexts.Context:
    """The context that is stored with a call; an empty one if there is none, or if it is invalid."""
    state = leased.state
    carrier = {"traceparent": state.field("trace"), "tracestate": unquote(state.field("tracestate"))}
    return _propagator.extract(carrier, context=contexts.Context())
