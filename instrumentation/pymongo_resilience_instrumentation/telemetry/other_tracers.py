"""Others that record spans for the same commands: the library does not record those again.

OpenTelemetry's own instrumentation of pymongo has a span for each command. It stays as it is, and
its spans become children of the operation spans. A driver with spans of its own has them all.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import logger
from pymongo_resilience_instrumentation import driver

from . import client_tracing
from .client_tracing import Tracing

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTRIB = "opentelemetry.instrumentation.pymongo"


class OtherTracers:
    """One for each ``instrument()``, warns once of each. Thread-safe; at worst it warns twice."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def settle(self, said: Mapping[str, Any] | None) -> Tracing:
        """What holds for a client that is being made, which said this of itself."""
        settled = client_tracing.settled(said)
        if not driver.clients.knows_tracing():
            return settled
        asked = (said or {}).get("enabled")
        if not (client_tracing.says_enabled() if asked is None else asked):
            return settled
        self._warn(
            "the driver",
            "pymongo records the spans of this client itself: pymongo-resilience records none; "
            "retries and metrics are not affected",
        )
        return Tracing(enabled=False)

    def recorded_by_contrib(self) -> bool:
        """Whether OpenTelemetry's own instrumentation listens to a client that is being made."""
        if not contrib_is_active():
            return False
        self._warn(
            CONTRIB,
            "opentelemetry-instrumentation-pymongo is active: it records the command spans, and "
            "pymongo-resilience only those of operations; to get both from here, uninstrument it "
            "or set OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=pymongo",
        )
        return True

    def _warn(self, of: str, text: str) -> None:
        if of not in self._warned:
            self._warned.add(of)
            logger.warning(text)


def contrib_is_active() -> bool:
    """Whether OpenTelemetry's own instrumentation of pymongo records spans now."""
    instrumentor = getattr(sys.modules.get(CONTRIB), "PymongoInstrumentor", None)
    return instrumentor is not None and bool(instrumentor().is_instrumented_by_opentelemetry)
