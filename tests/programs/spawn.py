"""Spawns a child, which starts as a new interpreter. Arguments: URI, database.

Instruments itself, unless whoever started it has done so.
"""

from __future__ import annotations

import sys
from typing import Any

from common import Child, Telemetry, client, fail, say

import pymongo_resilience
from pymongo_resilience import Config
from pymongo_resilience.testing import is_active

INSTRUMENTED = is_active()
"""Before the first line of this program: without it, or by ``opentelemetry-instrument``."""


def child(uri: str, database: str) -> dict[str, Any]:
    telemetry = Telemetry()
    if not INSTRUMENTED:
        pymongo_resilience.instrument(Config(timeout_ms=20_000))
    one = client(uri)
    fail(one, "insert")
    one[database].coll.insert_one({})
    return {
        "instrumented from the start": INSTRUMENTED,
        "inserts": telemetry.described(f"insert {database}.coll"),
        "retries": telemetry.by("db.operation.name", "pymongo_resilience.retries"),
    }


def main(uri: str, database: str) -> None:
    if not INSTRUMENTED:
        pymongo_resilience.instrument(Config(timeout_ms=20_000))
    say({"child": Child("spawn", child, uri, database).answer(), "parent": INSTRUMENTED})


if __name__ == "__main__":
    main(*sys.argv[1:])
