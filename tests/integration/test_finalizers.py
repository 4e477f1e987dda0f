"""Finalizers call nobody: no span ends, nothing is recorded, logged or reported in them, no context
variable changes and no lock is taken. What they have to report is reported later.

A finalizer is a session or coroutine that is collected. It runs inside of any allocation (CPython
3.11) or between any two instructions, whatever the thread is in the middle of.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import gridfs
import pymongo
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics._internal.measurement_consumer import SynchronousMeasurementConsumer
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from pymongo import _csot as pymongo_csot
from pymongo_resilience_instrumentation import in_progress
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.child_programs import ended, run
from support.clients import POLLING, Side, wait_until
from support.garbage_collection import SET, Watcher, collect, steps

import pymongo_resilience
from pymongo_resilience import Config, override
from pymongo_resilience.strategies import Failure, RetryAction, RetryState
from pymongo_resilience.testbed import CutBefore, ReplicaSet

pytestmark = pytest.mark.oldest
HANGS_AFTER = 20
"""Seconds."""


class Patient:
    """A strategy to be awaited, with a back-off."""

    async def retry_after(self, operation: RetryState, failure: Failure) -> RetryAction:
        await asyncio.sleep(0)
        return RetryAction(0.001)


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watcher]:
    made = Watcher()
    SET.set(None)
    consume = SynchronousMeasurementConsumer.consume_measurement

    def consume_measurement(self: Any, measurement: Any) -> None:
        made.see(measurement)
        consume(self, measurement)

    # pymongo's own cleanup fails in a coroutine that is collected: it resets variables of another
    # context, releases locks that it does not hold, and waits once more.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    monkeypatch.setattr(SynchronousMeasurementConsumer, "consume_measurement", consume_measurement)
    logging.getLogger("pymongo_resilience").addHandler(made)
    yield made
    logging.getLogger("pymongo_resilience").removeHandler(made)
    pymongo_resilience.uninstrument()


def switch_on(watcher: Watcher, strategy: Any = None, **options: Any) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(watcher)
    pymongo_resilience.instrument(
        Config(**options),
        strategy=strategy,
        listeners=[watcher],
        tracer_provider=provider,
        meter_provider=MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False),
    )


@pytest.mark.parametrize("what", ["sessions", "coroutines"])
def test_what_is_collected_inside_of_a_context_variables_set_is_no_crash(
    what: str, server: EmbeddedServer, database: str
) -> None:
    answer, _ = run("collected", server.uri, database, what)
    assert answer == {"made": 320, "meanwhile": 0, "ended": True}


@pytest.mark.parametrize("by", ["collector", "last reference"])
def test_a_collected_session_ends_its_transaction_later(
    by: str, side: Side, proxy: ReplicaSet, database: str, watcher: Watcher
) -> None:
    switch_on(watcher)
    client = side.client(proxy.uri)
    session = client.start_session()
    side.do(session.start_transaction)
    side.do(client[database].coll.insert_one, {}, session=session)
    side.turn()  # what the event loop has still to call may refer to the session
    held = [session]
    del session
    before = time.time_ns()
    if by == "collector":
        collect(watcher, held)
    else:
        with watcher.collecting():
            held.clear()
    after = time.time_ns()
    side.do(client.admin.command, "ping")
    (ended,) = [span for span in watcher.ended if span.name == "transaction"]
    assert SET.get() is not ended
    assert ended.end_time is not None
    assert before <= ended.end_time <= after


async def _insert(client: Any, database: str) -> None:
    await client[database].coll.insert_one({})


async def _retried_find(client: Any, database: str) -> None:
    await client[database].coll.find_one({"retried": True})


async def _batches(client: Any, database: str) -> None:
    await client[database].filled.find(batch_size=2).to_list()


async def _closed_cursor(client: Any, database: str) -> None:
    async with client[database].filled.find(batch_size=2) as cursor:
        await anext(cursor)


async def _transaction(client: Any, database: str) -> None:
    async def work(session: Any) -> None:
        # A write that nobody aborts would keep the next one waiting.
        await client[database].filled.find_one(session=session)

    async with client.start_session() as session:
        await session.with_transaction(work)


async def _atomic(client: Any, database: str) -> None:
    with override(atomic=True):
        await client[database].filled.update_many({}, {"$inc": {"n": 1}})


async def _files(client: Any, database: str) -> None:
    bucket = gridfs.AsyncGridFSBucket(client[database])
    identity = await bucket.upload_from_stream("name", b"bytes")
    await (await bucket.open_download_stream(identity)).read()


async def _new_client(client: Any, database: str) -> None:
    # Selection, check-out and handshake are waited for as well.
    async with pymongo.AsyncMongoClient(
        host=[f"{host}:{port}" for host, port in client.nodes], replicaSet="rs0", **POLLING
    ) as another:
        await another[database].coll.find_one()


SCENARIOS: dict[str, tuple[Callable[[Any, str], Coroutine[Any, Any, None]], tuple[Any, ...]]] = {
    "retried find": (_retried_find, ("find",)),
    "retried insert": (_insert, ("insert",)),
    "batches": (_batches, ()),
    "closed cursor": (_closed_cursor, ()),
    "transaction": (_transaction, ("commitTransaction",)),
    "atomic write": (_atomic, ("update",)),
    "files": (_files, ()),
    "new client": (_new_client, ()),
}
EVERYTHING = {
    "timeout_ms": 60_000,
    "circuit_breaker": "always",
    "retry_budget": "tokens",
}


async def _driven(coroutine: Any, count: int) -> bool:
    """A task takes no generator from Python 3.12 on."""
    return await steps(coroutine, count)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_coroutine_collected_at_any_of_its_awaits_calls_nobody(
    name: str, proxy: ReplicaSet, database: str, control: Any, watcher: Watcher
) -> None:
    scenario, cut = SCENARIOS[name]
    control[database].filled.insert_many([{} for _ in range(5)])
    switch_on(watcher, strategy=Patient(), **EVERYTHING)

    async def collected_after(count: int) -> bool:
        client: Any = pymongo.AsyncMongoClient(proxy.uri, **POLLING)
        await client.admin.command("ping")
        for command in cut:
            proxy.inject(CutBefore(command))
        coroutine = scenario(client, database)
        finished = await asyncio.create_task(_driven(coroutine, count))
        held = [coroutine]
        del coroutine
        collect(watcher, held)
        proxy.clear()
        with suppress(Exception):
            async with asyncio.timeout(HANGS_AFTER):
                await client.admin.command("ping")  # what could not be awaited begins with it
                await client.close()
        if name == "atomic write":
            # A statement that was still under way may have begun a transaction, which blocks the
            # next one; that the library aborts its own is seen in test_open_transactions.py.
            wait_until(lambda: not any(each.connections for each in proxy.members))
            control.admin.command("killAllSessions", [])
        return finished

    async def every_await() -> int:
        count = 0
        while not await collected_after(count):
            count += 1
        return count

    awaits = _run_with_a_deadline(every_await)
    assert awaits > 1
    with watcher.collecting():
        gc.collect()  # sessions that errors hold
    assert SET.get() is None
    with pymongo.timeout(HANGS_AFTER):  # no transaction holds them
        control[database].filled.update_many({}, {"$set": {"free": True}})
    assert len(control[database].filled.distinct("n")) <= 1, "all are changed, or none"
    assert watcher.open == []
    _nothing_is_in_progress()


def _run_with_a_deadline(main: Callable[[], Awaitable[Any]]) -> Any:
    async def limited() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with asyncio.timeout(3 * HANGS_AFTER):
            return await main()

    return asyncio.run(limited())


def _nothing_is_in_progress() -> None:
    assert in_progress.current() is None


async def _suspended(client: Any, database: str, count: int) -> list[Any]:
    """So many reads that wait for their replies, each in a context of its own."""
    begun: list[Any] = []

    async def begin() -> None:
        operation = client[database].coll.find_one()
        operation.send(None)
        begun.append(operation)

    await client.admin.command("ping")
    await asyncio.gather(*(begin() for _ in range(count)))
    return begun


def _ends(work: Callable[[], object]) -> bool:
    """Whether it does, in a thread of its own."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(HANGS_AFTER)
    return not thread.is_alive()


