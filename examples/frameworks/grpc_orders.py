"""gRPC, sync, without generated code: each call's operations end by the caller's deadline.

MONGODB_URI=mongodb://localhost:27017 python grpc_orders.py
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from pymongo import MongoClient
from telemetry import export_telemetry

from pymongo_resilience import OperationTimeoutError, instrument
from pymongo_resilience.deadlines import grpc_interceptor

instrument()


def main() -> None:
    flush = export_telemetry()
    client: MongoClient[dict[str, Any]] = MongoClient(os.environ["MONGODB_URI"])

    def place(request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            client.shop.orders.insert_one({"number": int(request)})
            return b"%d" % client.shop.orders.count_documents({"number": int(request)})
        except OperationTimeoutError as error:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, type(error.__cause__).__name__)
            raise

    server = grpc.server(
        ThreadPoolExecutor(4), interceptors=[grpc_interceptor(max_ms=30_000, default_ms=10_000)]
    )
    handlers = {"Place": grpc.unary_unary_rpc_method_handler(place)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("shop.Orders", handlers),)
    )
    port = server.add_insecure_port(f"127.0.0.1:{os.environ.get('PORT', '50051')}")
    server.start()
    print(f"listening on {port}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.stop(5).wait()
    client.close()
    flush()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
