"""Listeners, hooks, log handlers and exporters that use MongoDB are not told of that in turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymongo
import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError
from pymongo_resilience_instrumentation import in_progress
from support.clients import POLLING, Side, fail_command

import pymongo_resilience
from pymongo_resilience import Config
from pymongo_resilience.strategies import RetryAction
from pymongo_resilience.testbed import ReplicaSet
from pymongo_resilience.testing import RecordingListener

pytestmark = pytest.mark.oldest
RETRIES = 5
FAILS = {"errorCode": 6, "errorLabels": ["RetryableWriteError"]}
Act = Callable[[], Any]


class FiveTimes:
    def retry_after(self, operation: Any, failure: Any) -> RetryAction | None:
        return RetryAction(0) if operation.attempts <= RETRIES else None


class Reporter(logging.Handler, SpanProcessor):
    """Writes to MongoDB whatever it is told, from wherever that is."""

    def __init__(self, act: Act) -> None:
        super().__init__()
        self.act = act
        self.told = self.depth = self.deepest = 0

    def write(self, *_: Any) -> None:
        self.told += 1
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        try:
            self.act()
        except PyMongoError:
            pass
        finally:
            self.depth -= 1

    on_event = emit = request_hook = failed_hook = write
    on_start = on_end = write

    def shutdown(self) -> None: ...

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


@contextmanager
def instrumented(place: str, reporter: Reporter) -> Iterator[RecordingListener]:
    heard, provider = RecordingListener(), TracerProvider(shutdown_on_exit=False)
    logger = logging.getLogger("pymongo_resilience")
    if place in ("on_start", "on_end"):
        only = type("Only", (SpanProcessor,), {place: lambda *_, **__: reporter.write()})
        provider.add_span_processor(only())
    if place == "log":
        logger.addHandler(reporter)
        logger.setLevel(logging.DEBUG)
    hooks = {place: reporter.write} if place.endswith("hook") else {}
    pymongo_resilience.instrument(
        Config(timeout_ms=20_000, metrics=False),
        strategy=FiveTimes(),
        listeners=[heard, *([reporter] if place == "listener" else [])],
        tracer_provider=provider,
        **hooks,
    )
    try:
        yield heard
    finally:
        logger.removeHandler(reporter)
        logger.setLevel(logging.NOTSET)
        pymongo_resilience.uninstrument()


@pytest.mark.parametrize("nested", ["same client", "another client"])
@pytest.mark.parametrize(
    "place", ["log", "listener", "request_hook", "failed_hook", "on_start", "on_end"]
)
def test_who_is_told_sends_nothing_that_is_told(
    place: str,
    nested: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    control: MongoClient[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    reporter = Reporter(lambda: None)
    with instrumented(place, reporter) as heard:
        client = side.client(proxy.uri)
        with pymongo.MongoClient(proxy.uri, **POLLING) as other:
            for each in (client, other):
                side.do(each[database].coll.find_one)
            # A listener cannot await: an async application has a sync client for it.
            writer = client if nested == "same client" and side.runner is None else other
            reporter.act = lambda: writer[database].audit.insert_one({})
            reporter.told = 0
            caplog.clear()
            with fail_command(control, "insert", **FAILS), pytest.raises(OperationFailure):
                side.do(client[database].coll.insert_one, {})
            reporter.act = lambda: None
    # Of the one operation alone: five retries and the end of it.
    assert [each.attempt for each in heard.events] == list(range(1, RETRIES + 2))
    assert 0 < reporter.told < 4 * RETRIES
    # One line says that it happens, and a log handler is told that one, too.
    assert reporter.deepest == (2 if place == "log" else 1)
    assert in_progress.current() is None
    said = [
        each
        for each in caplog.records
        if "uses MongoDB while it handles the telemetry" in each.message
    ]
    assert len(said) == 1


def test_a_task_that_a_listener_starts_tells_nothing_either(
    proxy: ReplicaSet, database: str, control: MongoClient[Any]
) -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def main() -> None:
        async with pymongo.AsyncMongoClient(proxy.uri, **POLLING) as client:
            await client[database].coll.find_one()
            loop = asyncio.get_running_loop()

            async def audit() -> None:
                await client[database].audit.insert_one({})

            reporter.act = lambda: tasks.append(loop.create_task(audit()))
            with fail_command(control, "insert", **FAILS):
                with pytest.raises(OperationFailure):
                    await client[database].coll.insert_one({})
                await asyncio.gather(*tasks, return_exceptions=True)
            await client[database].coll.find_one()

    reporter = Reporter(lambda: None)
    with instrumented("listener", reporter) as heard:
        asyncio.run(main())
    assert len(tasks) == len(heard.events) == RETRIES + 1
