"""A client that is closed ends what its operations wait for."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pymongo
import pytest
from pymongo import MongoClient
from pymongo.errors import InvalidOperation, PyMongoError
from pymongo_resilience_instrumentation.clients.by_client import Closing
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
    holds: Callable[[], Any] | None = None,
) -> BaseException | None:
    """What an operation ends with that waits while its client is closed."""
    if kind == "sync":
        return _in_thread(uri, database, options, waits, holds)
    return asyncio.run(_in_task(uri, database, options, waits, holds))


def _ping(client: Any) -> None:
    with suppress(PyMongoError):
        client.admin.command("ping")


def _in_thread(
    uri: str,
    database: str,
    options: dict[str, Any],
    waits: Callable[[], Any],
    holds: Callable[[], Any] | None = None,
) -> BaseException | None:
    client: Any = MongoClient(uri, **{**POLLING, **options})
    ended: list[BaseException | None] = []

    def act() -> None:
        try:
            client[database].coll.find_one({})
        except BaseException as error:  # noqa: BLE001 - answered with
            ended.append(error)
        else:
            ended.append(None)

    if holds:
        threading.Thread(target=_ping, args=(client,), daemon=True).start()
        wait_until(holds)
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    wait_until(waits)
    client.close()
    thread.join(SOON)
    (error,) = ended
    return error


async def _in_task(
    uri: str,
    database: str,
    options: dict[str, Any],
    waits: Callable[[], Any],
    holds: Callable[[], Any] | None = None,
) -> BaseException | None:
    client: Any = pymongo.AsyncMongoClient(uri, **{**POLLING, **options})
    if holds:
        held = asyncio.ensure_future(client.admin.command("ping"))
        await asyncio.to_thread(wait_until, holds)
    task = asyncio.ensure_future(client[database].coll.find_one({}))
    await asyncio.to_thread(wait_until, waits)
    await client.close()
    await asyncio.wait([task], timeout=SOON)
    assert task.done()
    if holds:
        held.cancel()
    return task.exception()


@pytest.fixture(params=["sync", "async"])
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


def test_a_coroutine_closed_after_its_client_ends_without_an_error() -> None:
    async def main() -> None:
        closing = Closing()
        sleeping = closing.sleep_async(LONG)
        sleeping.send(None)
        closing.close()
        sleeping.close()  # would raise what takes the place of GeneratorExit

    asyncio.run(main())


def test_a_coroutine_given_up_in_its_wait_is_collected() -> None:
    closing = Closing()

    async def waits() -> None:
        await closing.sleep_async(LONG)

    async def begin() -> weakref.ref[Any]:
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        return weakref.ref(task)

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(begin())
    loop.close()
    del loop
    gc.collect()
    assert task() is None


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
    try:
        error = ended_by_close(
            kind,
            proxy.uri,
            database,
            {"maxPoolSize": 1},
            lambda: time.monotonic() - began > 0.5,
            held.has_it,
        )
    finally:
        proxy.clear()
    assert type(error) is InvalidOperation
