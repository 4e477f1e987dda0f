"""Threads, event loops and operations that were running when the switch was thrown."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from logging import WARNING
from typing import Any

import pymongo
import pytest
from support.clients import POLLING, Side
from support.command_listeners import OnCommands
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience.testbed import CutBefore
from pymongo_resilience.testing import is_active

Wait = Callable[[], Awaitable[None]]


async def done(value: Any) -> Any:
    """A client's result, awaited where the client is an async one."""
    return await value if inspect.isawaitable(value) else value


@contextlib.asynccontextmanager
async def opened(kind: Any, uri: str, **options: Any) -> AsyncIterator[Any]:
    client = kind(uri, **POLLING, **options)
    try:
        yield client
    finally:
        await done(client.close())


class Elsewhere:
    """A task in an event loop and a thread of its own; it has come to where it waits."""

    def __init__(self, work: Callable[[Wait], Any]) -> None:
        self._arrived, self._go_on = threading.Event(), threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(work,))
        self._thread.start()
        assert self._arrived.wait(10)

    def _run(self, work: Callable[[Wait], Any]) -> None:
        async def wait() -> None:
            self._arrived.set()
            await asyncio.to_thread(self._go_on.wait)

        try:
            asyncio.run(work(wait))
        except BaseException as error:  # noqa: BLE001 - raised where the test waits for the end
            self._errors.append(error)

    def finish(self) -> None:
        self._go_on.set()
        self._thread.join()
        for error in self._errors:
            raise error


@pytest.mark.parametrize("kind", [pymongo.MongoClient, pymongo.AsyncMongoClient])
def test_what_ran_before_instrument_has_all_of_it_with_a_new_client(
    kind: Any, proxy: Any, database: str, instrument: Instrument
) -> None:
    async def work(wait: Wait) -> None:
        async with opened(kind, proxy.uri) as old:
            await done(old.admin.command("ping"))
            await wait()
            proxy.inject(CutBefore("insert", times=3))
            await done(old[database].old.insert_one({}))
        async with opened(kind, proxy.uri) as new:
            await done(new.admin.command("ping"))
            proxy.inject(CutBefore("insert", times=3))
            await done(new[database].new.insert_one({}))

    elsewhere = Elsewhere(work)
    telemetry = instrument(timeout_ms=20_000)
    elsewhere.finish()
    # As the warning of instrument() says: a client that existed has no command spans.
    for collection, commands in (("old", 0), ("new", 4)):
        (operation,) = telemetry.operations(f"insert {database}.{collection}")
        assert operation.attributes["pymongo_resilience.attempts"] == 4
        assert len(telemetry.commands_of(operation)) == commands


def between_attempts(act: Callable[[], Any]) -> OnCommands:
    """A listener that does it after the first failure."""
    left = [act]

    def failed(_: Any) -> None:
        while left:
            left.pop()()

    return OnCommands(failed=failed)


def test_an_operation_that_began_before_instrument_ends_as_the_drivers_own(
    side: Side, proxy: Any, database: str, instrument: Instrument, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[Any] = []
    between = between_attempts(lambda: started.append(instrument(timeout_ms=20_000)))
    coll = side.do(side.client, proxy.uri, event_listeners=[between])[database].coll
    side.do(coll.find_one)
    proxy.inject(CutBefore("insert"))
    side.do(coll.insert_one, {})
    (telemetry,) = started
    assert telemetry.decisions.events == []
    assert telemetry.spans() == []
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= WARNING]
    assert "made before instrument()" in warning
    assert side.do(coll.count_documents, {}) == 1


def test_an_operation_that_began_before_uninstrument_ends_as_ours(
    side: Side, proxy: Any, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    between = between_attempts(pymongo_resilience.uninstrument)
    coll = side.do(side.client, proxy.uri, event_listeners=[between])[database].coll
    side.do(coll.find_one)
    proxy.inject(CutBefore("insert", times=3))
    side.do(coll.insert_one, {})
    assert not is_active()
    assert len(telemetry.decisions.events) == 3
    (operation,) = telemetry.operations(f"insert {database}.coll")
    assert operation.attributes["pymongo_resilience.outcome"] == "retried_ok"
    assert side.do(coll.count_documents, {}) == 1
