"""Every failed attempt is one decision, and everybody hears the same of it: the log, the listeners,
the metric and the span."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pymongo
import pytest
from support.clients import Side
from support.engine.retry_strategies import REFUSES
from support.telemetry import Instrument, Telemetry

from pymongo_resilience import override
from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.testbed import CutAfter, CutBefore, Fail, ReplicaSet

Act = Callable[[Side, ReplicaSet, Any], Any]
Decision = tuple[str, str, str]
"""Operation, reason, and "scheduled" or the rule that declined."""


def _retried(side: Side, proxy: ReplicaSet, coll: Any) -> None:
    proxy.inject(CutBefore("find"))
    side.do(coll.find_one)


def _retried_in_vain(side: Side, proxy: ReplicaSet, coll: Any) -> None:
    proxy.inject(Fail("find", times=2, code=262))
    side.do(coll.find_one)


def _not_safe(side: Side, proxy: ReplicaSet, coll: Any) -> None:
    proxy.inject(CutAfter("update"))
    side.do(coll.update_many, {}, {"$inc": {"n": 1}})


def _refused_by_the_strategy(side: Side, proxy: ReplicaSet, coll: Any) -> None:
    proxy.inject(CutBefore("find"))
    with override(strategy=REFUSES):
        side.do(coll.find_one)


def _in_transaction(side: Side, proxy: ReplicaSet, coll: Any) -> None:
    session = side.do(coll.database.client.start_session)
    side.do(session.start_transaction)
    side.do(coll.find_one, session=session)
    proxy.inject(CutBefore("update"))
    try:
        side.do(coll.update_one, {}, {"$inc": {"n": 1}}, session=session)
    finally:
        side.do(session.end_session)


CUT = "socket_closed_while_in_flight"
BUSY = "temporarily_unavailable"
SCENES: dict[str, tuple[Act, list[Decision], list[str]]] = {
    "retried": (_retried, [("find", CUT, "scheduled")], ["INFO"]),
    "in vain": (
        _retried_in_vain,
        [("find", BUSY, "scheduled"), ("find", BUSY, "attempts")],
        ["INFO", "WARNING"],
    ),
    "not safe": (_not_safe, [("update", CUT, "not_safe")], ["DEBUG"]),
    "duplicate key": (
        lambda side, _, coll: side.do(coll.insert_one, {"_id": 0}),
        [("insert", "unknown", "unknown_reason")],
        ["DEBUG"],
    ),
    "command": (
        lambda side, _, coll: side.do(coll.database.command, "no such command"),
        [("runCommand", "unknown", "never_retried")],
        ["DEBUG"],
    ),
    "strategy": (_refused_by_the_strategy, [("find", CUT, "strategy")], ["WARNING"]),
    "in a transaction": (_in_transaction, [("update", CUT, "never_retried")], ["DEBUG"]),
}
"""What is done, which fails unless it is repeated; the decisions, and the levels of the log."""


def _heard(telemetry: Telemetry) -> list[Decision]:
    return [
        (
            event.operation,
            event.reason.value,
            "scheduled" if isinstance(event, RetryScheduled) else event.rule.value,
        )
        for event in telemetry.decisions.events
    ]


def _logged(records: list[logging.LogRecord]) -> list[Decision]:
    return [
        (
            fields["operation"],
            fields["reason"],
            fields.get("rule", fields["event"].removeprefix("retry.")),
        )
        for fields in (vars(record)["pymongo_resilience"] for record in records)
    ]


def _counted(telemetry: Telemetry) -> Counter[Decision]:
    return Counter(
        {
            (
                attributes["db.operation.name"],
                attributes["pymongo_resilience.reason"],
                attributes["pymongo_resilience.decision"],
            ): point.value
            for attributes, point in telemetry.points("pymongo_resilience.retries")
        }
    )


def _drawn(telemetry: Telemetry) -> list[Decision]:
    return [
        (
            span.attributes["db.operation.name"],
            event.attributes["pymongo_resilience.reason"],
            event.attributes.get("pymongo_resilience.rule", event.name.removeprefix("retry.")),
        )
        for span in telemetry.operations()
        for event in span.events
        if event.name.startswith("retry.")
    ]


@pytest.mark.parametrize("scene", SCENES)
def test_everybody_hears_every_decision(
    scene: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry = instrument()
    caplog.set_level(logging.DEBUG, logger="pymongo_resilience")
    coll = side.do(side.client, proxy.uri)[database].coll
    side.do(coll.insert_many, [{"_id": 0}, {"_id": 1}])
    act, expected, levels = SCENES[scene]
    with nullcontext() if scene == "retried" else pytest.raises(pymongo.errors.PyMongoError):
        act(side, proxy, coll)

    records = [record for record in caplog.records if record.name == "pymongo_resilience.retry"]
    assert _heard(telemetry) == expected
    assert _logged(records) == expected
    assert _counted(telemetry) == Counter(expected)
    assert _drawn(telemetry) == expected
    assert [record.levelname for record in records] == levels
    for record, event in zip(records, telemetry.decisions.events, strict=True):
        fields = vars(record)["pymongo_resilience"]
        assert fields["server"] == event.server == f"127.0.0.1:{proxy.members[0].address[1]}"
        assert (fields["namespace"], fields["attempt"]) == (event.namespace, event.attempt)
        assert fields.get("delay") == getattr(event, "delay", None)
