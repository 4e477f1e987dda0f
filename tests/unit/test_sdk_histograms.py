"""What is recorded straight into the SDK's aggregations is collected like any other record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.metrics import Histogram as ApiHistogram, NoOpMeter
from opentelemetry.metrics._internal.instrument import _ProxyHistogram
from opentelemetry.sdk.metrics import (
    AlwaysOffExemplarFilter,
    AlwaysOnExemplarFilter,
    Histogram,
    MeterProvider,
)
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    InMemoryMetricReader,
)
from opentelemetry.sdk.metrics.view import DropAggregation, ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.trace import TracerProvider
from pymongo_resilience_instrumentation.telemetry.sdk import histograms
from pymongo_resilience_instrumentation.telemetry.sdk.histograms import Series

ATTRIBUTES = ({"db": "shop", "port": 27017}, {"db": "shop", "port": 27018, "error.type": "x"})
VALUES = (0.002, 0.2, 7.0, 0.0, 30.0, 0.2)
VIEWS = {
    "none": (),
    "attributes left out": (View(instrument_name="d", attribute_keys={"db"}),),
    "two of them": (
        View(instrument_name="d", name="one"),
        View(
            instrument_name="d",
            name="other",
            aggregation=ExplicitBucketHistogramAggregation([1.0, 2.0]),
        ),
    ),
    "dropped": (View(instrument_name="d", aggregation=DropAggregation()),),
}


def _readers() -> list[InMemoryMetricReader]:
    delta = {Histogram: AggregationTemporality.DELTA}
    return [InMemoryMetricReader(), InMemoryMetricReader(preferred_temporality=delta)]


def _points(reader: InMemoryMetricReader) -> list[Any]:
    data: Any = reader.get_metrics_data()
    found = []
    for resource in () if data is None else data.resource_metrics:
        for metric in resource.scope_metrics[0].metrics:
            for each in metric.data.data_points:
                assert isinstance(each, HistogramDataPoint)
                exemplars = [
                    (one.value, one.span_id, one.filtered_attributes) for one in each.exemplars
                ]
                found.append((
                    metric.name, dict(each.attributes), each.count, each.sum, each.min, each.max,
                    each.bucket_counts, each.explicit_bounds, exemplars,
                ))  # fmt: skip
    return found


@pytest.mark.parametrize("exemplars", [None, AlwaysOnExemplarFilter(), AlwaysOffExemplarFilter()])
@pytest.mark.parametrize("views", VIEWS)
def test_both_ways_are_collected_the_same(views: str, exemplars: Any) -> None:
    shown = []
    span = TracerProvider(shutdown_on_exit=False).get_tracer("test").start_span("of the call")
    for direct in (False, True):
        readers = _readers()
        provider = MeterProvider(
            readers, shutdown_on_exit=False, views=VIEWS[views], exemplar_filter=exemplars
        )
        histogram: Any = provider.get_meter("test").create_histogram("d")
        series = [Series(histogram, each) for each in ATTRIBUTES]
        collected = []
        for value in VALUES:
            for each in series:
                with_span = value > 0.1
                _record(each, value, span if with_span else None, directly=direct)
            collected += [_points(reader) for reader in readers]
        assert all((each._sdk is not None) is direct for each in series)
        shown.append(collected)
    assert shown[0] == shown[1]


def _record(series: Series, value: float, span: Any, *, directly: bool) -> None:
    around = context.get_current() if span is None else trace.set_span_in_context(span)
    token = context.attach(around)
    try:
        if directly:
            series.record(value)
        else:
            series._histogram.record(value, series.attributes)
    finally:
        context.detach(token)


def test_a_reader_that_comes_later_is_served() -> None:
    first, second = InMemoryMetricReader(), InMemoryMetricReader()
    provider: Any = MeterProvider([first], shutdown_on_exit=False)
    series = Series(provider.get_meter("test").create_histogram("d"), ATTRIBUTES[0])
    series.record(1.0)
    series.record(1.0)
    if not hasattr(provider, "add_metric_reader"):
        pytest.skip("this SDK has its readers once and for all")
    provider.add_metric_reader(second)
    series.record(1.0)
    series.record(1.0)
    assert [point[2] for reader in (first, second) for point in _points(reader)] == [4, 2]


def test_an_sdk_that_comes_later_is_found() -> None:
    proxy = _ProxyHistogram("d", "s", "", None)
    series = Series(proxy, ATTRIBUTES[0])
    series.record(1.0)
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    proxy.on_meter_set(provider.get_meter("test"))
    for _ in range(3):
        series.record(1.0)
    assert [point[2] for point in _points(reader)] == [3]
    assert series._sdk is not None


@pytest.mark.parametrize(
    "name",
    [
        "_reader_storages",
        "_instrument_view_instrument_matches",
        "_attributes_aggregation",
        "exemplar_filter",
    ],
)
def test_an_sdk_of_another_shape_gets_records_by_the_public_way(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Played by asking for another name: what the check meets is what such an SDK has."""
    source = histograms.__file__
    namespace: dict[str, Any] = {"__name__": "another", "__package__": histograms.__package__}
    code = Path(source).read_text().replace(f".{name}", f".{name}_of_old")
    exec(compile(code, source, "exec"), namespace)  # noqa: S102 - our own source
    reader = InMemoryMetricReader()
    histogram: Any = (
        MeterProvider([reader], shutdown_on_exit=False).get_meter("t").create_histogram("d")
    )
    series = namespace["Series"](histogram, ATTRIBUTES[0])
    assert not namespace["works"]()
    for _ in range(3):
        series.record(1.0)
    assert [point[2] for point in _points(reader)] == [3]


def test_an_histogram_of_no_sdk_is_left_alone() -> None:
    recorded: list[tuple[float, Any]] = []

    class Foreign(ApiHistogram):
        def __init__(self) -> None: ...

        def record(self, amount: Any, attributes: Any = None, context: Any = None) -> None:
            recorded.append((amount, attributes))

    for histogram in (Foreign(), NoOpMeter("none").create_histogram("d")):
        Series(histogram, ATTRIBUTES[0]).record(1.0)
    assert recorded == [(1.0, ATTRIBUTES[0])]
