"""Celery with its prefork pool.

MONGODB_URI=mongodb://localhost:27017 BROKER=amqp:// celery --app celery_tasks worker
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown
from pymongo import MongoClient
from telemetry import export_telemetry

from pymongo_resilience import instrument
from pymongo_resilience.deadlines import connect_celery

instrument(timeout_ms=20_000)  # in the parent: the pool's processes inherit it
connect_celery(header="x-request-timeout-ms")  # all operations of a task end by its time limit

app = Celery("shop", broker=os.environ.get("BROKER", "amqp://"))
if folder := os.environ.get("BROKER_FOLDER"):  # BROKER=filesystem://: for one machine
    folders = ("data_folder_in", "data_folder_out", "control_folder")
    app.conf.broker_transport_options = dict.fromkeys(folders, folder)


class Process:
    """What each process of the pool has for itself."""

    client: MongoClient[dict[str, Any]]
    flush: Callable[[], object]


@worker_process_init.connect
def after_fork(**_: object) -> None:
    Process.flush = export_telemetry()
    Process.client = MongoClient(os.environ["MONGODB_URI"])


@worker_process_shutdown.connect
def before_exit(**_: object) -> None:
    Process.client.close()
    Process.flush()


@app.task  # no autoretry_for=(PyMongoError,): it would multiply with the retries inside
def place(number: int) -> None:
    Process.client.shop.orders.insert_one({"number": number})
