"""Which samplers and processors let spans be made without them: those that cannot tell."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span, SpanLimits, SpanProcessor, TracerProvider, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanKind
from pymongo_resilience_instrumentation.telemetry.sdk.spans import DirectSpans, works, write


class Own(sampling.Sampler):
    def should_sample(self, *args: Any, **kwargs: Any) -> Any:
        return sampling.ALWAYS_ON.should_sample(*args, **kwargs)

    def get_description(self) -> str:
        return "Own"


class Watching(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None: ...


class Ending(SpanProcessor):
    def _on_ending(self, span: Any) -> None: ...


def _spans(sampler: Any = None, processor: Any = None, **more: Any) -> tuple[Any, DirectSpans]:
    provider = TracerProvider(sampler, shutdown_on_exit=False, **more)
    if processor is not None:
        provider.add_span_processor(processor)
    tracer = provider.get_tracer("test")
    return tracer, DirectSpans(tracer)


@pytest.mark.parametrize(
    ("sampler", "root", "below"),
    [
        (sampling.ALWAYS_ON, True, True),
        (sampling.DEFAULT_ON, True, True),
        (sampling.ParentBased(sampling.TraceIdRatioBased(1.0)), False, True),
        (sampling.TraceIdRatioBased(1.0), False, False),
        (sampling.ParentBased(Own()), False, True),
        (sampling.ParentBased(sampling.ALWAYS_ON, local_parent_sampled=Own()), False, False),
        (Own(), False, False),
    ],
)
def test_a_sampler_that_might_decide_otherwise_is_asked(
    sampler: Any, root: bool, below: bool
) -> None:
    tracer, spans = _spans(sampler)
    parent = tracer.start_span("parent")
    assert works()
    assert spans.suits(parent) is below
    assert (spans.start("child", {}, parent) is not None) is below
    assert (spans.start("root", {}, trace.INVALID_SPAN) is not None) is root


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
    assert (spans.start("root", {}, trace.INVALID_SPAN) is not None) is suits


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
    assert spans.start("child", {}, span) is None
    write(span, {"a": "long", "b": 1, "c": 2, "d": 3})
    assert len(span.attributes) == (3 if limits.max_span_attributes == 3 else 4)
    assert "long" not in span.attributes.values() or limits.max_span_attribute_length is None


def test_a_parent_that_is_no_recorded_span_of_the_sdk_does_not_suit() -> None:
    tracer, spans = _spans()
    ended = tracer.start_span("ended")
    other = trace.NonRecordingSpan(ended.get_span_context())
    assert not spans.suits(other)
    assert not spans.suits(trace.INVALID_SPAN)
    assert spans.start("child", {}, other) is None


@pytest.mark.parametrize("parent", ["none", "a span"])
def test_a_started_span_is_as_the_tracers_own(parent: str) -> None:
    tracer, spans = _spans(resource=Resource({"service.name": "test"}))
    above = trace.INVALID_SPAN if parent == "none" else tracer.start_span("parent")
    around = trace.set_span_in_context(above)
    live = tracer.start_span("name", around, SpanKind.CLIENT, {"a": 1, "b": ("x", "y")})
    made = spans.start("name", {"a": 1, "b": ("x", "y")}, above)
    began = live.start_time
    for span in (live, made):
        span.set_attribute("c", 2.5)
        span.add_event("event", {"d": True}, timestamp=3)
        span.add_link(trace.SpanContext(1, 2, is_remote=True))
        span.update_name("renamed")
        span.set_status(trace.StatusCode.ERROR, "failed")
        span.end()
        span.set_attribute("too late", 1)
    ids = {"trace_id", "span_id"}
    first, second = (json.loads(span.to_json()) for span in (live, made))
    for shown in (first, second):
        context = shown.pop("context")
        assert {name for name in ids if int(context.pop(name), 16)} == ids
        shown |= {"start_time": None, "end_time": None, "rest": context}
    assert second == first
    assert made.get_span_context()[3:] == live.get_span_context()[3:]
    assert began <= made.start_time <= made.end_time


def test_started_spans_share_nothing_that_changes() -> None:
    tracer, spans = _spans()
    attributes = {"a": 1}
    first = spans.start("first", attributes, trace.INVALID_SPAN)
    first.set_attribute("b", 2)
    first.add_event("event")
    first.add_link(trace.SpanContext(1, 2, is_remote=True))
    first.end()
    second = spans.start("second", attributes, trace.INVALID_SPAN)
    assert (dict(second.attributes), second.events, second.links) == ({"a": 1}, (), ())
    assert second.is_recording()
    assert not second._lock.locked()
    assert first.get_span_context().trace_id != second.get_span_context().trace_id
    tracer.resource = Resource({"of": "a forked child"})
    assert spans.start("third", attributes, trace.INVALID_SPAN).resource is tracer.resource


def test_a_tracer_that_somebody_has_changed_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ids(RandomIdGenerator):
        pass

    assert works()
    _, spans = _spans(id_generator=Ids())
    assert spans.start("root", {}, trace.INVALID_SPAN) is None
    tracer, spans = _spans()
    with monkeypatch.context() as switched_off:
        switched_off.setattr(tracer._tracer_config, "is_enabled", False)
        assert spans.start("root", {}, trace.INVALID_SPAN) is None
    assert spans.start("root", {}, trace.INVALID_SPAN) is not None
    asked = type(tracer).start_span

    def start_span(*args: Any, **more: Any) -> Any:
        return asked(*args, **more)

    monkeypatch.setattr(type(tracer), "start_span", start_span)
    _, spans = _spans()
    assert spans.start("root", {}, trace.INVALID_SPAN) is None


@pytest.mark.parametrize("name", ["_seen", "_lock"])
def test_spans_of_another_shape_are_left_to_the_tracer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = Span.__init__

    def of_another_sdk(span: Any, *args: Any, **more: Any) -> None:
        init(span, *args, **more)
        setattr(span, name, [])

    monkeypatch.setattr(Span, "__init__", of_another_sdk)
    assert not works.__wrapped__()


def test_spans_of_older_sdks_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    init = BoundedAttributes.__init__

    def before_1_44(bounded: Any, *args: Any, **more: Any) -> None:
        init(bounded, *args, **more)
        bounded._lock = threading.RLock()

    monkeypatch.setattr(BoundedAttributes, "__init__", before_1_44)
    assert works.__wrapped__()


def test_what_comes_later_is_heard() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    tracer = provider.get_tracer("test")
    spans = DirectSpans(tracer)
    parent = tracer.start_span("parent")
    assert spans.suits(parent)
    provider.add_span_processor(Watching())
    assert not spans.suits(parent)
    assert spans.start("child", {}, parent) is None


def test_a_tracer_of_no_sdk_takes_the_public_way() -> None:
    spans = DirectSpans(trace.NoOpTracer())
    assert not spans.suits(trace.INVALID_SPAN)
    assert spans.start("root", {}, trace.INVALID_SPAN) is None
    write(trace.INVALID_SPAN, {"a": 1})
