"""What nobody wants is not made, and whoever wants it, however late, gets all of it."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from pymongo.cursor import CursorType
from support.clients import Side
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience import Config
from pymongo_resilience.testbed import ReplicaSet


class Never(Sampler):
    """Samples nothing, and keeps the names that it was asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def should_sample(
        self, parent_context: Any, trace_id: int, name: str, *_: Any, **__: Any
    ) -> Any:
        self.asked.append(name)
        return SamplingResult(Decision.DROP)

    def get_description(self) -> str:
        return "never"


@pytest.mark.parametrize("mode", ["always", "on_retry"])
def test_no_command_is_shown_below_an_operation_that_is_not_sampled(
    mode: str, side: Side, proxy: ReplicaSet, database: str
) -> None:
    sampler = Never()
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    pymongo_resilience.instrument(Config(command_spans=mode), tracer_provider=provider)
    try:
        client = side.do(side.client, proxy.uri)
        side.do(client[database].coll.find_one)
    finally:
        pymongo_resilience.uninstrument()
    assert sampler.asked == [f"find {database}.coll"]


@pytest.mark.parametrize("strategy", ["fast_fail", "driver"])
def test_durations_know_their_server_without_spans(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, strategy: str
) -> None:
    """Also those of a cursor that keeps its connection, whose batches do not enter the loop."""
    telemetry = instrument(traces=False, config_strategy=strategy)
    client = side.do(side.client, proxy.uri)
    # Where pymongo's own loop decides, nothing but an event tells which server it was.
    assert bool(client._event_listeners.enabled_for_commands) == (strategy == "driver")
    coll = client[database].coll
    side.do(coll.insert_many, [{"n": n} for n in range(5)])
    cursor = coll.find({}, batch_size=2, cursor_type=CursorType.EXHAUST)
    assert len(side.documents(cursor)) == 5
    assert telemetry.spans() == []
    durations = telemetry.points("db.client.operation.duration")
    assert {each["db.operation.name"] for each, _ in durations} >= {"insert", "find", "getMore"}
    of_the_server = dict(zip(("server.address", "server.port"), proxy.address, strict=True))
    for attributes, _ in durations:
        assert attributes.items() >= of_the_server.items(), attributes
