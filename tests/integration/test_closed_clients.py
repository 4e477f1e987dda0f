"""A client that is closed ends what its operations wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymongo
import pytest
from pymongo.errors import InvalidOperation
from support.busy_pools import the_only_connection_taken
from support.clients import Side, fail_command, wait_until
from support.engine.retry_strategies import waiting
from support.free_ports import consecutive_free_ports
from support.telemetry import Instrument

from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest
LONG, SOON = 60.0, 10.0
"""Seconds that nobody waits, and that a busy machine may take."""


def ended_by_close(side: Side, coll: Any, waits: Callable[[], Any]) -> BaseException | None:
    """What a find ends with that waits while its client is closed."""
    client = coll.database.client

    async def in_a_task() -> BaseException | None:
        finding = asyncio.create_task(coll.find_one())
        await asyncio.to_thread(wait_until, waits)
        await client.close()
        await asyncio.wait([finding], timeout=SOON)
        return finding.exception()

    def in_a_thread() -> BaseException | None:
        with ThreadPoolExecutor(1) as threads:
            finding = threads.submit(coll.find_one)
            wait_until(waits)
            client.close()
            return finding.exception(SOON)

    error: BaseException | None = side.do(in_a_task if side.runner else in_a_thread)
    return error


@pytest.mark.parametrize("timeout_ms", [None, int(LONG * 1000)])
def test_it_ends_a_back_off(
    timeout_ms: int | None, side: Side, database: str, control: Any, instrument: Instrument
) -> None:
    telemetry = instrument(strategy=waiting(LONG / 2), timeout_ms=timeout_ms)
    coll = side.client("mongodb://{}:{}".format(*control.address))[database].coll
    with fail_command(control, "find", errorCode=6):
        error = ended_by_close(side, coll, lambda: telemetry.decisions.events)
    assert type(error) is InvalidOperation
    name = "MongoClient" if side.runner is None else "AsyncMongoClient"
    assert str(error) == f"Cannot use {name} after close"


def test_it_ends_the_wait_for_a_server(side: Side, instrument: Instrument) -> None:
    instrument(timeout_ms=int(LONG * 1000))
    uri = f"mongodb://127.0.0.1:{consecutive_free_ports(1)}/"
    coll = side.client(uri, serverSelectionTimeoutMS=int(LONG * 1000)).db.coll
    began = time.monotonic()
    error = ended_by_close(side, coll, lambda: time.monotonic() - began > 0.2)
    assert isinstance(error, InvalidOperation)


def test_it_ends_the_wait_for_a_connection(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(timeout_ms=int(LONG * 1000))
    client = side.client(proxy.uri, maxPoolSize=1)
    with the_only_connection_taken(side, client, proxy):
        began = time.monotonic()
        coll = client[database].coll
        error = ended_by_close(side, coll, lambda: time.monotonic() - began > 0.5)
        proxy.clear()
    assert type(error) is InvalidOperation


def opened_at() -> list[str]:
    """The frames by which pymongo says where a client was opened that nobody closed."""
    client: pymongo.MongoClient[Any] = pymongo.MongoClient("mongodb://127.0.0.1:1/")
    with pytest.warns(ResourceWarning, match="Unclosed MongoClient") as caught:
        client.__del__()
    client.close()
    return str(caught[0].message).split("  File ")


def test_a_client_that_was_not_closed_shows_where_the_application_made_it(
    instrument: Instrument,
) -> None:
    """And none of our frames between the application's and pymongo's."""
    plain = opened_at()
    instrument()
    ours = opened_at()
    assert "opened_at" in plain[-2]
    assert ours[-2:] == plain[-2:]
    assert not [each for each in ours if "pymongo_resilience_instrumentation" in each]
