"""No loop depends on the clock to end: tests freeze it. A back-off is one wait."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import InvalidOperation, PyMongoError
from pymongo_resilience_instrumentation import in_progress
from pymongo_resilience_instrumentation.call import Call
from pymongo_resilience_instrumentation.clients.client_registry import ClientClock, Clients
from pymongo_resilience_instrumentation.operation import CURRENT, Operation
from support.clients import Side
from support.telemetry import Instrument

from pymongo_resilience import override
from pymongo_resilience.testbed import CutAfter, Fail, Fault, Overload, ReplicaSet

pytestmark = pytest.mark.oldest
FINDS = "finds"
ENDS = 20.0
"""Seconds after which a test that hangs has failed."""


@pytest.fixture
def freeze(side: Side, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Stops the clocks that Python code reads; asyncio's goes on, as with freezegun's
    ``real_asyncio``."""
    real = time.monotonic

    def stop() -> None:
        stands = real(), time.perf_counter()
        if side.runner is not None:
            monkeypatch.setattr(side.runner.get_loop(), "time", real)
        monkeypatch.setattr(time, "monotonic", lambda: stands[0])
        monkeypatch.setattr(time, "perf_counter", lambda: stands[1])

    yield stop
    monkeypatch.undo()


def outcome(side: Side, coll: Any) -> str:
    """Of one find, in a thread, since it may never end."""
    done = threading.Event()
    found: list[str] = []

    def find() -> None:
        try:
            side.do(coll.find_one)
            found.append("found")
        except PyMongoError as error:
            found.append(type(error).__name__)
        done.set()

    threading.Thread(target=find, name=FINDS, daemon=True).start()
    assert done.wait(ENDS), "it does not end while the clock stands still"
    return found[0]


FAULTS: dict[str, Callable[[], Fault]] = {
    "one rejection": lambda: Overload("find", times=1),
    "rejections": lambda: Overload("find", times=1000),
    "one lost reply": lambda: CutAfter("find", times=1),
}


@pytest.mark.parametrize("timeout_ms", [None, 2_000])
@pytest.mark.parametrize("name", FAULTS)
def test_an_operation_ends_as_in_plain_pymongo(
    name: str, timeout_ms: int | None, side: Side, proxy: ReplicaSet, database: str,
    instrument: Instrument, freeze: Callable[[], None],
) -> None:  # fmt: skip
    coll = side.do(side.client, proxy.uri)[database].coll
    side.do(coll.find_one)
    instrument(**({} if timeout_ms is None else {"timeout_ms": timeout_ms}), base_backoff_ms=1)
    freeze()
    proxy.inject(FAULTS[name]())
    assert outcome(side, coll) == ("OperationFailure" if name == "rejections" else "found")


def test_a_server_that_goes_on_failing_ends_it(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    freeze: Callable[[], None],
) -> None:  # fmt: skip
    """The sum of the waits counts where no time passes."""
    instrument()
    coll = side.do(side.client, proxy.uri)[database].coll
    side.do(coll.find_one)
    freeze()
    proxy.inject(Fail("find", code=6, times=100_000))
    with override(timeout_ms=500):
        assert outcome(side, coll) != "found"


