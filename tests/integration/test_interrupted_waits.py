"""Waiting can be interrupted at once, wherever it is: nothing more is sent, and nothing is kept."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from support.clients import Side, wait_until
from support.interruption import LONG, NAMES, Held, Journal, cancel, interrupt
from support.telemetry import Instrument, Telemetry

from pymongo_resilience.strategies import RetryAction
from pymongo_resilience.testbed import Fail, ReplicaSet

AT_ONCE = 5.0
"""Seconds. It takes milliseconds, or longer on a machine with other work; the wait is 60 s."""


class Patient:
    """A strategy that has all the time in the world."""

    def retry_after(self, operation: Any, failure: Any) -> RetryAction:
        return RetryAction(LONG)


class Pondering:
    """A strategy that never comes to an answer."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    async def retry_after(self, operation: Any, failure: Any) -> RetryAction:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError("not reached")


def _interrupt_between_attempts(
    side: Side, proxy: ReplicaSet, database: str, telemetry: Telemetry, due: Any
) -> Any:
    """A find whose first attempt failed, interrupted before the second: its operation span."""
    journal = Journal()
    client = side.do(side.client, proxy.uri, maxPoolSize=1, event_listeners=[journal])
    side.do(client.admin.command, "ping")
    telemetry.clear()
    proxy.inject(Fail("find", times=9, code=262))
    assert interrupt(side, due, client[database].coll.find_one) < AT_ONCE

    (attempt,) = journal.started_commands("find")
    assert journal.without_exactly_one_end() == []
    used = [
        point.value
        for attributes, point in telemetry.points("db.client.connection.count")
        if attributes["db.client.connection.state"] == "used"
    ]
    assert used == [0], "a connection was not given back"
    (root,) = telemetry.operations()
    assert root.attributes["exception.type"].endswith(NAMES[side.name])
    assert len(telemetry.commands_of(root)) == 1
    side.do(client.admin.command, "ping")
    following = journal.started_commands("ping")[-1]
    assert following.command["lsid"] == attempt.command["lsid"], "a session was not given back"
    return root


def test_a_back_off_ends_at_once(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(strategy=Patient())
    decisions = telemetry.decisions.events
    root = _interrupt_between_attempts(side, proxy, database, telemetry, lambda: decisions)
    (scheduled,) = decisions
    assert scheduled.delay == LONG
    assert [event.name for event in root.events] == ["retry.scheduled"]


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_a_strategy_that_is_awaited_ends_at_once(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    strategy = Pondering()
    telemetry = instrument(strategy=strategy)
    root = _interrupt_between_attempts(side, proxy, database, telemetry, strategy.asked.is_set)
    assert telemetry.decisions.events == []
    assert root.events == ()


def test_waiting_for_a_connection_ends_at_once_and_sends_nothing(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    journal = Journal()
    held = Held("insert")

    def is_waiting() -> bool:
        names = [type(event).__name__ for event in journal.events]
        return names.count("ConnectionCheckOutStartedEvent") == 3

    async def main() -> None:
        async with AsyncMongoClient(
            proxy.uri, maxPoolSize=1, event_listeners=[journal], appname="under-test"
        ) as client:
            coll = client[database].coll
            await client.admin.command("ping")
            proxy.inject(held)
            insert = asyncio.create_task(coll.insert_one({"_id": 1}))
            await asyncio.to_thread(wait_until, held.has_it)
            assert await cancel(is_waiting, coll.find_one) < AT_ONCE
            proxy.clear()
            await insert
            assert await coll.find_one() == {"_id": 1}

    asyncio.run(main())
    assert len(journal.started_commands("find")) == 1
    assert journal.without_exactly_one_end() == []
    cancelled, found = telemetry.operations(f"find {database}.coll")
    assert (telemetry.commands_of(cancelled), len(telemetry.commands_of(found))) == ([], 1)
    assert telemetry.decisions.events == []
