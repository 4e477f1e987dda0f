"""Outages that end soon: without a timeout, the library fails no operation that plain pymongo does
not fail, although it finds a server sooner and so makes its retry sooner.

The driver's real intervals hold here, because they are what plain pymongo waits for. The sweep up
to 30 s is ``bench/blips.py``.
"""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo_resilience_instrumentation.tools.testbed import CutBefore, EmbeddedServer, ReplicaSet
from support.clients import Side
from support.telemetry import Instrument

from pymongo_resilience.rules.retry_rules import Rule

BENCH = Path(__file__).parents[2] / "bench"
KINDS = ["refused", "reset", "cut", "silent", "not primary", "election"]


@pytest.fixture(autouse=True)
def real_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.5)


@pytest.fixture
def blips(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("blips")


def failed(blips: Any, api: str, server: EmbeddedServer, kind: str, seconds: float) -> int:
    """How many of twelve operations that begin during an outage fail."""
    with ReplicaSet(server.address, members=1) as replica_set:
        if api == "sync":
            return int(blips.run_sync(replica_set, kind, seconds, 1)[0])
        return int(asyncio.run(blips.run_async(replica_set, kind, seconds, 1))[0])


@pytest.mark.parametrize("api", ["sync", "async"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_operation_fails_because_its_server_is_found_sooner(
    kind: str, api: str, blips: Any, server: EmbeddedServer, instrument: Instrument
) -> None:
    instrument()
    assert failed(blips, api, server, kind, 0.3) == 0


@pytest.mark.thorough("takes seconds of real outages, each twice")
@pytest.mark.parametrize("seconds", [0.05, 0.7, 1.5, 4.0])
@pytest.mark.parametrize("api", ["sync", "async"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_more_operations_fail_than_with_plain_pymongo(
    kind: str,
    api: str,
    seconds: float,
    blips: Any,
    server: EmbeddedServer,
    instrument: Instrument,
) -> None:
    plain = failed(blips, api, server, kind, seconds)
    instrument()
    assert failed(blips, api, server, kind, seconds) <= plain


def test_an_operation_outlives_what_plain_pymongo_outlives(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """The commands of three attempts are cut; plain pymongo waits before its second one."""
    instrument()
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {"_id": 0})
    proxy.inject(CutBefore("insert", times=3))
    side.do(coll.insert_one, {"_id": 1})
    assert side.do(coll.count_documents, {}) == 2


def test_an_outage_that_does_not_end_ends_the_operation(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.05)
    telemetry = instrument()
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.find_one)
    proxy.inject(CutBefore("find", times=10**6))
    with pytest.raises(pymongo.errors.AutoReconnect) as caught:
        side.do(coll.find_one)
    proxy.clear()
    error: Any = caught.value
    assert error.retry_rule is Rule.ATTEMPTS
    assert 2 < error.attempts <= 20
    assert "without a timeout" in telemetry.decisions.events[-1].why
