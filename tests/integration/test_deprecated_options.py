"""Timeouts of an older kind under a deadline of the application: one warning for each client.

That they do not act then is seen in test_time_limits.py, on the wire; that they do under one of the
configuration, in test_application_limits.py.
"""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from support.clients import Side
from support.telemetry import Instrument

from pymongo_resilience import override
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest

OLDER = {"socketTimeoutMS": 9000, "waitQueueTimeoutMS": 9000, "wTimeoutMS": 9000}
NAMED = "ignored: socketTimeoutMS, waitQueueTimeoutMS, wtimeout."
TIMEOUT = 20_000
LIMIT = 9000


@pytest.mark.parametrize("before", [False, True], ids=["", "before instrument()"])
@pytest.mark.parametrize(
    ("default", "own", "warnings"),
    [
        (TIMEOUT, OLDER, 0),
        (None, OLDER | {"timeoutMS": TIMEOUT}, 1),
        (TIMEOUT, OLDER | {"timeoutMS": 0}, 1),
        (None, OLDER, 0),
        (None, {"timeoutMS": TIMEOUT}, 0),
    ],
)
def test_a_client_with_a_timeout_names_its_older_options(
    default: int | None, own: dict[str, int], warnings: int, before: bool, side: Side,
    caplog: pytest.LogCaptureFixture, instrument: Instrument,
) -> None:  # fmt: skip
    if not before:
        instrument(timeout_ms=default)
    side.client("mongodb://127.0.0.1:1/", connect=False, **own)
    if before:
        instrument(timeout_ms=default)
    found = [each for each in caplog.records if "that the application sets" in each.message]
    assert [(each.name, each.levelname) for each in found] == [
        ("pymongo_resilience", "WARNING")
    ] * warnings
    assert all(NAMED in each.message for each in found)


CALLS: dict[str, tuple[Any, int]] = {
    "find_one": (lambda c, s: s.do(c.find_one, max_time_ms=LIMIT), 1),
    "find": (lambda c, s: s.documents(c.find({}, max_time_ms=LIMIT)), 1),
    "aggregate": (lambda c, s: s.do(c.aggregate, [], maxTimeMS=LIMIT), 1),
    "count_documents": (lambda c, s: s.do(c.count_documents, {}, maxTimeMS=LIMIT), 1),
    "create_index": (lambda c, s: s.do(c.create_index, "a", maxTimeMS=LIMIT), 1),
    # A document of the application's own, which is never looked at.
    "a command": (lambda c, s: s.do(c.database.command, "ping", maxTimeMS=LIMIT), 0),
    "none": (lambda c, s: s.do(c.find_one, {"maxTimeMS": LIMIT}, max_time_ms=None), 0),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_limit_of_a_method_is_named_once_for_each_client(
    name: str, side: Side, proxy: ReplicaSet, database: str, caplog: pytest.LogCaptureFixture,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument(timeout_ms=2 * TIMEOUT)
    call, warnings = CALLS[name]
    for _ in range(2):  # equal clients, but each has its own warning
        coll = side.client(proxy.uri)[database].coll
        side.do(coll.insert_one, {})
        call(coll, side)
        assert "that the application sets" not in caplog.text, (
            "it holds beside that of the configuration"
        )
        for block in (override(timeout_ms=TIMEOUT), pymongo.timeout(TIMEOUT / 1000)):
            with block:
                side.do(coll.find_one)
                call(coll, side)
        found = [
            each.message for each in caplog.records if "that the application sets" in each.message
        ]
        assert ["ignored: maxTimeMS." in each for each in found] == [True] * warnings
        caplog.clear()
