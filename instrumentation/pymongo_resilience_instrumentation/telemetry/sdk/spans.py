"""Spans of the SDK, made without its tracer, and attributes written without its validation.

The tracer asks the sampler, and makes and validates all that a span consists of. Where the
sampler's answer is certain, a live span is a copy of one that the tracer made. Where no processor
or listener reads the span of a command before its end, it is only made then.
"""

from __future__ import annotations

import functools
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from .enabled import enabled_check
from .span_copies import SpanCopies, alike

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.trace import Tracer

SDK = "opentelemetry.sdk.trace"
SAMPLERS = SDK + ".sampling"
ALWAYS_ON = "AlwaysOnSampler"
MOST_ATTRIBUTES = 40
"""More than a span of ours ever has."""
NO_METRICS = {"NoneType", "NoOpTracerMetrics"}
"""What does without them; older SDKs have none."""
UNSET = Status()
SAMPLED = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


class DirectSpans:
    """Of one tracer. Thread- and task-safe: what two find out at once is the same."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._sdk: Any = None
        """The SDK's tracer, where it is as known."""
        self._is_enabled: Callable[[], bool] = bool
        self._sampler: Any = None
        self._processors: Any = None
        self._suits = False
        self._live: SpanCopies | None = None
        """None where spans have to be started by the tracer."""
        self._root: Any = None
        """The context of one without a parent; None where such may not be sampled."""

    def start(self, name: str, attributes: Mapping[str, Any], parent: Any) -> Any:
        """A span of the kind CLIENT that begins now; None where the tracer has to start it.

        ``attributes`` as for ``record``. ``parent``: INVALID_SPAN where it has none.
        """
        sdk = self._known()
        live = self._live
        if sdk is None or live is None:
            return None
        ids = sdk.id_generator
        if parent is INVALID_SPAN and self._root is not None:
            above, like = None, self._root
            trace_id = ids.generate_trace_id()
        elif type(parent) is _span_class() and parent._context.trace_flags & 1:
            above = like = parent._context
            trace_id = like.trace_id
        else:
            return None
        found = _context(trace_id, ids.generate_span_id(), like)
        return live.start(name, found, above, sdk.resource, attributes)

    def suits(self, parent: Any) -> bool:
        """Whether a span below ``parent``, one of the same tracer's, is certain to be recorded and
        sampled, and no processor wants to see it before it has ended."""
        sdk = self._known()
        return (
            sdk is not None
            and self._suits
            and type(parent) is _span_class()
            and parent._context.trace_flags & 1 == 1
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
        empty; the span keeps this mapping, so it must not change.
        """
        sdk, around = self._sdk, parent._context
        sdk.span_processor.on_end(
            _readable_span_class()(
                name,
                _context(around.trace_id, sdk.id_generator.generate_span_id(), around),
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
        """The SDK's tracer, examined; None where there is none of the known shape, or it is off."""
        sdk = self._sdk
        if sdk is None:
            sdk = self._find()
        if sdk is None or not self._is_enabled():
            return None
        if (
            sdk.sampler is not self._sampler
            or sdk.span_processor._span_processors is not self._processors
        ):
            self._look(sdk)
        return sdk

    def _find(self) -> Any:
        # One that was got before there was an SDK stands for the SDK's.
        sdk: Any = getattr(self._tracer, "_real_tracer", None) or self._tracer
        if type(sdk).__module__ == SDK and type(sdk).__name__ == "Tracer" and works():
            self._take(sdk)
        return self._sdk

    def _take(self, sdk: Any) -> None:
        self._is_enabled = enabled_check(sdk)
        self._sdk = sdk

    def _look(self, sdk: Any) -> None:
        # Read anew: the application may add a processor or replace the sampler.
        sampler, processors = sdk.sampler, sdk.span_processor._span_processors
        self._suits = (
            all(map(_waits_for_the_end, processors))
            and _limits_nothing(sdk._span_limits)
            and _samples_below_sampled(sampler)
            and type(getattr(sdk, "_tracer_metrics", None)).__name__ in NO_METRICS
        )
        starts = (
            self._suits
            and _is_the_sdks(type(sdk).start_span)
            and type(sdk.id_generator).__module__.startswith(SDK)
        )
        self._live = SpanCopies(_live(sdk, NonRecordingSpan(SAMPLED))) if starts else None
        self._root = _live(sdk)._context if starts and _samples_roots(sampler) else None
        self._sampler, self._processors = sampler, processors


def _context(trace_id: int, span_id: int, like: SpanContext) -> SpanContext:
    """As ``like``, but for the ids. A sampler would have answered with its state, and its flags are
    those of a span below a sampled one."""
    return tuple.__new__(SpanContext, (trace_id, span_id, *like[2:]))


def write(span: Any, attributes: Mapping[str, Any]) -> None:
    """As ``span.set_attributes``, with the attributes of ``DirectSpans.record``."""
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


def _samples_roots(sampler: Any) -> bool:
    """One that samples below sampled spans."""
    described: str = sampler.get_description()
    return described == ALWAYS_ON or described.startswith(f"ParentBased{{root:{ALWAYS_ON},")


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


def _is_the_sdks(start_span: Any) -> bool:
    """Not one that was put in its place, and has to be called."""
    return type(start_span) is FunctionType and start_span.__globals__["__name__"] == SDK


def _live(sdk: Any, parent: Any = INVALID_SPAN) -> Any:
    return sdk.start_span("", set_span_in_context(parent, Context()), kind=SpanKind.CLIENT)


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
        direct = DirectSpans(tracer)
        direct._take(tracer)
        direct._look(tracer)
        attributes: dict[str, Any] = {"a": "b", "n": 1}
        status = Status(StatusCode.ERROR, "failed")
        parent: Any = _live(tracer)
        roots = parent, direct.start("", {}, INVALID_SPAN)
        children = _live(tracer, parent), direct.start("", attributes, parent)
        same = alike(*roots) and alike(*children)
        children[0].set_attributes(attributes)
        for span in children:
            span.set_status(status)
            _limits_nothing(span._limits)
            span._start_time = 1
            span.end(2)
        direct.record("", parent, attributes, started_ns=1, ended_ns=2, status=status)
        first, second, third = map(_facts, seen.spans)
    except Exception:  # noqa: BLE001 - an SDK of another shape: the public way
        return False
    return same and first == second == third


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
