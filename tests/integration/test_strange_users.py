"""Strategies and listeners of a user that misbehave, on real operations that really fail."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pymongo
import pytest
from pymongo.errors import AutoReconnect
from support.clients import Side, fail_command
from support.internal_errors import no_complaints
from support.telemetry import Instrument

from pymongo_resilience import override
from pymongo_resilience.strategies import RetryAction
from pymongo_resilience.testbed import ReplicaSet

Control = pymongo.MongoClient[Any]


class Answering:
    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    def retry_after(self, operation: object, failure: object, /) -> Any:
        return self._answer()


class EndingError(BaseException):
    """As KeyboardInterrupt is: nothing may hold it back."""


@pytest.fixture
def coll(side: Side, proxy: ReplicaSet, database: str, instrument: Instrument) -> Any:
    instrument(traces=False, metrics=False)
    return side.do(side.client, proxy.uri)[database].coll


@pytest.mark.parametrize("ending", [EndingError, KeyboardInterrupt, SystemExit])
def test_the_end_of_the_process_passes_and_leaves_a_client_that_works(
    ending: type[BaseException],
    side: Side,
    proxy: ReplicaSet,
    database: str,
    control: Control,
    instrument: Instrument,
) -> None:
    def answer() -> Any:
        raise ending

    telemetry = instrument(strategy=Answering(answer))
    client = side.do(side.client, proxy.uri, maxPoolSize=1)
    coll = client[database].coll
    with no_complaints():
        with fail_command(control, "insert", closeConnection=True, times=1):
            with pytest.raises(ending):
                side.do(coll.insert_one, {"_id": 1})
        side.do(coll.insert_one, {"_id": 2})
    assert control[database].coll.distinct("_id") == [2]
    ended = [span.attributes["exception.type"] for span in telemetry.operations()[:1]]
    assert ended[0].endswith(ending.__name__)
    assert telemetry.decisions.events == []
    used = [
        point.value
        for attributes, point in telemetry.points("db.client.connection.count")
        if attributes["db.client.connection.state"] == "used"
    ]
    assert used == [0], "a connection was not given back"


@pytest.mark.parametrize(
    "answer",
    [
        lambda: RetryAction(Decimal("0.001")),  # type: ignore[arg-type]  # on purpose
        lambda: RetryAction(float("nan")),
        lambda: "soon",
        lambda: 1 / 0,
    ],
    ids=["Decimal", "NaN", "text", "error"],
)
def test_an_answer_that_is_none_counts_as_no(
    answer: Callable[[], Any],
    side: Side,
    coll: Any,
    control: Control,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with fail_command(control, "find", closeConnection=True, times=1):
        with pytest.raises(AutoReconnect), override(strategy=Answering(answer)):
            side.do(coll.find_one)
    faults = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    (fault,) = faults
    assert "Answering raised on find" in fault
    assert side.do(coll.find_one) is None
