"""A script that knows nothing of the library: switched on from outside.

MONGODB_URI=mongodb://localhost:27017 PYMONGO_RESILIENCE_TIMEOUT_MS=20000 \
OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf opentelemetry-instrument python plain_script.py
"""

from __future__ import annotations

import os

from pymongo import MongoClient

with MongoClient(os.environ["MONGODB_URI"]) as client:
    orders = client.shop.orders
    orders.insert_one({"number": 1})
    print(orders.count_documents({"number": 1}))