def test_a_finalizer_waits_for_none_of_the_locks_that_a_thread_holds(
    proxy: ReplicaSet, database: str, control: Any, watcher: Watcher
) -> None:
    switch_on(watcher, **EVERYTHING)
    held, collected = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in _locks():
                stack.enter_context(lock)
            held.set()
            collected.wait(2 * HANGS_AFTER)

    async def main() -> None:
        async with pymongo.AsyncMongoClient(proxy.uri, maxPoolSize=None, **POLLING) as client:
            begun = await _suspended(client, database, 3)
            holder = threading.Thread(target=hold, daemon=True)
            holder.start()
            held.wait(HANGS_AFTER)
            assert _ends(begun.clear)
            collected.set()
            holder.join()

    asyncio.run(main())
    control.admin.command("ping")
    assert watcher.open == []
    _nothing_is_in_progress()


def test_an_operation_may_begin_while_its_own_thread_holds_our_locks(
    proxy: ReplicaSet, database: str, watcher: Watcher
) -> None:
    """In a generator of the application's that is collected, or in a signal handler."""
    switch_on(watcher, **EVERYTHING)
    with pymongo.MongoClient[Any](proxy.uri, **POLLING) as client:
        client[database].coll.find_one()

        def find_inside() -> None:
            with ExitStack() as stack:
                for lock in _locks():
                    stack.enter_context(lock)
                found.append(client[database].coll.find_one())

        found: list[Any] = []
        assert _ends(find_inside)
        assert found == [None]
        _nothing_is_in_progress()


