"""Every error that is raised knows the server it came from and the number of attempts."""

from __future__ import annotations

import pickle
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
from pymongo_resilience_instrumentation.failures.error_texts import Origin, state_origin
from pymongo_resilience_instrumentation.tools.testbed import CutBefore, Overload
from support.clients import Side
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience.errors import Stage
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest


def origin(error: Any) -> tuple[str | None, int]:
    """As its attributes say, once the text is seen to say the same: but for a server's answer to
    the only attempt."""
    if isinstance(error, OperationFailure) and error.attempts == 1:
        assert " attempt" not in str(error)
        return error.server, error.attempts
    tried = "1 attempt" if error.attempts == 1 else f"{error.attempts} attempts"
    said = tried if error.server is None else f"{error.server}, {tried}"
    text = str(error)
    assert text.endswith(f" ({said})") or (f" ({said}; " in text and text.endswith(")"))
    assert text.count(tried) == 1
    return error.server, error.attempts


def raised(side: Side, kind: type[PyMongoError], function: Any, *args: Any) -> Any:
    with pytest.raises(kind) as caught:
        side.do(function, *args)
    return caught.value


def test_of_an_error_that_is_not_repeated(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {"_id": 1})
    error = raised(side, DuplicateKeyError, coll.insert_one, {"_id": 1})
    assert origin(error) == (address_text(proxy.address), 1)
    bulk = raised(side, BulkWriteError, coll.bulk_write, [InsertOne({"_id": 1})])
    assert origin(bulk) == (address_text(proxy.address), 1)
    command = raised(side, OperationFailure, coll.database.command, "noSuchCommand")
    assert origin(command) == (address_text(proxy.address), 1)


def test_of_an_error_after_retries(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(base_backoff_ms=1)
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.find_one)
    proxy.inject(CutBefore("find", times=9))
    assert origin(raised(side, AutoReconnect, coll.find_one)) == (address_text(proxy.address), 2)
    proxy.clear()
    proxy.inject(Overload("update", times=9))
    error = raised(side, OperationFailure, coll.update_many, {}, {"$set": {"a": 1}})
    assert origin(error) == (address_text(proxy.address), 6)


def test_where_no_server_was_selected(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    client = side.client(proxy.uri, serverSelectionTimeoutMS=50)
    coll = client.get_database(database, read_preference=ReadPreference.SECONDARY).coll
    error = raised(side, ServerSelectionTimeoutError, coll.find_one)
    assert origin(error) == (None, 1)


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


@pytest.mark.parametrize("server", ["h:27017", None])
def test_it_is_said_once_and_survives_pickling(server: str | None) -> None:
    error = OperationFailure("no", 6, {"ok": 0, "errmsg": "no", "code": 6})
    text = str(error)
    state_origin(error, Origin(server, Stage.ANSWERED, 3))
    state_origin(error, Origin("other:1", Stage.ANSWERED, 9))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    expected = "3 attempts" if server is None else f"{server}, 3 attempts"
    for each in (error, again):
        assert str(each) == f"{text} ({expected})"
        assert (each.server, each.attempts, each.code) == (server, 3, 6)
