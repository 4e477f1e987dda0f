"""Ends with a loop that is never closed, and a monitor in the midst of a check. Argument: URI."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import pymongo
from pymongo.monitoring import ServerHeartbeatListener

import pymongo_resilience


class Checks(ServerHeartbeatListener):
    begun: asyncio.Event | None = None
    number = 0

    def started(self, event: Any) -> None:
        self.number += 1
        if self.begun is not None and self.number > 1:
            self.begun.set()

    def succeeded(self, event: Any) -> None: ...

    def failed(self, event: Any) -> None: ...


async def work(uri: str) -> None:
    one: Any = pymongo.AsyncMongoClient(uri, event_listeners=[checks], heartbeatFrequencyMS=500)
    checks.begun = asyncio.Event()
    await one.admin.command("ping")
    await asyncio.wait_for(checks.begun.wait(), 20)


if __name__ == "__main__":
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # tasks of the driver's are pending
    pymongo_resilience.instrument()
    checks, loop = Checks(), asyncio.new_event_loop()
    loop.run_until_complete(work(sys.argv[1]))
