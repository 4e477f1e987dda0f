"""An update of many documents that is interrupted half-way: no document is changed twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import MongoClient, UpdateMany
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.tools.testbed.command_faults import OnCommand
from pymongo_resilience_instrumentation.tools.testbed.fault import Answer, Cut, Verdict
from support.clients import Side
from support.servers import cases
from support.telemetry import Instrument

from pymongo_resilience import override
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import ReplicaSet

MANY, FEW = 1_000, 20
INC = {"$inc": {"n": 1}}
BULK_SINCE = {"client bulk_write": "8.0"}


class HalfWay(OnCommand):
    """Changes the first half of the documents, as a server does that is interrupted there."""

    def __init__(
        self, control: MongoClient[Any], database: str, command: str, then: Verdict, times: int = 1
    ) -> None:
        super().__init__(command, times)
        self.coll = control[database].coll
        self.then = then

    def verdict(self, request: Any) -> Verdict:
        self.coll.update_many({"first half": True}, INC)
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


def fill(control: MongoClient[Any], database: str, count: int) -> None:
    halves = [True, False] * (count // 2)
    control[database].coll.insert_many([{"n": 0, "first half": half} for half in halves])


def changed(control: MongoClient[Any], database: str) -> dict[int, int]:
    """How many documents were changed how often."""
    return dict(Counter(document["n"] for document in control[database].coll.find()))


@pytest.mark.parametrize(
    "method", cases(["update_many", "bulk_write", "client bulk_write"], BULK_SINCE)
)
def test_no_document_is_changed_twice(
    method: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    control: MongoClient[Any],
    instrument: Instrument,
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    count = MANY if method == "update_many" else FEW
    fill(control, database, count)
    coll = side.client(proxy.uri)[database].coll
    command, call = UPDATES[method]
    for number, (name, then) in enumerate(INTERRUPTIONS.items(), start=1):
        side.do(coll.database.command, "ping")
        telemetry.clear()
        proxy.inject(HalfWay(control, database, command, then))
        with pytest.raises(PyMongoError) as caught:
            side.do(*call(coll))
        assert caught.value.attempts == 1, name
        assert [event.rule for event in telemetry.decisions.events] == [Rule.NOT_SAFE], name
        assert changed(control, database) == {0: count // 2, number: count // 2}, name


@pytest.mark.parametrize("method", cases(UPDATES, BULK_SINCE))
def test_declared_idempotent_it_is_repeated_and_the_caller_answers_for_that(
    method: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    control: MongoClient[Any],
    instrument: Instrument,
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    fill(control, database, FEW)
    coll = side.client(proxy.uri)[database].coll
    command, call = UPDATES[method]
    for number, name in enumerate(("network", "not primary", "write conflict"), start=1):
        side.do(coll.database.command, "ping")
        telemetry.clear()
        proxy.inject(HalfWay(control, database, command, INTERRUPTIONS[name], times=2))
        with override(idempotent=True):
            result = side.do(*call(coll))
        assert result.modified_count == FEW, name
        assert len(telemetry.decisions.events) == 2, name
        assert changed(control, database) == {number: FEW // 2, 3 * number: FEW // 2}, name
