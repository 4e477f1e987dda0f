"""A scan in several batches, and what interrupts one: for the tests of resumable finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo import ReadPreference
from support.clients import SentCommands, Side
from support.resumable_finds import insert
from support.telemetry import Instrument, Telemetry

from pymongo_resilience import override
from pymongo_resilience.testbed import (
    CutAfter,
    CutBefore,
    Fail,
    NotPrimary,
    Overload,
    Refuse,
    ReplicaSet,
)

COUNT = 60
BATCH = 10
PLENTY_MS = 20_000
SERVER_IS_GONE_S = 10
FAULTS: dict[str, Callable[[], Any]] = {
    "cut before": lambda: CutBefore("getMore"),
    "cut after": lambda: CutAfter("getMore"),
    "not primary": lambda: NotPrimary("getMore"),
    "CursorNotFound": lambda: Fail("getMore", code=43),
    "overload past its retries": lambda: Overload("getMore", times=6, base_backoff=0.002),
}


@pytest.fixture
def telemetry(instrument: Instrument) -> Telemetry:
    return instrument()


@pytest.fixture
def client(side: Side, proxy: ReplicaSet, sent: SentCommands, telemetry: Telemetry) -> Any:
    assert telemetry.spans() == []
    return side.client(proxy.uri, event_listeners=[sent])


@pytest.fixture
def order(control: Any, database: str) -> list[bytes]:
    """The ``_id`` of the documents there are, in order."""
    return insert(control, database, COUNT)


@pytest.fixture
def coll(client: Any, database: str, order: list[bytes]) -> Any:
    assert len(order) == COUNT
    return client[database].coll


def nearest(side: Side, deployment: Any, database: str, **options: Any) -> Any:
    """A collection that any member or router may read, of a client that has reached them all."""
    client = side.client(deployment.uri, **options)
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, len(deployment.members))
    return client[database].get_collection("coll", read_preference=ReadPreference.NEAREST)


def lose_server_of(side: Side, deployment: Any, coll: Any, cursor: Any) -> Any:
    """The address of the cursor's server, once the client of ``coll`` has lost it."""
    client, lost = coll.database.client, cursor.address
    number = [each.address for each in deployment.members].index(lost)
    deployment.inject(Refuse(SERVER_IS_GONE_S), on=number)
    side.wait_until(lambda: lost not in client.nodes)
    return lost


def rest(side: Side, cursor: Any) -> list[Any]:
    with override(timeout_ms=PLENTY_MS):
        return side.documents(cursor)
