"""Which samplers and processors let spans be made at their end: those that cannot tell."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pymongo_resilience_instrumentation.telemetry.sdk.spans import FinishedSpans, works, write


class Own(sampling.Sampler):
    def should_sample(self, *args: Any, **kwargs: Any) -> Any:
        return sampling.ALWAYS_ON.should_sample(*args, **kwargs)

    def get_description(self) -> str:
        return "Own"


class Watching(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None: ...


class Ending(SpanProcessor):
    def _on_ending(self, span: Any) -> None: ...


def _spans(sampler: Any = None, processor: Any = None, **more: Any) -> tuple[Any, FinishedSpans]:
    provider = TracerProvider(sampler, shutdown_on_exit=False, **more)
    if processor is not None:
        provider.add_span_processor(processor)
    tracer = provider.get_tracer("test")
    return tracer, FinishedSpans(tracer)


@pytest.mark.parametrize(
    ("sampler", "suits", "unseen"),
    [
        (sampling.ALWAYS_ON, True, True),
        (sampling.DEFAULT_ON, True, True),
        (sampling.ParentBased(sampling.TraceIdRatioBased(1.0)), True, True),
        (sampling.TraceIdRatioBased(1.0), False, True),
        (sampling.ParentBased(Own()), True, False),
        (sampling.ParentBased(sampling.ALWAYS_ON, local_parent_sampled=Own()), False, False),
        (Own(), False, False),
    ],
)
def test_a_sampler_that_might_decide_otherwise_is_asked(
    sampler: Any, suits: bool, unseen: bool
) -> None:
    tracer, spans = _spans(sampler)
    assert works()
    assert (spans.suits(tracer.start_span("parent")), spans.starts_unseen()) == (suits, unseen)


@pytest.mark.parametrize(
    ("processor", "suits"),
    [
        (SimpleSpanProcessor(InMemorySpanExporter()), True),
        (Watching(), False),
        (Ending(), False),
    ],
)
def test_a_processor_that_looks_earlier_sees_live_spans(processor: Any, suits: bool) -> None:
    tracer, spans = _spans(processor=processor)
    assert spans.suits(tracer.start_span("parent")) is suits
    assert spans.starts_unseen() is suits


def test_a_batch_of_spans_is_exported_as_ever() -> None:
    exporter = InMemorySpanExporter()
    processor = BatchSpanProcessor(exporter)
    tracer, spans = _spans(processor=processor)
    parent = tracer.start_span("parent")
    assert spans.suits(parent)
    spans.record("child", parent, {"a": 1}, started_ns=1, ended_ns=2)
    processor.force_flush()
    (child,) = exporter.get_finished_spans()
    assert (child.name, dict(child.attributes or {})) == ("child", {"a": 1})
    processor.shutdown()


@pytest.mark.parametrize(
    "limits", [SpanLimits(max_span_attributes=3), SpanLimits(max_span_attribute_length=3)]
)
def test_limits_hold(limits: SpanLimits) -> None:
    tracer, spans = _spans(span_limits=limits)
    span = tracer.start_span("parent")
    assert not spans.suits(span)
    write(span, {"a": "long", "b": 1, "c": 2, "d": 3})
    assert len(span.attributes) == (3 if limits.max_span_attributes == 3 else 4)
    assert "long" not in span.attributes.values() or limits.max_span_attribute_length is None


def test_a_parent_that_is_no_recorded_span_of_the_sdk_does_not_suit() -> None:
    tracer, spans = _spans()
    ended = tracer.start_span("ended")
    other = trace.NonRecordingSpan(ended.get_span_context())
    assert not spans.suits(other)
    assert not spans.suits(trace.INVALID_SPAN)


def test_what_comes_later_is_heard() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    tracer = provider.get_tracer("test")
    spans = FinishedSpans(tracer)
    parent = tracer.start_span("parent")
    assert spans.suits(parent)
    provider.add_span_processor(Watching())
    assert not spans.suits(parent)


def test_a_tracer_of_no_sdk_takes_the_public_way() -> None:
    spans = FinishedSpans(trace.NoOpTracer())
    assert not spans.suits(trace.INVALID_SPAN)
    assert not spans.starts_unseen()
    write(trace.INVALID_SPAN, {"a": 1})
