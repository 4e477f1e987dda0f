"""A function as AWS Lambda runs it: one process for many events, frozen between them."""

from __future__ import annotations

import os
from typing import Any

from pymongo import MongoClient
from telemetry import export_telemetry

from pymongo_resilience import instrument, override

# Once for each process, before the first event.
instrument()
flush = export_telemetry()
client: MongoClient[dict[str, Any]] = MongoClient(os.environ["MONGODB_URI"])

MARGIN_MS = 500
"""For the answer and the spans: an event that runs out of its own time tells nobody why."""


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    left = context.get_remaining_time_in_millis() - MARGIN_MS
    try:
        with override(timeout_ms=left):
            orders = client.shop.orders
            orders.insert_one({"number": event["number"]})
            return {"orders": orders.count_documents({"number": event["number"]})}
    finally:
        flush()  # the process may be frozen from here on, for minutes
