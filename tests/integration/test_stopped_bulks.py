"""Bulk writes that an election stops half-way: continued with the same transaction number."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from pymongo import DeleteOne, InsertOne, UpdateOne
from pymongo.errors import BulkWriteError
from pymongo_resilience_instrumentation.tools.testbed.faults.command_faults import OnCommand
from pymongo_resilience_instrumentation.tools.testbed.traffic import Amend
from support.clients import SentCommands, Side
from support.telemetry import Instrument

from pymongo_resilience import RetryScheduled, retry_transaction
from pymongo_resilience.rules.failure import RetryReason
from pymongo_resilience.testbed import ReplicaSet

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


INC = {"$inc": {"n": 1}}
BULKS: dict[str, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    "insert_many": ("insert", lambda coll: (coll.insert_many, [{"_id": n} for n in (7, 8, 9)])),
    "insert": ("insert", lambda coll: (coll.bulk_write, [InsertOne({"_id": n}) for n in (7, 8)])),
    "update": (
        "update", lambda coll: (coll.bulk_write, [UpdateOne({"_id": n}, INC) for n in (1, 2, 3)]),
    ),
    "delete": (
        "delete",
        lambda coll: (
            coll.bulk_write, [InsertOne({"_id": 4}), *(DeleteOne({"_id": n}) for n in (1, 2))],
        ),
    ),
}  # fmt: skip


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
    command, bulk = BULKS[name]
    times = 1 if timeout_ms is None else 3
    proxy.inject(StopAt(command, 1, times))
    function, models = bulk(coll)
    result = side.do(function, models, ordered=ordered)
    commands = sent.named(command)
    assert len(commands) == times + 1
    assert len({each["txnNumber"] for each in commands}) == 1
    found = {each["_id"]: each.get("n") for each in control[database].coll.find()}
    before = {1: 0, 2: 0, 3: 0}
    if name == "update":
        assert (result.matched_count, result.modified_count) == (3, 3)
        assert found == {1: 1, 2: 1, 3: 1}
    elif name == "delete":
        assert (result.inserted_count, result.deleted_count) == (1, 2)
        assert found == {3: 0, 4: None}
    else:
        assert len(getattr(result, "inserted_ids", models)) == len(models)
        assert found == {**before, 7: None, 8: None, **({9: None} if len(models) > 2 else {})}
    reasons = [each.reason for each in telemetry.decisions.events]
    assert reasons == [RetryReason.NOT_PRIMARY] * times
    assert all(isinstance(each, RetryScheduled) for each in telemetry.decisions.events)


@pytest.mark.parametrize("code", [91, 10107, 11600, 11602, 13435, 13436])
def test_so_it_is_for_each_code_of_a_member_that_is_no_primary(
    code: int, side: Side, proxy: ReplicaSet, coll: Any, instrument: Instrument
) -> None:
    instrument()
    proxy.inject(StopAt("insert", 0, code=code))
    assert len(side.do(coll.insert_many, [{}, {}]).inserted_ids) == 2


def test_its_last_error_is_what_the_server_has_sent(
    side: Side, proxy: ReplicaSet, coll: Any, instrument: Instrument
) -> None:
    instrument()
    proxy.inject(StopAt("update", 1, 2))
    models = [InsertOne({"_id": 9}), *(UpdateOne({"_id": n}, INC) for n in (1, 2))]
    with pytest.raises(BulkWriteError) as caught:
        side.do(coll.bulk_write, models)
    details = caught.value.details
    assert details["writeConcernErrors"] == []
    assert [(each["index"], each["code"]) for each in details["writeErrors"]] == [(2, 189)]
    assert (details["nInserted"], details["nMatched"]) == (1, 1)
    assert "'writeConcernErrors': []" in str(caught.value)
    assert vars(caught.value)["attempts"] == 2


@pytest.mark.parametrize("where", ["duplicate", "transaction", "retryWrites=False", "driver"])
def test_other_errors_and_writes_without_a_number_are_final(
    where: str, side: Side, proxy: ReplicaSet, database: str, sent: SentCommands, coll: Any,
    instrument: Instrument,
) -> None:  # fmt: skip
    options: dict[str, Any] = {"config_strategy": "driver"} if where == "driver" else {}
    instrument(**options)
    uri = {"retryWrites": False} if where == "retryWrites=False" else {}
    client = side.client(proxy.uri, event_listeners=[sent], **uri)
    side.do(client.admin.command, "ping")
    proxy.inject(StopAt("insert", 1, code=11000 if where == "duplicate" else 189))
    coll = client[database].coll

    def write() -> Any:
        if where != "transaction":
            return coll.insert_many([{}, {}])
        return retry_transaction(client)(insert)() if side.runner is None else async_write()

    def insert(session: Any) -> Any:
        return coll.insert_many([{}, {}], session=session)

    async def async_write() -> Any:
        async def body(session: Any) -> Any:
            return await insert(session)

        return await retry_transaction(client)(body)()

    with pytest.raises(BulkWriteError):
        side.do(write)
    assert len(sent.named("insert")) == 1


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
    lines = [each for each in caplog.messages if "of 3 documents the server counts 2" in each]
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
    """And it is no fault of ours."""
    instrument()
    proxy.inject(StopAt("insert", 0, more=fields))
    with suppress(Exception):
        side.do(coll.insert_many, [{"_id": 7}])
