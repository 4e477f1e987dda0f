"""Beside a pymongo that draws spans itself, as its branch does: played on the installed one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pymongo_resilience_instrumentation import driver
from support.clients import Side

import pymongo_resilience
from pymongo_resilience import Config, OperationTimeoutError, override, status
from pymongo_resilience.testbed import CutAfter, ReplicaSet, Slow

pytestmark = pytest.mark.oldest


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The driver's loop has its attempts in ``_run``, and ``run`` is its span around them."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("PyMongo")

    def around(loop: Any) -> Any:
        return tracer.start_as_current_span(str(getattr(loop._operation, "value", loop._operation)))

    def run(loop: Any) -> Any:
        with around(loop):
            return loop._run()

    async def async_run(loop: Any) -> Any:
        with around(loop):
            return await loop._run()

    for module, asynchronous in driver.clients.each_api("mongo_client"):
        base = getattr(module, driver.attempts.LOOP)
        own = {"__slots__": (), "_run": base.run, "run": async_run if asynchronous else run}
        native = type(base.__name__, (base,), own)
        monkeypatch.setattr(module, driver.attempts.LOOP, native)
    monkeypatch.setattr(driver.clients, "records_spans", lambda _: True)
    pymongo_resilience.instrument(Config(), tracer_provider=provider)
    yield exporter
    pymongo_resilience.uninstrument()


@pytest.fixture
def coll(side: Side, proxy: ReplicaSet, database: str, spans: InMemorySpanExporter) -> Any:
    client = side.do(side.client, proxy.uri, tracing={"enabled": False})
    coll = client[database].coll
    side.do(coll.find_one)
    assert status(client).spans == "pymongo"
    spans.clear()
    return coll


def test_the_drivers_span_says_what_is_known_here(
    side: Side, proxy: ReplicaSet, coll: Any, spans: InMemorySpanExporter
) -> None:
    side.do(coll.find_one)
    proxy.inject(CutAfter("find", times=2))
    with override(timeout_ms=20_000):
        side.do(coll.find_one)
    healthy, repeated = spans.get_finished_spans()
    assert not healthy.attributes
    assert healthy.events == ()
    assert repeated.attributes["pymongo_resilience.attempts"] == 3
    reason = "socket_closed_while_in_flight"
    assert repeated.attributes["pymongo_resilience.retry.reasons"] == (reason, reason)
    scheduled = [event for event in repeated.events if event.name == "retry.scheduled"]
    assert len(scheduled) == 2
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_no_class_of_the_librarys_insides_is_in_any_span(
    side: Side, proxy: ReplicaSet, coll: Any, spans: InMemorySpanExporter
) -> None:
    proxy.inject(CutAfter("update"))
    with pytest.raises(Exception, match="connection closed"):
        side.do(coll.update_many, {}, {"$set": {"a": 1}})
    proxy.inject(Slow(0.6))
    with override(timeout_ms=200), pytest.raises(OperationTimeoutError):
        side.do(coll.find_one)
    proxy.clear()
    found = spans.get_finished_spans()
    declined = [next(each.name for each in span.events) for span in found]
    assert declined == ["retry.declined"] * 2
    types = [
        event.attributes["exception.type"]
        for span in found
        for event in span.events
        if event.name == "exception"
    ]
    assert len(types) == 2
    assert not [each for each in types if "pymongo_resilience_instrumentation" in each]
