"""Where the time went: of operations that ran out of it, and of slow ones where that is asked."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest
from support.clients import Side
from support.telemetry import Instrument, Telemetry

from pymongo_resilience import OperationTimeoutError, override
from pymongo_resilience.testbed import CutAfter, ReplicaSet, Slow

pytestmark = pytest.mark.oldest

PHASES = "pymongo_resilience.timeline.phases"
MILLISECONDS = "pymongo_resilience.timeline.milliseconds"
LOGGER = "pymongo_resilience.slow"


def events(telemetry: Telemetry) -> list[dict[str, Any]]:
    return [
        dict(event.attributes)
        for span in telemetry.operations()
        for event in span.events
        if event.name == "operation.timeline"
    ]


def durations(telemetry: Telemetry) -> dict[str | None, float]:
    """Milliseconds that all operations took together, as published, by their error."""
    return {
        attributes.get("error.type"): point.sum * 1000
        for attributes, point in telemetry.points("db.client.operation.duration")
    }


def test_a_missed_deadline_says_where_the_time_went(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    telemetry = instrument()
    coll = side.do(side.client, proxy.uri)[database].coll
    side.do(coll.find_one)
    proxy.inject(Slow(0.6))
    with (
        caplog.at_level(logging.INFO, LOGGER),
        override(timeout_ms=300),
        pytest.raises(OperationTimeoutError) as caught,
    ):
        side.do(coll.find_one)
    found = caught.value.timeline
    whole = sum(each.milliseconds for each in found)
    assert whole == pytest.approx(
        durations(telemetry)["pymongo_resilience.OperationTimeoutError"], abs=100
    )
    assert caught.value.elapsed_s * 1000 <= whole + 1, "it is read before the call ends"
    assert {each.name for each in found} <= {
        "server_selection", "pool_wait", "connecting", "attempt", "backoff",
    }  # fmt: skip
    ((shown),) = events(telemetry)[-1:]
    assert len(shown[PHASES]) == len(shown[MILLISECONDS]) == len(found)
    assert shown[MILLISECONDS] == tuple(round(each.milliseconds, 3) for each in found)
    (record,) = [each for each in caplog.records if each.name == LOGGER]
    fields: Any = vars(record)["pymongo_resilience"]
    assert (fields["operation"], fields["outcome"]) == ("find", "deadline")
    assert [each["name"] for each in fields["timeline"]] == [each.name for each in found]
    assert pickle.loads(pickle.dumps(caught.value)).timeline == found  # noqa: S301 - our own
    proxy.clear()


def test_each_attempt_and_back_off_has_its_place(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    telemetry = instrument(timeout_ms=20_000, slow_ms=0)
    coll = side.do(side.client, proxy.uri)[database].coll
    side.do(coll.find_one)
    telemetry.clear()
    caplog.clear()
    (before,) = durations(telemetry).values()
    proxy.inject(CutAfter("find", times=2))
    with caplog.at_level(logging.INFO, LOGGER):
        side.do(coll.find_one)
    (shown,) = events(telemetry)
    host, port = proxy.members[0].address
    attempts = [each for each in shown[PHASES] if each == f"attempt {host}:{port}"]
    assert len(attempts) == 3
    (after,) = durations(telemetry).values()
    assert sum(shown[MILLISECONDS]) == pytest.approx(after - before, abs=100)
    (record,) = [each for each in caplog.records if each.name == LOGGER]
    assert record.levelno == logging.WARNING
    assert "attempt on " in record.getMessage()
    assert vars(record)["pymongo_resilience"]["outcome"] == "retried_ok"


@pytest.mark.parametrize("slow_ms", [None, 60_000])
def test_nothing_is_shown_of_what_is_fast(
    slow_ms: int | None,
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    telemetry = instrument(slow_ms=slow_ms)
    coll = side.do(side.client, proxy.uri)[database].coll
    with caplog.at_level(logging.DEBUG, LOGGER):
        side.do(coll.find_one)
        side.do(coll.insert_one, {})
    assert events(telemetry) == []
    assert not [each for each in caplog.records if each.name == LOGGER]
