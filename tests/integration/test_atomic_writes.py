"""Writes to many documents under ``atomic=True``: one transaction, whose counts are returned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pymongo
import pytest
import wrapt
from pymongo import InsertOne, UpdateMany, UpdateOne, WriteConcern
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError
from pymongo.synchronous.collection import Collection
from pymongo_resilience_instrumentation.telemetry import semconv
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import SentCommands, Side
from support.garbage_collection import cancelled_after
from support.interruption import Held, interrupt
from support.servers import cases
from support.telemetry import Instrument
from support.transactions import LOW, DriversTime, drivers_time, session_of

from pymongo_resilience import ConfigurationError, OperationTimeoutError, Policy, bind, override
from pymongo_resilience.events import RetryDeclined
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import (
    CutAfter,
    CutBefore,
    Fail,
    NotPrimary,
    ReplicaSet,
    ShardedCluster,
    Standalone,
)
from pymongo_resilience.testing import set_active

__all__ = ["drivers_time"]
pytestmark = pytest.mark.oldest

INC = {"$inc": {"n": 1}}
TRANSIENT: dict[str, Any] = {"code": 112, "labels": ["TransientTransactionError"]}
UNKNOWN: dict[str, Any] = {"code": 112, "labels": ["UnknownTransactionCommitResult"]}


@pytest.fixture
def opened(side: Side, proxy: ReplicaSet, database: str, control: Any, sent: SentCommands) -> Any:
    """A collection with three documents, whose client was made after ``instrument()``."""

    def open_one(uri: str | None = None, **options: Any) -> Any:
        control[database].coll.insert_many([{"_id": number, "n": 0} for number in (1, 2, 3)])
        client = side.client(proxy.uri if uri is None else uri, event_listeners=[sent], **options)
        side.do(client.admin.command, "ping")
        sent.started_events.clear()
        return client[database].coll

    return open_one


@pytest.fixture
def numbers(database: str, control: Any) -> Callable[[], dict[int, int]]:
    def found() -> dict[int, int]:
        with set_active(False):
            return {each["_id"]: each["n"] for each in control[database].coll.find()}

    return found


def update(coll: Any) -> Any:
    return coll.update_many, {"_id": {"$gt": 0}}, INC


def delete(coll: Any) -> Any:
    return coll.delete_many, {"_id": {"$in": [1, 2]}}


def bulk(coll: Any) -> Any:
    return coll.bulk_write, [InsertOne({"_id": 4, "n": 0}), UpdateMany({}, INC)]


def client_bulk(coll: Any) -> Any:
    models = [
        InsertOne({"_id": 4, "n": 0}, namespace=coll.full_name),
        UpdateMany({}, INC, namespace=coll.full_name),
    ]
    return coll.database.client.bulk_write, models


AFTER = {1: 1, 2: 1, 3: 1}
WRITES: dict[str, tuple[Any, list[str], tuple[int, ...], dict[int, int]]] = {
    "update_many": (update, ["update"], (3, 3), AFTER),
    "delete_many": (delete, ["delete"], (2,), {3: 0}),
    "bulk_write": (bulk, ["insert", "update"], (1, 4), {**AFTER, 4: 1}),
    "client's bulk_write": (client_bulk, ["bulkWrite"], (1, 4), {**AFTER, 4: 1}),
}


def counts(result: Any) -> tuple[int, ...]:
    if hasattr(result, "inserted_count"):
        return (result.inserted_count, result.modified_count)
    names = ("matched_count", "modified_count", "deleted_count")
    return tuple(getattr(result, name) for name in names if hasattr(result, name))


def names(sent: SentCommands) -> list[str]:
    return [event.command_name for event in sent.started_events]


@pytest.mark.parametrize("name", WRITES)
def test_it_is_one_operation_and_one_transaction(
    name: str, side: Side, opened: Any, sent: SentCommands, instrument: Instrument, numbers: Any
) -> None:
    telemetry = instrument()
    coll = opened()
    telemetry.clear()
    write, commands, expected, after = WRITES[name]
    with override(atomic=True):
        result = side.do(*write(coll))
    assert (counts(result), numbers()) == (expected, after)
    assert names(sent) == [*commands, "commitTransaction"]
    first, *others = [event.command for event in sent.started_events]
    assert first["startTransaction"] is True
    assert all(each["autocommit"] is False for each in (first, *others))
    assert {each["txnNumber"] for each in others} == {first["txnNumber"]}
    (operation,) = [span for span in telemetry.operations() if span.parent is None]
    below = [span.attributes[semconv.DB_COMMAND_NAME] for span in telemetry.commands_of(operation)]
    assert below == [*commands, "commitTransaction"]
    assert len(telemetry.spans()) == len(below) + 1, "and no span of a transaction"


FAULTS: dict[str, tuple[Any, int, str]] = {
    "lost reply": (lambda command: CutAfter(command, times=2), 2, "socket_closed_while_in_flight"),
    "cut before": (CutBefore, 1, "socket_closed_while_in_flight"),
    "write conflict": (lambda command: Fail(command, 2, **TRANSIENT), 2, "write_conflict"),
    "lost primary": (NotPrimary, 1, "not_primary"),
}
"""With the number of tries that fail, and the reason of each."""


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("fault", FAULTS)
def test_it_is_repeated_as_a_whole_and_counts_once(
    fault: str, name: str, side: Side, proxy: ReplicaSet, opened: Any, instrument: Instrument,
    numbers: Any,
) -> None:  # fmt: skip
    """By pymongo, so each failed command is final to the rules."""
    telemetry = instrument(timeout_ms=LOW)
    coll = opened()
    telemetry.clear()
    write, commands, expected, after = WRITES[name]
    make, times, reason = FAULTS[fault]
    proxy.inject(make(commands[-1]))
    with override(atomic=True):
        result = side.do(*write(coll))
    assert (counts(result), numbers()) == (expected, after)
    (operation,) = [span for span in telemetry.operations() if span.parent is None]
    below = [span.attributes[semconv.DB_COMMAND_NAME] for span in telemetry.commands_of(operation)]
    assert below.count(commands[-1]) == times + 1
    assert below.count("commitTransaction") == 1
    assert operation.attributes[semconv.OUTCOME] == "ok"
    declined = [each for each in telemetry.decisions.events if isinstance(each, RetryDeclined)]
    reasons = [each.reason.value for each in declined if each.rule is Rule.NEVER_RETRIED]
    assert reasons == [reason] * times


@pytest.mark.parametrize("command", ["update", "commitTransaction"])
def test_on_a_sharded_cluster(
    command: str, side: Side, cluster: ShardedCluster, opened: Any, numbers: Any,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument(timeout_ms=LOW)
    coll = opened(cluster.uri)
    cluster.inject(CutAfter(command), on="all")
    with override(atomic=True):
        assert counts(side.do(*update(coll))) == (3, 3)
    assert numbers() == AFTER


def test_a_policy_holds_wherever_policies_do(
    side: Side, opened: Any, sent: SentCommands, instrument: Instrument, database: str
) -> None:
    instrument(policies={f"{database}.coll": Policy(atomic=True)})
    coll = opened()
    side.do(*update(coll))
    with override(atomic=False):
        side.do(*update(coll))
    assert names(sent) == ["update", "commitTransaction", "update"]
    other = coll.database.other
    sent.started_events.clear()
    side.do(*update(bind(other, Policy(atomic=True))))
    side.do(*update(other))
    assert names(sent) == ["update", "commitTransaction", "update"]


def test_it_needs_no_retries_of_ours(
    side: Side, proxy: ReplicaSet, opened: Any, numbers: Any, instrument: Instrument
) -> None:
    instrument(config_strategy="driver")
    coll = opened()
    proxy.inject(CutAfter("update"))
    with override(atomic=True):
        assert counts(side.do(*update(coll))) == (3, 3)
    assert numbers() == AFTER


@pytest.mark.parametrize("hides", [False, True])
def test_another_library_s_wrapper_is_looked_through(
    hides: bool, side: Side, opened: Any, sent: SentCommands, instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    coll_class = Collection if side.runner is None else AsyncCollection
    called = []

    def note(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        called.append(kwargs)
        return wrapped(*args, **kwargs)

    inner: Any = coll_class.update_many

    def outer(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    async def async_outer(*args: Any, **kwargs: Any) -> Any:
        return await inner(*args, **kwargs)

    made: Any = outer if side.runner is None else async_outer
    if not hides:
        made = wrapt.FunctionWrapper(inner, note)
    monkeypatch.setattr(coll_class, "update_many", made)
    instrument()
    coll = opened()
    if hides:
        with override(atomic=True), pytest.raises(ConfigurationError, match="hides its parameters"):
            side.do(*update(coll))
        assert names(sent) == []
    else:
        with override(atomic=True):
            assert counts(side.do(*update(coll))) == (3, 3)
        assert names(sent) == ["update", "commitTransaction"]
        assert len(called) == 1


def test_a_filter_that_pins_id_is_a_transaction_like_any_other(
    side: Side, opened: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    coll = opened()
    with override(atomic=True):
        side.do(coll.update_many, {"_id": 1}, INC)
    assert names(sent) == ["update", "commitTransaction"]
    assert sent.named("update")[0]["updates"][0]["multi"] is True


def _write_concern(coll: Any, concern: WriteConcern) -> Any:
    return coll.with_options(write_concern=concern)


def test_its_write_concern_is_the_commits(
    side: Side, opened: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    coll = opened(readPreference="secondary", readConcernLevel="majority")
    with override(atomic=True):
        side.do(*update(_write_concern(coll, WriteConcern(w="majority", j=True))))
        models = [UpdateMany({}, INC, namespace=coll.full_name)]
        side.do(coll.database.client.bulk_write, models, write_concern=WriteConcern(w=1))
    commits = [each["writeConcern"] for each in sent.named("commitTransaction")]
    assert commits == [{"w": "majority", "j": True}, {"w": 1}]
    assert all("writeConcern" not in each for each in sent.named("update", "bulkWrite"))
    assert all("readConcern" not in each for each in sent.named("update", "bulkWrite"))


def test_what_it_does_not_hold_for(
    side: Side, opened: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    coll = opened()
    client = coll.database.client

    async def in_a_transaction() -> None:
        async with client.start_session() as session, await session.start_transaction():
            await coll.update_many({}, INC, session=session)

    with override(atomic=True):
        if side.runner is None:
            with client.start_session() as session, session.start_transaction():
                coll.update_many({}, INC, session=session)
        else:
            side.do(in_a_transaction)
        side.do(coll.bulk_write, [InsertOne({"n": 0}), UpdateOne({"_id": 1}, INC)])
        side.do(coll.update_one, {"_id": 1}, INC)
        side.do(coll.find_one)
    assert names(sent).count("commitTransaction") == 1, "the application's own"
    assert [each.get("autocommit") for each in sent.named("update")] == [False, None, None]


@pytest.mark.parametrize("positional", [False, True])
def test_a_session_without_a_transaction_is_refused(
    positional: bool, side: Side, opened: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    coll = opened()
    with session_of(side, coll.database.client) as session, override(atomic=True):
        given = (False, None, None, None, None, session) if positional else ()
        named = {} if positional else {"session": session}
        with pytest.raises(ConfigurationError, match="session is not in a transaction"):
            side.do(coll.update_many, {}, INC, *given, **named)
    assert names(sent) == []


REFUSED: dict[str, tuple[Any, str]] = {
    "write concern 0": (
        lambda coll: update(_write_concern(coll, WriteConcern(w=0))), "write concern w=0",
    ),
    "write concern 0 of the call": (
        lambda coll: (*client_bulk(coll), True, False, None, None, None, WriteConcern(w=0)),
        "write concern w=0",
    ),
    "config": (lambda coll: update(coll.database.client.config.coll), "system collection"),
    "system": (lambda coll: update(coll.database["system.views"]), "system collection"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_transaction_can_do_is_refused_before_it_is_sent(
    name: str, side: Side, opened: Any, sent: SentCommands, instrument: Instrument
) -> None:
    telemetry = instrument()
    coll = opened()
    write, reason = REFUSED[name]
    telemetry.clear()
    function, *arguments = write(coll)
    if "of the call" in name:
        # By position as well: models, session, then the options.
        arguments = [arguments[0], None, *arguments[1:]]
    with override(atomic=True), pytest.raises(ConfigurationError, match=reason) as caught:
        side.do(function, *arguments)
    assert f"{function.__name__} with atomic=True was not sent" in str(caught.value)
    assert names(sent) == []
    assert len(telemetry.operations()) == 1


@pytest.mark.parametrize("known", [True, False])
def test_a_standalone_server_is_refused(
    known: bool, side: Side, server: EmbeddedServer, database: str, sent: SentCommands,
    instrument: Instrument,
) -> None:  # fmt: skip
    """By the server itself, where it is the client's first operation."""
    instrument()
    with Standalone(server.address) as alone:
        client = side.client(alone.uri, event_listeners=[sent], connect=known)
        if known:
            side.do(client.admin.command, "ping")
            sent.started_events.clear()
        refusal: Any = ConfigurationError if known else OperationFailure
        with override(atomic=True), pytest.raises(refusal, match=r"standalone|replica set"):
            side.do(*update(client[database].coll))
        assert names(sent) == ([] if known else ["update", "abortTransaction"])
        side.do(client.close)


