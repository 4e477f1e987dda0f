"""No cancellation is lost, whatever arrives together with it: CPython's ``wait_for``, by which
pymongo sends, waits and connects, drops it before 3.12."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar
from typing import Any

import pymongo
import pytest
from pymongo import AsyncMongoClient
from pymongo._asyncio_lock import Condition
from pymongo.network_layer import PyMongoProtocol
from support.clients import fail_command
from support.telemetry import Instrument

from pymongo_resilience.testbed import ReplicaSet

TIMEOUTS = pytest.mark.parametrize("timeout_ms", [None, 20_000])

CANCELLED: ContextVar[asyncio.Task[Any] | None] = ContextVar("CANCELLED", default=None)


PLACES = {
    "sending": (PyMongoProtocol, "write"),
    "waiting": (Condition, "wait"),
    "connecting": (asyncio.selector_events.BaseSelectorEventLoop, "sock_connect"),
}


@TIMEOUTS
@pytest.mark.parametrize("place", PLACES)
def test_a_cancellation_that_arrives_with_the_result_of_a_wait(
    proxy: ReplicaSet,
    database: str,
    control: pymongo.MongoClient[Any],
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    timeout_ms: int | None,
    place: str,
) -> None:
    instrument(timeout_ms=timeout_ms)
    owner, name = PLACES[place]
    original = getattr(owner, name)
    hits: list[str] = []

    async def with_cancellation(*args: Any) -> Any:
        result = await original(*args)
        task = CANCELLED.get()
        if task is not None and not hits:
            hits.append(place)
            task.cancel()
        return result

    async def main() -> None:
        options = {"maxIdleTimeMS": 1} if place == "connecting" else {"maxPoolSize": 1}
        async with AsyncMongoClient(proxy.uri, appname="under-test", **options) as client:
            coll = client[database].coll
            await coll.find_one()
            await asyncio.sleep(0.01)
            finished: list[int] = []

            async def work() -> None:
                CANCELLED.set(asyncio.current_task())
                for number in range(3):
                    await coll.find_one()
                    finished.append(number)

            monkeypatch.setattr(owner, name, with_cancellation)
            with contextlib.ExitStack() as stack:
                if place == "waiting":
                    held = {"blockConnection": True, "blockTimeMS": 200, "times": 1}
                    stack.enter_context(fail_command(control, "count", **held))
                    holding = asyncio.create_task(coll.estimated_document_count())
                    await asyncio.sleep(0.1)
                worker = asyncio.create_task(work())
                await asyncio.wait([worker], timeout=10)
                if place == "waiting":
                    await holding
            assert hits
            assert finished == []
            assert worker.cancelled()
            # Nothing is left behind.
            monkeypatch.setattr(owner, name, original)
            assert await coll.find_one() is None

    asyncio.run(main())
