"""The span of a transaction: what is below it, when it ends, and that it always does."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.trace import StatusCode
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo_resilience_instrumentation import deferred
from pymongo_resilience_instrumentation.telemetry import transaction_spans
from pymongo_resilience_instrumentation.tools.testbed import Fail
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import AT_ONCE, Side, run_at_once
from support.span_trees import command, failed, operation, transaction, trees
from support.telemetry import Instrument, Telemetry

import pymongo_resilience
from pymongo_resilience import retry_transaction
from pymongo_resilience.testbed import CutAfter, ReplicaSet

TXN = "txn_number"
OUTCOME = "pymongo_resilience.outcome"


@pytest.fixture
def telemetry(instrument: Instrument) -> Telemetry:
    return instrument()


@pytest.fixture
def client(side: Side, proxy: ReplicaSet, database: str, telemetry: Telemetry) -> Any:
    made = side.client(proxy.uri)
    side.do(made[database].coll.insert_one, {"_id": 0})
    telemetry.clear()
    return made


def begun(side: Side, client: Any, database: str) -> Any:
    """A session in a transaction that has inserted something."""
    session = client.start_session()
    side.do(session.start_transaction)
    side.do(client[database].coll.insert_one, {"_id": 1}, session=session)
    return session


def _end(name: str, port: int) -> Any:
    return operation(name, "admin", None, command(name, "admin", None, port, TXN))


@pytest.mark.parametrize("end", ["commitTransaction", "abortTransaction"])
def test_operations_and_the_end_are_its_children(
    end: str, side: Side, client: Any, proxy: ReplicaSet, database: str, telemetry: Telemetry
) -> None:
    coll, port = client[database].coll, proxy.address[1]
    session = begun(side, client, database)
    side.documents(coll.find(session=session, batch_size=1))
    side.do(session.commit_transaction if end[0] == "c" else session.abort_transaction)
    side.do(coll.insert_one, {"_id": 2}, session=session)

    def one(name: str, *ids: str) -> Any:
        below = command(name, database, "coll", port, *ids)
        return operation(name, database, "coll", below)

    assert trees(telemetry.spans()) == [
        transaction(
            one("insert", TXN),
            one("find", TXN, "cursor_id"),
            *[one("getMore", TXN, "cursor_id")] * 2,
            _end(end, port),
            **{OUTCOME: "committed" if end[0] == "c" else "aborted"},
        ),
        one("insert", TXN),
    ]
    measured = [
        attributes["db.namespace"]
        for attributes, _ in telemetry.points("db.client.operation.duration")
        if attributes["db.operation.name"] == end
    ]
    assert measured == ["admin"]
    ends = {span.name: span.end_time or 0 for span in telemetry.spans()}
    assert ends["transaction"] >= ends[f"{end} admin"]


@pytest.mark.parametrize("own_session", [True, False])
def test_each_try_of_with_transaction_is_one(
    own_session: bool, side: Side, client: Any, proxy: ReplicaSet, database: str,
    telemetry: Telemetry,
) -> None:  # fmt: skip
    callback = _inserting(side, client[database].coll)
    proxy.inject(Fail("insert", code=112, labels=["TransientTransactionError"]))
    if own_session:
        side.do(client.start_session().with_transaction, callback)
    else:
        side.do(retry_transaction(client)(callback))
    drawn = trees(telemetry.spans())
    assert [(name, [each[0].partition(" ")[0] for each in below]) for name, _, below in drawn] == [
        ("transaction", ["insert", "abortTransaction"]),
        ("transaction", ["insert", "commitTransaction"]),
    ]
    assert [facts[OUTCOME] for _, facts, _ in drawn] == ["aborted", "committed"]


def _inserting(side: Side, coll: Any) -> Callable[[Any], Any]:
    def callback(session: Any) -> Any:
        return coll.insert_one({"_id": 1}, session=session)

    async def awaiting(session: Any) -> Any:
        return await callback(session)

    return awaiting if side.runner else callback


def test_a_commit_whose_result_is_unknown_may_be_called_again(
    side: Side, client: Any, proxy: ReplicaSet, database: str, telemetry: Telemetry
) -> None:
    session = begun(side, client, database)
    proxy.inject(CutAfter("commitTransaction", times=1000))
    with pytest.raises(AutoReconnect):
        side.do(session.commit_transaction)
    proxy.clear()
    assert "transaction" not in {span.name for span in telemetry.spans()}
    side.do(session.commit_transaction)
    ((_, facts, below),) = trees(telemetry.spans())
    assert facts["status"] is StatusCode.UNSET
    assert facts[OUTCOME] == "committed"
    assert [(each[0], each[1]["status"]) for each in below[1:]] == [
        ("commitTransaction admin", StatusCode.ERROR),
        ("commitTransaction admin", StatusCode.UNSET),
    ]


@pytest.mark.parametrize("by", ["end_session", "start_transaction"])
def test_a_commit_whose_result_stays_unknown_and_one_that_never_came(
    by: str, side: Side, client: Any, proxy: ReplicaSet, database: str, telemetry: Telemetry
) -> None:
    session = begun(side, client, database)
    proxy.inject(CutAfter("commitTransaction", times=1000))
    with pytest.raises(AutoReconnect):
        side.do(session.commit_transaction)
    proxy.clear()
    if by == "end_session":
        side.do(session.end_session)
    else:
        side.do(session.start_transaction)
        side.do(session.end_session)
    other = client.start_session()
    side.do(other.start_transaction)
    pymongo_resilience.uninstrument()
    drawn = [facts[OUTCOME] for name, facts, _ in trees(telemetry.spans()) if name == "transaction"]
    assert drawn == ["unknown", *["aborted"] * (by == "start_transaction"), "unfinished"]
    side.do(other.end_session)


def test_a_commit_that_fails_for_good_is_its_error(
    side: Side, client: Any, proxy: ReplicaSet, database: str, telemetry: Telemetry
) -> None:
    session = begun(side, client, database)
    proxy.inject(Fail("commitTransaction", code=8000))
    with pytest.raises(OperationFailure):
        side.do(session.commit_transaction)
    ((_, facts, _),) = trees(telemetry.spans())
    message = facts["exception.message"]
    assert message.startswith("OperationFailure, code 8000")
    outcome = {OUTCOME: "failed"}
    expected = failed(transaction(**outcome), "pymongo.errors.OperationFailure", message)
    assert facts == expected[1]


def test_one_that_is_never_ended_ends_with_the_operation_after_its_session(
    side: Side, client: Any, database: str, telemetry: Telemetry
) -> None:
    session = begun(side, client, database)
    assert "transaction" not in {span.name for span in telemetry.spans()}
    del session
    gc.collect()
    side.do(client.admin.command, "ping")
    (ended,) = [span for span in telemetry.spans() if span.name == "transaction"]
    assert ended.attributes[OUTCOME] == "unfinished"


@pytest.mark.parametrize("how", AT_ONCE)
def test_each_has_its_own_operations(
    how: str, server: EmbeddedServer, database: str, telemetry: Telemetry
) -> None:
    def in_a_thread(client: Any, number: int) -> None:
        with client.start_session() as session, session.start_transaction():
            client[database][f"coll{number}"].find_one(session=session)
            client[database].other.find_one()

    async def in_a_task(client: Any, number: int) -> None:
        async with client.start_session() as session, await session.start_transaction():
            await client[database][f"coll{number}"].find_one(session=session)
            await client[database].other.find_one()

    run_at_once(how, server.uri, in_a_thread, in_a_task, maxPoolSize=10)
    drawn = trees(telemetry.spans())
    below = [[each[0] for each in below] for name, _, below in drawn if name == "transaction"]
    expected = [
        [f"find {database}.coll{number}", "commitTransaction admin"] for number in range(200)
    ]
    assert sorted(below) == sorted(expected)
    alone = [name for name, _, _ in drawn if name != "transaction"]
    assert sorted(alone) == ["endSessions admin"] + [f"find {database}.other"] * 200


EXITING = """
import sys, pymongo, pymongo_resilience
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)
pymongo_resilience.instrument()
client = pymongo.MongoClient(sys.argv[1])
session = client.start_session()
session.start_transaction()
client[sys.argv[2]].coll.insert_one({}, session=session)
"""


def test_one_that_is_open_when_the_process_exits_is_exported(
    server: EmbeddedServer, database: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXITING, server.uri, database],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.count('"name": "transaction"') == 1, done.stderr


def test_an_ended_transaction_leaves_nothing_to_a_collection(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    client = side.client(proxy.uri)
    session = client.start_session()
    side.do(session.start_transaction)
    side.do(client[database].coll.insert_one, {}, session=session)
    # As the traceback of an error would keep it.
    kept = transaction_spans.span_of(session)
    side.do(session.commit_transaction)
    side.do(session.end_session)
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert kept is not None
    assert gone() is None
    assert not deferred.pending