@pytest.mark.parametrize(
    "name",
    cases(["bulk_write", "client's bulk_write", "unordered"], {"client's bulk_write": "8.0"}),
)
def test_a_write_that_fails_leaves_nothing_and_counts_nothing(
    name: str, side: Side, opened: Any, numbers: Any, sent: SentCommands, instrument: Instrument
) -> None:
    telemetry = instrument()
    coll = opened()
    telemetry.clear()
    where = {"namespace": coll.full_name} if "client" in name else {}
    models: list[Any] = [UpdateMany({}, INC, **where)]
    models += [InsertOne({"_id": number, "n": 0}, **where) for number in (9, 1)]
    target = coll.database.client if where else coll
    with override(atomic=True), pytest.raises(PyMongoError) as caught:
        side.do(target.bulk_write, models, ordered="unordered" not in name)
    details: Any = caught.value.details  # type: ignore[attr-defined]
    assert details.get("anySuccessful", False) is False
    assert getattr(caught.value, "partial_result", None) is None
    counted = {name: each for name, each in details.items() if name.startswith("n")}
    assert set(counted.values()) == {0}
    assert str(details) in str(caught.value), "in the text as well"
    assert {"nInserted", "nMatched", "nModified"} <= counted.keys()
    assert [each["code"] for each in details["writeErrors"]] == [11000]
    assert numbers() == {1: 0, 2: 0, 3: 0}
    assert names(sent)[-1] == "abortTransaction"


