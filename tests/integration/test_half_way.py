"""An update of many documents that is interrupted half-way: no document is changed twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Instrument, Side
from pymongo import MongoClient, UpdateMany
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.testbed import ReplicaSet
from pymongo_resilience_instrumentation.testbed.faults.commands import OnCommand
from pymongo_resilience_instrumentation.testbed.interception import Answer, Cut, Verdict

from pymongo_resilience import override
from pymongo_resilience.orchestrator import Rule

pytestmark = pytest.mark.oldest

COUNT = 1_000
INC = {"$inc": {"n": 1}}


class HalfWay(OnCommand):
    """Changes the first half of the documents, as a server does that is interrupted there."""

    def __init__(
        self, control: MongoClient[Any], database: str, command: str, then: Verdict, times: int = 1
    ) -> None:
        super().__init__(command, times)
        self.coll = control[database].coll
        self.then = then

    def verdict(self, request: Any) -> Verdict:
        self.coll.update_many({"_id": {"$lt": COUNT // 2}}, INC)
        return self.then


def _error(code: int, *labels: str) -> Answer:
    return Answer({"ok": 0.0, "errmsg": "half-way", "code": code, "errorLabels": list(labels)})


INTERRUPTIONS: dict[str, Verdict] = {
    "network": Cut(),
    "not primary": _error(10107, "RetryableWriteError"),
    "shutdown": _error(11600),
    "host unreachable": _error(6),
    "write conflict": _error(112),
    "lock timeout": _error(24),
    "lock busy": _error(46),
    # A server that contradicts itself: the label never permits a retry.
    "labelled as nothing written": _error(91, "RetryableWriteError", "NoWritesPerformed"),
}
UPDATES: dict[str, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    "update_many": ("update", lambda coll: (coll.update_many, {}, INC)),
    "bulk_write": ("update", lambda coll: (coll.bulk_write, [UpdateMany({}, INC)])),
    "client bulk_write": (
        "bulkWrite",
        lambda coll: (
            coll.database.client.bulk_write,
            [UpdateMany({}, INC, namespace=coll.full_name)],
        ),
    ),
}


@pytest.fixture
def counted(control: MongoClient[Any], database: str) -> Callable[[], dict[int, int]]:
    """How many documents were changed how often; none of them at first."""
    coll = control[database].coll
    coll.insert_many([{"_id": number, "n": 0} for number in range(COUNT)])
    return lambda: dict(Counter(document["n"] for document in coll.find()))


@pytest.mark.parametrize("method", UPDATES)
def test_no_document_is_changed_twice(
    method: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    counted: Callable[[], dict[int, int]],
    control: MongoClient[Any],
    instrument: Instrument,
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    coll = side.client(proxy.uri)[database].coll
    command, call = UPDATES[method]
    for name, then in INTERRUPTIONS.items():
        side.do(coll.database.command, "ping")
        telemetry.clear()
        proxy.inject(HalfWay(control, database, command, then))
        with pytest.raises(PyMongoError) as caught:
            side.do(*call(coll))
        assert caught.value.attempts == 1, name
        assert [event.rule for event in telemetry.decisions.events] == [Rule.NOT_SAFE], name
        assert counted() == {0: COUNT // 2, 1: COUNT // 2}, name
        control[database].coll.update_many({}, {"$set": {"n": 0}})


@pytest.mark.parametrize("method", UPDATES)
def test_declared_idempotent_it_is_repeated_and_the_caller_answers_for_that(
    method: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    counted: Callable[[], dict[int, int]],
    control: MongoClient[Any],
    instrument: Instrument,
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    coll = side.client(proxy.uri)[database].coll
    command, call = UPDATES[method]
    for name, then in INTERRUPTIONS.items():
        side.do(coll.database.command, "ping")
        telemetry.clear()
        proxy.inject(HalfWay(control, database, command, then, times=2))
        with override(idempotent=True):
            result = side.do(*call(coll))
        assert result.modified_count == COUNT, name
        assert len(telemetry.decisions.events) == 2, name
        assert counted() == {1: COUNT // 2, 3: COUNT // 2}, name
        control[database].coll.update_many({}, {"$set": {"n": 0}})
