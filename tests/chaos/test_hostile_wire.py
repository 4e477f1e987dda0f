"""Replies that no server would send: the application sees what pymongo alone would show it.

Every example runs one operation of the public API against the same hostile replies: with plain
pymongo, with the library watching only (strategy ``driver``), and with the library's own retries.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import event, example, given, note, strategies as st
from pymongo.errors import ProtocolError, PyMongoError
from support.chaos.beside_plain_pymongo import Hostile, Laboratory, Run, instead, raised_by_us
from support.chaos.damaged_replies import Damage, damages
from support.chaos.operations_under_attack import OPERATIONS, SEEDS, Operation
from support.hostile_input import (
    BOTH_OVERLOAD_LABELS,
    bson_values,
    cluster_times,
    error_documents,
    examples,
    inner_errors,
    likely_errors,
    write_errors,
)

from pymongo_resilience import OperationTimeoutError
from pymongo_resilience.events import RetryDeclined
from pymongo_resilience.rules.failure import RETRYABLE_WRITE, TRANSIENT_TRANSACTION, RetryReason
from pymongo_resilience.rules.retry_rules import Rule


@pytest.fixture
def laboratory(side: Any, proxy: Any, database: str, control: Any, instrument: Any) -> Laboratory:
    control[database].seeds.insert_many(SEEDS)
    control[database].target.insert_one({"_id": 1, "n": 0})
    control[database].create_collection("inserted")
    return Laboratory(side, proxy, database, instrument)


NAMED = {each.name: each for each in OPERATIONS}
counts = st.integers(0, 5) | bson_values
cursors = (
    st.fixed_dictionaries(
        {},
        optional={
            "id": st.just(0) | bson_values,
            "ns": st.just("db.seeds") | bson_values,
            "firstBatch": st.lists(st.dictionaries(st.just("_id"), bson_values), max_size=2)
            | bson_values,
            "nextBatch": st.lists(st.dictionaries(st.just("_id"), bson_values), max_size=2)
            | bson_values,
        },
    )
    | bson_values
)
garbage = st.fixed_dictionaries(
    {},
    optional={
        "ok": st.just(1.0) | bson_values,
        "n": counts,
        "nModified": counts,
        "nInserted": counts,
        "nErrors": counts,
        "upserted": write_errors,
        "value": bson_values,
        "values": bson_values,
        "lastErrorObject": bson_values,
        "cursor": cursors,
        "writeErrors": write_errors,
        "writeConcernError": inner_errors | bson_values,
        "$clusterTime": cluster_times,
        "operationTime": bson_values,
        "recoveryToken": bson_values,
    },
)
"""Results of any command, and none of them."""
successes = garbage.map(lambda document: {"ok": 1.0} | document)
documents = st.one_of(likely_errors, likely_errors, error_documents, garbage, successes)


def check_watching(plain: Run, watched: Run) -> None:
    """Whoever only watches changes nothing at all."""
    assert watched == plain


def check_retrying(
    operation: Operation, plain: Run, ours: Run, scheduled: list[Any], *, refused: bool
) -> None:
    """Where nothing else was repeated than the driver repeats, nothing else is seen."""
    error = ours.attacked.raised
    if error is not None:
        assert not raised_by_us(error), "an error of the library's own"
        if not scheduled and ours.attempts >= plain.attempts and not refused:
            assert type(error) is type(plain.attacked.raised)
        assert not isinstance(error, OperationTimeoutError), "there is no deadline"
    event(f"{plain.attempts} attempts without the library, {ours.attempts} with it")
    if refused:
        # The driver repeats it, or fails as it waits for that.
        assert scheduled == []
    elif ours.attempts == plain.attempts == 1 and "transaction" in operation.name:
        # The library adds the label with which with_transaction starts over.
        assert ours in (plain, plain.with_a_routers_label())
    elif ours.attempts == plain.attempts == 1:
        assert ours == plain
    elif ours.attempts == plain.attempts and not keeps_what_was_mended(plain, ours):
        # Which of two errors is raised, and which is its cause, a label says that may be malformed.
        assert ours.but_for_the_cause() == plain.but_for_the_cause()
    elif ours.attempts > plain.attempts:
        assert scheduled, "more was sent, and no word of it"
    if not operation.safe:
        assert {each.reason for each in scheduled} <= {RetryReason.OVERLOADED}


def keeps_what_was_mended(plain: Run, ours: Run) -> bool:
    """pymongo leaves the error of a client's bulk write in its result where a label alone says that
    it may be repeated, and raises it at the end, although the retry succeeded."""
    kept = getattr(plain.attacked.raised, "error", None)
    ends = getattr(ours.attacked.raised, "error", None)
    return ours.honest > 0 and kept is not None and ends is None


def is_given_up_for_good(laboratory: Laboratory) -> bool:
    """The code says that repeating cannot mend it, or a label that the transaction is over, where
    the driver believes another label."""
    assert laboratory.telemetry is not None
    return any(
        isinstance(each, RetryDeclined) and each.rule in {Rule.TERMINAL, Rule.TRANSACTION_OVER}
        for each in laboratory.telemetry.decisions.events
    )


def check(
    laboratory: Laboratory,
    operation: Operation,
    hostile: Callable[[], Hostile],
    *,
    refused: bool = False,
) -> tuple[Run, Run]:
    """What holds for any reply; the run without the library, and the one with its retries.

    ``refused``: see ``is_refused``.
    """
    plain = laboratory.plain(operation, hostile)
    event("succeeds" if plain.attacked.error is None else plain.attacked.error[0].__name__)
    watched = laboratory.with_library(operation, hostile, "driver")
    check_watching(plain, watched)
    ours = laboratory.with_library(operation, hostile, "fast_fail")
    scheduled = laboratory.scheduled(operation)
    note(f"{plain}\n{ours}\n{scheduled}")
    check_retrying(operation, plain, ours, scheduled, refused=refused)
    return plain, ours


def says(document: Any, test: Callable[[Any], bool]) -> bool:
    """Whether ``errorLabels`` somewhere in the reply are such as ``test`` says."""
    if isinstance(document, dict):
        here = "errorLabels" in document and test(document["errorLabels"])
        return here or any(says(each, test) for each in document.values())
    return isinstance(document, list) and any(says(each, test) for each in document)


DUPLICATE_KEY = (11000, 11001, 12582)
"""Codes that the driver raises a WriteError for, whatever the command is."""


def is_refused(operation: Operation, document: dict[str, Any]) -> bool:
    """Whether the driver would repeat for its labels what the library must not: the rest of the
    reply shows that it was executed."""
    executed = (
        bool(document.get("ok"))
        or "writeConcernError" in document
        or document.get("code") in DUPLICATE_KEY
    )
    return executed and not operation.safe and says(document, are_both)


def are_both(labels: Any) -> bool:
    return isinstance(labels, list) and all(label in labels for label in BOTH_OVERLOAD_LABELS)


def are_no_list(labels: Any) -> bool:
    return not isinstance(labels, list)


def hostile_error(code: int) -> dict[str, Any]:
    """Of a code that no driver retries, with the label of those that it does."""
    return {"ok": 0.0, "errmsg": "hostile", "code": code, "errorLabels": [RETRYABLE_WRITE]}


def overloaded_yet(**more: Any) -> dict[str, Any]:
    """Labels that say that nothing was executed, beside what says otherwise."""
    return {"ok": 0.0, "errmsg": "hostile", "errorLabels": [*BOTH_OVERLOAD_LABELS], **more}


TRANSACTION_IS_OVER = [*BOTH_OVERLOAD_LABELS, TRANSIENT_TRANSACTION]


@example(operation=NAMED["commit"], document={"ok": 0.0, "errmsg": "hostile", "code": 6}, times=1)
@example(operation=NAMED["commit"], document=hostile_error(50), times=8)
@example(operation=NAMED["insert_one"], document=hostile_error(13), times=1)
@example(operation=NAMED["client.bulk_write"], document=hostile_error(20), times=1)
@example(operation=NAMED["find"], document=overloaded_yet(writeConcernError={}), times=1)
@example(operation=NAMED["update_many"], document=overloaded_yet(writeConcernError={}), times=1)
@example(operation=NAMED["update_many"], document=overloaded_yet(code=11000), times=1)
@example(
    operation=NAMED["commit"], document=overloaded_yet(errorLabels=TRANSACTION_IS_OVER), times=1
)
@example(
    operation=NAMED["insert in a transaction"],
    document={"ok": 0.0, "errmsg": "hostile", "code": 6},
    times=1,
)
@examples(20)
@given(
    operation=st.sampled_from(OPERATIONS),
    document=documents,
    times=st.sampled_from([1, 2, 8]),
)
def test_any_document_as_a_reply(
    operation: Operation, document: dict[str, Any], times: int, laboratory: Laboratory
) -> None:
    def hostile() -> Hostile:
        return Hostile(operation.command, instead(document), times, closes=False)

    refused = is_refused(operation, document)
    plain, ours = check(laboratory, operation, hostile, refused=refused)
    assert (
        ours.attempts >= plain.attempts
        or refused
        or says(document, are_no_list)
        or is_given_up_for_good(laboratory)
    )
    if not operation.safe and not says(document, are_both):
        assert laboratory.scheduled(operation) == []


@examples(10)
@given(operation=st.sampled_from(OPERATIONS), damage=damages, times=st.sampled_from([1, 2, 8]))
def test_any_bytes_as_a_reply(
    operation: Operation, damage: Damage, times: int, laboratory: Laboratory
) -> None:
    def hostile() -> Hostile:
        return Hostile(operation.command, damage, times, closes=damage.closes)

    event(damage.name.split()[0])
    plain, ours = check(laboratory, operation, hostile)
    assert ours.attempts >= plain.attempts
    if not operation.safe:
        assert laboratory.scheduled(operation) == []


def test_a_garbled_reply_to_a_retry_is_the_error_that_is_raised(laboratory: Laboratory) -> None:
    """As by the driver: whoever sent bytes has received the retry, so it says no less."""
    operation = NAMED["find"]

    def hostile() -> Hostile:
        replies = iter([b"", struct.pack("<iiii", 16, 1, 0, 2013)])
        return Hostile(operation.command, lambda _: next(replies), 2, closes=True)

    plain = laboratory.plain(operation, hostile)
    assert isinstance(plain.attacked.raised, ProtocolError)
    assert plain.attempts == 2
    assert laboratory.with_library(operation, hostile, "fast_fail") == plain


@examples(6)
@given(
    operation=st.sampled_from(OPERATIONS),
    document=likely_errors,
    timeout_ms=st.sampled_from([1, 20]),
)
def test_any_error_until_the_deadline(
    operation: Operation, document: dict[str, Any], timeout_ms: int, laboratory: Laboratory
) -> None:
    """Nothing to compare with: how often the driver repeats in so many milliseconds is chance."""

    def hostile() -> Hostile:
        return Hostile(operation.command, instead(document), 10**6, closes=False)

    ours = laboratory.with_library(operation, hostile, "fast_fail", timeout_ms=timeout_ms)
    for error in (ours.attacked.raised, ours.after.raised):
        if isinstance(error, OperationTimeoutError):
            assert isinstance(error, PyMongoError)
            assert error.timeout
            assert isinstance(error.__cause__, PyMongoError)
            assert not raised_by_us(error.__cause__)
        elif error is not None:
            assert not raised_by_us(error)
