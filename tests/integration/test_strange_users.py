"""Strategies and listeners of a user that misbehave, on real operations that really fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from support.clients import Side, fail_command
from support.internal_errors import no_complaints
from support.telemetry import Instrument

from pymongo_resilience.testbed import ReplicaSet


class Answering:
    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    def retry_after(self, operation: object, failure: object, /) -> Any:
        return self._answer()


class EndingError(BaseException):
    """As KeyboardInterrupt is: nothing may hold it back."""


@pytest.mark.parametrize("ending", [EndingError, KeyboardInterrupt, SystemExit])
def test_the_end_of_the_process_passes_and_leaves_a_client_that_works(
    ending: type[BaseException],
    side: Side,
    proxy: ReplicaSet,
    database: str,
    control: pymongo.MongoClient[Any],
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