def test_an_error_of_the_application_s_own_is_raised_and_nothing_left(
    side: Side, opened: Any, numbers: Any, control: Any, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    coll = opened()
    control[database].coll.create_index("n", unique=True, partialFilterExpression={"n": {"$gt": 0}})
    telemetry.clear()
    with override(atomic=True), pytest.raises(OperationFailure) as caught:
        side.do(*update(coll))
    assert caught.value.code == 11000
    assert vars(caught.value)["attempts"] == 1
    assert "1 attempt" not in str(caught.value), "an ordinary answer stays as it is"
    declined, *_ = telemetry.decisions.events  # and of the abort of what the server has aborted
    assert isinstance(declined, RetryDeclined)
    assert (declined.rule, declined.operation) == (Rule.NEVER_RETRIED, "update")
    assert numbers() == {1: 0, 2: 0, 3: 0}


def late(fault: Any, clock: DriversTime) -> Any:
    """The fault, that takes the whole of the timeout."""

    class Late(fault):  # type: ignore[misc]  # any
        def on_request(self, request: Any, connection: Any) -> Any:
            answer = super().on_request(request, connection)
            if answer is not None:
                clock.passed += LOW / 1000
            return answer

    return Late


def test_the_deadline_ends_it_and_the_abort_is_sent(
    side: Side, proxy: ReplicaSet, opened: Any, numbers: Any, sent: SentCommands,
    instrument: Instrument, drivers_time: DriversTime,
) -> None:  # fmt: skip
    instrument(timeout_ms=LOW)
    coll = opened()

    proxy.inject(late(Fail, drivers_time)("update", 100, **TRANSIENT))
    with override(atomic=True), pytest.raises(OperationTimeoutError) as caught:
        side.do(*update(coll))
    assert "update_many exceeded its timeout of 20 s" in str(caught.value)
    assert "unknown" not in str(caught.value)
    assert names(sent) == ["update", "abortTransaction"]
    assert numbers() == {1: 0, 2: 0, 3: 0}


@pytest.mark.parametrize(
    "within", [lambda: override(timeout_ms=LOW), lambda: pymongo.timeout(LOW / 1000)]
)
def test_a_commit_that_runs_out_of_time_says_that_its_result_is_unknown(
    within: Any, side: Side, proxy: ReplicaSet, opened: Any, numbers: Any,
    instrument: Instrument, drivers_time: DriversTime,
) -> None:  # fmt: skip
    instrument()
    coll = opened()

    proxy.inject(late(CutAfter, drivers_time)("commitTransaction", 100))
    with within(), override(atomic=True), pytest.raises(OperationTimeoutError) as caught:
        side.do(*update(coll))
    assert "unknown whether the transaction was committed" in str(caught.value)
    assert caught.value.has_error_label("UnknownTransactionCommitResult")
    assert isinstance(caught.value, AutoReconnect)


@pytest.mark.parametrize("ends", [lambda: None, lambda: Fail("commitTransaction", code=2)])
def test_an_error_counts_the_attempts_of_the_commit_as_well(
    ends: Any, side: Side, proxy: ReplicaSet, opened: Any, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=1_500)
    coll = opened()
    telemetry.clear()
    last = ends()
    proxy.inject(CutAfter("commitTransaction", 2 if last else 1000))
    if last:
        proxy.inject(last)
    with override(atomic=True), pytest.raises(PyMongoError) as caught:
        side.do(*update(coll))
    *scheduled, _ = telemetry.decisions.events
    assert len(scheduled) > 1
    error: Any = caught.value
    assert error.retry_reasons == tuple(each.reason for each in scheduled)
    assert error.attempts == 1 + len(scheduled)
    assert f"{error.attempts} attempts" in str(error)
    proxy.clear()


def test_a_commit_that_the_server_gives_up_says_that_its_result_is_unknown(
    side: Side, proxy: ReplicaSet, opened: Any, instrument: Instrument
) -> None:
    instrument()
    coll = opened()
    proxy.inject(Fail("commitTransaction", **{**UNKNOWN, "code": 50}))
    with override(atomic=True), pytest.raises(OperationFailure) as caught:
        side.do(*update(coll))
    assert "unknown whether the transaction was committed" in str(caught.value)
    with override(atomic=True):
        side.do(*update(coll))  # with the same session, which ends what was left open


@pytest.mark.parametrize(
    ("command", "executed", "after"),
    [("update", True, 1), ("commitTransaction", True, 2), ("commitTransaction", False, 1)],
)
def test_however_it_is_interrupted_its_transaction_and_its_session_end(
    command: str, executed: bool, after: int, side: Side, proxy: ReplicaSet, opened: Any,
    sent: SentCommands, instrument: Instrument, control: Any, database: str,
) -> None:  # fmt: skip
    instrument()
    coll, held = opened(), Held(command, executed=executed)
    proxy.inject(held)
    with override(atomic=True):
        interrupt(side, held.has_it, *update(coll))
    proxy.clear()
    assert names(sent)[-1] == "abortTransaction"
    with pymongo.timeout(10):
        control[database].coll.update_many({}, INC)
    assert control[database].coll.distinct("n") == [after]
    sent.started_events.clear()
    side.do(coll.find_one)
    assert names(sent) == ["find"], "nothing of it is in progress"


@pytest.mark.parametrize("repeated", [False, True])
def test_cancelled_at_any_of_its_awaits_it_leaves_no_transaction_open(
    repeated: bool, proxy: ReplicaSet, database: str, control: Any, numbers: Any,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument(timeout_ms=LOW)
    control[database].coll.insert_many([{"_id": number, "n": 0} for number in (1, 2, 3)])

    async def cancelled_at(count: int) -> bool:
        async with pymongo.AsyncMongoClient(proxy.uri) as client:
            if repeated:
                proxy.inject(Fail("update", **TRANSIENT))
            with override(atomic=True):
                finished = await asyncio.create_task(
                    cancelled_after(client[database].coll.update_many({}, INC), count)
                )
            proxy.clear()
        return finished

    async def main() -> list[set[int]]:
        found: list[set[int]] = []
        while not await cancelled_at(len(found)):
            with pymongo.timeout(10):
                control[database].coll.update_many({}, {"$set": {"free": True}})
            found.append(set(numbers().values()))
        return found

    found = asyncio.run(asyncio.wait_for(main(), 60))
    assert len(found) > 10
    assert found == sorted(found, key=max), "never less"
    assert all(len(each) == 1 for each in found), "all or none"
