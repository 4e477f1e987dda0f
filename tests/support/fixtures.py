"""What all tests may ask for: one server for a session, deployments, clients, telemetry."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pymongo
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor
from pymongo_resilience_instrumentation.tools.testbed.processes import ask
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import SentCommands, Side
from support.otlp_collector import Collector, collecting
from support.telemetry import Instrument, Telemetry

import pymongo_resilience
from pymongo_resilience import Config
from pymongo_resilience.rules import budget
from pymongo_resilience.testbed import ReplicaSet, ShardedCluster
from pymongo_resilience.testing import RecordingListener


@pytest.fixture(scope="session", autouse=True)
def quick_monitors() -> Iterator[None]:
    """After a network error the driver waits half a second before it looks at a server again.

    That is the driver's affair; shortened, the same scenarios run many times faster.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.02)
        yield


class _InternalErrors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line.startswith("internal error"):
            self.lines.append(line if record.exc_info is None else f"{line}: {record.exc_info[1]}")


@pytest.fixture(autouse=True)
def no_internal_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    """The library logs no fault of its own, but where the test looks at the log."""
    handler = _InternalErrors()
    logging.getLogger("pymongo_resilience").addHandler(handler)
    yield
    logging.getLogger("pymongo_resilience").removeHandler(handler)
    if "caplog" not in request.fixturenames:
        assert handler.lines == []


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
def database(server: EmbeddedServer, control: pymongo.MongoClient[Any]) -> Iterator[str]:
    """The name of a database of the test's own."""
    name = f"test_{time.monotonic_ns()}"
    yield name
    # A transaction that a test has left open would keep what drops its database waiting.
    ask(server.address, {"killAllSessions": [], "$db": "admin"})
    with pymongo.timeout(10):
        control.drop_database(name)


@pytest.fixture
def empty_shop(server: EmbeddedServer) -> None:
    """The database of the documents and of the examples."""
    with pymongo.MongoClient[Any](server.uri) as client:
        client.drop_database("shop")


@pytest.fixture(params=["sync", "async"])
def side(request: pytest.FixtureRequest, proxy: ReplicaSet) -> Iterator[Side]:
    # After what it talks to, so that its clients are closed while there is a server to say so to.
    for name in {"replica_set", "cluster"} & set(request.fixturenames):
        request.getfixturevalue(name)
    made = Side(request.param, asyncio.Runner() if request.param == "async" else None)
    if made.runner is not None:
        made.runner.get_loop()  # now, or it keeps the context of its first use
    yield made
    made.close()


@pytest.fixture
def sent() -> SentCommands:
    """A listener for a client of the test."""
    return SentCommands()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture
def defaults() -> dict[str, Any]:
    """Options of each ``instrument()`` that names others; see the mark ``each_setup``."""
    return {}


@pytest.fixture
def instrument(monkeypatch: pytest.MonkeyPatch, defaults: dict[str, Any]) -> Iterator[Instrument]:
    """``instrument(**options of Config)``, taken off again after the test. Each command has a span,
    unless the test says otherwise. ``arguments``: others of ``pymongo_resilience.instrument()``."""

    def start(
        *,
        strategy: Any = None,
        policies: Any = None,
        config_strategy: str = "fast_fail",
        command_spans: str = "always",
        retry_token_capacity: float = budget.CAPACITY,
        arguments: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Telemetry:
        monkeypatch.setattr(budget, "CAPACITY", retry_token_capacity)
        exporter, reader, decisions = (
            InMemorySpanExporter(),
            InMemoryMetricReader(),
            RecordingListener(),
        )
        tracer_provider = TracerProvider(shutdown_on_exit=False)
        tracer_provider.add_span_processor(SimpleSpanProcessor(exporter))
        pymongo_resilience.instrument(
            Config(strategy=config_strategy, command_spans=command_spans, **defaults | options),
            strategy=strategy,
            policies=policies,
            listeners=[decisions],
            tracer_provider=tracer_provider,
            meter_provider=MeterProvider([reader], shutdown_on_exit=False),
            **(arguments or {}),
        )
        return Telemetry(exporter, reader, decisions)

    yield start
    # Whether it is on or off at this moment: what was switched off is still instrumented.
    if PymongoResilienceInstrumentor()._runtime is not None:
        pymongo_resilience.uninstrument()
