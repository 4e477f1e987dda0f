"""A forked child uses the client it inherited; both count its sockets. Arguments: URI, database."""

from __future__ import annotations

import sys
import time
from typing import Any

from common import Child, Telemetry, client, say
from support.open_sockets import inodes_to

import pymongo_resilience

MONITORS = 1
"""A client that polls looks at its one server over one connection."""
POOLED = 2
WITHIN = 5
"""Seconds until the pool has them, opened ahead in the background."""


def counted(telemetry: Telemetry, port: int, inherited: set[str]) -> dict[str, Any]:
    """The gauge and the sockets of this process, once they are as many as the pool keeps."""
    end = time.monotonic() + WITHIN
    while True:
        gauge = telemetry.by("db.client.connection.state", "db.client.connection.count")
        sockets = len(inodes_to(port) - inherited) - MONITORS
        if sockets == gauge.get("idle") == POOLED or time.monotonic() > end:
            return gauge | {"sockets": sockets}
        time.sleep(0.01)


def child(ours: Any, port: int, database: str) -> dict[str, Any]:
    inherited = inodes_to(port)
    telemetry = Telemetry()
    ours[database].coll.find_one()
    return counted(telemetry, port, inherited)


def main(uri: str, database: str) -> None:
    pymongo_resilience.instrument()
    ours = client(uri, minPoolSize=POOLED)
    ours[database].coll.find_one()
    port = ours.address[1]
    forked = Child("fork", child, ours, port, database).answer()
    ours[database].coll.find_one()
    say({"child": forked, "parent": counted(Telemetry(), port, set())})
    ours.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
