"""Timeouts of an older kind under a deadline: one warning for each client and option.

That they do not act is seen in test_time_limits.py, on the wire.
"""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import pymongo
import pytest
from pymongo_resilience_instrumentation.timeouts.command_limits import DeprecatedOptions
from support.clients import Side
from support.telemetry import Instrument

from pymongo_resilience import override
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest

OLDER = {"socketTimeoutMS": 9000, "waitQueueTimeoutMS": 9000, "wTimeoutMS": 9000}
TOLD = ["socketTimeoutMS", "waitQueueTimeoutMS", "wtimeout"]
LIMIT = 9000
TIMEOUT = 20_000


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Any:
    """The options that were told of, in their order; each warning once."""

    def options() -> list[str]:
        records = [each for each in caplog.records if "is ignored where" in each.message]
        assert {each.levelname for each in records} <= {"WARNING"}
        assert {each.name for each in records} <= {"pymongo_resilience"}
        return [each.message.split()[0] for each in records]

    return options


@pytest.mark.parametrize(
    ("default", "own", "expected"),
    [
        (TIMEOUT, {}, TOLD),
        (None, {"timeoutMS": TIMEOUT}, TOLD),
        (TIMEOUT, {"timeoutMS": 0}, TOLD),
        (None, {}, []),
    ],
)
def test_of_a_client_that_has_a_timeout(
    default: int | None,
    own: dict[str, int],
    expected: list[str],
    side: Side,
    told: Any,
    instrument: Instrument,
) -> None:
    instrument(timeout_ms=default)
    side.client("mongodb://127.0.0.1:1/", connect=False, **OLDER, **own)
    assert told() == expected
    side.client("mongodb://127.0.0.1:1/", connect=False, **OLDER, **own)
    assert told() == expected * 2, "each client by itself, though the two are equal"


def test_of_a_client_that_was_made_before(side: Side, told: Any, instrument: Instrument) -> None:
    side.client("mongodb://127.0.0.1:1/", connect=False, **OLDER)
    instrument(timeout_ms=TIMEOUT)
    assert told() == TOLD


def _find(coll: Any, side: Side) -> None:
    side.documents(coll.find({}, max_time_ms=LIMIT))


CALLS: dict[str, tuple[Any, list[str]]] = {
    "find_one": (lambda c, s: s.do(c.find_one, max_time_ms=LIMIT), ["maxTimeMS"]),
    "find": (_find, ["maxTimeMS"]),
    "aggregate": (lambda c, s: s.do(c.aggregate, [], maxTimeMS=LIMIT), ["maxTimeMS"]),
    "count_documents": (lambda c, s: s.do(c.count_documents, {}, maxTimeMS=LIMIT), ["maxTimeMS"]),
    "create_index": (lambda c, s: s.do(c.create_index, "a", maxTimeMS=LIMIT), ["maxTimeMS"]),
    # A document of the application's own, which is never looked at.
    "a command": (lambda c, s: s.do(c.database.command, "ping", maxTimeMS=LIMIT), []),
    "none": (lambda c, s: s.do(c.find_one, {"maxTimeMS": LIMIT}, max_time_ms=None), []),
}


@pytest.mark.parametrize("name", CALLS)
def test_of_a_call_that_begins_under_a_deadline(
    name: str, side: Side, proxy: ReplicaSet, database: str, told: Any, instrument: Instrument
) -> None:
    instrument()
    call, expected = CALLS[name]
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {"_id": 0})
    call(coll, side)
    assert told() == [], "no deadline, so it holds"
    for block in (override(timeout_ms=TIMEOUT), pymongo.timeout(TIMEOUT / 1000)):
        with block:
            side.do(coll.find_one)
            call(coll, side)
    assert told() == expected
    other = side.client(proxy.uri)[database].coll
    with override(timeout_ms=TIMEOUT):
        call(other, side)
    assert told() == expected * 2


def test_what_was_told_of_a_client_is_forgotten_with_it() -> None:
    options = DeprecatedOptions(TIMEOUT)
    client: Any = pymongo.MongoClient("mongodb://127.0.0.1:1/", connect=False, **OLDER)
    options.register(client)
    assert options._warned == {id(client): set(TOLD)}
    with contextlib.closing(client):
        pass
    del client
    gc.collect()
    assert options._warned == {}
