"""What is around pymongo in a process: nothing, this library or others, with and without an SDK."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

RAW, CONTROL = "raw", "raw again"
EXECUTOR = "executor alone"
TENACITY = "tenacity"
API, OFF, ON = "API only", "ALWAYS_OFF", "ALWAYS_ON"
OURS, CONTRIB, BY_HAND = "ours", "contrib", "by hand"
DURATION = "duration metric alone"
SDK = (OFF, ON)
STATES = (
    RAW,
    CONTROL,
    TENACITY,
    EXECUTOR,
    *(f"{who}, {what}" for what in (API, OFF, ON) for who in (CONTRIB, OURS)),
    *(f"{OURS}, {what}, {DURATION}" for what in SDK),
    *(f"{BY_HAND}, {what}" for what in SDK),
)
"""``contrib`` is opentelemetry-instrumentation-pymongo: one span, no metric."""
OTHER_METRICS = (
    "pymongo_resilience.attempts",
    "db.client.connection.wait_time",
    "db.client.connection.use_time",
)


def prepare(state: str) -> Callable[[Any], Any]:
    """Make this process what ``state`` says; answers with what goes around each call."""
    logging.disable(logging.WARNING)
    who, *what = state.split(", ")
    if any(sdk in what for sdk in SDK):
        _configure_sdk(sampled=ON in what, metrics=who != CONTRIB)
    if state == TENACITY:
        return _tenacity()
    if who == BY_HAND:
        import sdk_floor

        return sdk_floor.around
    if who == CONTRIB:
        from opentelemetry.instrumentation.pymongo import PymongoInstrumentor

        PymongoInstrumentor().instrument()
    elif who in (OURS, EXECUTOR):
        from pymongo_resilience import Config, instrument

        telemetry = who == OURS
        without = OTHER_METRICS if DURATION in what else ()
        instrument(Config(traces=telemetry, metrics=telemetry, disabled_metrics=without))
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
    """Spans are dropped for want of a processor; metrics wait for somebody to collect them."""
    from opentelemetry import trace
    from opentelemetry.metrics import set_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

    trace.set_tracer_provider(TracerProvider(sampler=ALWAYS_ON if sampled else ALWAYS_OFF))
    if metrics:
        set_meter_provider(MeterProvider([InMemoryMetricReader()]))
