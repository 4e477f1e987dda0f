"""Event loops that come and go, and uvloop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
import uvloop
from support.clients import POLLING, Side, wait_until
from support.engine.retry_strategies import waiting
from support.telemetry import Instrument

from pymongo_resilience.testbed import CutAfter, CutBefore, Slow


def _complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    ours = ("pymongo_resilience", "opentelemetry", "asyncio")
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith(ours) and record.levelname in ("WARNING", "ERROR")
    ]


def test_one_event_loop_after_the_other_each_with_a_client_of_its_own(
    proxy: Any, database: str, instrument: Instrument, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    caplog.clear()

    async def main() -> None:
        async with pymongo.AsyncMongoClient(proxy.uri, **POLLING) as client:
            await client.admin.command("ping")
            proxy.inject(CutBefore("insert", times=3))
            await client[database].coll.insert_one({})

    for _ in range(3):
        asyncio.run(main())
    operations = telemetry.operations(f"insert {database}.coll")
    assert [len(telemetry.commands_of(operation)) for operation in operations] == [4, 4, 4]
    ((_, retries),) = telemetry.points("pymongo_resilience.retries")
    assert retries.value == 9
    assert telemetry.points("db.client.connection.count") == []
    assert _complaints(caplog) == []


@pytest.mark.filterwarnings("ignore:.*AsyncMongoClient:ResourceWarning")  # that is the point
def test_a_loop_closed_over_an_open_client_and_a_running_operation_leaves_no_span_open(
    proxy: Any, database: str, instrument: Instrument, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = instrument(timeout_ms=20_000, command_spans="never")
    caplog.clear()
    in_flight: list[Any] = []

    async def main() -> Any:
        client: Any = pymongo.AsyncMongoClient(proxy.uri, **POLLING)
        await client[database].coll.insert_one({})
        slow = Slow(60)
        proxy.inject(slow)
        in_flight.append(asyncio.create_task(client[database].coll.find_one()))
        await asyncio.to_thread(wait_until, lambda: slow.injected)
        return client

    for _ in range(2):
        client = asyncio.run(main())
        proxy.clear()
        ended = [span.attributes["db.operation.name"] for span in telemetry.spans()]
        assert ended == ["insert", "find"]
        telemetry.clear()
        assert in_flight.pop().cancelled()
        # Asked about a client whose loop is gone.
        assert telemetry.reader.get_metrics_data() is not None
        del client
        gc.collect()
        assert telemetry.reader.get_metrics_data() is not None
    assert _complaints(caplog) == []


@pytest.mark.oldest
@pytest.mark.filterwarnings("ignore:.*AsyncMongoClient:ResourceWarning")  # that is the point
# pymongo's own monitors end without a loop as well.
@pytest.mark.filterwarnings("ignore:.*MonitorBase:pytest.PytestUnraisableExceptionWarning")
def test_a_task_left_behind_in_its_back_off_ends_quietly_where_it_is_collected(
    proxy: Any, database: str, instrument: Instrument, control: pymongo.MongoClient[Any]
) -> None:
    # With a timeout of ours in force in a context that is gone by then. What is raised in a
    # destructor fails the test: see the filters in pyproject.toml.
    telemetry = instrument(strategy=waiting(60.0), timeout_ms=120_000)

    async def main() -> None:
        # Left open: close() ends the back-offs of its client.
        client: Any = pymongo.AsyncMongoClient(proxy.uri, **POLLING)
        await client.admin.command("ping")
        proxy.inject(CutBefore("find"))
        left_behind.append(asyncio.create_task(client[database].coll.find_one()))
        await asyncio.to_thread(wait_until, lambda: telemetry.decisions.events)

    left_behind: list[Any] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    del loop
    left_behind.clear()
    gc.collect()
    control.admin.command("ping")
    (operation,) = telemetry.operations(f"find {database}.coll")
    assert operation.attributes["exception.type"] == "GeneratorExit"


@pytest.fixture
def on_uvloop(proxy: Any) -> Iterator[Side]:
    side = Side("uvloop", asyncio.Runner(loop_factory=uvloop.new_event_loop))
    assert side.runner is not None
    assert isinstance(side.runner.get_loop(), uvloop.Loop)
    yield side
    side.close()


def test_on_uvloop_lost_replies_are_retried_and_applied_once(
    on_uvloop: Side, proxy: Any, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    coll = on_uvloop.do(on_uvloop.client, proxy.uri)[database].coll

    async def many() -> None:
        await asyncio.gather(
            *(coll.update_one({"_id": n}, {"$inc": {"n": 1}}, upsert=True) for n in range(20))
        )

    on_uvloop.do(many)
    proxy.inject(CutAfter("update", times=3))
    on_uvloop.do(many)
    assert [each["n"] for each in on_uvloop.documents(coll.find())] == [2] * 20
    operations = telemetry.operations(f"update {database}.coll")
    assert len(operations) == 40
    sent = [
        [span.attributes["db.mongodb.txn_number"] for span in telemetry.commands_of(operation)]
        for operation in operations
    ]
    assert sum(map(len, sent)) >= 43
    assert [len(set(numbers)) for numbers in sent] == [1] * 40
