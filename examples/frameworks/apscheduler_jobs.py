"""APScheduler 3 with its job store in MongoDB: instrument() before the scheduler starts.

MONGODB_URI=mongodb://localhost:27017 python apscheduler_jobs.py
"""

from __future__ import annotations

import os
import time

from apscheduler.jobstores.mongodb import MongoDBJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from pymongo import MongoClient
from telemetry import export_telemetry

from pymongo_resilience import instrument

# The scheduler's thread ends for good if an operation fails, so give it long.
instrument(timeout_ms=120_000)
SECONDS = 3.0


def tick() -> None:
    print("tick", flush=True)


def main() -> None:
    flush = export_telemetry()
    with MongoClient(os.environ["MONGODB_URI"]) as client:
        store = MongoDBJobStore(client=client, database="shop", collection="jobs")
        scheduler = BackgroundScheduler(jobstores={"default": store})
        scheduler.add_job(tick, "interval", seconds=0.5, id="tick", replace_existing=True)
        scheduler.start()
        time.sleep(SECONDS)
        scheduler.shutdown()
    flush()


if __name__ == "__main__":
    main()