def test_time_sleep_may_be_patched_away(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A back-off does not spin: it is one wait."""
    instrument()
    coll = side.do(side.client, proxy.uri)[database].coll
    side.do(coll.find_one)
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        if threading.current_thread().name == FINDS:
            naps.append(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    proxy.inject(Overload("find", times=2))
    assert outcome(side, coll) == "found"
    assert len(naps) <= 2


# Back-offs: one wait each, ended by its time, by close, or by a cancellation.


@pytest.fixture
def waiting() -> Iterator[tuple[ClientClock, Clients, Any]]:
    """A clock for the operations of a client."""
    clients = Clients()
    with MongoClient[Any]("mongodb://127.0.0.1:1/", connect=False) as client:
        yield ClientClock(clients), clients, client


def in_operation(client: Any, wait: Callable[[], Any]) -> Any:
    CURRENT.set(Operation(Call(client, "find", ("db", "coll"))))
    assert in_progress.current() is not None
    return wait()


def test_many_back_offs_are_one_wake_up_each(waiting: Any) -> None:
    clock, _, client = waiting
    count, timers = 2_000, []

    async def all_of_them() -> None:
        loop = asyncio.get_running_loop()
        call_at = loop.call_at

        def counted(*args: Any, **kwargs: Any) -> Any:
            timers.append(args)
            return call_at(*args, **kwargs)

        loop.call_at = counted  # type: ignore[method-assign]  # only counts
        CURRENT.set(Operation(Call(client, "find", ("db", "coll"))))
        await asyncio.gather(*(clock.sleep_async(0.5) for _ in range(count)))

    asyncio.run(all_of_them())
    assert len(timers) == count


def test_closing_ends_the_back_offs_of_threads(waiting: Any) -> None:
    clock, clients, client = waiting
    with ThreadPoolExecutor(20) as pool:
        made = [pool.submit(in_operation, client, lambda: clock.sleep(ENDS)) for _ in range(20)]
        while len(clients.of(client).back_offs) < 20:
            time.sleep(0.001)
        clients.of(client).close()
        assert {type(each.exception(timeout=ENDS / 2)) for each in made} == {InvalidOperation}
    assert clients.of(client).back_offs == set()


def test_closing_ends_the_back_offs_of_tasks_from_any_thread(waiting: Any) -> None:
    clock, clients, client = waiting

    async def waits() -> list[Any]:
        CURRENT.set(Operation(Call(client, "find", ("db", "coll"))))
        tasks = [asyncio.create_task(clock.sleep_async(ENDS)) for _ in range(20)]
        await asyncio.sleep(0)
        threading.Thread(target=clients.of(client).close).start()
        async with asyncio.timeout(ENDS / 2):
            return await asyncio.gather(*tasks, return_exceptions=True)

    assert {type(each) for each in asyncio.run(waits())} == {InvalidOperation}
    assert clients.of(client).back_offs == set()


def test_a_back_off_of_a_closed_client_does_not_begin(waiting: Any) -> None:
    clock, clients, client = waiting
    clients.of(client).close()
    with pytest.raises(InvalidOperation), ThreadPoolExecutor(1) as pool:
        pool.submit(in_operation, client, lambda: clock.sleep(ENDS)).result(ENDS / 2)


def test_a_cancellation_ends_a_back_off(waiting: Any) -> None:
    clock, clients, client = waiting

    async def cancelled() -> None:
        CURRENT.set(Operation(Call(client, "find", ("db", "coll"))))
        task = asyncio.create_task(clock.sleep_async(ENDS))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert clients.of(client).back_offs == set()


def test_closing_passes_over_a_back_off_whose_event_loop_is_gone(waiting: Any) -> None:
    clock, clients, client = waiting
    loop = asyncio.new_event_loop()

    async def waits() -> None:
        CURRENT.set(Operation(Call(client, "find", ("db", "coll"))))
        await clock.sleep_async(ENDS)

    task = loop.create_task(waits())
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is destroyed on purpose
    while not clients.of(client).back_offs:
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    clients.of(client).close()
    assert clients.closed(client)
    del task, waits
    gc.collect()
    assert clients.of(client).back_offs == set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on Windows")
def test_a_forked_child_has_none_of_the_back_offs_of_its_parent(waiting: Any) -> None:
    clock, clients, client = waiting
    with ThreadPoolExecutor(1) as pool:
        pool.submit(in_operation, client, lambda: clock.sleep(ENDS))
        while not clients.of(client).back_offs:
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            clients.reset_after_fork()
            state = clients.of(client)
            os._exit(len(state.back_offs) + state.closed)
        assert os.waitpid(child, 0)[1] == 0
        clients.of(client).close()