def _locks() -> list[Any]:
    """Those of the library's objects that nothing holds: a test that strikes every line may have
    left some of its own locked."""
    found = [
        getattr(each, name, None)
        for each in gc.get_objects()
        if f"{type(each).__module__}.".startswith(
            ("pymongo_resilience.", "pymongo_resilience_instrumentation.")
        )
        for name in ("lock", "_lock")
    ]
    kinds = (type(threading.Lock()), type(threading.RLock()))
    locks = [
        each for each in {id(e): e for e in found if isinstance(e, kinds)}.values() if _free(each)
    ]
    assert len(locks) > 3
    return locks


def test_what_was_in_force_for_a_closed_coroutine_is_not_for_what_follows_it(
    proxy: ReplicaSet, database: str, watcher: Watcher
) -> None:
    """Where it is closed in its own context, which goes on."""
    switch_on(watcher, timeout_ms=20_000)

    async def main() -> Any:
        async with pymongo.AsyncMongoClient(proxy.uri, **POLLING) as client:
            await client.admin.command("ping")
            operation: Any = client[database].coll.find_one()
            operation.send(None)
            # pymongo's own cleanup waits for its connection to be closed.
            with pytest.raises(RuntimeError) as closing:
                operation.close()
            at_once = (
                in_progress.current_or_ended(),
                pymongo_csot.get_timeout(),
                pymongo_csot.get_deadline(),
            )
            await client[database].coll.find_one()
            return type(closing.value).__name__, at_once

    raised, at_once = asyncio.run(main())
    assert at_once == (None, None, math.inf)
    first, second = [span for span in watcher.ended if span.name == f"find {database}.coll"]
    assert first.end_time is not None
    assert second.start_time is not None
    assert first.end_time < second.start_time
    assert first.attributes is not None
    assert first.attributes["exception.type"] == raised
    assert second.parent is None


def test_a_coroutine_collected_before_the_end_of_the_process_has_its_span(
    server: EmbeddedServer, database: str
) -> None:
    status, output, errors = ended(
        [sys.executable, "-c", EXITING, server.uri, database], {"PYTHONWARNINGS": "ignore"}
    )
    assert status == 0, errors
    # What pymongo's own cleanup makes of the GeneratorExit: it waits for its connection to close.
    assert '"exception.type": "RuntimeError"' in output


EXITING = """
import asyncio, sys, pymongo, pymongo_resilience
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

pymongo_resilience.instrument()
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)
sys.unraisablehook = lambda _: None

async def main():
    async with pymongo.AsyncMongoClient(sys.argv[1]) as client:
        await client.admin.command("ping")
        operation = client[sys.argv[2]].coll.find_one()
        operation.send(None)
    del operation

asyncio.run(main())
"""


def _free(lock: Any) -> bool:
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True
