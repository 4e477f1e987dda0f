"""The instruments of one meter, without those that the configuration leaves out: None for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymongo_resilience_instrumentation.telemetry import semconv

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from opentelemetry.metrics import Counter, Histogram, Meter


class Instruments:
    """Makes them; immutable, so thread- and task-safe."""

    def __init__(self, meter: Meter, without: Collection[str]) -> None:
        self._meter = meter
        self._without = without

    def histogram(
        self,
        name: str,
        description: str,
        unit: str = "s",
        boundaries: Sequence[float] = semconv.DURATION_BOUNDARIES,
    ) -> Histogram | None:
        if name in self._without:
            return None
        return self._meter.create_histogram(
            name,
            unit=unit,
            description=description,
            explicit_bucket_boundaries_advisory=boundaries,
        )

    def counter(self, name: str, description: str, unit: str) -> Counter | None:
        if name in self._without:
            return None
        return self._meter.create_counter(name, unit=unit, description=description)
