"""Whether there is an OpenTelemetry SDK: until there is, nothing that is recorded goes anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.metrics import _internal

if TYPE_CHECKING:
    from collections.abc import Callable

_tracing: Any = trace
_metrics: Any = _internal
_TRACING, _METRICS = "_TRACER_PROVIDER", "_METER_PROVIDER"
"""Where the API keeps what an application has set up."""


def absence() -> Callable[[], bool] | None:
    """What says whether there is still none; None where there is one already, or where this
    OpenTelemetry does not tell."""
    if not (hasattr(_tracing, _TRACING) and hasattr(_metrics, _METRICS)):
        return None

    def is_absent() -> bool:
        return _tracing._TRACER_PROVIDER is None and _metrics._METER_PROVIDER is None

    return is_absent if is_absent() else None
