"""Spans that are over when they are made, and attributes written without the SDK's validation.

A live span costs its start, a lock and a validation for each attribute, and a second object at its
end. The span of a command needs none of that where nobody looks at it before it has ended.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import Tracer

SDK = "opentelemetry.sdk.trace"
SAMPLERS = SDK + ".sampling"
ALWAYS_ON = "AlwaysOnSampler"
_PLAIN = r"(Always(On|Off)Sampler|TraceIdRatioBased\{[^{}]*\})"
PLAIN = re.compile(rf"{_PLAIN}|ParentBased\{{(\w+:{_PLAIN},?)+\}}")
"""How samplers describe themselves that look at nothing but the trace's id and its parent."""
MOST_ATTRIBUTES = 40
"""More than a span of ours ever has."""
UNSET = Status()


class FinishedSpans:
    """Of one tracer. Thread- and task-safe: what two find out at once is the same."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._sdk: Any = None
        """The SDK's tracer, where it is as known."""
        self._sampler: Any = None
        self._processors: Any = None
        self._suits = False
        self._starts_unseen = False

    def starts_unseen(self) -> bool:
        """Whether neither a sampler nor a processor reads the attributes that a span starts with:
        then ``write`` adds them afterwards, for less."""
        return self._known() is not None and self._starts_unseen

    def suits(self, parent: Any) -> bool:
        """Whether a span below ``parent``, one of the same tracer's, is certain to be recorded and
        sampled, and no processor wants to see it before it has ended."""
        sdk = self._known()
        return (
            sdk is not None
            and self._suits
            and type(parent) is _span_class()
            and parent._context.trace_flags & 1 == 1
            and sdk._is_enabled()
        )

    def record(
        self,
        name: str,
        parent: Any,
        attributes: Mapping[str, Any],
        *,
        started_ns: int,
        ended_ns: int,
        status: Status = UNSET,
    ) -> None:
        """Where it ``suits``: a span of the kind CLIENT. Times are nanoseconds since the epoch.

        ``attributes``: strings, numbers, booleans and tuples of them, under names that are not
        empty; nobody changes them any more.
        """
        sdk, around = self._sdk, parent._context
        sdk.span_processor.on_end(
            _readable_span_class()(
                name,
                # The sampler would have answered with the parent's state, and the flags are those
                # of a span below a sampled one.
                SpanContext(
                    around.trace_id,
                    sdk.id_generator.generate_span_id(),
                    False,
                    around.trace_flags,
                    around.trace_state,
                ),
                around,
                sdk.resource,
                attributes,
                (),
                (),
                SpanKind.CLIENT,
                sdk.instrumentation_info,
                status,
                started_ns,
                ended_ns,
                sdk._instrumentation_scope,
            )
        )

    def _known(self) -> Any:
        """The SDK's tracer, examined; None where there is none of the known shape."""
        sdk = self._sdk
        if sdk is None:
            sdk = self._find()
        if sdk is not None and (
            sdk.sampler is not self._sampler
            or sdk.span_processor._span_processors is not self._processors
        ):
            self._look(sdk)
        return sdk

    def _find(self) -> Any:
        # One that was got before there was an SDK stands for the SDK's.
        sdk: Any = getattr(self._tracer, "_real_tracer", None) or self._tracer
        if type(sdk).__module__ == SDK and type(sdk).__name__ == "Tracer" and works():
            self._sdk = sdk
        return self._sdk

    def _look(self, sdk: Any) -> None:
        # Read anew: the application may add a processor or replace the sampler.
        sampler, processors = sdk.sampler, sdk.span_processor._span_processors
        unseen = all(map(_waits_for_the_end, processors)) and _limits_nothing(sdk._span_limits)
        self._starts_unseen = unseen and _ignores_attributes(sampler)
        self._suits = (
            unseen
            and _samples_below_sampled(sampler)
            and type(sdk._tracer_metrics).__name__ == "NoOpTracerMetrics"
        )
        self._sampler, self._processors = sampler, processors


