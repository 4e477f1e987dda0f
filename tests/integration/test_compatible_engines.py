"""Servers without retryable writes, and servers that throttle: what is retried, and what the error
says. Plain pymongo runs beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from pymongo import DeleteOne, InsertOne, UpdateOne
from pymongo.errors import AutoReconnect, BulkWriteError, OperationFailure, PyMongoError
from support.clients import SentCommands, Side
from support.engines import (
    COSMOS_DB,
    DOCUMENTDB,
    STANDALONE,
    RefuseNumbers,
    RequestUnits,
    Throttle,
    ThrottleStatements,
)
from support.telemetry import Instrument
from support.transactions import session_of

from pymongo_resilience import Policy, bind, override
from pymongo_resilience.events import RetryDeclined, RetryScheduled
from pymongo_resilience.rules.failure import RetryReason
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import CutAfter, CutBefore, Fail, ReplicaSet
from pymongo_resilience.testing import set_active

pytestmark = [pytest.mark.oldest, pytest.mark.each_setup]

Call = Callable[[Side, Any], Any]
SET = {"$set": {"paid": True}}
ONE = {"_id": 1}
WRITES: dict[str, tuple[str, Call]] = {
    "insert_one": ("insert", lambda side, db: side.do(db.coll.insert_one, {"_id": 9})),
    "update_one": ("update", lambda side, db: side.do(db.coll.update_one, ONE, SET)),
    "update_many": ("update", lambda side, db: side.do(db.coll.update_many, {}, SET)),
    "replace_one": ("update", lambda side, db: side.do(db.coll.replace_one, ONE, {"a": 1})),
    "delete_one": ("delete", lambda side, db: side.do(db.coll.delete_one, ONE)),
    "delete_many": ("delete", lambda side, db: side.do(db.coll.delete_many, {})),
    "find_one_and_update": (
        "findAndModify", lambda side, db: side.do(db.coll.find_one_and_update, ONE, SET),
    ),
    "insert_many": (
        "insert", lambda side, db: side.do(db.coll.insert_many, [{"_id": 8}, {"_id": 9}]),
    ),
    "bulk_write": ("update", lambda side, db: side.do(db.coll.bulk_write, [UpdateOne(ONE, SET)])),
    "create_index": ("createIndexes", lambda side, db: side.do(db.coll.create_index, "a")),
}  # fmt: skip
NEEDS_DECLARATION = "declare it idempotent with override(idempotent=True)"


@pytest.fixture
def filled(control: Any, database: str) -> str:
    with set_active(False):
        control[database].coll.insert_many([{"_id": n} for n in range(3)])
    return database


def ready(side: Side, proxy: ReplicaSet, name: str, **options: Any) -> Any:
    """A database of a client whose connection is made, and which sends no transaction numbers."""
    db = side.client(proxy.uri, **{"retryWrites": False, **options})[name]
    side.do(db.coll.find_one)
    return db


def documents(control: Any, database: str) -> list[Any]:
    with set_active(False):
        return list(control[database].coll.find(sort=[("_id", 1)]))


@pytest.mark.parametrize("name", WRITES)
def test_a_declared_write_survives_without_retryable_writes(
    name: str, side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    """A lost connection, before or after execution. Plain pymongo and undeclared writes fail."""
    instrument()
    db = ready(side, proxy, filled)
    proxy.inject(RefuseNumbers())
    command, write = WRITES[name]
    for block in (set_active(False), nullcontext()):
        proxy.inject(CutBefore(command))
        with block, pytest.raises(AutoReconnect):
            write(side, db)
    for fault in (CutBefore, CutAfter):
        proxy.inject(struck := fault(command))
        with override(idempotent=True):
            write(side, db)
        assert struck.injected == 1
        if name.startswith("insert"):
            side.do(db.coll.delete_many, {"_id": {"$gt": 7}})


@pytest.mark.parametrize("how", ["a bound collection", "a rule"])
def test_a_policy_declares_as_a_block_does(
    how: str, side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    declared = Policy(idempotent=True)
    instrument(policies={f"{filled}.*": declared} if how == "a rule" else None)
    db = ready(side, proxy, filled)
    coll = bind(db.coll, declared) if how == "a bound collection" else db.coll
    proxy.inject(CutAfter("insert"))
    side.do(coll.insert_one, {"_id": 9})
    proxy.inject(CutBefore("ping"))
    if how == "a rule":
        assert side.do(db.command, "ping")["ok"] == 1


def test_an_undeclared_write_is_sent_as_often_as_by_plain_pymongo(
    side: Side, proxy: ReplicaSet, filled: str, sent: SentCommands, instrument: Instrument
) -> None:
    telemetry = instrument()
    db = ready(side, proxy, filled, event_listeners=[sent])
    for block in (set_active(False), nullcontext()):
        sent.started_events.clear()
        proxy.inject(CutAfter("update"))
        with block, pytest.raises(AutoReconnect) as caught:
            side.do(db.coll.update_one, ONE, SET)
        assert len(sent.named("update")) == 1
    (declined,) = telemetry.decisions.events
    assert declined.rule is Rule.NOT_SAFE
    assert NEEDS_DECLARATION in str(caught.value)


def test_retry_reads_off_still_applies_to_declared_commands(
    side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    instrument()
    db = ready(side, proxy, filled, retryReads=False)
    proxy.inject(CutBefore("ping"))
    with override(idempotent=True), pytest.raises(AutoReconnect):
        side.do(db.command, "ping")


@pytest.mark.parametrize("reply", [DOCUMENTDB, COSMOS_DB, STANDALONE], ids=["301", "2", "20"])
@pytest.mark.parametrize("declared", [False, True])
def test_a_refused_number_is_final_and_the_error_says_what_to_set(
    reply: dict[str, Any], declared: bool, side: Side, proxy: ReplicaSet, filled: str,
    instrument: Instrument,
) -> None:  # fmt: skip
    telemetry = instrument()
    db = ready(side, proxy, filled, retryWrites=True)
    proxy.inject(refused := RefuseNumbers(reply))
    with set_active(False), pytest.raises(OperationFailure) as plain:
        side.do(db.coll.update_one, ONE, SET)
    with override(idempotent=declared), pytest.raises(OperationFailure) as caught:
        side.do(db.coll.update_one, ONE, SET)
    assert refused.injected == 2
    assert str(caught.value).startswith(str(plain.value).split(", full error")[0])
    assert (caught.value.code, caught.value.details) == (plain.value.code, plain.value.details)
    for advice in ("retryWrites=false in the URI", "override(idempotent=True)"):
        assert advice in str(caught.value)
    assert "retryWrites=true" not in str(caught.value)
    (declined,) = telemetry.decisions.events
    assert (declined.reason, declined.rule) == (
        RetryReason.NO_RETRYABLE_WRITES,
        Rule.UNKNOWN_REASON,
    )


def test_a_document_that_quotes_the_refusal_is_no_refusal(
    side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    db = ready(side, proxy, filled, retryWrites=True)
    proxy.inject(Fail("update", code=121, text="failed: { a: 'Retryable writes are not supported'"))
    with pytest.raises(OperationFailure) as caught:
        side.do(db.coll.update_one, ONE, SET)
    assert "in the URI" not in str(caught.value)
    assert telemetry.decisions.events[-1].reason is RetryReason.UNKNOWN


@pytest.mark.parametrize("name", [*WRITES, "a find", "a command"])
def test_a_throttled_operation_waits_as_long_as_the_server_says(
    name: str, side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    """Plain pymongo raises the error at once."""
    telemetry = instrument(base_backoff_ms=1)
    db = ready(side, proxy, filled)
    others: dict[str, tuple[str, Call]] = {
        "a find": ("find", lambda side, db: side.do(db.coll.find_one)),
        "a command": ("ping", lambda side, db: side.do(db.command, "ping")),
    }
    command, call = (WRITES | others)[name]
    proxy.inject(Throttle(command))
    with set_active(False), pytest.raises(OperationFailure):
        call(side, db)
    proxy.inject(throttle := Throttle(command, times=2, after_ms=60))
    with override(idempotent=True):
        call(side, db)
    ended = time.monotonic()
    first, second = throttle.at
    assert second - first >= 0.06
    assert ended - second >= 0.06
    events = [each for each in telemetry.decisions.events if isinstance(each, RetryScheduled)]
    assert {each.reason for each in events} == {RetryReason.THROTTLED}
    assert all(0.06 <= each.delay < 0.1 for each in events)
    assert telemetry.shows_reason("throttled")


@pytest.mark.parametrize("name", WRITES)
def test_a_throttled_write_that_is_not_declared_is_final(
    name: str, side: Side, proxy: ReplicaSet, filled: str, control: Any, instrument: Instrument
) -> None:
    """The server may have executed a part of it. The error says what to change."""
    telemetry = instrument()
    db = ready(side, proxy, filled)
    command, write = WRITES[name]
    proxy.inject(throttle := Throttle(command, times=2))
    with set_active(False), pytest.raises(OperationFailure) as plain:
        write(side, db)
    with pytest.raises(OperationFailure) as caught:
        write(side, db)
    assert throttle.injected == 2
    assert type(caught.value) is type(plain.value)
    assert caught.value.details == plain.value.details
    assert NEEDS_DECLARATION in str(caught.value)
    assert "retryWrites" not in str(caught.value)
    assert telemetry.decisions.events[-1].rule is Rule.NOT_SAFE
    assert documents(control, filled) == [{"_id": n} for n in range(3)]


def test_a_throttled_write_with_a_number_is_retried_with_the_same_one(
    side: Side, proxy: ReplicaSet, filled: str, sent: SentCommands, instrument: Instrument
) -> None:
    """Cosmos DB with retryable writes. The server recognizes what it has executed."""
    instrument(base_backoff_ms=1)
    db = ready(side, proxy, filled, retryWrites=True, event_listeners=[sent])
    for command, write in (WRITES["insert_one"], WRITES["bulk_write"]):
        proxy.inject(Throttle(command, after_ms=1))
        write(side, db)
        first, second = sent.named(command)
        assert first["txnNumber"] == second["txnNumber"]


def test_without_a_time_the_usual_delay_applies_and_a_huge_one_is_capped(
    side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    telemetry = instrument(base_backoff_ms=1, max_backoff_ms=20)
    db = ready(side, proxy, filled)
    for after_ms, least in ((None, 0), (999_999_999, 0.02)):
        telemetry.decisions.events.clear()
        proxy.inject(Throttle("delete", after_ms=after_ms))
        with override(idempotent=True):
            side.do(db.coll.delete_one, ONE)
        (scheduled,) = telemetry.decisions.events
        assert least <= scheduled.delay <= 0.05


def test_no_wait_passes_the_deadline(
    side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    db = ready(side, proxy, filled)
    proxy.inject(Throttle("update", after_ms=60_000))
    began = time.monotonic()
    with override(idempotent=True, timeout_ms=5_000), pytest.raises(OperationFailure) as caught:
        side.do(db.coll.update_one, ONE, SET)
    assert time.monotonic() - began < 4
    assert (caught.value.code, telemetry.decisions.events[-1].rule) == (16500, Rule.OVERLOAD_WAIT)
    assert "throttles this client" in str(caught.value)


def test_throttling_costs_the_budget_but_opens_no_breaker(
    side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    telemetry = instrument(
        retry_budget="tokens",
        retry_token_capacity=2,
        base_backoff_ms=1,
        circuit_breaker="always",
        circuit_breaker_minimum_calls=1,
    )
    db = ready(side, proxy, filled)
    proxy.inject(throttle := Throttle("update", times=99, after_ms=1))
    with override(idempotent=True), pytest.raises(OperationFailure) as caught:
        side.do(db.coll.update_one, ONE, SET)
    assert throttle.injected == 3
    assert telemetry.decisions.events[-1].rule is Rule.BUDGET
    assert "raise the throughput of the collection" in str(caught.value)
    proxy.clear()
    side.do(db.coll.update_one, ONE, SET)


def test_a_throttled_statement_ends_its_transaction(
    side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    db = ready(side, proxy, filled)
    with override(idempotent=True), session_of(side, db.client) as session:
        side.do(session.start_transaction)
        proxy.inject(throttle := Throttle("update", times=2))
        with pytest.raises(OperationFailure):
            side.do(db.coll.update_one, ONE, SET, session=session)
        proxy.clear()
        side.do(session.abort_transaction)
    assert throttle.injected == 1
    declined = [each for each in telemetry.decisions.events if isinstance(each, RetryDeclined)]
    assert declined[0].rule is Rule.NEVER_RETRIED


def test_the_strategy_of_the_specifications_does_not_know_throttling(
    side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    instrument(config_strategy="mongodb")
    db = ready(side, proxy, filled)
    for name in ("update_one", "insert_many"):
        command, write = WRITES[name]
        proxy.inject(throttle := Throttle(command))
        with override(idempotent=True), pytest.raises(OperationFailure):
            write(side, db)
        assert throttle.injected == 1


INSERTS = [{"_id": n} for n in range(10, 20)]
STOPS = ([3], [0], [2, 5])
"""For each command in turn, the throttled statements."""


@pytest.mark.parametrize("ordered", [True, False])
def test_a_declared_insert_many_continues_at_what_was_throttled(
    ordered: bool, side: Side, proxy: ReplicaSet, server: Any, filled: str, control: Any,
    sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    """What the server has executed is not sent again: it would be a duplicate."""
    telemetry = instrument(base_backoff_ms=1)
    db = ready(side, proxy, filled, event_listeners=[sent])
    proxy.inject(ThrottleStatements("insert", server.address, *STOPS))
    with override(idempotent=True):
        result = side.do(db.coll.insert_many, INSERTS, ordered=ordered)
    assert result.inserted_ids == [each["_id"] for each in INSERTS]
    assert documents(control, filled)[3:] == INSERTS
    numbers = [[each["_id"] for each in command["documents"]] for command in sent.named("insert")]
    if ordered:
        assert [each[0] for each in numbers] == [10, 13, 13, 15]
    else:
        assert numbers == [list(range(10, 20)), [13], [13]]
    scheduled = [each for each in telemetry.decisions.events if isinstance(each, RetryScheduled)]
    assert len(scheduled) == len(numbers) - 1
    assert all(each.delay >= 0.008 for each in scheduled)


@pytest.mark.parametrize("ordered", [True, False])
def test_throttled_statements_that_were_executed_count_as_inserted(
    ordered: bool, side: Side, proxy: ReplicaSet, server: Any, filled: str, control: Any,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument(base_backoff_ms=1)
    db = ready(side, proxy, filled)
    proxy.inject(ThrottleStatements("insert", server.address, [3], executes_them=True))
    with override(idempotent=True):
        result = side.do(db.coll.bulk_write, [InsertOne(each) for each in INSERTS], ordered=ordered)
    assert result.inserted_count == len(INSERTS)
    assert documents(control, filled)[3:] == INSERTS


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("declared", [True, False])
def test_a_throttled_bulk_write_that_is_not_continued_raises_what_pymongo_raises(
    declared: bool, ordered: bool, side: Side, proxy: ReplicaSet, server: Any, filled: str,
    control: Any, instrument: Instrument,
) -> None:  # fmt: skip
    """Undeclared, or declared with no retries left."""
    instrument(max_retries=0)
    db = ready(side, proxy, filled)
    found: list[Any] = []
    for block in (set_active(False), override(idempotent=declared)):
        proxy.inject(ThrottleStatements("insert", server.address, [4]))
        with block, pytest.raises(BulkWriteError) as caught:
            side.do(db.coll.insert_many, INSERTS, ordered=ordered)
        found.append((caught.value.details, documents(control, filled)))
        with set_active(False):
            control[filled].coll.delete_many({"_id": {"$gte": 10}})
    plain, ours = found
    assert ours == plain
    assert plain[0]["nInserted"] == (4 if ordered else 9)
    assert [each["index"] for each in plain[0]["writeErrors"]] == [4]
    assert "throttl" in str(caught.value).partition(", 1 attempt; ")[2]
    assert "writeConcernErrors': []" in str(caught.value)


def test_a_mixed_bulk_write_continues_in_order(
    side: Side, proxy: ReplicaSet, server: Any, filled: str, control: Any, instrument: Instrument
) -> None:
    instrument(base_backoff_ms=1)
    db = ready(side, proxy, filled)
    proxy.inject(ThrottleStatements("insert", server.address, [1]))
    proxy.inject(ThrottleStatements("update", server.address, [1], [0]))
    models = [
        *(InsertOne({"_id": n}) for n in (10, 11)),
        *(UpdateOne({"_id": n}, {"$set": {"n": n}}) for n in (0, 1, 10)),
        DeleteOne({"_id": 2}),
    ]
    with override(idempotent=True):
        result = side.do(db.coll.bulk_write, models)
    counts = (result.inserted_count, result.modified_count, result.deleted_count)
    assert counts == (2, 3, 1)
    assert documents(control, filled) == [
        {"_id": 0, "n": 0}, {"_id": 1, "n": 1}, {"_id": 10, "n": 10}, {"_id": 11},
    ]  # fmt: skip


def test_an_unordered_bulk_write_sends_everything_else_as_plain_pymongo_does(
    side: Side, proxy: ReplicaSet, server: Any, filled: str, control: Any, instrument: Instrument
) -> None:
    """Throttled inserts are final there if updates follow; the updates are sent."""
    instrument(base_backoff_ms=1)
    db = ready(side, proxy, filled)
    models = [*(InsertOne({"_id": n}) for n in (10, 11)), UpdateOne(ONE, SET)]
    found: list[Any] = []
    for block in (set_active(False), override(idempotent=True)):
        proxy.inject(ThrottleStatements("insert", server.address, [0]))
        with block, pytest.raises(BulkWriteError) as caught:
            side.do(db.coll.bulk_write, models, ordered=False)
        found.append((caught.value.details["nInserted"], documents(control, filled)))
        with set_active(False):
            control[filled].coll.delete_many({"_id": {"$gte": 10}})
            control[filled].coll.update_one(ONE, {"$unset": {"paid": 1}})
    assert found[0] == found[1]


def test_declared_writes_under_throttling_all_succeed_where_plain_pymongo_fails(
    side: Side, proxy: ReplicaSet, filled: str, control: Any, instrument: Instrument
) -> None:
    instrument(base_backoff_ms=10)
    db = ready(side, proxy, filled)
    failed: list[int] = []
    for block in (set_active(False), override(idempotent=True)):
        proxy.inject(RequestUnits(rate=10, burst=3))
        errors = 0
        with block:
            for number in range(15):
                try:
                    side.do(db.coll.insert_one, {"_id": f"{len(failed)} {number}"})
                except PyMongoError:
                    errors += 1
        failed.append(errors)
        proxy.clear()
    assert failed[0] > 0
    assert failed[1] == 0
    with set_active(False):
        assert control[filled].coll.count_documents({"_id": {"$regex": "^1 "}}) == 15
