"""A service whose callers say how long they wait: all its operations end by then.

MONGODB_URI=mongodb://localhost:27017 python request_deadlines.py
curl -H "x-request-timeout-ms: 500" localhost:8000/orders
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import make_server

from pymongo import MongoClient

from pymongo_resilience import OperationTimeoutError, instrument
from pymongo_resilience.deadlines import WSGIMiddleware

instrument()
client: MongoClient[dict[str, Any]] = MongoClient(os.environ["MONGODB_URI"])


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    try:
        # Two operations that share what the caller has given.
        client.shop.visits.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True)
        status, text = "200 OK", f"{client.shop.orders.count_documents({})} orders\n"
    except OperationTimeoutError as error:
        status, text = "504 Gateway Timeout", f"no answer within {error.timeout_s:.1f} s\n"
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode()]


def main() -> None:
    service = WSGIMiddleware(
        application, header="x-request-timeout-ms", max_ms=30_000, default_ms=10_000
    )
    with make_server("127.0.0.1", int(os.environ.get("PORT", "8000")), service) as server:
        print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
