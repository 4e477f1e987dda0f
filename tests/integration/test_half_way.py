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


def changed(control: MongoClient[Any], database: str) -> dict[int, int]:
    """How many documents were changed how often."""
    return dict(Counter(document["n"] for document in control[database].coll.find()))


@pytest.mark.parametrize("method", cases(UPDATES, BULK_SINCE))
def test_no_document_is_changed_twice_unless_that_was_declared_idempotent(
    method: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    control: MongoClient[Any],
    instrument: Instrument,
) -> None:
    telemetry = instrument(timeout_ms=20_000, base_backoff_ms=1)
    coll = side.client(proxy.uri)[database].coll
    command, call = UPDATES[method]
    count = MANY if method == "update_many" else FEW
    halves = [True, False] * (count // 2)
    for name, then in INTERRUPTIONS.items():
        control[database].coll.delete_many({})
        control[database].coll.insert_many([{"n": 0, "first half": half} for half in halves])
        side.do(coll.database.command, "ping")
        telemetry.clear()
        proxy.inject(HalfWay(control, database, command, then))
        with pytest.raises(PyMongoError) as caught:
            side.do(*call(coll))
        assert caught.value.attempts == 1, name
        assert [event.rule for event in telemetry.decisions.events] == [Rule.NOT_SAFE], name
        assert changed(control, database) == {0: count // 2, 1: count // 2}, name

        side.do(coll.database.command, "ping")
        telemetry.clear()
        proxy.inject(HalfWay(control, database, command, then, times=2))
        with override(idempotent=True):
            result = side.do(*call(coll))
        assert result.modified_count == count, name
        assert len(telemetry.decisions.events) == 2, name
        assert changed(control, database) == {1: count // 2, 4: count // 2}, name
