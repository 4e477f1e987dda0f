"""A bulk write that was sent in two parts has one result: counts, indexes, errors of the whole."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.errors import BulkWriteError, ClientBulkWriteException
from pymongo.results import BulkWriteResult, ClientBulkWriteResult
from pymongo_resilience_instrumentation.features.single_documents.bulk_results import (
    failed,
    whole,
    without_errors,
)

COUNTS = ("nInserted", "nUpserted", "nMatched", "nModified")


def details(**given: Any) -> dict[str, Any]:
    empty = {"writeErrors": [], "writeConcernErrors": [], "upserted": [], "nRemoved": 0}
    return {**empty, **dict.fromkeys(COUNTS, 0), **given}


def of_client(**given: Any) -> dict[str, Any]:
    empty = {
        "anySuccessful": False, "error": None, "writeErrors": [], "writeConcernErrors": [],
        "insertResults": {}, "updateResults": {}, "deleteResults": {}, "nDeleted": 0,
    }  # fmt: skip
    return {**empty, **dict.fromkeys(COUNTS, 0), **given}


def test_counts_and_indexes() -> None:
    first = details(
        nInserted=2,
        writeErrors=[{"index": 1, "code": 72}, {"index": 3, "code": 72}],
        upserted=[{"index": 0, "_id": "a"}],
    )
    assert list(failed(first)) == [(1, 72), (3, 72)]
    before = without_errors(first, [1, 3])
    second = BulkWriteResult(
        details(nModified=1, nRemoved=4, upserted=[{"index": 1, "_id": "b"}]), acknowledged=True
    )
    result = whole(before, second, [1, 3])
    assert (result.inserted_count, result.modified_count, result.deleted_count) == (2, 1, 4)
    assert result.upserted_ids == {0: "a", 3: "b"}
    assert len(first["writeErrors"]) == 2, "what it was made from is left alone"


def test_errors_of_both_parts() -> None:
    first = details(
        nInserted=1, writeErrors=[{"index": 4, "code": 11000}, {"index": 2, "code": 72}]
    )
    second = BulkWriteError(
        details(nModified=1, writeErrors=[{"index": 0, "code": 121}], writeConcernErrors=[{}])
    )
    with pytest.raises(BulkWriteError) as caught:
        whole(without_errors(first, [2]), second, [2])
    raised = caught.value.details
    assert list(failed(raised)) == [(2, 121), (4, 11000)]
    assert (raised["nInserted"], raised["nModified"], raised["writeConcernErrors"]) == (1, 1, [{}])


def test_an_error_of_the_first_part_alone_is_raised() -> None:
    first = details(writeErrors=[{"index": 0, "code": 11000}, {"index": 1, "code": 72}])
    with pytest.raises(BulkWriteError) as caught:
        whole(without_errors(first, [1]), BulkWriteResult(details(nRemoved=1), True), [1])
    assert list(failed(caught.value.details)) == [(0, 11000)]


@pytest.mark.parametrize("verbose", [True, False])
def test_of_a_client(verbose: bool) -> None:
    first = of_client(nInserted=1, anySuccessful=True, writeErrors=[{"idx": 1, "code": 72}])
    if verbose:
        first["insertResults"] = {0: "first"}
    before = without_errors(first, [1])
    made = of_client(nModified=1, anySuccessful=True, updateResults={0: "second"})
    result = whole(before, ClientBulkWriteResult(made, True, verbose), [1])
    assert (result.inserted_count, result.modified_count) == (1, 1)
    assert result.has_verbose_results is verbose
    if verbose:
        assert (result.insert_results, result.update_results) == ({0: "first"}, {1: "second"})


def test_an_error_of_a_client() -> None:
    first = of_client(nInserted=1, anySuccessful=True, writeErrors=[{"idx": 1, "code": 72}])
    second = ClientBulkWriteException(of_client(writeErrors=[{"idx": 0, "code": 121}]), True)
    with pytest.raises(ClientBulkWriteException) as caught:
        whole(without_errors(first, [1]), second, [1])
    assert [(each["idx"], each["code"]) for each in caught.value.write_errors or ()] == [(1, 121)]  # type: ignore[index]  # pymongo's are documents
    assert caught.value.partial_result is not None
    assert caught.value.partial_result.inserted_count == 1
