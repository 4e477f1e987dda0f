"""A process with default logging and no OpenTelemetry SDK, in which much goes wrong.

Run by its path; the server's URI is its standard input. It prints how many errors it caught.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pymongo.common
from pymongo import MongoClient, errors
from support import canary_failures, canary_retries
from support.canaries import document, matching
from support.canary_operations import Place
from support.clients import Side, fail_command

import pymongo_resilience


class Audit:
    """A listener of the application that writes to the database, and fails at it."""

    def __init__(self, coll: Any) -> None:
        self._coll = coll

    def on_event(self, event: object, /) -> None:
        if event.operation == "find":  # type: ignore[attr-defined]  # every event has one
            self._coll.insert_one({"_id": 1, **document("an audit log")})
            self._coll.insert_one({"_id": 1, **document("an audit log")})


def main() -> None:
    # As for the tests: the driver would wait half a second after each network error.
    pymongo.common.MIN_HEARTBEAT_INTERVAL = 0.02
    uri = sys.stdin.read()
    caught = 0
    control: Any = MongoClient(uri, appname="control")
    pymongo_resilience.instrument(listeners=[Audit(control.audit.coll)])
    for name in ("sync", "async"):
        side = Side(name, asyncio.Runner() if name == "async" else None)
        client = side.do(side.client, uri)
        place = Place(side, client, client[f"child_{name}"], client[f"child_{name}"].coll)
        canary_failures.prepare(place)
        for failure in canary_failures.FAILURES.values():
            try:
                failure.call(place)
            except Exception:  # noqa: BLE001 - all kinds, as the table has them
                caught += 1
        with fail_command(control, "find", closeConnection=True):
            try:
                side.do(place.coll.find_one, matching("a read in trouble"))
            except errors.AutoReconnect:
                caught += 1
        for refused in canary_retries.refused_clients(place, client_address(uri)).values():
            try:
                side.do(refused.db.coll.find_one, matching("a refused read"))
            except errors.OperationFailure:
                caught += 1
        side.close()
    control.close()
    sys.stdout.write(f"{caught}\n")


def client_address(uri: str) -> tuple[str, int]:
    host, port = uri.rpartition("@")[2].strip("/").split(":")
    return host, int(port)


if __name__ == "__main__":
    main()
