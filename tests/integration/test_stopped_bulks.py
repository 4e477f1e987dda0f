"""Bulk writes that an election or a passing failure stops half-way: continued with the same
transaction number."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest
from bson import Int64
from pymongo import DeleteOne, InsertOne, UpdateOne
from pymongo.errors import BulkWriteError, ClientBulkWriteException
from pymongo_resilience_instrumentation.failures.reasons import BY_CODE
from pymongo_resilience_instrumentation.tools.testbed.command_faults import FailStatement, OnCommand
from pymongo_resilience_instrumentation.tools.testbed.fault import Amend, Answer
from support.clients import SentCommands, Side
from support.telemetry import Instrument
from support.transactions import session_of

from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.rules.failure import RetryReason
from pymongo_resilience.testbed import Election, ReplicaSet

pytestmark = pytest.mark.oldest


class StopAt(OnCommand):
    """Executes it, and answers as a member that stopped at one statement (a real one answers so:
    ``{"n": 42, "nModified": 42, "writeErrors": [{"index": 42, "code": 189, ...}], "ok": 1.0}``)."""

    def __init__(
        self, command: str, index: int, times: int = 1, *, code: int = 189, more: Any = None
    ) -> None:
        super().__init__(command, times)
        error = {"index": index, "code": code, "errmsg": "Not primary while writing to db.coll"}
        self._reply = {"n": index, "writeErrors": [error], **(more or {})}
        if command == "update":
            self._reply["nModified"] = index

    def verdict(self, request: Any) -> Any:
        return Amend(self._reply)


class StopClientsBulkAt(OnCommand):
    """The same of a client's bulk write: each statement's result is a document of the cursor.

    Nothing is executed: the embedded server does not recognise a bulkWrite that is repeated.
    """

    def __init__(self, index: int, times: int = 1, *, code: int = 189, **more: Any) -> None:
        super().__init__("bulkWrite", times)
        done = [{"ok": 1.0, "idx": each, "n": 1, "nModified": 1} for each in range(index)]
        text = "Not primary while writing to db.coll"
        failed = {"ok": 0.0, "idx": index, "code": code, "errmsg": text, "n": 0}
        self._results = [*done, failed]
        self._counts = {"nErrors": 1, "nInserted": index, "nMatched": 0, "nModified": 0, **more}

    def verdict(self, request: Any) -> Any:
        results = self._results[-1:] if request.body["errorsOnly"] else self._results
        cursor = {"id": 0, "firstBatch": results, "ns": "admin.$cmd.bulkWrite"}
        return Answer({"cursor": cursor, **self._counts, "ok": 1.0})


INC = {"$inc": {"n": 1}}


def models_of(database: str) -> list[Any]:
    namespace = f"{database}.coll"
    inserted: list[Any] = [InsertOne({"_id": n}, namespace=namespace) for n in (7, 8)]
    updated = [UpdateOne({"_id": n}, INC, namespace=namespace) for n in (1, 2)]
    return [*inserted, *updated, DeleteOne({"_id": 3}, namespace=namespace)]


def _of_client(coll: Any, **options: Any) -> Any:
    bulk_write = functools.partial(coll.database.client.bulk_write, **options)
    return bulk_write, models_of(coll.database.name)


CLIENT = {"inserted_count": 2, "modified_count": 2, "deleted_count": 1}
BULKS: dict[str, tuple[str, Callable[[Any], Any], dict[str, int], dict[int, int | None]]] = {
    "insert_many": (
        "insert", lambda coll: (coll.insert_many, [{"_id": n} for n in (7, 8, 9)]),
        {}, {1: 0, 2: 0, 3: 0, 7: None, 8: None, 9: None},
    ),
    "insert": (
        "insert", lambda coll: (coll.bulk_write, [InsertOne({"_id": n}) for n in (7, 8)]),
        {"inserted_count": 2}, {1: 0, 2: 0, 3: 0, 7: None, 8: None},
    ),
    "update": (
        "update", lambda coll: (coll.bulk_write, [UpdateOne({"_id": n}, INC) for n in (1, 2, 3)]),
        {"matched_count": 3, "modified_count": 3}, {1: 1, 2: 1, 3: 1},
    ),
    "delete": (
        "delete",
        lambda coll: (
            coll.bulk_write, [InsertOne({"_id": 4}), *(DeleteOne({"_id": n}) for n in (1, 2))],
        ),
        {"inserted_count": 1, "deleted_count": 2}, {3: 0, 4: None},
    ),
    "client": ("bulkWrite", _of_client, CLIENT, {1: 1, 2: 1, 7: None, 8: None}),
    "client, verbose": (
        "bulkWrite", lambda coll: _of_client(coll, verbose_results=True),
        CLIENT, {1: 1, 2: 1, 7: None, 8: None},
    ),
}  # fmt: skip
"""The command, the call, counts of its result, and the documents afterwards with their ``n``."""


@pytest.fixture
def coll(side: Side, proxy: ReplicaSet, database: str, control: Any, sent: SentCommands) -> Any:
    control[database].coll.insert_many([{"_id": number, "n": 0} for number in (1, 2, 3)])
    client = side.client(proxy.uri, event_listeners=[sent])
    side.do(client.admin.command, "ping")
    return client[database].coll


@pytest.mark.parametrize("timeout_ms", [None, 20_000])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("name", BULKS)
def test_it_is_continued_with_the_same_number_and_applied_once(
    name: str, ordered: bool, timeout_ms: int | None, side: Side, proxy: ReplicaSet, coll: Any,
    database: str, control: Any, sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    telemetry = instrument(timeout_ms=timeout_ms)
    command, call, counts, documents = BULKS[name]
    times = 1 if timeout_ms is None else 3
    proxy.inject(
        StopClientsBulkAt(0, times) if command == "bulkWrite" else StopAt(command, 1, times)
    )
    function, models = call(coll)
    result = side.do(function, models, ordered=ordered)
    commands = sent.named(command)
    assert len(commands) == times + 1
    assert len({each["txnNumber"] for each in commands}) == 1
    assert {count: getattr(result, count) for count in counts} == counts
    if name == "client, verbose":
        several = result.insert_results, result.update_results, result.delete_results
        assert [index for each in several for index in each] == [*range(5)]
    found = {each["_id"]: each.get("n") for each in control[database].coll.find()}
    assert found == documents
    reasons = [each.reason for each in telemetry.decisions.events]
    assert reasons == [RetryReason.NOT_PRIMARY] * times
    assert all(isinstance(each, RetryScheduled) for each in telemetry.decisions.events)


class ElectionAt(OnCommand):
    """The primary stops at a statement since it has just stepped down; nothing is executed."""

    def __init__(self, fault: Any, deployment: ReplicaSet) -> None:
        super().__init__(fault._command)
        self._fault, self._deployment, self._elections = fault, deployment, set[Any]()

    def verdict(self, request: Any) -> Any:
        election = Election(0.3).strike(self._deployment, ())
        self._elections.add(asyncio.get_running_loop().create_task(election))
        return self._fault.verdict(request)


@pytest.mark.parametrize("timeout_ms", [None, 20_000])
@pytest.mark.parametrize("name", ["update_one", "bulk_write", "client"])
def test_its_one_retry_without_a_timeout_waits_for_the_new_primary(
    name: str, timeout_ms: int | None, side: Side, replica_set: ReplicaSet, database: str,
    sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    """Of statements that fail the driver learns nothing about the server."""
    instrument(timeout_ms=timeout_ms)
    client = side.client(replica_set.uri, event_listeners=[sent])
    coll = client[database].coll
    side.do(coll.insert_one, {"_id": 1, "n": 0})
    command = "bulkWrite" if name == "client" else "update"
    fault = StopClientsBulkAt(0) if name == "client" else FailStatement("update", code=189)
    replica_set.inject(ElectionAt(fault, replica_set))
    if name == "update_one":
        side.do(coll.update_one, {"_id": 1}, INC)
    elif name == "bulk_write":
        side.do(coll.bulk_write, [UpdateOne({"_id": 1}, INC)])
    else:
        model = UpdateOne({"_id": 1}, INC, namespace=f"{database}.coll")
        side.do(client.bulk_write, [model])
    assert len({each["txnNumber"] for each in sent.named(command)}) == 1
    # With a timeout, there are more retries if the election takes long on a busy machine.
    assert len(sent.named(command)) == 2 or timeout_ms is not None
    assert side.do(coll.find_one) == {"_id": 1, "n": 1}


@pytest.mark.parametrize("verbose", [True, False])
def test_the_last_error_of_a_clients_bulk_is_what_the_server_has_sent(
    verbose: bool, side: Side, proxy: ReplicaSet, coll: Any, database: str, instrument: Instrument
) -> None:
    instrument()
    proxy.inject(StopClientsBulkAt(1, 50))
    models = models_of(database)
    with pytest.raises(ClientBulkWriteException) as caught:
        side.do(coll.database.client.bulk_write, models, verbose_results=verbose)
    error = caught.value
    assert (error.error, error.write_concern_errors) == (None, [])
    listed: Any = error.write_errors
    assert [(each["idx"], each["code"]) for each in listed] == [(1, 189)]
    assert listed[0]["op"]["document"] == {"_id": 8}
    assert error.partial_result is not None
    assert error.partial_result.inserted_count == 1
    if verbose:
        assert error.partial_result.insert_results[0].inserted_id == 7
    assert "'writeConcernErrors': []" in str(error)
    assert vars(error)["attempts"] >= 2


ROUTERS = (133, 6, 7, 89, 90, 202, 262, 9001)
"""mongos lists a statement with one of these where a shard has no primary or does not answer."""
CODES = [91, 10107, 11600, 11602, 13435, 13436, 112, 24, 365, 462, 91331, *ROUTERS]


def increment(side: Side, coll: Any, *, client_bulk: bool) -> Any:
    """Two documents, in one bulk."""
    if client_bulk:
        models = [UpdateOne({"_id": n}, INC, namespace=coll.full_name) for n in (1, 2)]
        return side.do(coll.database.client.bulk_write, models)
    return side.do(coll.bulk_write, [UpdateOne({"_id": n}, INC) for n in (1, 2)])


@pytest.mark.parametrize("client_bulk", [True, False])
def test_so_it_is_for_each_code_after_which_a_single_write_is_repeated(
    client_bulk: bool, side: Side, proxy: ReplicaSet, coll: Any, database: str, control: Any,
    instrument: Instrument,
) -> None:  # fmt: skip
    telemetry = instrument(base_backoff_ms=1, retry_budget="off")
    for times, code in enumerate(CODES, start=1):
        telemetry.clear()
        proxy.inject(
            StopClientsBulkAt(0, code=code) if client_bulk else StopAt("update", 1, code=code)
        )
        assert increment(side, coll, client_bulk=client_bulk).modified_count == 2
        found = control[database].coll.find({"_id": {"$lt": 3}})
        assert [each["n"] for each in found] == [times] * 2
        assert [each.reason for each in telemetry.decisions.events] == [BY_CODE[code]]


@pytest.mark.parametrize("client_bulk", [True, False])
def test_after_any_other_code_it_is_final(
    client_bulk: bool, side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument(timeout_ms=20_000)
    for code in (13, 18, 50, 64, 121, 11000, 11601):
        sent.started_events.clear()
        proxy.inject(
            StopClientsBulkAt(1, code=code) if client_bulk else StopAt("update", 1, code=code)
        )
        with pytest.raises(ClientBulkWriteException if client_bulk else BulkWriteError):
            increment(side, coll, client_bulk=client_bulk)
        assert len(sent.started_events) == 1


@pytest.mark.parametrize(
    ("client_bulk", "where"),
    [
        (False, "transaction"), (False, "retryWrites=False"), (False, "driver"),
        (True, "cursor"), (True, "retryWrites=False"), (True, "mongodb"),
    ],
)  # fmt: skip
def test_what_has_no_number_or_another_strategy_is_final(
    client_bulk: bool, where: str, side: Side, proxy: ReplicaSet, coll: Any, database: str,
    sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    instrument(**({"config_strategy": where} if where in ("driver", "mongodb") else {}))
    uri = {"retryWrites": False} if where == "retryWrites=False" else {}
    client = side.client(proxy.uri, event_listeners=[sent], **uri)
    side.do(client.admin.command, "ping")
    fault = StopClientsBulkAt(1)
    if where == "cursor":
        # The rest of the results is to be fetched: an ordered bulk ends with its first error.
        fault._counts["cursor"] = {
            "id": Int64(5), "firstBatch": fault._results, "ns": "admin.$cmd.bulkWrite",
        }  # fmt: skip
    proxy.inject(fault if client_bulk else StopAt("insert", 1))
    with session_of(side, client) as session:
        if where == "transaction":
            side.do(session.start_transaction)
        bulk = client.bulk_write if client_bulk else client[database].coll.insert_many
        models = models_of(database) if client_bulk else [{}, {}]
        with pytest.raises((ClientBulkWriteException, BulkWriteError)):
            side.do(bulk, models, session=session)
    assert len(sent.named("insert", "bulkWrite")) == 1


def test_an_unordered_bulk_goes_on_behind_what_no_retry_mends(
    side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    """As in plain pymongo: the updates are sent although the inserts failed twice."""
    instrument()
    proxy.inject(StopAt("insert", 1, 2, code=133))
    models = [InsertOne({"_id": 7}), InsertOne({"_id": 8}), UpdateOne({"_id": 1}, INC)]
    with pytest.raises(BulkWriteError) as caught:
        side.do(coll.bulk_write, models, ordered=False)
    details = caught.value.details
    assert [(each["index"], each["code"]) for each in details["writeErrors"]] == [(1, 133)]
    assert (details["nInserted"], details["nModified"]) == (1, 1)
    assert (len(sent.named("insert")), len(sent.named("update"))) == (2, 1)


@pytest.mark.parametrize("more", [{}, {"errorLabels": ["RetryableWriteError"]}])
def test_its_last_error_is_what_the_server_has_sent(
    more: dict[str, Any], side: Side, proxy: ReplicaSet, coll: Any, instrument: Instrument
) -> None:
    instrument()
    proxy.inject(StopAt("update", 1, 50, more=more))
    models = [InsertOne({"_id": 9}), *(UpdateOne({"_id": n}, INC) for n in (1, 2))]
    with pytest.raises(BulkWriteError) as caught:
        side.do(coll.bulk_write, models)
    details = caught.value.details
    assert details["writeConcernErrors"] == []
    assert [(each["index"], each["code"]) for each in details["writeErrors"]] == [(2, 189)]
    assert (details["nInserted"], details["nMatched"]) == (1, 1)
    assert "'writeConcernErrors': []" in str(caught.value)
    assert vars(caught.value)["attempts"] >= 2


@pytest.mark.parametrize(("n", "errors", "says"), [(2, 0, True), (2, 1, False), (3, 0, False)])
def test_documents_that_a_server_does_not_account_for_are_named_in_the_log(
    n: int, errors: int, says: bool, side: Side, proxy: ReplicaSet, coll: Any,
    instrument: Instrument, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """MongoDB 4.4.4 answers ``{n: 2, ok: 1}`` where an unordered insert of three is repeated of
    which one is a duplicate."""
    instrument()
    listed = [{"index": 1, "code": 11000, "errmsg": "E11000"}] * errors
    more = {"n": n, "writeErrors": listed} if listed else {"n": n}
    fault = StopAt("insert", 1, more=more)
    if not listed:
        del fault._reply["writeErrors"]
    proxy.inject(fault)
    models = [{"_id": "canary"}, {}, {}]
    if errors:
        with pytest.raises(BulkWriteError):
            side.do(coll.insert_many, models, ordered=False)
    else:
        assert len(side.do(coll.insert_many, models, ordered=False).inserted_ids) == 3
    lines = [each for each in caplog.messages if "for 3 documents, the server reports 2" in each]
    assert bool(lines) is says
    assert "canary" not in caplog.text


@pytest.mark.parametrize(
    "fields",
    [{"writeErrors": None}, {"writeErrors": [5]}, {"writeErrors": "no"}, {"n": "no"}],
    ids=str,
)
def test_a_reply_of_another_shape_is_left_to_the_driver(
    fields: dict[str, Any], coll: Any, side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    """And it is no fault of ours: what comes of it is what comes of it without the library."""

    def outcome() -> Any:
        fault = StopAt("insert", 0, more=fields)
        if "writeErrors" not in fields:
            del fault._reply["writeErrors"]
        proxy.inject(fault)
        try:
            return side.do(coll.insert_many, [{"_id": 7}]).inserted_ids
        except Exception as error:  # noqa: BLE001 - the driver's
            return type(error), str(error)

    plain = outcome()
    instrument()
    assert outcome() == plain
