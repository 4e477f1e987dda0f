"""Flask with MongoEngine under gunicorn, loaded once before the workers are forked.

MONGODB_URI=mongodb://localhost:27017 \
gunicorn --preload --workers 2 --config python:flask_mongoengine flask_mongoengine:app
"""

from __future__ import annotations

import os
from typing import Any

from flask import Flask
from mongoengine import Document, IntField, connect
from telemetry import export_telemetry

from pymongo_resilience import OperationTimeoutError, instrument

instrument(timeout_ms=20_000)  # in gunicorn's own process: workers inherit it

app = Flask(__name__)


class Order(Document):
    number = IntField()
    meta = {"collection": "orders"}  # noqa: RUF012 - MongoEngine's way


@app.post("/orders/<int:number>")
def place(number: int) -> dict[str, int]:
    Order(number=number).save()
    return {"orders": Order.objects(number=number).count()}


@app.errorhandler(OperationTimeoutError)
def too_late(error: OperationTimeoutError) -> tuple[dict[str, str], int]:
    return {"error": "the database did not answer in time"}, 504


def post_fork(server: Any, worker: Any) -> None:
    """gunicorn's hook: clients and the SDK have threads, so each worker makes its own."""
    worker.flush = export_telemetry()
    connect("shop", host=os.environ["MONGODB_URI"], uuidRepresentation="standard")


def worker_exit(server: Any, worker: Any) -> None:
    worker.flush()
