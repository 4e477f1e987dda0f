"""Forks while monitors wait for news: what the child closes of them is not the parent's.

A socket that is shut down in one process is so in all that share it. Argument: URI.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import Any

from common import say
from pymongo import MongoClient
from pymongo.monitoring import ServerHeartbeatListener

import pymongo_resilience


class Heartbeats(ServerHeartbeatListener):
    waits = False
    failures = 0

    def started(self, event: Any) -> None:
        self.waits = event.awaited

    def succeeded(self, event: Any) -> None: ...

    def failed(self, event: Any) -> None:
        self.failures += 1


def main(uri: str) -> None:
    pymongo_resilience.instrument()
    beats = Heartbeats()
    client: Any = MongoClient(uri, event_listeners=[beats], heartbeatFrequencyMS=60_000)
    client.admin.command("ping")
    while not beats.waits:
        time.sleep(0.01)
    (server,) = client._topology._servers.values()
    monitor, connections = server._monitor, list(server.pool.conns)
    time.sleep(0.1)  # the event comes a moment before the monitor waits
    child = os.fork()
    if child == 0:
        monitor.cancel_check()
        client.admin.command("ping")
        client.close()
        del client, monitor, server
        gc.collect()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    time.sleep(0.1)
    say(
        {
            "child": "ok" if status == 0 else status,
            "failed heartbeats": beats.failures,
            "found": client.admin.command("ping")["ok"] == 1,
            "closed connections": sum(each.closed for each in connections),
        }
    )
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
