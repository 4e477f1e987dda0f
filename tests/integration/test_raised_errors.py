"""Which of two errors is raised: the original one, where the retry ended in the driver itself. Each
knows the server it came from and the number of attempts.

NoWritesPerformed is in test_deadlines.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import InsertOne, ReadPreference
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    DuplicateKeyError,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)
from pymongo_resilience_instrumentation.addresses import address_text
from support.busy_pools import the_only_connection_taken
from support.clients import Side
from support.servers import cases
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience import retry_info
from pymongo_resilience.errors import RetryInfo
from pymongo_resilience.events import RetryDeclined, RetryScheduled
from pymongo_resilience.strategies import RetryAction
from pymongo_resilience.testbed import CutBefore, Fail, Interception, ReplicaSet

STREAMING = {"serverMonitoringMode": "stream", "heartbeatFrequencyMS": 60_000}
"""What hello says reaches the client after an error, and not before."""


class Downgrade(Interception):
    """The member has an older version from the next hello on."""

    def __init__(self, wire_version: int) -> None:
        super().__init__()
        self.wire_version = wire_version

    def on_hello(self, reply: Any) -> None:
        reply["maxWireVersion"] = self.wire_version


def _find(side: Side, client: Any, database: str) -> None:
    side.do(client[database].coll.find_one)


def _find_in_a_snapshot(side: Side, client: Any, database: str) -> None:
    session = client.start_session(snapshot=True)
    try:
        side.do(client[database].coll.find_one, session=session)
    finally:
        side.do(session.end_session)


def _bulk_write(side: Side, client: Any, database: str) -> None:
    side.do(client.bulk_write, [InsertOne({}, namespace=f"{database}.coll")])


DIPS: dict[str, tuple[int, str, Callable[[Side, Any, str], None], type[Exception]]] = {
    # Retryable Reads, 3a: before MongoDB 3.6; pymongo has nothing to do with such a server at all.
    "no retryable reads": (5, "find", _find, ConfigurationError),
    # 3b: the command cannot be made for the server that the retry found.
    "no snapshots": (12, "find", _find_in_a_snapshot, ConfigurationError),
    "no bulkWrite": (24, "bulkWrite", _bulk_write, InvalidOperation),
}


@pytest.mark.parametrize("name", cases(DIPS, {"no snapshots": "5.0", "no bulkWrite": "8.0"}))
def test_a_server_that_became_too_old_for_the_command(
    name: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    wire_version, command, call, of_the_driver = DIPS[name]
    client = side.client(proxy.uri, **STREAMING)
    side.do(client.admin.command, "ping")
    proxy.inject(Downgrade(wire_version))
    cut = CutBefore(command, times=2)
    proxy.inject(cut)
    with pytest.raises(PyMongoError) as caught:
        call(side, client, database)
    error: Any = caught.value
    assert isinstance(getattr(error, "error", error), AutoReconnect)
    assert isinstance(error.__context__, of_the_driver)
    assert (error.server, error.attempts) == (address_text(proxy.address), 2)
    assert cut.injected == 1
    assert [type(each) for each in telemetry.decisions.events] == [RetryScheduled, RetryDeclined]


class TakesTheConnection:
    """A strategy that lets somebody else have the pool's only connection before the retry."""

    def __init__(self, stack: contextlib.ExitStack, taken: Any) -> None:
        self._stack, self._taken = stack, taken

    def retry_after(self, operation: Any, failure: Any, /) -> RetryAction:
        self._stack.enter_context(self._taken)
        return RetryAction()


def test_a_full_pool_on_the_retry_says_less_than_the_first_error(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """An error of the driver's own pool does not tell that an attempt was made."""
    side = Side("sync", None)
    client = side.client(proxy.uri, maxPoolSize=1, waitQueueTimeoutMS=50)
    client.admin.command("ping")
    with contextlib.ExitStack() as stack:
        taken = the_only_connection_taken(side, client, proxy)
        telemetry = instrument(strategy=TakesTheConnection(stack, taken))
        proxy.inject(Fail("find", code=6))
        with pytest.raises(OperationFailure) as caught:
            client[database].coll.find_one()
        proxy.clear()
    side.close()
    error: Any = caught.value
    assert error.code == 6
    assert isinstance(error.__context__, WaitQueueTimeoutError)
    assert (error.server, error.attempts) == (address_text(proxy.address), 2)
    # Those of the find; the ping, which ends later, may be inside of it or a call of its own.
    events = telemetry.decisions.events[:2]
    assert [type(each) for each in events] == [RetryScheduled, RetryDeclined]


def test_otherwise_the_newer_one(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.find_one)
    proxy.inject(Fail("find", code=6))
    proxy.inject(Fail("find", code=2))
    with pytest.raises(OperationFailure) as caught:
        side.do(coll.find_one)
    assert caught.value.code == 2


def raised(side: Side, kind: type[PyMongoError], function: Any, *args: Any) -> Any:
    with pytest.raises(kind) as caught:
        side.do(function, *args)
    return caught.value


def origin(error: Any) -> tuple[str | None, int]:
    return error.server, error.attempts


@pytest.mark.oldest
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


@pytest.mark.oldest
def test_the_newer_error_names_the_newer_server(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(max_retries=1)
    client = side.client(replica_set.uri, localThresholdMS=60_000)
    coll = client.get_database(database, read_preference=ReadPreference.NEAREST).coll
    side.do(coll.find_one)
    side.wait_for_members(client, len(replica_set.members))
    # Not with NoWritesPerformed, by which the earlier error is raised.
    labels = ["SystemOverloadedError", "RetryableError"]
    replica_set.inject(Fail("find", code=462, labels=labels, times=2))
    error = raised(side, OperationFailure, coll.find_one)
    first, second = (event.server for event in telemetry.decisions.events)
    assert first != second, "the retry avoids the overloaded server"
    assert origin(error) == (second, 2)


@pytest.mark.oldest
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
