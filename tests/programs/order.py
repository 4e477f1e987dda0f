"""Imports pymongo, instruments and sets the SDK up, in the order that it is told.

Arguments: URI, database, then the steps. Last of all it uses a client of each kind.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from telemetry import Telemetry

import pymongo_resilience
from pymongo_resilience import Config


class Program:
    """One method for each step; none of them imports for another."""

    def __init__(self, uri: str, database: str) -> None:
        self._uri = uri
        self._database = database
        self._kinds: list[Any] = []
        self._clients: list[Any] = []
        self._loop = asyncio.new_event_loop()
        self.answer: dict[str, Any] = {}

    def pymongo(self) -> None:
        from pymongo import AsyncMongoClient, MongoClient  # noqa: PLC0415 - this is the step

        self._kinds = [MongoClient, AsyncMongoClient]

    def instrument(self) -> None:
        self.answer["pymongo was there"] = "pymongo" in sys.modules
        pymongo_resilience.instrument(Config(timeout_ms=20_000))

    def sdk(self) -> None:
        self._telemetry = Telemetry()

    def use(self) -> None:
        """The same clients every time."""
        for n, kind in enumerate(self._kinds):
            if len(self._clients) <= n:
                self._clients.append(self._do(kind, self._uri))
            coll = self._clients[n][self._database][kind.__name__]
            self._do(coll.insert_one, {})
            self._do(coll.find_one)

    def _do(self, function: Any, *args: Any) -> Any:
        async def call() -> Any:
            result = function(*args)
            return await result if asyncio.iscoroutine(result) else result

        return self._loop.run_until_complete(call())

    def finish(self) -> dict[str, Any]:
        telemetry = self._telemetry
        self.answer |= {
            "spans": [span.name for span in telemetry.exporter.get_finished_spans()],
            "operations": telemetry.by("db.operation.name", "db.client.operation.duration"),
            "connections": telemetry.by("db.client.connection.state", "db.client.connection.count"),
            "servers": len(telemetry.points("pymongo_resilience.server.state")),
            "buckets": telemetry.buckets("db.client.operation.duration"),
        }
        for client in self._clients:
            self._do(client.close)
        self._loop.close()
        return self.answer


def main(uri: str, database: str, *steps: str) -> None:
    program = Program(uri, database)
    for step in steps:
        getattr(program, step)()
    program.use()
    answer = program.finish()
    from common import say  # noqa: PLC0415 - imports pymongo

    say(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
