"""A client that is closed ends what its operations wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from pymongo import MongoClient
from pymongo.errors import InvalidOperation
from support.clients import POLLING, fail_command, wait_until
from support.free_ports import consecutive_free_ports
from support.interruption import Held
from support.telemetry import Instrument

from pymongo_resilience.strategies import RetryAction
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest
LONG, SOON = 60.0, 10.0
"""Seconds that nobody waits, and that a busy machine may take."""


class After:
    def retry_after(self, operation: Any, failure: Any) -> RetryAction:
        return RetryAction(LONG / 2)


def ended_by_close(
    kind: str,
    uri: str,
    database: str,
    options: dict[str, Any],
    waits: Callable[[], Any],
    held: Callable[[], Any] | None = None,
    release: Callable[[], Any] = lambda: None,
) -> BaseException | None:
    """What an operation ends with that waits while its client is closed; ``held``: once a command
    before it is, until its ``release``."""

    def begin(method: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        asynchronous = kind == "AsyncMongoClient"
        return asyncio.ensure_future(
            method(*arguments) if asynchronous else asyncio.to_thread(method, *arguments)
        )

    async def main() -> BaseException | None:
        client: Any = getattr(pymongo, kind)(uri, **{**POLLING, **options})
        before = []
        if held is not None:
            before = [begin(client.admin.command, "ping")]
            await asyncio.to_thread(wait_until, held)
        finding = begin(client[database].coll.find_one, {})
        await asyncio.to_thread(wait_until, waits)
        await begin(client.close)
        await asyncio.wait([finding], timeout=SOON)
        assert finding.done()
        release()
        await asyncio.gather(*before, return_exceptions=True)
        return finding.exception()

    return asyncio.run(main())


@pytest.fixture(params=["MongoClient", "AsyncMongoClient"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("timeout_ms", [None, int(LONG * 1000)])
def test_it_ends_a_back_off(
    timeout_ms: int | None,
    kind: str,
    proxy: ReplicaSet,
    database: str,
    control: MongoClient[Any],
    instrument: Instrument,
) -> None:
    telemetry = instrument(strategy=After(), timeout_ms=timeout_ms)
    with fail_command(control, "find", errorCode=6):
        error = ended_by_close(
            kind, proxy.uri, database, {}, lambda: bool(telemetry.decisions.events)
        )
    assert type(error) is InvalidOperation
    assert str(error) == "Cannot use MongoClient after close"


def test_it_ends_the_wait_for_a_server(kind: str, database: str, instrument: Instrument) -> None:
    instrument(timeout_ms=int(LONG * 1000))
    began = time.monotonic()
    error = ended_by_close(
        kind,
        f"mongodb://127.0.0.1:{consecutive_free_ports(1)}/",
        database,
        {"serverSelectionTimeoutMS": int(LONG * 1000)},
        lambda: time.monotonic() - began > 0.2,
    )
    assert isinstance(error, InvalidOperation)


def test_it_ends_the_wait_for_a_connection(
    kind: str, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(timeout_ms=int(LONG * 1000))
    held = Held("ping")
    proxy.inject(held)
    began = time.monotonic()
    error = ended_by_close(
        kind,
        proxy.uri,
        database,
        {"maxPoolSize": 1},
        lambda: time.monotonic() - began > 0.5,
        held.has_it,
        proxy.clear,
    )
    assert type(error) is InvalidOperation
