"""A write over a path that swallows packets, in network namespaces of its own.

Arguments: sync, async or uvloop; dead_peer_s; and the case. The path forgets its connections before
an ``insert`` or an ``update_many``, or while one is ``waiting`` for its reply; or it does not, and
the server is ``slow``.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from typing import Any

import pymongo
import uvloop
from common import Telemetry, say
from support.severable_path import SeverablePath

import pymongo_resilience
from pymongo_resilience import Config
from pymongo_resilience.testing import RecordingListener

PLENTY_MS = 20_000
SLOW = {"waiting": 1500, "slow": 3500}
"""Milliseconds that the server takes for the insert."""


async def result(of: Any) -> Any:
    return await of if inspect.isawaitable(of) else of


def slowly(milliseconds: int) -> dict[str, Any]:
    data = {"failCommands": ["insert"], "blockConnection": True, "blockTimeMS": milliseconds}
    return {"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data}


async def main(kind: str, seconds: str, case: str, setup: str = "with a timeout") -> None:
    decisions, telemetry = RecordingListener(), Telemetry()
    timeout_ms = None if setup == "bare" else PLENTY_MS
    config = Config(timeout_ms=timeout_ms, dead_peer_s=int(seconds))
    pymongo_resilience.instrument(config, listeners=[decisions])
    cls = pymongo.MongoClient if kind == "sync" else pymongo.AsyncMongoClient
    with SeverablePath() as path:
        client: Any = cls(path.uri)
        coll, error = client.test.coll, None
        await result(coll.insert_one({"_id": 0}))
        if case in SLOW:
            await result(client.admin.command(slowly(SLOW[case])))
        if case == "waiting":
            threading.Timer(0.5, path.forget_connections).start()
        elif case != "slow":
            path.forget_connections()
        began = time.monotonic()
        try:
            if case == "update_many":
                await result(coll.update_many({}, {"$inc": {"n": 1}}))
            else:
                await result(coll.insert_one({"_id": 1}))
        except pymongo.errors.PyMongoError as raised:
            error = raised
        answer = {
            "seconds": time.monotonic() - began,
            "lost": None if error is None else isinstance(error, pymongo.errors.AutoReconnect),
            "text": str(error),
            "reasons": [event.reason.value for event in decisions.events],
            "documents": await result(coll.count_documents({})),
            "status": pymongo_resilience.status(client).dead_peer_s,
            "lost connections": dict(pymongo_resilience.status(client).servers[0].lost_connections),
            "shown": [
                reason
                for span in telemetry.exporter.get_finished_spans()
                for reason in (span.attributes or {}).get("pymongo_resilience.retry.reasons", ())
            ],
            "counted": [
                attributes["pymongo_resilience.reason"]
                for attributes, _ in telemetry.points("pymongo_resilience.retries")
            ],
        }
        await result(client.close())
    say(answer)


if __name__ == "__main__":
    loops = uvloop.new_event_loop if sys.argv[1] == "uvloop" else None
    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(main(*sys.argv[1:]))
