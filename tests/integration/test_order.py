"""It does not matter what comes first: pymongo, ``instrument()`` or OpenTelemetry's SDK.

Each test runs a program of ``tests/programs``, in a process of its own. That
``opentelemetry-instrument`` alone is enough is proven in ``test_zero_code.py``.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pymongo_resilience_instrumentation.telemetry import semconv
from support.child_programs import run

from pymongo_resilience.testbed import EmbeddedServer

STEPS = ("pymongo", "instrument", "sdk")
KINDS = ("MongoClient", "AsyncMongoClient")


def everything(database: str, *, pymongo_was_there: bool) -> dict[str, Any]:
    return {
        "pymongo was there": pymongo_was_there,
        "spans": [
            name
            for kind in KINDS
            for operation in ("insert", "find")
            for name in (f"{operation} {database}.{kind}",)
        ],
        "operations": {"insert": 2, "find": 2},
        "connections": {"idle": 2, "used": 0},
        "servers": 1,
        "buckets": [*semconv.DURATION_BOUNDARIES],
    }


@pytest.mark.parametrize("steps", [*itertools.permutations(STEPS)], ids=" ".join)
def test_any_order_shows_everything(
    steps: tuple[str, ...], server: EmbeddedServer, database: str
) -> None:
    answer, errors = run("order", server.uri, database, *steps)
    before = steps.index("pymongo") < steps.index("instrument")
    assert answer == everything(database, pymongo_was_there=before)
    assert errors == ""


def test_clients_that_were_used_before_the_sdk_was_set_up_are_seen_from_then_on(
    server: EmbeddedServer, database: str
) -> None:
    answer, errors = run("order", server.uri, database, "pymongo", "instrument", "use", "sdk")
    assert answer == everything(database, pymongo_was_there=True)
    assert errors == ""
