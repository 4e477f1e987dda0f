"""Which finds can be resumed, what is sent for them, and which failures resume one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pymongo_resilience_instrumentation.features.resumable_finds import rules as resumption
from pymongo_resilience_instrumentation.features.resumable_finds.rules import Find

from pymongo_resilience.rules.failure import (
    RETRYABLE,
    SYSTEM_OVERLOADED,
    Failure,
    RetryReason,
    Stage,
)
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience.rules.strategy import BestEffort

PLAIN = Find({"a": 1})
MOST = 3
OVERLOADED = frozenset({SYSTEM_OVERLOADED, RETRYABLE})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"sort": {"a": 1}}, "sorted by _id"),
        ({"sort": {"_id": 1, "a": 1}}, "sorted by _id"),
        ({"sort": {"_id": "text"}}, "sorted by _id"),
        ({"sort": {"$natural": 1}}, "natural"),
        ({"hint": {"$natural": -1}}, "natural"),
        ({"hint": "$natural"}, "natural"),
        ({"tailable": True}, "tailable"),
        ({"exhaust": True}, "exhaust"),
        ({"filter": {"$text": {"$search": "x"}}}, "geo or text"),
        ({"filter": {"$or": [{"a": 1}, {"at": {"$near": [0, 0]}}]}}, "geo or text"),
        ({"filter": {"at": {"$geoWithin": {"$box": []}}}}, "geo or text"),
        ({"collation": {"locale": "de"}}, "collation"),
        ({"hint": {"a": 1}}, "hint"),
        ({"hint": "a_1"}, "hint"),
        ({"projection": {"_id": "$a"}}, "projection"),
        ({"projection": {"_id.a": 1}}, "projection"),
        ({"in_transaction": True}, "transaction"),
        ({"at_snapshot": True}, "snapshot"),
        ({"load_balanced": True}, "load balancer"),
    ],
)
def test_what_cannot_be_resumed_is_named(given: dict[str, Any], named: str) -> None:
    problem = resumption.problem_of(replace(PLAIN, **given))
    assert problem is not None
    assert named in problem


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"sort": {"_id": -1}},
        {"sort": {"_id": 1}, "hint": {"_id": 1}},
        {"hint": "_id_", "limit": 5},
        {"collation": {"locale": "simple"}},
        {"projection": {"_id": 0, "a": 1}},
        {"projection": {"_id": True, "_ids": 1}},
        {"filter": {}},
    ],
)
def test_what_can_be_resumed(given: dict[str, Any]) -> None:
    assert resumption.problem_of(replace(PLAIN, **given)) is None


@pytest.mark.parametrize("given", [{"limit": -1}, {"explain": True}])
def test_what_has_one_batch_needs_nothing(given: dict[str, Any]) -> None:
    assert not replace(PLAIN, **given).has_cursor
    assert PLAIN.has_cursor


@pytest.mark.parametrize(
    ("given", "risky"),
    [
        ({}, False),
        ({"limit": 5}, True),
        ({"skip": 5}, True),
        ({"limit": 5, "skip": 5, "sort": {"_id": 1}}, False),
    ],
)
def test_what_a_sort_might_slow_down(given: dict[str, Any], risky: bool) -> None:
    assert (resumption.risk_of(replace(PLAIN, **given)) is not None) == risky


@pytest.mark.parametrize(
    ("pipeline", "found"),
    [
        ([], ({}, None)),
        ([{"$match": {"a": 1}}], ({"a": 1}, None)),
        ([{"$match": {}}, {"$match": {"a": 1}}], ({"a": 1}, None)),
        ([{"$match": {"a": 1}}, {"$match": {"b": 1}}], ({"$and": [{"a": 1}, {"b": 1}]}, None)),
        ([{"$match": {"a": 1}}, {"$sort": {"_id": -1}}], ({"a": 1}, {"_id": -1})),
        ([{"$sort": {"_id": 1}}], ({}, {"_id": 1})),
        ([{"$sort": {"_id": 1}}, {"$match": {}}], None),
        ([{"$match": {}}, {"$group": {"_id": 1}}], None),
        ([{"$match": {}}, {"$limit": 5}], None),
        ([{"$match": {}, "$sort": {}}], None),
        ([{"$sort": 1}], None),
        ([{"$match": 1}], None),
        ([1], None),
        ({"$match": {}}, None),
        (None, None),
    ],
)
def test_which_pipelines_are_no_more_than_a_find(pipeline: Any, found: Any) -> None:
    assert resumption.as_find(pipeline) == found


def test_a_find_that_may_use_another_index_has_no_hint() -> None:
    begun = resumption.begun(PLAIN, hint=False)
    assert (begun.sort, begun.hint) == ({"_id": 1}, None)


def test_a_find_without_an_order_has_that_of_id() -> None:
    begun = resumption.begun(PLAIN)
    assert (begun.sort, begun.hint) == ({"_id": 1}, {"_id": 1})
    backward = replace(PLAIN, sort={"_id": -1})
    assert resumption.begun(backward) == backward


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (None, None),
        ({"_id": 0}, None),
        ({"_id": False, "a": 1}, {"a": 1}),
        ({"_id": 0.0, "a": 0}, {"a": 0}),
        ({"_id": 1, "a": 1}, {"_id": 1, "a": 1}),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_id_is_always_fetched(given: Any, sent: Any) -> None:
    assert resumption.begun(replace(PLAIN, projection=given)).projection == sent


def after(than: str) -> dict[str, Any]:
    return {"$expr": {than: ["$_id", {"$literal": "x"}]}}


@pytest.mark.parametrize(
    ("find", "expected"),
    [
        (PLAIN, [{"a": 1}, after("$gt"), {"_id": {"$not": {"$lte": "x"}}}]),
        (Find({}, sort={"_id": -1}), [after("$lt"), {"_id": {"$not": {"$gte": "x"}}}]),
    ],
)
def test_a_find_goes_on_after_the_last_document(find: Find, expected: list[Any]) -> None:
    begun = resumption.begun(replace(find, skip=3))
    made = resumption.continued(begun, "x", limit=7)
    assert made == replace(begun, filter={"$and": expected}, limit=7, skip=0)


def operation() -> RetryState:
    return RetryState("getMore", "db.coll", Kind.READ, BestEffort())


def failure(**facts: Any) -> Failure:
    facts = {"stage": Stage.ANSWERED, "reason": RetryReason.UNKNOWN} | facts
    return Failure(Exception(), **facts)


UNREACHABLE: dict[str, Any] = {
    "selection": True, "reason": RetryReason.NODE_NOT_AVAILABLE, "stage": Stage.NOT_SENT,
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"code": 43}, {"reason": RetryReason.CURSOR_LOST}),
        ({"code": 2}, {}),
        (UNREACHABLE, {"reason": RetryReason.SOCKET_NOT_AVAILABLE, "selection": False}),
        (UNREACHABLE | {"terminal": True}, {}),
    ],
    ids=["lost cursor", "another error", "its server is gone", "every server is"],
)
def test_what_the_rules_see_of_a_failed_batch(given: Any, changed: Any) -> None:
    seen = failure(**given)
    expected = replace(seen, **changed), True
    assert resumption.reclassified(seen, operation(), MOST) == expected


@pytest.mark.parametrize("own", [None, 500])
def test_a_time_limit_of_the_server_starts_again_and_the_applications_does_not(
    own: int | None,
) -> None:
    seen = failure(code=50, timed_out=True)
    found, sent_again = resumption.reclassified(seen, operation(), MOST, max_time_ms=own)
    assert sent_again == (own is None)
    assert found.application_limit_ms == own
    assert found.reason is (RetryReason.CURSOR_LOST if own is None else RetryReason.UNKNOWN)
    late = replace(seen, reason=RetryReason.ATTEMPT_TIMEOUT)
    assert resumption.reclassified(late, operation(), MOST, max_time_ms=own)[0] == late
    nothing_yet = resumption.reclassified(seen, operation(), MOST, has_documents=False)
    assert nothing_yet == (seen, False), "it would run into the same limit"


def test_the_find_has_its_own_retries_once_those_of_the_getmore_are_used_up() -> None:
    going, given = operation(), failure(reason=RetryReason.OVERLOADED, labels=OVERLOADED)
    for _ in range(MOST):
        assert resumption.reclassified(given, going, MOST) == (given, False)
        going.count(given)
    assert resumption.reclassified(given, going, MOST) == (given, True)
    assert (going.attempts, going.overloaded) == (0, False)
