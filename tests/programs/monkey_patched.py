"""An application whose sockets and threads are gevent's. Arguments: URI, database, when.

``before``: patched first, then instrumented in code. ``loader``: patched first, then instrumented
by OpenTelemetry's loader. ``after``: instrumented first. ``never``: gevent is only imported.
"""

from __future__ import annotations

import sys
from typing import Any

import gevent.monkey

_, URI, DATABASE, WHEN = sys.argv

if WHEN in ("before", "loader"):
    gevent.monkey.patch_all()

from common import Telemetry, client, say  # noqa: E402 (after the patching, as gevent wants it)
from opentelemetry.instrumentation.auto_instrumentation import initialize  # noqa: E402 (after the patching)

import pymongo_resilience  # noqa: E402 (after the patching)
from pymongo_resilience.testing import is_active  # noqa: E402 (after the patching)


def main() -> None:
    seen: dict[str, Any] = {"error": None}
    telemetry = Telemetry()
    if WHEN == "loader":
        initialize()
    else:
        try:
            pymongo_resilience.instrument()
        except pymongo_resilience.ConfigurationError as error:
            seen["error"] = str(error)
    if WHEN == "after":
        gevent.monkey.patch_all()
    for _ in range(2):
        with client(URI) as one:
            one[DATABASE].coll.insert_one({})
            count = one[DATABASE].coll.count_documents({})
    seen |= {
        "inserted": count,
        "instrumented": is_active(),
        "spans": len(telemetry.exporter.get_finished_spans()),
    }
    say(seen)


main()
