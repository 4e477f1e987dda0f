"""Every error that is raised knows the server it came from and the number of attempts."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import InsertOne, ReadPreference
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.tools.testbed import CutBefore, Overload
from support.clients import Side
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience import retry_info
from pymongo_resilience.errors import RetryInfo
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest


def raised(side: Side, kind: type[PyMongoError], function: Any, *args: Any) -> Any:
    with pytest.raises(kind) as caught:
        side.do(function, *args)
    return caught.value


def origin(error: Any) -> tuple[str | None, int]:
    return error.server, error.attempts


def test_of_an_error_that_is_not_repeated(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {"_id": 1})
    for kind, function, *args in (
        (DuplicateKeyError, coll.insert_one, {"_id": 1}),
        (BulkWriteError, coll.bulk_write, [InsertOne({"_id": 1})]),
        (OperationFailure, coll.database.command, "noSuchCommand"),
    ):
        error = raised(side, kind, function, *args)
        assert retry_info(error) == RetryInfo(1, (), error.retry_rule, address_text(proxy.address))
        assert origin(error) == (address_text(proxy.address), 1)
        assert " attempt" not in str(error), "the server's answer stays as it is"


def test_the_newer_error_names_the_newer_server(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(max_retries=1)
    client = side.client(replica_set.uri, localThresholdMS=60_000)
    coll = client.get_database(database, read_preference=ReadPreference.NEAREST).coll
    side.do(coll.find_one)
    side.wait_for_members(client, len(replica_set.members))
    replica_set.inject(Overload("find", times=2))
    error = raised(side, OperationFailure, coll.find_one)
    first, second = (event.server for event in telemetry.decisions.events)
    assert first != second, "the retry avoids the overloaded server"
    assert origin(error) == (second, 2)


def test_the_earlier_error_names_the_earlier_server(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """No server for the retry: the error, and so the address, is that of the first attempt."""
    telemetry = instrument()
    gate = BlackHolePort()
    client = side.client(
        replica_set.uri,
        server_selector=gate,
        localThresholdMS=60_000,
        serverSelectionTimeoutMS=300,
    )
    coll = client.get_database(database, read_preference=ReadPreference.NEAREST).coll
    wait_for_server(side, client)
    replica_set.inject(CutBefore("find"))
    gate.closes_after = 1
    error = raised(side, AutoReconnect, coll.find_one)
    assert not isinstance(error, ServerSelectionTimeoutError)
    first, second = (event.server for event in telemetry.decisions.events)
    assert origin(error) == (first, 2)
    assert second is None, "the retry had none"


class BlackHolePort:
    """Lets so many selections through, then none."""

    closes_after: int | None = None

    def __call__(self, servers: list[Any]) -> list[Any]:
        if self.closes_after is None:
            return servers
        self.closes_after -= 1
        return servers if self.closes_after >= 0 else []
