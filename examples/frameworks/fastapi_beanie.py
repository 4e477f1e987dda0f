"""FastAPI with Beanie: instrument() at import, what belongs to the event loop in the lifespan.

MONGODB_URI=mongodb://localhost:27017 uvicorn fastapi_beanie:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from beanie import Document, init_beanie
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pymongo import AsyncMongoClient
from telemetry import export_telemetry

from pymongo_resilience import OperationTimeoutError, instrument
from pymongo_resilience.deadlines import ASGIMiddleware

instrument(timeout_ms=20_000)


class Order(Document):
    number: int

    class Settings:
        name = "orders"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Runs in each worker, in its loop: the client and the SDK belong to it."""
    flush = export_telemetry()
    async with AsyncMongoClient(os.environ["MONGODB_URI"]) as client:
        await init_beanie(database=client.shop, document_models=[Order])
        yield
    flush()


app = FastAPI(lifespan=lifespan)
# A caller that sends this header waits no longer: all operations of its request end by then.
app.add_middleware(ASGIMiddleware, header="x-request-timeout-ms", max_ms=30_000)


@app.post("/orders/{number}")
async def place(number: int) -> dict[str, int]:
    await Order(number=number).insert()
    return {"orders": await Order.find(Order.number == number).count()}


@app.exception_handler(OperationTimeoutError)
async def too_late(request: Request, error: OperationTimeoutError) -> JSONResponse:
    return JSONResponse({"error": "the database did not answer in time"}, status_code=504)
