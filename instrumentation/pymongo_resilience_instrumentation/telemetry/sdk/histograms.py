"""Records of a histogram, straight into the SDK's aggregations.

``Histogram.record`` validates, copies and hashes the attributes each time; ours are the same for
all calls of an operation on a collection and server. A first record with new attributes takes the
public way, which makes the aggregations.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from opentelemetry import context

from .enabled import enabled_check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram

SDK = "opentelemetry.sdk.metrics._internal.instrument"
CONSUMER = "SynchronousMeasurementConsumer"


class Measurement:
    """What an aggregation reads of one, with attributes that need no validation."""

    __slots__ = ("attributes", "context", "instrument", "time_unix_nano", "value")

    def __init__(
        self,
        value: float,
        time_unix_nano: int,
        instrument: object,
        around: Context,
        attributes: Mapping[str, Any],
    ) -> None:
        self.value = value
        self.time_unix_nano = time_unix_nano
        self.instrument = instrument
        self.context = around
        self.attributes = attributes


class Series:
    """The records of one histogram with the same attributes, which must not change any more.

    Thread- and task-safe: what two threads find out at once is the same.
    """

    __slots__ = ("_aggregations", "_histogram", "_is_enabled", "_sdk", "_storages", "attributes")

    def __init__(self, histogram: Histogram, attributes: Mapping[str, Any]) -> None:
        self.attributes = attributes
        self._histogram = histogram
        self._sdk: Any = None
        """The histogram, where it is the SDK's own and as known."""
        self._is_enabled: Callable[[], bool] = bool
        self._storages: Any = None
        """Those of the readers that the aggregations belong to."""
        self._aggregations: tuple[Any, ...] = ()

    def record(self, value: float) -> None:
        """In the current context. ``value``: finite, and not negative."""
        sdk = self._sdk
        if sdk is None:
            self._record_publicly(value)
            return
        consumer = sdk._measurement_consumer
        if consumer._reader_storages is not self._storages or not self._is_enabled():
            self._record_publicly(value)
            return
        now, around = time.time_ns(), context.get_current()
        measurement = Measurement(value, now, sdk, around, self.attributes)
        sampled = consumer._sdk_config.exemplar_filter.should_sample(
            value, now, self.attributes, around
        )
        for each in self._aggregations:
            each.aggregate(measurement, sampled)

    def _record_publicly(self, value: float) -> None:
        self._histogram.record(value, self.attributes)
        # A histogram that was made before there was an SDK stands for the SDK's.
        sdk: Any = getattr(self._histogram, "_real_instrument", None) or self._histogram
        if type(sdk).__module__ == SDK and is_known(sdk) and enabled_check(sdk)():
            self._look(sdk)
        else:
            self._sdk = None

    def _look(self, sdk: Any) -> None:
        """After a record, which has made the aggregations."""
        storages = sdk._measurement_consumer._reader_storages
        if storages is self._storages:
            return
        self._storages, self._is_enabled = storages, enabled_check(sdk)
        found = [_aggregations(storage, sdk, self.attributes) for storage in storages.values()]
        self._aggregations = tuple(each for some in found for each in some or ())
        self._sdk = None if None in found else sdk


def _aggregations(storage: Any, sdk: Any, attributes: Mapping[str, Any]) -> list[Any] | None:
    """One for each view that shows the histogram; None where one of them has none yet."""
    found = []
    for match in storage._instrument_view_instrument_matches.get(sdk, ()):
        kept = match._view._attribute_keys
        shown = {name: attributes[name] for name in attributes if kept is None or name in kept}
        # A new one is the last.
        for each in reversed([*match._attributes_aggregation.values()]):
            if each._attributes == shown:
                found.append(each)
                break
        else:
            return None
    return found


def is_known(histogram: Any) -> bool:
    return type(histogram._measurement_consumer).__name__ == CONSUMER and works()


@functools.lru_cache(maxsize=1)
def works() -> bool:
    """Whether the installed SDK collects what is recorded here as it does what it records."""
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - there need not be one
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415 - the same
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - the same

    try:
        reader = InMemoryMetricReader()
        provider = MeterProvider([reader], Resource({}), shutdown_on_exit=False)
        histogram: Any = provider.get_meter("self-check").create_histogram("self-check")
        series = Series(histogram, {"a": "b", "n": 1})
        histogram.record(1.0, series.attributes)
        series._look(histogram)
        series.record(2.5)
        data: Any = reader.get_metrics_data()
        (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
        seen = (point.count, point.sum, point.min, point.max, dict(point.attributes))
    except Exception:  # noqa: BLE001 - an SDK of another shape: the public way
        return False
    return series._sdk is not None and seen == (2, 3.5, 1.0, 2.5, series.attributes)
