"""A small web service: a deadline per request, honest status codes, and traces of both.

MONGODB_URI=mongodb://localhost:27017 PORT=8080 python web_service.py
curl -X PUT -d '{"total": 12}' http://127.0.0.1:8080/orders/1
curl http://127.0.0.1:8080/orders/1

Set OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 to send spans and metrics to a collector;
that needs opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pymongo
from opentelemetry import metrics, trace
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from pymongo_resilience import OperationTimeoutError, instrument

REQUEST_SECONDS = 2.0
tracer = trace.get_tracer("web_service")


class Orders(BaseHTTPRequestHandler):
    """GET and PUT of /orders/ID."""

    collection: Collection[dict[str, Any]]

    def do_GET(self) -> None:
        self._serve(self._read)

    def do_PUT(self) -> None:
        self._serve(self._write)

    def _serve(self, handler: Callable[[str], tuple[HTTPStatus, Any]]) -> None:
        _, collection, order_id = [*self.path.split("/"), "", ""][:3]
        if collection != "orders" or not order_id:
            self._answer(HTTPStatus.NOT_FOUND, {"error": "no such path"})
            return
        with tracer.start_as_current_span(
            f"{self.command} /orders/{{id}}", kind=trace.SpanKind.SERVER
        ):
            try:
                # All of the request's operations together, their retries included.
                with pymongo.timeout(REQUEST_SECONDS):
                    status, body = handler(order_id)
            except ValueError:
                status, body = HTTPStatus.BAD_REQUEST, {"error": "the body is no JSON object"}
            except OperationTimeoutError as error:
                status, body = HTTPStatus.GATEWAY_TIMEOUT, {"attempts": error.attempts}
            except PyMongoError:
                status, body = HTTPStatus.SERVICE_UNAVAILABLE, {"error": "the database failed"}
        self._answer(status, body)

    def _read(self, order_id: str) -> tuple[HTTPStatus, Any]:
        order = self.collection.find_one({"_id": order_id})
        if order is None:
            return HTTPStatus.NOT_FOUND, {"error": "no such order"}
        return HTTPStatus.OK, order

    def _write(self, order_id: str) -> tuple[HTTPStatus, Any]:
        order = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if not isinstance(order, dict):
            raise ValueError  # noqa: TRY004 - answered as any other bad body
        self.collection.replace_one({"_id": order_id}, {**order, "_id": order_id}, upsert=True)
        return HTTPStatus.OK, {"stored": order_id}

    def _answer(self, status: HTTPStatus, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def export_telemetry() -> Callable[[], None]:
    """Send spans and metrics to the collector, if one is named; returns what flushes them."""
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return lambda: None
    # Only a service that exports needs these packages.
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)

    def flush() -> None:
        tracers.shutdown()
        meters.shutdown()

    return flush


def main() -> None:
    flush = export_telemetry()
    instrument(timeout_ms=20_000)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    try:
        with (
            closing(MongoClient[dict[str, Any]](os.environ["MONGODB_URI"])) as client,
            ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8080"))), Orders) as http,
        ):
            Orders.collection = client.shop.orders
            print(f"listening on http://127.0.0.1:{http.server_port}", flush=True)
            http.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        flush()


if __name__ == "__main__":
    main()
