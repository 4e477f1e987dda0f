"""Whatever operation ends with an error after retries: the error has the reason of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gridfs
import pytest
from pymongo import InsertOne
from pymongo.errors import DuplicateKeyError, InvalidName, PyMongoError
from pymongo_resilience_instrumentation.tools.testbed import CutBefore, Overload
from support.clients import Side
from support.servers import cases
from support.telemetry import Instrument
from support.transactions import commit, run, session_of

import pymongo_resilience
from pymongo_resilience import OperationTimeoutError, retry_info
from pymongo_resilience.errors import RetryInfo, RetryReason, Rule
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest

CUT = RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT


def with_transaction(side: Side, coll: Any) -> None:
    with session_of(side, coll.database.client) as session:
        run(side, session, lambda given: coll.insert_one({}, session=given))


def put(side: Side, coll: Any) -> None:
    bucket: Any = gridfs.GridFSBucket if side.runner is None else gridfs.AsyncGridFSBucket
    side.do(bucket(coll.database).upload_from_stream, "name", b"data")


def open_stream(side: Side, coll: Any) -> None:
    stream = side.do(coll.watch)
    side.do(stream.try_next)


def bulk_of_the_client(side: Side, coll: Any) -> None:
    models = [InsertOne({}, namespace=f"{coll.database.name}.coll")]
    side.do(coll.database.client.bulk_write, models)


OPERATIONS: dict[str, tuple[str, Callable[[Side, Any], Any]]] = {
    "find_one": ("find", lambda side, coll: side.do(coll.find_one)),
    "a cursor": ("find", lambda side, coll: side.documents(coll.find())),
    "aggregate": ("aggregate", lambda side, coll: side.do(coll.aggregate, [])),
    "list_collection_names": (
        "listCollections", lambda side, coll: side.do(coll.database.list_collection_names),
    ),
    "insert_many": ("insert", lambda side, coll: side.do(coll.insert_many, [{}, {}])),
    "bulk_write": ("insert", lambda side, coll: side.do(coll.bulk_write, [InsertOne({})])),
    "bulk_write of a client": ("bulkWrite", bulk_of_the_client),
    "a change stream": ("aggregate", open_stream),
    "commit_transaction": ("commitTransaction", commit),
    "upload_from_stream": ("insert", put),
}  # fmt: skip
OVERLOADED_ALONE: dict[str, tuple[str, Callable[[Side, Any], Any]]] = {
    "with_transaction": ("insert", with_transaction),
    "command": ("ping", lambda side, coll: side.do(coll.database.command, "ping")),
}
"""A lost connection ends the one at once, and lets the other go on for two minutes."""
SINCE = {"bulk_write of a client": "8.0"}


def raised(
    side: Side, proxy: ReplicaSet, coll: Any, call: Callable[[Side, Any], Any], fault: Any
) -> Any:
    side.do(coll.insert_one, {})
    proxy.inject(fault)
    with pytest.raises(PyMongoError) as caught:
        call(side, coll)
    proxy.clear()
    return caught.value


@pytest.mark.parametrize("name", cases(OPERATIONS, SINCE))
def test_after_a_lost_connection(
    name: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    command, call = OPERATIONS[name]
    coll = side.client(proxy.uri)[database].coll
    error = raised(side, proxy, coll, call, CutBefore(command, times=50))
    # Without a timeout there is one retry, beside those that come sooner than pymongo's would.
    assert (set(error.retry_reasons), error.retry_rule) == ({CUT}, Rule.ATTEMPTS)
    attempts = len(error.retry_reasons) + 1
    assert 2 <= error.attempts == attempts
    assert retry_info(error) == RetryInfo(
        attempts, error.retry_reasons, Rule.ATTEMPTS, error.server
    )


@pytest.mark.parametrize("name", cases([*OPERATIONS, *OVERLOADED_ALONE], SINCE))
def test_after_an_overload(
    name: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(base_backoff_ms=1, max_retries=2)
    command, call = (OPERATIONS | OVERLOADED_ALONE)[name]
    coll = side.client(proxy.uri)[database].coll
    error = raised(side, proxy, coll, call, Overload(command, times=5000))
    overloads = (RetryReason.OVERLOADED,) * 2
    assert (error.attempts, error.retry_reasons, error.retry_rule) == (3, overloads, Rule.ATTEMPTS)


def test_after_the_deadline(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(timeout_ms=300)
    coll = side.client(proxy.uri)[database].coll
    find, fault = OPERATIONS["find_one"][1], CutBefore("find", times=5000)
    error = raised(side, proxy, coll, find, fault)
    assert isinstance(error, OperationTimeoutError)
    assert str(error).startswith("find_one exceeded its timeout of 0.3 s")
    info = retry_info(error)
    assert info is not None
    assert info.attempts == error.attempts == len(info.reasons) + 1
    assert (info.rule, {*info.reasons}, info.server) == ("deadline", {CUT}, error.server)
    assert (info.timeout_s, info.elapsed_s) == (0.3, error.elapsed_s)


def test_an_error_that_the_library_had_no_part_in_has_none(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    coll = side.client(proxy.uri)[database].coll
    with pytest.raises(InvalidName) as caught:
        coll.database[".."]
    assert retry_info(caught.value) is None
    assert retry_info(ZeroDivisionError()) is None
    pymongo_resilience.uninstrument()
    side.do(coll.insert_one, {"_id": 1})
    with pytest.raises(DuplicateKeyError) as plain:
        side.do(coll.insert_one, {"_id": 1})
    assert retry_info(plain.value) is None
