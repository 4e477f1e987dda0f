"""Most operations run as the driver runs them, until an attempt fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)
from pymongo_resilience_instrumentation import calls, driver, runtime
from pymongo_resilience_instrumentation.retries import attempts, deprioritized
from pymongo_resilience_instrumentation.telemetry.operation_spans import OperationSpans
from pymongo_resilience_instrumentation.testbed import CutAfter, Fail, ReplicaSet
from support.clients import Side
from support.telemetry import Instrument

from pymongo_resilience import override

pytestmark = pytest.mark.oldest

OPERATIONS: dict[str, Callable[[Side, Any], object]] = {
    "find_one": lambda side, coll: side.do(coll.find_one, {}),
    "insert_one": lambda side, coll: side.do(coll.insert_one, {}),
    "update_one": lambda side, coll: side.do(coll.update_one, {}, {"$set": {"n": 1}}),
    "bulk_write": lambda side, coll: side.do(coll.insert_many, [{}, {}]),
    "count_documents": lambda side, coll: side.do(coll.count_documents, {}),
    "a cursor": lambda side, coll: side.documents(coll.find({}, batch_size=2)),
    "command": lambda side, coll: side.do(coll.database.command, "ping"),
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every ``Attempts`` that is made."""
    found: list[Any] = []

    class Counted(attempts.Attempts):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            found.append(self)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(runtime, "Attempts", Counted)
    return found


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_succeeds_is_not_prepared(
    name: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    made: list[Any],
) -> None:
    instrument()
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_many, [{} for _ in range(5)])
    OPERATIONS[name](side, coll)
    assert made == []
    with override(timeout_ms=10_000):
        OPERATIONS[name](side, coll)
    assert made != []


@pytest.mark.parametrize("name", ["find_one", "insert_one"])
def test_what_fails_is_repeated_once_it_has(
    name: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    made: list[Any],
) -> None:
    telemetry = instrument(base_backoff_ms=1)
    coll = side.client(proxy.uri)[database].coll
    proxy.inject(CutAfter("find" if name == "find_one" else "insert"))
    OPERATIONS[name](side, coll)
    assert len(made) == len(telemetry.decisions.events) == 1
    OPERATIONS[name](side, coll)
    assert len(made) == 1


@pytest.mark.parametrize("breaker", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_call_that_has_ended_holds_nothing_of_the_application(
    fails: bool,
    breaker: bool,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
) -> None:
    """A task that was started inside of it keeps its context, and the call with it."""
    seen: list[Any] = []

    class Inside(CommandListener):
        def started(self, event: CommandStartedEvent) -> None:
            seen.append(calls.current())

        def succeeded(self, event: CommandSucceededEvent) -> None: ...

        def failed(self, event: CommandFailedEvent) -> None: ...

    instrument(circuit_breaker="on" if breaker else "off")
    coll = side.client(proxy.uri, event_listeners=[Inside()])[database].coll
    if fails:
        proxy.inject(Fail("insert", code=11601))
    with pytest.raises(OperationFailure) if fails else nullcontext():
        side.do(coll.insert_one, {"secret": 1})
    call = seen[-1]
    assert call.ended
    assert call.operation == "insert"
    assert call.client is call.made is call.selected is call.judged is call.loop is None


@pytest.mark.parametrize("name", ["find_one", "insert_one"])
def test_where_a_loop_cannot_be_prepared_the_driver_repeats_by_itself(
    name: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody would hear that we gave up: the signal for that must not reach the application."""

    faults = 0

    class BrokenOnce(attempts.Attempts):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            nonlocal faults
            faults += 1
            if faults == 1:
                raise RuntimeError("broken")
            super().__init__(*args, **kwargs)

    telemetry = instrument(circuit_breaker="always")
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {})
    monkeypatch.setattr(runtime, "Attempts", BrokenOnce)
    proxy.inject(CutAfter("find" if name == "find_one" else "insert", times=9))
    with pytest.raises(AutoReconnect):
        OPERATIONS[name](side, coll)
    assert faults == 1
    assert telemetry.decisions.events == []


@pytest.mark.parametrize("name", ["find_one", "insert_one"])
def test_where_the_first_failure_cannot_be_judged_it_is_raised(
    name: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(attempts.Attempts):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            raise RuntimeError("broken")

    telemetry = instrument(base_backoff_ms=1)
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {})
    monkeypatch.setattr(runtime, "Attempts", Broken)
    proxy.inject(CutAfter("find" if name == "find_one" else "insert", times=9))
    with pytest.raises(AutoReconnect):
        OPERATIONS[name](side, coll)
    assert telemetry.decisions.events == []


@pytest.mark.parametrize("name", ["find_one", "insert_one"])
def test_where_another_library_stands_in_for_the_loop_the_application_sees_the_error(
    name: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = next(
        each
        for each, is_async in driver.retry_loop.loop_classes()
        if is_async == (side.name == "async")
    )
    original = loop.run

    def run(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    monkeypatch.setattr(loop, "run", run)
    telemetry = instrument(base_backoff_ms=1)
    coll = side.client(proxy.uri)[database].coll
    proxy.inject(CutAfter("find" if name == "find_one" else "insert", times=9))
    with pytest.raises(AutoReconnect):
        OPERATIONS[name](side, coll)
    assert len(telemetry.decisions.events) > 0


def test_what_another_operation_avoids_is_not_avoided(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, made: list[Any]
) -> None:
    """A listener's own operation, say, or that of a task that was started in the middle of one."""
    instrument()
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.find_one)
    mark = deprioritized.avoid((proxy.address,), None)
    try:
        side.do(coll.find_one)
    finally:
        deprioritized.end(mark)
    assert len(made) == 1


def test_an_operation_inside_that_fails_leaves_the_one_around_it_its_retries(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """From a listener of commands, which can only be one of a sync client."""
    failed: list[Exception] = []

    class Inside(CommandListener):
        def started(self, event: CommandStartedEvent) -> None:
            if event.command.get("find") == "outer" and not failed:
                try:
                    client[database].inner.find_one()
                except OperationFailure as error:
                    failed.append(error)
                proxy.inject(Fail("find", code=91))

        def succeeded(self, event: CommandSucceededEvent) -> None: ...

        def failed(self, event: CommandFailedEvent) -> None: ...

    telemetry = instrument(base_backoff_ms=1)
    with MongoClient(proxy.uri, event_listeners=[Inside()]) as client:
        client[database].other.find_one()
        proxy.inject(Fail("find", code=11601))
        client[database].outer.find_one()
    assert len(failed) == 1
    kinds = [type(event).__name__ for event in telemetry.decisions.events]
    assert kinds == ["RetryDeclined", "RetryScheduled"]


def test_an_interruption_while_a_call_ends_ends_it(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[Any] = []

    def interrupted(_: Any, call: Any, *__: Any) -> None:
        ended.append(call)
        raise KeyboardInterrupt

    instrument()
    coll = side.client(proxy.uri)[database].coll
    monkeypatch.setattr(OperationSpans, "end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        side.do(coll.find_one)
    assert [call.ended for call in ended] == [True]
    assert calls.found() is None
