"""From a slow query in the server's profiler back to the request that sent it.

MONGODB_URI=mongodb://localhost:27017 python slow_queries.py

Needs opentelemetry-sdk. On MongoDB 4.4 or newer, the comment is also in the server's log of slow
queries, as ``attr.command.comment``.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pymongo import MongoClient
from pymongo.database import Database

from pymongo_resilience import instrument


def handle_request(shop: Database[dict[str, Any]]) -> None:
    """Handle a request of your service. It has a span, so its operations belong to its trace."""
    with trace.get_tracer("shop").start_as_current_span("GET /report") as request:
        print(f"GET /report has the trace {request.get_span_context().trace_id:032x}")
        paid = {"status": "paid", "customer.email": "john@example.com"}
        list(shop.orders.find(paid, comment="monthly report"))


def find_traces(shop: Database[dict[str, Any]]) -> None:
    """Show the traces of what the profiler has recorded. You do this on call."""
    with_trace = {"ns": "shop.orders", "command.comment.traceparent": {"$exists": True}}
    for entry in shop["system.profile"].find(with_trace):
        comment = entry["command"]["comment"]
        context = TraceContextTextMapPropagator().extract(comment)
        caller = trace.get_current_span(context).get_span_context()
        print(f"{entry['ns']} ({comment.get('text')}) belongs to the trace {caller.trace_id:032x}")


def main() -> None:
    logging.basicConfig(format="%(name)s: %(message)s")
    trace.set_tracer_provider(TracerProvider())
    # An operation that takes at least slow_ms is logged by the service as well, without values.
    instrument(timeout_ms=20_000, command_comment=True, slow_ms=0)
    client: MongoClient[dict[str, Any]] = MongoClient(os.environ["MONGODB_URI"])
    shop = client.shop
    shop.command("profile", 2)  # all operations; 1: those that are slow
    handle_request(shop)
    shop.command("profile", 0)
    find_traces(shop)
    client.close()


if __name__ == "__main__":
    main()
