"""What is around pymongo in a process: nothing, this library or others, with and without an SDK."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

RAW, CONTROL = "raw", "raw again"
EXECUTOR = "executor alone"
TENACITY = "tenacity"
API, OFF, UNSAMPLED, ON = "API only", "ALWAYS_OFF", "parent not sampled", "ALWAYS_ON"
OURS, CONTRIB, BY_HAND = "ours", "contrib", "by hand"
ON_RETRY = "on_retry"
FINISHED = "finished"
SDK = (OFF, UNSAMPLED, ON)
STATES = (
    RAW,
    CONTROL,
    TENACITY,
    EXECUTOR,
    *(f"{who}, {what}" for what in (API, *SDK) for who in (CONTRIB, OURS)),
    f"{OURS}, {ON}, {ON_RETRY}",
    f"{BY_HAND}, {ON}",
    f"{BY_HAND}, {ON}, {FINISHED}",
)
"""``contrib`` is opentelemetry-instrumentation-pymongo: one span, no metric. ``on_retry``: of the
option ``command_spans``. ``finished``: the command's span is made at its end."""


def prepare(state: str) -> Callable[[Any], Any]:
    """Make this process what ``state`` says; answers with what goes around each call."""
    logging.disable(logging.WARNING)
    who, *what = state.split(", ")
    if any(sdk in what for sdk in SDK):
        _configure_sdk(sampled=OFF not in what, metrics=who != CONTRIB)
    if state == TENACITY:
        return _tenacity()
    if who == BY_HAND:
        import sdk_floor

        return partial(sdk_floor.around, live=FINISHED not in what)
    if who == CONTRIB:
        from opentelemetry.instrumentation.pymongo import PymongoInstrumentor

        PymongoInstrumentor().instrument()
    elif who in (OURS, EXECUTOR):
        from pymongo_resilience import Config, instrument

        telemetry = who == OURS
        spans = ON_RETRY if ON_RETRY in what else "always"
        instrument(Config(traces=telemetry, metrics=telemetry, command_spans=spans))
    return _below_unsampled() if UNSAMPLED in what else lambda call: call


def _below_unsampled() -> Callable[[Any], Any]:
    """The whole process is inside of a span that its sampler left out."""
    from opentelemetry import context, trace

    around = trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False))
    context.attach(trace.set_span_in_context(around))
    return lambda call: call


def _tenacity() -> Callable[[Any], Any]:
    import tenacity
    from pymongo.errors import AutoReconnect

    return tenacity.retry(
        stop=tenacity.stop_after_attempt(3),
        wait=tenacity.wait_random_exponential(max=1),
        retry=tenacity.retry_if_exception_type(AutoReconnect),
        reraise=True,
    )


def _configure_sdk(*, sampled: bool, metrics: bool) -> None:
    """The default sampler, or none. Spans are dropped for want of a processor; metrics wait for
    somebody to collect them."""
    from opentelemetry import trace
    from opentelemetry.metrics import set_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, DEFAULT_ON

    trace.set_tracer_provider(TracerProvider(sampler=DEFAULT_ON if sampled else ALWAYS_OFF))
    if metrics:
        set_meter_provider(MeterProvider([InMemoryMetricReader()]))
