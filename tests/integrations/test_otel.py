"""Traces: spans of operations and tasks, and the context that is carried from one to the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState

from django_redis_messaging import Chat, NotAMember, otel
from django_redis_messaging.core.operations import are_observed
from django_redis_messaging.tasks import TaskBatch, wait_for_result

from ..support.processes import commands
from ..support.workers import PATIENCE, SUCCESSFUL, at_work, burst, ended, run_to_end, state
from . import jobs

pytestmark = pytest.mark.one_server

SECRET = "only-for-ann"
MODULE = jobs.__name__


class Spans:
    """The spans that have ended."""

    def __init__(self, provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
        self.provider = provider
        self.tracer = provider.get_tracer("tests")
        self._exporter = exporter

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span


@pytest.fixture
def spans() -> Iterator[Spans]:
    """A site whose operations and tasks are traced."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel.instrument(provider)
    otel.instrument(provider)  # a second call changes nothing
    yield Spans(provider, exporter)
    otel.uninstrument()
    assert not are_observed()


def identity(span: ReadableSpan) -> list[str]:
    assert span.context is not None
    return [f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"]


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert span.context is not None and parent.context is not None
    return (
        span.parent is not None
        and span.parent.span_id == parent.context.span_id
        and span.context.trace_id == parent.context.trace_id
    )


def fields(result: Any) -> str:
    """The fields that are stored with a call."""
    return state(result).more


class TestOperations:
    async def test_each_has_a_span(self, spans: Spans, closing: None) -> None:
        with spans.tracer.start_as_current_span("request"):
            chat = Chat.create("ann", ["bob"], SECRET)
            await chat.asend("bob", SECRET)
            with pytest.raises(NotAMember):
                chat.send("eve", SECRET)
        request, create = spans.one("request"), spans.one("Chat.create")
        sent, refused = spans.named("Chat.send")
        assert all(is_child(span, request) for span in (create, sent, refused))
        assert {span.kind for span in (create, sent, refused)} == {SpanKind.CLIENT}
        assert dict(sent.attributes or {}) == {
            "db.system.name": "redis",
            "db.operation.name": "Chat.send",
            "db.query.summary": "chats/send",
        }
        assert (refused.attributes or {})["error.type"] == "NotAMember"
        assert [span.status.is_ok for span in (sent, refused)] == [True, False]
        assert (request.start_time or 0) <= (sent.start_time or 0) < (sent.end_time or 0)
        assert (sent.end_time or 0) <= (request.end_time or 0)
        assert SECRET not in "".join(span.to_json() for span in spans.all())

    def test_loops_make_no_spans_of_their_own(self, spans: Spans) -> None:
        with at_work():
            ended(jobs.current.enqueue())
        assert {span.name for span in spans.all()} == {
            f"enqueue {MODULE}.current",
            "RedisBackend.push",
            f"run {MODULE}.current",
        }


class TestTasks:
    @pytest.mark.parametrize("task", [jobs.current, jobs.acurrent, jobs.acurrent_with_lock])
    @pytest.mark.parametrize("awaits", [False, True])
    async def test_attempts_are_in_the_trace_of_their_call(
        self, task: Any, awaits: bool, spans: Spans, closing: None
    ) -> None:
        with spans.tracer.start_as_current_span("request"):
            result = await task.aenqueue() if awaits else task.enqueue()
        burst()
        path = task.module_path
        producer, consumer = spans.one(f"enqueue {path}"), spans.one(f"run {path}")
        assert ended(result).return_value == identity(consumer)
        assert is_child(producer, spans.one("request")) and is_child(consumer, producer)
        assert is_child(spans.one("RedisBackend.push"), spans.one("request"))
        assert [producer.kind, consumer.kind] == [SpanKind.PRODUCER, SpanKind.CONSUMER]
        common = {
            "messaging.system": "redis",
            "messaging.destination.name": "default",
            "messaging.message.id": result.id,
            "code.function.name": path,
        }
        created = {"messaging.operation.name": "enqueue", "messaging.operation.type": "create"}
        ran = {"messaging.operation.name": "run", "messaging.operation.type": "process"}
        own = {"task.attempt": 1, "task.outcome": "done"}
        assert dict(producer.attributes or {}) == {**common, **created}
        assert dict(consumer.attributes or {}) == {**common, **ran, **own}

    def test_each_attempt_has_a_span(self, spans: Spans) -> None:
        assert run_to_end(jobs.fail.enqueue(SECRET)) == ["FAILED"]
        producer, attempts = spans.one(f"enqueue {MODULE}.fail"), spans.named(f"run {MODULE}.fail")
        assert [is_child(span, producer) for span in attempts] == [True, True]
        numbers = [(one.attributes or {})["task.attempt"] for one in attempts]
        outcomes = [(one.attributes or {})["task.outcome"] for one in attempts]
        assert (numbers, outcomes) == ([1, 2], ["retry", "dead"])
        for span in attempts:
            [event] = span.events
            assert not span.status.is_ok
            assert (event.name, (event.attributes or {})["exception.type"]) == ("exception", "LookupError")
            assert "raise LookupError(text)" in str((event.attributes or {})["exception.stacktrace"])
        assert SECRET not in "".join(span.to_json() for span in spans.all())

    def test_follow_ups_and_batches_are_in_the_trace(self, spans: Spans) -> None:
        with spans.tracer.start_as_current_span("request"):
            first = jobs.current.using(then=jobs.follow).enqueue()
            batch = TaskBatch(on_done=jobs.ended)
            batch.add(jobs.acurrent)
            batch.enqueue()
        with at_work():
            wait_for_result(first, timeout=PATIENCE)
            batch.wait_until_done(timeout=PATIENCE)
            for task, result_id in (
                (jobs.follow, first.then_id),
                (jobs.ended, batch.callback_id("on_done")),
            ):
                wait_for_result(task.get_result(str(result_id)), timeout=PATIENCE)
        assert is_child(spans.one(f"enqueue {MODULE}.follow"), spans.one(f"run {MODULE}.current"))
        request = identity(spans.one("request"))[0]
        assert {identity(span)[0] for span in spans.all() if span.name.startswith("run ")} == {request}

    def test_context_is_that_of_w3c(self, spans: Spans) -> None:
        small, large = "vendor=a b,other=1", "vendor=" + "x" * 256
        states = {}
        for header in (small, f"{large},b={'y' * 250},c=1"):
            remote = SpanContext(
                0xA,
                0xB,
                is_remote=True,
                trace_flags=TraceFlags(1),
                trace_state=TraceState.from_header([header]),
            )
            token = contexts.attach(trace.set_span_in_context(trace.NonRecordingSpan(remote)))
            try:
                states[header] = fields(jobs.current.enqueue())
            finally:
                contexts.detach(token)
        one, other = states.values()
        assert f" trace=00-{0xA:032x}-" in one and f" trace=00-{0xA:032x}-" in other
        assert "tracestate=vendor%3Da%20b%2Cother%3D1" in one
        assert "tracestate" not in other
        assert max(map(len, states.values())) < 1000
        burst()
        consumers = spans.named(f"run {MODULE}.current")
        assert {dict(span.context.trace_state).get("other") for span in consumers if span.context} == {
            "1",
            None,
        }

    def test_calls_without_a_trace(self) -> None:
        result = jobs.current.enqueue()
        assert "trace" not in fields(result)
        with_tracer = Spans(TracerProvider(), InMemorySpanExporter())
        with with_tracer.tracer.start_as_current_span("not of this app"):
            assert "trace" not in fields(jobs.current.enqueue())
        burst()
        assert ended(result).return_value == ["0" * 32, "0" * 16]

    def test_attempts_at_calls_that_were_not_traced(self, spans: Spans) -> None:
        otel.uninstrument()
        result = jobs.current.enqueue()
        otel.instrument(spans.provider)
        burst()
        assert ended(result).return_value[0] != "0" * 32
        assert spans.one(f"run {MODULE}.current").parent is None

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_context_arrives_in_child_processes(self, method: str, spans: Spans, tmp_path: Path) -> None:
        (tmp_path / "traced").mkdir()
        (tmp_path / "traced" / "__init__.py").touch()
        (tmp_path / "traced" / "apps.py").write_text(APP)
        with spans.tracer.start_as_current_span("request"):
            results = [jobs.current.enqueue(), jobs.acurrent.enqueue()]
        with commands() as start:
            options = ("--processes", "1", "--start-method", method, "--burst")
            start("run_worker", *options, apps="traced", path=tmp_path)
            found = [ended(result) for result in results]
        assert {result.status for result in found} == {SUCCESSFUL}
        trace_id = identity(spans.one("request"))[0]
        assert {result.return_value[0] for result in found} == {trace_id}


#: an app that traces what its process does
APP = """
from django.apps import AppConfig
from opentelemetry.sdk.trace import TracerProvider

class TracedConfig(AppConfig):
    name = "traced"

    def ready(self):
        from django_redis_messaging import otel

        otel.instrument(TracerProvider())
"""