def write(span: Any, attributes: Mapping[str, Any]) -> None:
    """As ``span.set_attributes``, with the attributes of ``FinishedSpans.record``."""
    if type(span).__module__ == SDK and works() and _limits_nothing(span._limits):
        # One step, without the span's lock: a signal handler's exception would leave that locked.
        if span._end_time is None:
            span._attributes._dict.update(attributes)
    else:
        span.set_attributes(attributes)


def _samples_below_sampled(sampler: Any) -> bool:
    if type(sampler).__module__ != SAMPLERS:
        return False
    described: str = sampler.get_description()
    if described.startswith("ParentBased{"):
        return f",localParentSampled:{ALWAYS_ON}," in described
    return described == ALWAYS_ON


def _ignores_attributes(sampler: Any) -> bool:
    return type(sampler).__module__ == SAMPLERS and bool(PLAIN.fullmatch(sampler.get_description()))


def _waits_for_the_end(processor: object) -> bool:
    """The SDK's own do nothing before, nor do those that inherit the empty methods."""
    from opentelemetry.sdk.trace import SpanProcessor, export  # noqa: PLC0415 - there is one here

    idle = (SpanProcessor, export.BatchSpanProcessor, export.SimpleSpanProcessor)
    return all(
        name not in getattr(processor, "__dict__", {})
        and getattr(type(processor), name, None) in [getattr(each, name, None) for each in idle]
        for name in ("on_start", "_on_ending")
    )


@functools.lru_cache(maxsize=16)
def _limits_nothing(limits: Any) -> bool:
    most = limits.max_span_attributes
    return (most is None or most >= MOST_ATTRIBUTES) and limits.max_span_attribute_length is None


@functools.lru_cache(maxsize=1)
def _span_class() -> Any:
    return sys.modules[SDK]._Span


@functools.lru_cache(maxsize=1)
def _readable_span_class() -> Any:
    return sys.modules[SDK].ReadableSpan


@functools.lru_cache(maxsize=1)
def works() -> bool:
    """Whether what is made here is the same to a processor as what the installed SDK makes."""
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - there need not be one
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider, sampling  # noqa: PLC0415 - the same
    from opentelemetry.trace import set_span_in_context  # noqa: PLC0415 - once

    class Seen(SpanProcessor):
        def __init__(self) -> None:
            self.spans: list[Any] = []

        def on_end(self, span: object) -> None:
            self.spans.append(span)

    try:
        seen = Seen()
        provider = TracerProvider(sampling.DEFAULT_ON, Resource({}), shutdown_on_exit=False)
        provider.add_span_processor(seen)
        tracer = provider.get_tracer("self-check", "1")
        parent: Any = tracer.start_span("parent", kind=SpanKind.CLIENT)
        attributes: dict[str, Any] = {"a": "b", "n": 1}
        status = Status(StatusCode.ERROR, "failed")
        live = tracer.start_span(
            "child",
            set_span_in_context(parent),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=1,
        )
        live.set_status(status)
        live.end(2)
        finished = FinishedSpans(tracer)
        finished._sdk = tracer
        finished._look(tracer)
        finished.record("child", parent, attributes, started_ns=1, ended_ns=2, status=status)
        written = parent._end_time is None and not parent.attributes
        parent._attributes._dict.update(attributes)
        _limits_nothing(parent._limits)
        first, second = map(_facts, seen.spans)
    except Exception:  # noqa: BLE001 - an SDK of another shape: the public way
        return False
    return first == second and written and dict(parent.attributes) == attributes


def _facts(span: Any) -> tuple[Any, ...]:
    """All that distinguishes a span from another but its id."""
    context = span.context
    return (
        type(span), span.name, span.kind, span.parent, context.trace_id, context.trace_flags,
        context.trace_state, context.is_remote, dict(span.attributes), span.events, span.links,
        span.status.status_code, span.status.description, span.start_time, span.end_time,
        span.resource, span.instrumentation_scope, span.dropped_attributes, span.dropped_events,
        span.dropped_links,
    )  # fmt: skip
