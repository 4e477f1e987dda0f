"""A scan in several batches, and what interrupts one: for the tests of resumable finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.clients import SentCommands, Side
from support.resumable_finds import insert
from support.telemetry import Instrument, Telemetry

from pymongo_resilience import override
from pymongo_resilience.testbed import CutAfter, CutBefore, Fail, NotPrimary, Overload, ReplicaSet

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


def rest(side: Side, cursor: Any) -> list[Any]:
    with override(timeout_ms=PLENTY_MS):
        return side.documents(cursor)
