"""Every expiry under a deadline is one type, wherever the driver raises it; without one, none is.

How the type is made, and what counts as an expiry, is in tests/unit/test_timeout_errors.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from gridfs import AsyncGridFSBucket, GridFSBucket
from pymongo import InsertOne, UpdateOne, WriteConcern
from pymongo.errors import (
    BulkWriteError,
    ClientBulkWriteException,
    ExecutionTimeout,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteError,
    WTimeoutError,
)
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.tools.testbed.command_faults import OnCommand
from pymongo_resilience_instrumentation.tools.testbed.fault import Amend
from support.busy_pools import Silent
from support.clients import Side
from support.command_listeners import OnCommands
from support.telemetry import Instrument
from support.transactions import commit, run, session_of
from support.wait_helpers import wait_for_server

from pymongo_resilience import OperationTimeoutError, override, retry_info
from pymongo_resilience.errors import Rule, Stage
from pymongo_resilience.testbed import Fail, FailWriteConcern, Fault, Overload, ReplicaSet
from pymongo_resilience.testing import set_active

pytestmark = pytest.mark.oldest

ENOUGH = 60_000
"""Milliseconds that no operation here needs."""
NEARLY_OVER = 0.5
"""Seconds that are left of ENOUGH when a server stops a command at its ``maxTimeMS``."""
SHORT = 150
LONG_ENOUGH = 1000
"""For an attempt to be sent."""


class FailWrite(OnCommand):
    """The server executed the command, and says of its first write that it did not."""

    def __init__(self, command: str, code: int) -> None:
        super().__init__(command)
        self._code = code

    def verdict(self, request: Any) -> Amend:
        error = {"index": 0, "code": self._code, "errmsg": "the write was too slow"}
        return Amend({"n": 0, "writeErrors": [error]})


@dataclass(frozen=True)
class Expiry:
    """A call, as what its failure was raised so far, and how it is told that its time is over."""

    call: Callable[[Side, Any], Any]
    kind: type[PyMongoError]
    fault: Callable[[], Fault]
    command: str = ""
    """The one that fails."""


def _fails(command: str, call: Any, kind: Any = ExecutionTimeout, fault: Any = Fail) -> Expiry:
    return Expiry(call, kind, lambda: fault(command, code=50), command)


def _batch(side: Side, coll: Any) -> None:
    cursor = coll.find({}, batch_size=2)
    for _ in range(3):
        side.do(cursor.next if side.runner is None else cursor.__anext__)


def _insert(side: Side, coll: Any) -> Any:
    return side.do(coll.insert_one, {})


def _insert_many(side: Side, coll: Any) -> Any:
    return side.do(coll.insert_many, [{}, {}])


def _bulk(side: Side, coll: Any) -> Any:
    return side.do(coll.bulk_write, [InsertOne({}), UpdateOne({}, {"$set": {"a": 1}})])


def _client_bulk(side: Side, coll: Any) -> Any:
    write = InsertOne({}, namespace=coll.full_name)
    return side.do(coll.database.client.bulk_write, [write])


def _transaction(side: Side, coll: Any) -> Any:
    with session_of(side, coll.database.client) as session:
        run(side, session, lambda session: coll.insert_one({}, session=session))


EXPIRIES: dict[str, Expiry] = {
    "find": _fails("find", lambda s, c: s.do(c.find_one)),
    "getMore": _fails("getMore", _batch),
    "a command": _fails("ping", lambda s, c: s.do(c.database.command, "ping")),
    "insert": _fails("insert", _insert),
    "update_many": _fails("update", lambda s, c: s.do(c.update_many, {}, {"$set": {"a": 1}})),
    "creating an index": _fails("createIndexes", lambda s, c: s.do(c.create_index, "a")),
    "commit": _fails("commitTransaction", commit),
    "with_transaction": _fails("commitTransaction", _transaction),
    "a client's bulk write": _fails("bulkWrite", _client_bulk, ClientBulkWriteException),
    "writeErrors of one": _fails("insert", _insert, WriteError, FailWrite),
    "writeErrors of many": _fails("insert", _insert_many, BulkWriteError, FailWrite),
    "writeErrors of a bulk write": _fails("update", _bulk, BulkWriteError, FailWrite),
    "writeConcernError of one": _fails("insert", _insert, WTimeoutError, FailWriteConcern),
    "writeConcernError of findAndModify": _fails(
        "findAndModify", lambda s, c: s.do(c.find_one_and_delete, {}), WTimeoutError,
        FailWriteConcern,
    ),
    "writeConcernError of a commit": _fails(
        "commitTransaction", commit, WTimeoutError, FailWriteConcern
    ),
    "writeConcernError of a bulk write": _fails(
        "insert", _bulk, BulkWriteError, FailWriteConcern
    ),
    "writeConcernError of a client's bulk write": _fails(
        "bulkWrite", _client_bulk, ClientBulkWriteException, FailWriteConcern
    ),
}  # fmt: skip


@pytest.fixture
def coll(control: Any, database: str) -> str:
    control[database].coll.insert_many([{"_id": number} for number in range(5)])
    return database


def raised(
    side: Side, proxy: ReplicaSet, database: str, expiry: Expiry, *listeners: OnCommands
) -> Any:
    client = side.client(proxy.uri, event_listeners=listeners)
    wait_for_server(side, client)
    collection = client[database].coll
    proxy.inject(expiry.fault())
    with pytest.raises(PyMongoError) as caught:
        expiry.call(side, collection)
    proxy.clear()
    return caught.value


def as_time_ends(expiry: Expiry) -> OnCommands:
    """A listener: when the command that fails is sent, most of its time is over, as if the clock
    had gone on."""

    def started(event: Any) -> None:
        if event.command_name == expiry.command:
            driver.csot.DEADLINE.set(driver.csot.now() + NEARLY_OVER)
            operation: Any = in_progress.current()
            operation.started -= ENOUGH / 1000 - NEARLY_OVER

    return OnCommands(started=started)


@pytest.mark.each_setup
@pytest.mark.parametrize("name", EXPIRIES)
def test_a_time_limit_of_the_server_is_not_the_deadline(
    name: str, side: Side, proxy: ReplicaSet, coll: str, instrument: Instrument
) -> None:
    """Code 50 with time left is an error like any other, as in plain pymongo."""
    expiry = EXPIRIES[name]
    telemetry = instrument()
    with set_active(False):
        plain = raised(side, proxy, coll, expiry)
    telemetry.clear()
    for block in (contextlib.nullcontext(), override(timeout_ms=ENOUGH)):
        with block:
            error = raised(side, proxy, coll, expiry)
        assert type(error) is type(plain) is expiry.kind
        assert (error.code, error.timeout) == (plain.code, plain.timeout)
        info = retry_info(error)
        assert info is not None
        assert (info.attempts, info.timeout_s) == (1, None)
        assert info.rule in {Rule.TIME_LIMIT, None}, "None if all its commands were answered"
    shown = {span.attributes.get("pymongo_resilience.outcome") for span in telemetry.operations()}
    assert shown <= {"ok", "not_retryable"}
    assert {each.rule for each in telemetry.decisions.events} <= {Rule.TIME_LIMIT}


@pytest.mark.parametrize("name", EXPIRIES)
def test_code_50_when_the_time_is_over(
    name: str, side: Side, proxy: ReplicaSet, coll: str, instrument: Instrument
) -> None:
    expiry = EXPIRIES[name]
    telemetry = instrument()
    with override(timeout_ms=ENOUGH):
        error = raised(side, proxy, coll, expiry, as_time_ends(expiry))
    assert isinstance(error, OperationTimeoutError)
    assert isinstance(error, expiry.kind)
    assert type(error.__cause__) is expiry.kind
    assert str(error.__cause__) in str(error)
    assert error.timeout is True
    assert (error.timeout_s, error.attempts, error.stage) == (ENOUGH / 1000, 1, Stage.ANSWERED)
    assert error.server == address_text(proxy.address)
    assert f"1 attempt, the last on {error.server} (answered): " in str(error)
    if "commit" not in name and name != "with_transaction":
        span = telemetry.operations()[-1]
        assert span.attributes["pymongo_resilience.outcome"] == "deadline"


@pytest.mark.parametrize("name", ["writeErrors of many", "writeConcernError of one"])
def test_another_code_stays_what_it_is_under_a_deadline(
    name: str, side: Side, proxy: ReplicaSet, coll: str, instrument: Instrument
) -> None:
    """Also where the driver itself speaks of a timeout: "only check that the code is 50"."""
    instrument(timeout_ms=ENOUGH)
    fault: Fault = FailWriteConcern("insert", code=64, name="MaxTimeMSExpired")
    if name == "writeErrors of many":
        fault = FailWrite("insert", 2)
    error = raised(side, proxy, coll, Expiry(EXPIRIES[name].call, OperationFailure, lambda: fault))
    assert not isinstance(error, OperationTimeoutError)
    assert error.attempts == 1


def _upload(side: Side, coll: Any) -> None:
    bucket = GridFSBucket if side.runner is None else AsyncGridFSBucket
    side.do(bucket(coll.database).upload_from_stream, "name", b"content")


@pytest.mark.parametrize(
    "expiry",
    [
        _fails("insert", _upload, WriteError, FailWrite),
        _fails("insert", _upload, WTimeoutError, FailWriteConcern),
        _fails("insert", _upload),
        _fails("createIndexes", _upload),
    ],
)
def test_a_file_whose_chunks_are_written_too_slowly(
    expiry: Expiry, side: Side, proxy: ReplicaSet, coll: str, instrument: Instrument
) -> None:
    """gridfs makes another error of that of its bulk write."""
    instrument()
    assert type(raised(side, proxy, coll, expiry)) is expiry.kind
    with override(timeout_ms=ENOUGH):
        assert type(raised(side, proxy, coll, expiry)) is expiry.kind, "time is left"
        error = raised(side, proxy, coll, expiry, as_time_ends(expiry))
    assert isinstance(error, OperationTimeoutError)
    assert type(error.__cause__) is expiry.kind
    assert (error.server, error.stage) == (address_text(proxy.address), Stage.ANSWERED)


def test_the_strategy_driver_leaves_errors_to_the_driver(
    side: Side, proxy: ReplicaSet, coll: str, instrument: Instrument
) -> None:
    instrument(timeout_ms=ENOUGH, config_strategy="driver")
    assert type(raised(side, proxy, coll, EXPIRIES["writeErrors of many"])) is BulkWriteError
    assert type(raised(side, proxy, coll, EXPIRIES["find"])) is ExecutionTimeout


# What never enters the driver's loop: many writes without an acknowledgement.


def test_no_server_for_a_write_that_is_not_acknowledged(side: Side, instrument: Instrument) -> None:
    instrument(timeout_ms=SHORT)
    client = side.client("mongodb://127.0.0.1:1/", connectTimeoutMS=100)
    unacknowledged = client.db.get_collection("coll", write_concern=WriteConcern(0))
    with pytest.raises(OperationTimeoutError) as caught:
        side.do(unacknowledged.insert_many, [{}])
    error: Any = caught.value
    assert isinstance(error, ServerSelectionTimeoutError)
    assert (error.server, error.stage, error.attempts) == (None, Stage.NOT_SENT, 1)
    assert error.elapsed_s > SHORT / 2000
    assert "the last without a server (not sent): " in str(error)


# Each stage that the driver's loop knows.


def test_a_reply_that_does_not_come(
    side: Side, proxy: ReplicaSet, coll: str, instrument: Instrument
) -> None:
    def insert(side: Side, collection: Any) -> None:
        # Not around what comes before it: on a busy machine, that takes longer.
        with override(timeout_ms=LONG_ENOUGH):
            side.do(collection.insert_one, {})

    instrument()
    silent = Expiry(insert, NetworkTimeout, lambda: Silent("insert"))
    error = raised(side, proxy, coll, silent)
    assert isinstance(error, OperationTimeoutError)
    assert isinstance(error, NetworkTimeout)
    assert (error.stage, error.server) == (Stage.IN_FLIGHT, address_text(proxy.address))
    assert f"on {error.server} (in flight): " in str(error)


def test_an_overload_error_whose_wait_does_not_fit_is_raised_as_itself(
    side: Side, proxy: ReplicaSet, coll: str, instrument: Instrument
) -> None:
    """Hardly ever is one made: the delays are random shares of ten minutes."""
    telemetry = instrument(timeout_ms=LONG_ENOUGH, max_backoff_ms=600_000)
    fault = Overload("insert", times=9, base_backoff=600)
    overload = Expiry(_insert, OperationFailure, lambda: fault)
    error = raised(side, proxy, coll, overload)
    assert type(error) is OperationFailure
    assert error.__cause__ is None
    assert (error.timeout, error.code) == (False, 462)
    assert error.has_error_label("RetryableError")
    (operation,) = telemetry.operations(f"insert {coll}.coll")
    assert operation.attributes["pymongo_resilience.outcome"] == "overloaded"
