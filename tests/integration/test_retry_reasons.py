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
from support.transactions import commit

import pymongo_resilience
from pymongo_resilience import OperationTimeoutError, retry_info
from pymongo_resilience.errors import RetryInfo, RetryReason, Rule
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest

CUT = RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT


def with_transaction(side: Side, coll: Any) -> None:
    async def asynchronous(session: Any) -> None:
        await coll.insert_one({}, session=session)

    def synchronous(session: Any) -> None:
        coll.insert_one({}, session=session)

    session = side.do(coll.database.client.start_session)
    try:
        side.do(session.with_transaction, asynchronous if side.runner else synchronous)
    finally:
        side.do(session.end_session)


def put(side: Side, coll: Any) -> None:
    async def asynchronous() -> None:
        await gridfs.AsyncGridFSBucket(coll.database).upload_from_stream("name", b"data")

    def synchronous() -> None:
        gridfs.GridFSBucket(coll.database).upload_from_stream("name", b"data")

    side.do(asynchronous if side.runner else synchronous)


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
SINCE = {"bulk_write of a client": "8.0"}


@pytest.mark.parametrize("name", cases(OPERATIONS, SINCE))
def test_after_a_lost_connection(
    name: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {})
    command, call = OPERATIONS[name]
    proxy.inject(CutBefore(command, times=50))
    with pytest.raises(PyMongoError) as caught:
        call(side, coll)
    proxy.clear()
    error: Any = caught.value
    assert (error.attempts, error.retry_reasons, error.retry_rule) == (2, (CUT,), Rule.ATTEMPTS)
    assert retry_info(error) == RetryInfo(2, (CUT,), Rule.ATTEMPTS, error.server)


@pytest.mark.parametrize("name", cases([*OPERATIONS, "with_transaction", "command"], SINCE))
def test_after_an_overload(
    name: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(base_backoff_ms=1, max_retries=2)
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {})
    command, call = OPERATIONS.get(name, ("insert", with_transaction))
    if name == "command":
        command, call = "ping", lambda side, coll: side.do(coll.database.command, "ping")
    proxy.inject(Overload(command, times=5000))
    with pytest.raises(PyMongoError) as caught:
        call(side, coll)
    proxy.clear()
    error: Any = caught.value
    overloads = (RetryReason.OVERLOADED,) * 2
    assert (error.attempts, error.retry_reasons, error.retry_rule) == (3, overloads, Rule.ATTEMPTS)


def test_after_the_deadline(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(timeout_ms=300)
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {})
    proxy.inject(CutBefore("find", times=5000))
    with pytest.raises(OperationTimeoutError) as caught:
        side.do(coll.find_one)
    proxy.clear()
    info = retry_info(caught.value)
    assert info is not None
    assert info.attempts == caught.value.attempts == len(info.reasons) + 1
    assert (info.rule, {*info.reasons}, info.server) == ("deadline", {CUT}, caught.value.server)
    assert (info.timeout_s, info.elapsed_s) == (0.3, caught.value.elapsed_s)


def test_an_answer_that_no_retry_would_change_is_one_attempt(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {"_id": 1})
    with pytest.raises(DuplicateKeyError) as caught:
        side.do(coll.insert_one, {"_id": 1})
    info = retry_info(caught.value)
    assert info is not None
    assert (info.attempts, info.reasons, info.timeout_s) == (1, (), None)


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
