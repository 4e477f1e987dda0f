"""The rules at work on real sockets: what is repeated, and above all what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from pymongo_resilience_instrumentation.tools.testbed import (
    CutAfter,
    CutBefore,
    NotPrimary,
    Overload,
    Refuse,
)
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import SentCommands, Side, fail_command
from support.telemetry import Instrument

from pymongo_resilience import override
from pymongo_resilience.errors import RetryReason
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.strategies import RetryAction
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest

READS: dict[str, tuple[Callable[[Any], tuple[Any, ...]], str]] = {
    "find_one": (lambda c: (c.find_one,), "find"),
    "aggregate": (lambda c: (c.aggregate, [{"$match": {}}]), "aggregate"),
    "count_documents": (lambda c: (c.count_documents, {}), "aggregate"),
    "estimated_document_count": (lambda c: (c.estimated_document_count,), "count"),
    "distinct": (lambda c: (c.distinct, "a"), "distinct"),
    "list_indexes": (lambda c: (c.list_indexes,), "listIndexes"),
}


@pytest.fixture
def ready(side: Side, proxy: ReplicaSet) -> Any:
    """A client of the side whose connection is made: faults hit the operation, not the start."""
    client = side.client(proxy.uri)
    side.do(client.admin.command, "ping")
    return client


@pytest.mark.parametrize("method", READS)
def test_reads_are_repeated_as_often_as_the_deadline_allows(
    method: str, side: Side, ready: Any, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    make, command = READS[method]
    proxy.inject(CutBefore(command, times=4))
    side.do(*make(ready[database].coll))
    assert [event.reason for event in telemetry.decisions.events] == [
        RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT
    ] * 4


@pytest.mark.parametrize(
    "code", [6, 7, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436]
)
def test_every_retryable_code_is_repeated_for_a_read(
    code: int,
    side: Side,
    server: EmbeddedServer,
    database: str,
    control: Any,
    instrument: Instrument,
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    coll = side.client(server.uri)[database].coll
    with fail_command(control, "find", errorCode=code, times=2):
        assert side.do(coll.find_one) is None
    assert len(telemetry.decisions.events) == 2


def _get_more(side: Side, client: Any, database: str) -> None:
    side.do(client[database].coll.insert_many, [{"_id": n} for n in range(5)])
    side.documents(client[database].coll.find(batch_size=2))


def _in_a_transaction(side: Side, client: Any, database: str) -> None:
    async def asynchronous() -> None:
        async with client.start_session() as session, await session.start_transaction():
            await client[database].coll.find_one({}, session=session)

    if side.name == "async":
        side.do(asynchronous)
        return
    with client.start_session() as session, session.start_transaction():
        client[database].coll.find_one({}, session=session)


NEVER: dict[str, tuple[Callable[[Side, Any, str], Any], str, Rule]] = {
    "getMore": (_get_more, "getMore", Rule.NEVER_REPEATED),
    "runCommand": (
        lambda side, client, db: side.do(client[db].command, "ping"), "ping", Rule.NEVER_REPEATED,
    ),
    "cursor_command": (
        lambda side, client, db: side.do(
            client[db].cursor_command, "aggregate", "coll", pipeline=[{"$out": "other"}], cursor={}
        ),
        "aggregate", Rule.NEVER_REPEATED,
    ),
    "$out": (
        lambda side, client, db: side.do(client[db].coll.aggregate, [{"$out": "other"}]),
        "aggregate", Rule.NEVER_REPEATED,
    ),
    "transaction": (_in_a_transaction, "find", Rule.NEVER_REPEATED),
    "update_many": (
        lambda side, client, db: side.do(client[db].coll.update_many, {}, {"$inc": {"n": 1}}),
        "update", Rule.NOT_SAFE,
    ),
    "delete_many": (
        lambda side, client, db: side.do(client[db].coll.delete_many, {"a": 1}),
        "delete", Rule.NOT_SAFE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEVER)
@pytest.mark.parametrize("fault", [CutBefore, CutAfter])
def test_what_must_never_be_repeated_is_not(
    name: str,
    fault: Any,
    side: Side,
    ready: Any,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    call, command, rule = NEVER[name]
    cut = fault(command, times=1)
    proxy.inject(cut)
    # Declaring the block idempotent does not lift rule 0.
    with (
        override(idempotent=rule is Rule.NEVER_REPEATED),
        pytest.raises(pymongo.errors.AutoReconnect),
    ):
        call(side, ready, database)
    assert cut.injected == 1
    # The abort that leaves the transaction's block fails as well: it never began on the server.
    events = telemetry.decisions.events
    declined = [event for event in events if event.operation != "abortTransaction"]
    assert [event.rule for event in declined] == [rule]


@pytest.mark.parametrize("name", NEVER)
def test_an_overloaded_server_has_everything_repeated(
    name: str, side: Side, ready: Any, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(base_backoff_ms=1)
    call, command, _ = NEVER[name]
    proxy.inject(Overload(command, times=3))
    call(side, ready, database)
    assert [event.reason for event in telemetry.decisions.events] == [RetryReason.OVERLOADED] * 3


def test_an_overload_is_repeated_five_times_and_no_more(
    side: Side, ready: Any, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(base_backoff_ms=1, timeout_ms=20_000)
    overload = Overload("update", times=50)
    proxy.inject(overload)
    with pytest.raises(pymongo.errors.OperationFailure) as caught:
        side.do(ready[database].coll.update_many, {}, {"$inc": {"n": 1}})
    assert caught.value.code == 462
    assert overload.injected == 6
    assert telemetry.decisions.events[-1].rule is Rule.ATTEMPTS


def test_a_multi_document_write_is_repeated_when_it_was_not_sent(
    side: Side, ready: Any, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    control[database].coll.insert_many([{"_id": n, "n": 0} for n in range(10)])
    proxy.inject(CutBefore("ping"))
    with pytest.raises(pymongo.errors.AutoReconnect):
        side.do(ready.admin.command, "ping")
    telemetry.clear()
    proxy.inject(Refuse(0.2))
    side.do(ready[database].coll.update_many, {}, {"$inc": {"n": 1}})
    assert {document["n"] for document in control[database].coll.find()} == {1}


def test_declared_idempotent_a_multi_document_write_is_repeated(
    side: Side, ready: Any, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000)
    control[database].coll.insert_many([{"_id": n} for n in range(10)])
    proxy.inject(CutAfter("update", times=2))
    with override(idempotent=True):
        side.do(ready[database].coll.update_many, {}, {"$set": {"paid": True}})
    assert control[database].coll.count_documents({"paid": True}) == 10


def test_an_unacknowledged_write_is_never_repeated(
    side: Side, ready: Any, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    unacknowledged = ready[database].get_collection("coll", write_concern=pymongo.WriteConcern(w=0))
    proxy.inject(CutBefore("ping"))
    with pytest.raises(pymongo.errors.AutoReconnect):
        side.do(ready.admin.command, "ping")
    telemetry.clear()
    refuse = Refuse(0.3)
    proxy.inject(refuse)
    try:
        with override(idempotent=True):
            side.do(unacknowledged.insert_one, {"_id": 1})
    except pymongo.errors.AutoReconnect:
        pass
    # A handshake that was cut is an overload to pymongo 4.18 and later: nothing was sent then.
    scheduled = {event.reason for event in telemetry.decisions.events if hasattr(event, "delay")}
    assert scheduled <= {RetryReason.OVERLOADED}


def test_not_primary_is_repeated_with_the_controlled_back_off(
    side: Side, ready: Any, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    proxy.inject(NotPrimary("insert", times=3))
    side.do(ready[database].coll.insert_one, {"_id": 1})
    assert [event.delay for event in telemetry.decisions.events] == [0.001, 0.01, 0.05]
    assert {event.reason for event in telemetry.decisions.events} == {RetryReason.NOT_PRIMARY}


@pytest.mark.parametrize("option", ["retryWrites", "retryReads"])
def test_what_the_client_switched_off_stays_off(
    option: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000, base_backoff_ms=1)
    client = side.client(proxy.uri, **{option: False})
    side.do(client.admin.command, "ping")
    coll = client[database].coll
    switched_off = {
        "retryWrites": ("insert", lambda: side.do(coll.insert_one, {"_id": 1})),
        "retryReads": ("find", lambda: side.do(coll.find_one)),
    }
    command, call = switched_off.pop(option)
    for fault in (CutBefore(command), Overload(command)):
        proxy.inject(fault)
        with pytest.raises(pymongo.errors.PyMongoError):
            call()
    proxy.inject(Overload("ping"))
    with pytest.raises(pymongo.errors.OperationFailure):
        side.do(client.admin.command, "ping")
    assert not any(hasattr(event, "delay") for event in telemetry.decisions.events)
    (other, call) = switched_off.popitem()[1]
    proxy.inject(CutBefore(other, times=2))
    call()


def test_a_transaction_commits_although_its_commit_was_cut(
    side: Side, ready: Any, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000)
    control[database].create_collection("coll")
    proxy.inject(CutAfter("commitTransaction", times=2))
    proxy.inject(Overload("insert", times=2))

    async def asynchronous() -> None:
        async with ready.start_session() as session, await session.start_transaction():
            await ready[database].coll.insert_one({"_id": 1}, session=session)
            await ready[database].coll.insert_one({"_id": 2}, session=session)

    def synchronous() -> None:
        with ready.start_session() as session, session.start_transaction():
            ready[database].coll.insert_one({"_id": 1}, session=session)
            ready[database].coll.insert_one({"_id": 2}, session=session)

    side.do(asynchronous if side.name == "async" else synchronous)
    assert control[database].coll.count_documents({}) == 2


def test_every_started_command_has_its_end(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    proxy.inject(CutBefore("find", times=3))
    side.do(client[database].coll.find_one)
    assert len(sent.named("find")) == 4
    assert len(sent.started_events) == sent.ended
    assert len({event.operation_id for event in sent.started_events}) == (
        1 if pymongo.version_tuple >= (4, 18) else 4
    )


class _Refuses:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def retry_after(self, operation: Any, failure: Any) -> RetryAction | None:
        self.seen.append((operation.name, dict(operation.data), failure.reason))
        return None if operation.data.get("robot") else RetryAction(0.0)


def test_a_strategy_of_the_users_own_is_asked_and_sees_the_callers_data(
    side: Side, ready: Any, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    strategy = _Refuses()
    instrument(timeout_ms=20_000, strategy=strategy)
    proxy.inject(CutBefore("find", times=2))
    side.do(ready[database].coll.find_one)
    proxy.inject(CutBefore("find"))
    with override(data={"robot": True}), pytest.raises(pymongo.errors.AutoReconnect):
        side.do(ready[database].coll.find_one)
    cut = RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT
    assert strategy.seen == [("find", {}, cut)] * 2 + [("find", {"robot": True}, cut)]
