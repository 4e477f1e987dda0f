"""FastAPI with pymongo alone: instrument() at import, the client in the lifespan.

MONGODB_URI=mongodb://localhost:27017 uvicorn fastapi_pymongo:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pymongo import AsyncMongoClient
from telemetry import export_telemetry

from pymongo_resilience import OperationTimeoutError, instrument

instrument(timeout_ms=20_000)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Each worker creates a client and an SDK of its own, in its own event loop."""
    flush = export_telemetry()
    async with AsyncMongoClient(os.environ["MONGODB_URI"]) as client:
        app.state.orders = client.shop.orders
        yield
    flush()


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{number}")
async def place(number: int, request: Request) -> dict[str, int]:
    orders = request.app.state.orders
    await orders.insert_one({"number": number})
    return {"orders": await orders.count_documents({"number": number})}


@app.exception_handler(OperationTimeoutError)
async def timed_out(request: Request, error: OperationTimeoutError) -> JSONResponse:
    return JSONResponse({"error": "the database did not answer in time"}, status_code=504)
