"""What the driver tells its listeners, in any order and with anything inside."""

from __future__ import annotations

import os
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from bson import Binary
from hypothesis import given, strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pymongo import monitoring
from pymongo.server_description import ServerDescription
from pymongo.topology_description import TopologyDescription
from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.clients.client_registry import Clients
from pymongo_resilience_instrumentation.telemetry import listeners
from pymongo_resilience_instrumentation.telemetry.command_spans import CommandSpans
from pymongo_resilience_instrumentation.telemetry.operation_spans import OperationSpans
from pymongo_resilience_instrumentation.telemetry.server_gauges import ServerGauges
from support.hostile_input import bson_values, error_documents, examples
from support.internal_errors import no_complaints

from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.rules.budget import UNLIMITED

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

ADDRESSES = [("db1.example", 27017), ("db2.example", 27017), ("/tmp/mongodb.sock", None)]  # noqa: S108 - a name, never opened
addresses = st.sampled_from(ADDRESSES)
request_ids = st.integers(1, 3)
documents = st.dictionaries(
    st.sampled_from(["cursor", "ok", "code", "id", "n"]),
    bson_values | st.fixed_dictionaries({"id": bson_values, "firstBatch": bson_values}),
    max_size=3,
)
commands = st.fixed_dictionaries(
    {"getMore": bson_values},
    optional={"collection": bson_values, "lsid": bson_values, "txnNumber": bson_values},
) | st.fixed_dictionaries(
    {"find": bson_values},
    optional={
        "lsid": st.fixed_dictionaries({"id": st.just(Binary(bytes(16), 4)) | bson_values}),
        "txnNumber": bson_values,
    },
)


def started(command: Any, request_id: int, address: Any, connection: Any) -> Any:
    return monitoring.CommandStartedEvent(
        command, "shop", request_id, address, request_id, None, connection
    )


def succeeded(reply: Any, request_id: int, address: Any) -> Any:
    return monitoring.CommandSucceededEvent(
        timedelta(), reply, "find", request_id, address, request_id
    )


def failed(failure: Any, request_id: int, address: Any) -> Any:
    return monitoring.CommandFailedEvent(
        timedelta(), failure, "find", request_id, address, request_id
    )


command_events = st.one_of(
    st.tuples(
        st.just("started"), st.builds(started, commands, request_ids, addresses, bson_values)
    ),
    st.tuples(
        st.just("succeeded"), st.builds(succeeded, documents | bson_values, request_ids, addresses)
    ),
    st.tuples(
        st.just("failed"),
        st.builds(failed, documents | error_documents | bson_values, request_ids, addresses),
    ),
)


@examples(40)
@given(events=st.lists(st.tuples(st.booleans(), command_events), max_size=8))
def test_commands_in_any_order(events: list[tuple[bool, Any]]) -> None:
    """Started twice, ended twice, never ended: each span ends once, at the latest with its call."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = CommandSpans(provider.get_tracer("test"), mode="always")
    listener = listeners.Commands(EnabledFlag(on=True), spans)
    call = calls.Call(None, "find", ("shop", "orders"))
    begun = 0
    with no_complaints():
        OperationSpans(provider.get_tracer("test")).start(call)
        for in_the_call, (kind, event) in events:
            begun += in_the_call and kind == "started"
            if in_the_call:
                call.token = calls.make_current(call)
            getattr(listener, kind)(event)
            calls.make_current(None)
        OperationSpans(provider.get_tracer("test")).end(call, None)
        call.token = calls.make_current(call)  # only the call in progress gives the context back
        calls.leave(call)
    drawn: list[ReadableSpan] = list(exporter.get_finished_spans())
    assert len({span.context.span_id for span in drawn}) == len(drawn)
    assert len(drawn) == begun + 1


class Client:
    """What the gauges read of a client that has one pool."""

    def __init__(self, description: Any) -> None:
        options = SimpleNamespace(max_pool_size=7, min_pool_size=0)
        pool = SimpleNamespace(closed=False, pid=os.getpid(), opts=options)
        server = SimpleNamespace(pool=pool)
        self.topology_description = description
        self._topology = SimpleNamespace(
            description=description, get_server_by_address=lambda _: server
        )


def test_a_client_that_cannot_be_read_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    reader = InMemoryMetricReader()
    gauges = ServerGauges(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"))
    servers = {ADDRESSES[0]: ServerDescription(ADDRESSES[0])}
    description = TopologyDescription(0, servers, None, None, None, None)  # type: ignore[arg-type]  # asked for types alone
    clients, made = Clients(), [Client(None), Client(description)]
    for client in made:
        clients.add(client, SimpleNamespace(budget=UNLIMITED, breakers=None))
    gauges.show(clients)
    data = reader.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    counts = {metric.name: len(metric.data.data_points) for metric in scope.metrics}
    assert counts["pymongo_resilience.server.state"] == 1
    assert counts["db.client.connection.max"] == 1
    assert "while looking for a client's pools" in caplog.text
    del made
