"""The runner itself, by cases of our own: what passes, fails, and counts as not runnable."""

from __future__ import annotations

from typing import Any

import pytest
from support.conformance.deployments import Beds
from support.conformance.runner import Case, failure
from support.conformance.verdicts import judge

DATABASE = "conformance-runner"
OVERLOADED = ["RetryableError", "SystemOverloadedError"]
FIND = {"object": "coll", "name": "find", "arguments": {"filter": {"_id": 1}}}
FOUND = {**FIND, "expectResult": [{"_id": 1}]}
STARTED = {"commandStartedEvent": {"command": {"find": "coll"}, "databaseName": DATABASE}}


def _case(
    *operations: dict[str, Any], events: list[dict[str, Any]] | None = None, **more: Any
) -> Case:
    entities = [
        {"client": {"id": "client", "observeEvents": ["commandStartedEvent"]}},
        {"database": {"id": "db", "client": "client", "databaseName": DATABASE}},
        {"collection": {"id": "coll", "database": "db", "collectionName": "coll"}},
    ]
    data = {"databaseName": DATABASE, "collectionName": "coll", "documents": [{"_id": 1}]}
    test: dict[str, Any] = {"description": "ours", "operations": list(operations), **more}
    if events is not None:
        test["expectEvents"] = [{"client": "client", "events": events}]
    return Case("ours", "ours", {"createEntities": entities, "initialData": [data]}, test)


def _fail_find(**how: Any) -> dict[str, Any]:
    """More overload errors than plain pymongo repeats, and fewer than we do."""
    failpoint = {
        "configureFailPoint": "failCommand",
        "mode": {"times": 4},
        "data": {
            "failCommands": ["find"],
            "errorCode": 2,
            "errorLabels": OVERLOADED,
        },
        **how,
    }
    arguments = {"client": "client", "failPoint": failpoint}
    return {"object": "testRunner", "name": "failPoint", "arguments": arguments}


def _insert(number: int) -> dict[str, Any]:
    return {"object": "coll", "name": "insertOne", "arguments": {"document": {"_id": number}}}


def _outcome(*numbers: int) -> list[dict[str, Any]]:
    documents = [{"_id": number} for number in numbers]
    return [{"databaseName": DATABASE, "collectionName": "coll", "documents": documents}]


def test_a_case_passes(beds: Beds, api: str) -> None:
    case = _case(_insert(2), FOUND, events=[{"commandStartedEvent": {}}, STARTED])
    assert judge(case, beds.that_meets(), api).result == "passed"


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(_case({**FIND, "expectResult": []}), id="another result"),
        pytest.param(_case({**FIND, "expectError": {"isError": True}}), id="no error"),
        pytest.param(_case(_insert(1)), id="an error"),
        pytest.param(_case({**FIND, "expectResult": [{"_id": True}]}), id="another type"),
        pytest.param(_case({**FIND, "expectResult": [{"_id": 1, "n": 1}]}), id="a field missing"),
        *(
            pytest.param(_case({**_insert(1), "expectError": expected}), id=str(expected))
            for expected in (
                {"errorCode": 91},
                {"errorCodeName": "HostUnreachable"},
                {"errorContains": "closed"},
                {"isClientError": True},
                {"errorLabelsContain": ["RetryableError"]},
            )
        ),
        pytest.param(_case(FIND, events=[]), id="an event too many"),
        pytest.param(_case(FIND, events=[STARTED, STARTED]), id="an event missing"),
        pytest.param(_case(_insert(2), outcome=_outcome(1)), id="another outcome"),
        pytest.param(_case(_insert(2), outcome=_outcome(1, 2, 3)), id="a document missing"),
    ],
)
def test_a_case_fails(case: Case, beds: Beds, api: str) -> None:
    bed = beds.that_meets()
    assert failure(case, bed, api, instrumented=True) is not None
    assert judge(case, bed, api).result == "not runnable", "plain pymongo fails it as well"


def test_what_plain_pymongo_passes_has_failed(beds: Beds, api: str) -> None:
    case = _case(_fail_find(), {**FIND, "expectError": {"errorCode": 2}})
    verdict = judge(case, beds.that_meets(), api)
    assert (verdict.result, verdict.plain) == ("failed", None)


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param({"object": "coll", "name": "rename"}, id="an operation"),
        pytest.param({**FIND, "arguments": {"strange": 1}}, id="an argument"),
        pytest.param({**FIND, "timeout": 1}, id="a field"),
        pytest.param({**_insert(2), "expectResult": {}}, id="a result"),
    ],
)
def test_what_the_runner_does_not_know_has_failed(
    operation: dict[str, Any], beds: Beds, api: str
) -> None:
    assert judge(_case(operation), beds.that_meets(), api).result == "failed"
