"""A real server for the whole session, clients of both kinds, and telemetry kept in memory."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pymongo
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pymongo_resilience_instrumentation.testbed import ReplicaSet, ShardedCluster
from pymongo_resilience_instrumentation.testbed.server import EmbeddedServer

import pymongo_resilience
from pymongo_resilience import Config
from pymongo_resilience.testing import RecordingListener, set_active

APP = "under-test"
POLLING = {"serverMonitoringMode": "poll", "heartbeatFrequencyMS": 500, "appname": APP}
"""Failpoints with not-primary codes leave a server unknown until its next heartbeat."""


@pytest.fixture(scope="session", autouse=True)
def quick_monitors() -> Iterator[None]:
    """After a network error the driver waits half a second before it looks at a server again.

    That is the driver's affair; shortened, the same scenarios run many times faster.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.02)
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


@pytest.fixture(scope="session")
def control(server: EmbeddedServer) -> Iterator[pymongo.MongoClient[Any]]:
    """Looks at the database and arms failpoints; failpoints never hit it."""
    with pymongo.MongoClient(server.uri, appname="control") as client:
        yield client


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[ReplicaSet]:
    with ReplicaSet(server.address, members=1) as running:
        yield running


@pytest.fixture
def replica_set(server: EmbeddedServer) -> Iterator[ReplicaSet]:
    with ReplicaSet(server.address) as running:
        yield running


@pytest.fixture
def cluster(server: EmbeddedServer) -> Iterator[ShardedCluster]:
    with ShardedCluster(server.address) as running:
        yield running


@pytest.fixture
def database(control: pymongo.MongoClient[Any]) -> Iterator[str]:
    """The name of a database of the test's own."""
    name = f"test_{time.monotonic_ns()}"
    yield name
    # A transaction that a failed test has left open must not keep all the others waiting.
    with pymongo.timeout(10):
        control.drop_database(name)


@dataclass
class Side:
    """One of pymongo's two APIs, called in the same way."""

    name: str
    runner: asyncio.Runner | None
    clients: list[Any] = field(default_factory=list)

    def client(self, uri: str, **options: Any) -> Any:
        cls = pymongo.MongoClient if self.runner is None else pymongo.AsyncMongoClient
        client: Any = cls(uri, **{**POLLING, **options})
        self.clients.append(client)
        return client

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of a call, awaited where there is something to await."""
        if self.runner is None:
            return function(*args, **kwargs)

        async def call() -> Any:
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return self.runner.run(call(), context=contextvars.copy_context())

    def documents(self, cursor: Any) -> list[Any]:
        documents: list[Any] = self.do(cursor.to_list)
        return documents

    def wait_for_members(self, client: Any, count: int) -> None:
        """The driver's monitors find them one after the other; a retry avoids the one that failed
        only if another one is known."""

        def all_known() -> bool:
            if self.runner is not None:
                self.do(asyncio.sleep, 0)  # the monitors run on its loop
            return len(client.nodes) == count

        wait_until(all_known)

    def close(self) -> None:
        for client in self.clients:
            self.do(client.close)
        if self.runner is not None:
            self.runner.close()


@pytest.fixture(params=["sync", "async"])
def side(request: pytest.FixtureRequest, proxy: ReplicaSet) -> Iterator[Side]:
    # After what it talks to, so that its clients are closed while there is a server to say so to:
    # without one, close() waits until serverSelectionTimeoutMS.
    for name in {"replica_set", "cluster"} & set(request.fixturenames):
        request.getfixturevalue(name)
    made = Side(request.param, asyncio.Runner() if request.param == "async" else None)
    if made.runner is not None:
        made.runner.get_loop()  # now, or it keeps the context of its first use
    yield made
    made.close()


@dataclass
class Telemetry:
    """What the library showed: spans, metrics, decisions."""

    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader
    decisions: RecordingListener

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def operations(self, name: str | None = None) -> list[ReadableSpan]:
        found = [span for span in self.spans() if "db.operation.name" in span.attributes]
        return [span for span in found if name is None or span.name == name]

    def commands_of(self, operation: ReadableSpan) -> list[ReadableSpan]:
        return [
            span
            for span in self.spans()
            if span.parent is not None and span.parent.span_id == operation.context.span_id
        ]

    def points(self, metric: str) -> list[tuple[dict[str, Any], Any]]:
        data = self.reader.get_metrics_data()
        if data is None:
            return []
        return [
            (dict(point.attributes), point)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for each in scope.metrics
            if each.name == metric
            for point in each.data.data_points
        ]

    def clear(self) -> None:
        self.exporter.clear()
        self.decisions.events.clear()


Instrument = Callable[..., Telemetry]


@pytest.fixture
def instrument() -> Iterator[Instrument]:
    """``instrument(**options of Config)``, taken off again after the test."""

    def start(
        *,
        strategy: Any = None,
        policies: Any = None,
        config_strategy: str = "fast_fail",
        **options: Any,
    ) -> Telemetry:
        exporter, reader, decisions = (
            InMemorySpanExporter(),
            InMemoryMetricReader(),
            RecordingListener(),
        )
        tracer_provider = TracerProvider(shutdown_on_exit=False)
        tracer_provider.add_span_processor(SimpleSpanProcessor(exporter))
        pymongo_resilience.instrument(
            Config(strategy=config_strategy, **options),
            strategy=strategy,
            policies=policies,
            listeners=[decisions],
            tracer_provider=tracer_provider,
            meter_provider=MeterProvider([reader], shutdown_on_exit=False),
        )
        return Telemetry(exporter, reader, decisions)

    yield start
    if pymongo_resilience.is_instrumented():
        pymongo_resilience.uninstrument()


@contextlib.contextmanager
def fail_command(control: pymongo.MongoClient[Any], *commands: str, **data: Any) -> Iterator[None]:
    """A failpoint for the clients under test: ``times=N`` or without end, off after the block."""
    times = data.pop("times", None)
    mode = "alwaysOn" if times is None else {"times": times}
    with set_active(False):
        control.admin.command(
            {
                "configureFailPoint": "failCommand",
                "mode": mode,
                "data": {"failCommands": list(commands), "appName": APP, **data},
            }
        )
    try:
        yield
    finally:
        with set_active(False):
            control.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


def wait_until(condition: Callable[[], Any], *, timeout: float = 10.0) -> Any:
    """The condition's first true value; an error once ``timeout`` seconds have passed."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {timeout} s")


class SentCommands(pymongo.monitoring.CommandListener):
    """Every command a client sent, as the driver reports it."""

    def __init__(self) -> None:
        self.started_events: list[Any] = []
        self.ended = 0

    def started(self, event: Any) -> None:
        self.started_events.append(event)

    def succeeded(self, event: Any) -> None:
        self.ended += 1

    def failed(self, event: Any) -> None:
        self.ended += 1

    def named(self, *names: str) -> list[Any]:
        return [event.command for event in self.started_events if event.command_name in names]
