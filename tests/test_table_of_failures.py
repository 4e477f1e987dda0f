"""The table of failures in docs/errors.md, row by row: plain pymongo and an instrumented one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pymongo
import pytest
from pymongo import InsertOne, MongoClient, UpdateOne
from pymongo.errors import (
    AutoReconnect,
    DuplicateKeyError,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from support.clients import SentCommands, wait_until

from pymongo_resilience import Config, OperationTimeoutError, instrument, override, uninstrument
from pymongo_resilience.testbed import (
    CutAfter,
    CutAtHandshake,
    CutBefore,
    Election,
    EmbeddedServer,
    Fault,
    NotPrimary,
    Overload,
    Refuse,
    ReplicaSet,
)

Operation = Callable[[Any], Any]
Outcome = type[Exception] | None
WORKS = None
INCREMENT = {"$inc": {"n": 1}}


def find(orders: Any) -> Any:
    return orders.find_one({"_id": 1})


def update_one(orders: Any) -> Any:
    return orders.update_one({"_id": 1}, INCREMENT)


def update_many(orders: Any) -> Any:
    return orders.update_many({"_id": {"$lte": 1}}, INCREMENT)


def declared(orders: Any) -> Any:
    with override(idempotent=True):
        return orders.update_many({"_id": {"$lte": 1}}, {"$set": {"n": 1}})


def mixed_bulk(orders: Any) -> Any:
    return orders.bulk_write([InsertOne({"k": 1}), UpdateOne({"_id": 1}, INCREMENT)])


def duplicate(orders: Any) -> Any:
    return orders.insert_one({"_id": 1})


@dataclass
class Row:
    operation: Operation
    fault: Callable[[], Fault] | None
    plain: Outcome
    ours: Outcome
    increments: tuple[int | None, int | None] = (None, None)
    """What plain pymongo and ours leave in the database."""
    options: dict[str, Any] = field(default_factory=dict)


ROWS = {
    "one cut": Row(update_one, lambda: CutAfter("update"), WORKS, WORKS, (1, 1)),
    "several cuts, find": Row(find, lambda: CutBefore("find", 2), AutoReconnect, WORKS),
    "several cuts before": Row(
        update_one, lambda: CutBefore("update", 2), AutoReconnect, WORKS, (0, 1)
    ),
    "several cuts after": Row(
        update_one, lambda: CutAfter("update", 2), AutoReconnect, WORKS, (1, 1)
    ),
    "update_many": Row(
        update_many, lambda: CutAfter("update"), AutoReconnect, AutoReconnect, (1, 1)
    ),
    "update_many, declared": Row(
        declared, lambda: CutAfter("update", 2), AutoReconnect, WORKS, (1, 1)
    ),
    "handshake, any command": Row(
        update_many, lambda: CutAtHandshake(5), AutoReconnect, WORKS, (0, 1)
    ),
    "handshake, for longer": Row(
        update_one, lambda: CutAtHandshake(9), AutoReconnect, AutoReconnect
    ),
    "handshake, mixed bulk": Row(mixed_bulk, CutAtHandshake, WORKS, WORKS, (0, 1)),
    "several not primary": Row(
        update_one, lambda: NotPrimary("update", 2), NotPrimaryError, WORKS, (0, 1)
    ),
    "no primary for a while": Row(update_one, lambda: Election(1), WORKS, WORKS, (1, 1)),
    "overload": Row(update_one, lambda: Overload("update", 5), OperationFailure, WORKS, (0, 1)),
    "overload, for longer": Row(
        update_one, lambda: Overload("update", 9), OperationFailure, OperationFailure, (0, 0)
    ),
    "duplicate key": Row(duplicate, None, DuplicateKeyError, DuplicateKeyError),
}


@pytest.fixture(params=["plain", "ours"])
def side(request: pytest.FixtureRequest) -> Iterator[str]:
    """Long retries log a lot: the log has tests of its own."""
    if request.param == "plain" and pymongo.version_tuple[:2] != (4, 20):
        pytest.skip("the table is about pymongo 4.20")
    logging.getLogger("pymongo_resilience.retry").disabled = True
    if request.param == "ours":
        # Telemetry has tests of its own, and pymongo is slow to close clients with its listeners.
        instrument(Config(timeout_ms=20_000, base_backoff_ms=5, traces=False, metrics=False))
    yield request.param
    uninstrument()
    logging.getLogger("pymongo_resilience.retry").disabled = False


@contextmanager
def outcome(expected: Outcome) -> Iterator[None]:
    if expected is None:
        yield
    else:
        with pytest.raises(expected) as caught:
            yield
        assert not isinstance(caught.value, OperationTimeoutError)


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str, side: str, server: EmbeddedServer) -> None:
    row = ROWS[name]
    with (
        ReplicaSet(server.address, members=1) as proxy,
        MongoClient[Any](proxy.uri) as client,
        MongoClient[Any](server.uri) as control,
    ):
        control.readme.drop_collection("orders")
        control.readme.orders.insert_one({"_id": 1, "n": 0})
        # A monitor is there, but no connection of the application yet: the next one is new.
        assert client.primary or client.address
        if row.fault is not None:
            proxy.inject(row.fault())
        if name == "no primary for a while":
            # A write that meets the step-down itself is sent without a transaction number by plain
            # pymongo 4.20, if hello is faster than the pool: a race, and another row.
            wait_until(lambda: not client.topology_description.has_writable_server())
        with outcome(row.plain if side == "plain" else row.ours):
            row.operation(client.readme.orders)
        proxy.clear()

        increments = row.increments[side == "ours"]
        if increments is not None:
            assert control.readme.orders.find_one({"_id": 1}) == {"_id": 1, "n": increments}


def test_server_down_for_longer_than_the_deadline(server: EmbeddedServer, side: str) -> None:
    with ReplicaSet(server.address, members=1) as proxy:
        proxy.inject(Refuse(3600))
        with (
            MongoClient[Any](proxy.uri) as client,
            pytest.raises(ServerSelectionTimeoutError) as caught,
            pymongo.timeout(1),
        ):
            client.readme.orders.find_one()

    assert isinstance(caught.value, OperationTimeoutError) == (side == "ours")


def test_one_failure_for_good(server: EmbeddedServer, side: str) -> None:
    sent = SentCommands()
    with (
        MongoClient[Any](server.uri, appname="readme", event_listeners=[sent]) as client,
        MongoClient[Any](server.uri) as control,
    ):
        client.readme.orders.find_one()
        broken = {"failCommands": ["find"], "errorCode": 6, "appName": "readme"}
        control.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=broken)
        sent.started_events.clear()
        try:
            # Plain pymongo may end in any of its ways to say that the time is up.
            # What a slow machine does of a storm in half a second is not much.
            seconds = 2 if side == "plain" else 0.5
            with pytest.raises(PyMongoError) as caught, pymongo.timeout(seconds):
                client.readme.orders.find_one()
        finally:
            control.admin.command("configureFailPoint", "failCommand", mode="off")

    if side == "plain":
        assert len(sent.started_events) > 100
    else:
        assert isinstance(caught.value, OperationTimeoutError)
        assert 1 <= len(sent.started_events) <= 13
