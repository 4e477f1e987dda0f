"""What healthy.py measures the library's telemetry against: one span and one record by hand.

Around plain pymongo, through OpenTelemetry's public API: a current span, the driver's command
events, one record of the duration. It retries nothing.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.context import attach, detach
from opentelemetry.trace import SpanKind, set_span_in_context
from pymongo import monitoring

NAME = "find"
command: ContextVar[dict[str, Any] | None] = ContextVar("command", default=None)
"""Attributes of the command of the operation in progress, empty until it is sent."""


class Commands(monitoring.CommandListener):
    def started(self, event: monitoring.CommandStartedEvent) -> None:
        shown = command.get()
        if shown is None:
            return
        host, port = event.connection_id
        shown |= {
            "db.command.name": event.command_name,
            "db.query.summary": f"{event.command_name} {event.database_name}.coll",
            "network.transport": "tcp",
            "server.address": host,
            "server.port": port,
            "db.mongodb.server_connection_id": event.server_connection_id or 0,
            "db.mongodb.lsid": event.command["lsid"]["id"].hex(),
        }

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


@functools.lru_cache(maxsize=1000)
def names(database: str, collection: str) -> tuple[str, dict[str, Any]]:
    """The span's name and its attributes."""
    summary = f"{NAME} {database}.{collection}"
    return summary, {
        "db.system.name": "mongodb",
        "db.namespace": database,
        "db.collection.name": collection,
        "db.operation.name": NAME,
        "db.operation.summary": summary,
    }


@functools.lru_cache(maxsize=1000)
def measured(database: str, collection: str, address: str, port: int) -> dict[str, Any]:
    """The attributes of the duration."""
    return {
        "db.system.name": "mongodb",
        "db.namespace": database,
        "db.collection.name": collection,
        "db.operation.name": NAME,
        "server.address": address,
        "server.port": port,
    }


def wrapped(collection: Any) -> Callable[..., Any]:
    """The collection's ``find_one``, sync or async, with its telemetry."""
    tracer = trace.get_tracer("by hand")
    histogram = metrics.get_meter("by hand").create_histogram("db.client.operation.duration")
    database, name, find_one = collection.database.name, collection.name, collection.find_one

    @contextmanager
    def operation() -> Iterator[None]:
        began, shown = time.perf_counter(), {}
        token = command.set(shown)
        summary, attributes = names(database, name)
        span = tracer.start_span(summary, kind=SpanKind.CLIENT, attributes=attributes)
        outer = attach(set_span_in_context(span))
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            server = shown.get("server.address", ""), shown.get("server.port", 0)
            histogram.record(seconds, measured(database, name, *server))
            if span.is_recording():
                span.set_attributes({"pymongo_resilience.attempts": 1, **shown})
            span.end()
            detach(outer)
            command.reset(token)

    def sync_find_one(*args: Any) -> Any:
        with operation():
            return find_one(*args)

    async def async_find_one(*args: Any) -> Any:
        with operation():
            return await find_one(*args)

    return async_find_one if inspect.iscoroutinefunction(find_one) else sync_find_one
