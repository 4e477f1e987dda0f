"""The telemetry of one operation written by hand around plain pymongo: the SDK's own share.
Two floors: with two live spans, and with the command's made at its end.

An operation's span, one command's span below it, and a record of the duration, each with the
attributes that the library gives it and always the same. Nobody who shows as much can take less.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import context, metrics, trace
from opentelemetry.trace import SpanKind

OPERATION = {
    "db.system.name": "mongodb",
    "db.namespace": "bench",
    "db.operation.name": "find",
    "db.operation.summary": "find bench.coll",
    "db.collection.name": "coll",
}
COMMAND = {
    "db.system.name": "mongodb",
    "db.namespace": "bench",
    "db.command.name": "find",
    "db.query.summary": "find bench.coll",
    "db.collection.name": "coll",
    "network.transport": "tcp",
    "server.address": "127.0.0.1",
    "server.port": 27017,
    "db.mongodb.server_connection_id": 1,
    "db.mongodb.driver_connection_id": 1,
    "db.mongodb.lsid": "01234567-89ab-cdef-0123-456789abcdef",
}
DURATION = {
    "db.system.name": "mongodb",
    "db.namespace": "bench",
    "db.operation.name": "find",
    "db.collection.name": "coll",
    "server.address": "127.0.0.1",
    "server.port": 27017,
}


def around(call: Callable[..., Any], *, live: bool = True) -> Callable[..., Any]:
    """``live``: the command's span is started before the command. Otherwise it is handed to the
    provider's processor when the command is over."""
    tracer: Any = trace.get_tracer("by hand")
    histogram = metrics.get_meter("by hand").create_histogram("db.client.operation.duration")

    @contextmanager
    def shown() -> Iterator[None]:
        began = time.perf_counter()
        span = tracer.start_span("find bench.coll", kind=SpanKind.CLIENT, attributes=OPERATION)
        token = context.attach(trace.set_span_in_context(span))
        if live:
            command = tracer.start_span("find", kind=SpanKind.CLIENT, attributes=COMMAND)
        else:
            started = time.time_ns()
        try:
            yield
        finally:
            if live:
                command.end()
            else:
                _hand_over(tracer, span, started)
            context.detach(token)
            if span.is_recording():
                span.set_attribute("pymongo_resilience.attempts", 1)
                span.set_attribute("pymongo_resilience.outcome", "ok")
            span.end()
            histogram.record(time.perf_counter() - began, DURATION)

    return _around(call, shown)


def _hand_over(tracer: Any, span: Any, started: int) -> None:
    from opentelemetry.sdk.trace import ReadableSpan

    parent = span.get_span_context()
    own = trace.SpanContext(
        parent.trace_id,
        tracer.id_generator.generate_span_id(),
        is_remote=False,
        trace_flags=parent.trace_flags,
    )
    tracer.span_processor.on_end(
        ReadableSpan(
            "find",
            own,
            parent,
            tracer.resource,
            dict(COMMAND),
            kind=SpanKind.CLIENT,
            start_time=started,
            end_time=time.time_ns(),
        )
    )


def _around(call: Callable[..., Any], shown: Callable[[], Any]) -> Callable[..., Any]:
    def of_sync() -> Any:
        with shown():
            return call()

    async def of_async() -> Any:
        with shown():
            return await call()

    return of_async if inspect.iscoroutinefunction(call) else of_sync
