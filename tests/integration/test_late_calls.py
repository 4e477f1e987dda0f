"""Where nothing holds for an operation and nobody watches it, its call begins once an attempt has
failed: nothing of that can be seen but what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymongo
import pytest
from opentelemetry import trace
from opentelemetry.metrics import _internal as metrics_api
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pymongo.errors import BulkWriteError, PyMongoError, ServerSelectionTimeoutError
from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.timeouts.wait_times import TimedWait
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import SentCommands, Side, fail_command
from support.command_listeners import Inside, OnCommands
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience import OperationTimeoutError, Policy, bind, override
from pymongo_resilience.policies.first_use import POLICIES
from pymongo_resilience.testbed import CutAfter, Fail, Latency, ReplicaSet

pytestmark = pytest.mark.oldest
UNWATCHED = {"traces": False, "metrics": False, "base_backoff_ms": 1}
Act = Callable[[Side, Any], object]
FEW = 3


def _all_of(side: Side, coll: Any) -> object:
    return side.documents(coll.find({}, batch_size=1))


def _aggregate(side: Side, coll: Any) -> object:
    return side.documents(side.do(coll.aggregate, [{"$match": {}}]))


OPERATIONS: dict[str, Act] = {
    "find": lambda side, coll: side.do(coll.find_one),
    "insert": lambda side, coll: side.do(coll.insert_one, {}),
    "update": lambda side, coll: side.do(coll.update_one, {}, {"$set": {"a": 1}}),
    "delete": lambda side, coll: side.do(coll.delete_one, {"none": 1}),
    "findAndModify": lambda side, coll: side.do(coll.find_one_and_update, {}, {"$set": {"a": 1}}),
    "aggregate": _aggregate,
    "count": lambda side, coll: side.do(coll.estimated_document_count),
    "distinct": lambda side, coll: side.do(coll.distinct, "a"),
    "getMore": _all_of,
}
"""By the command that each sends."""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The operations of all calls that were made."""
    names: list[str] = []
    init = calls.Call.__init__

    def noted(call: calls.Call, client: Any, operation: str, *args: Any) -> None:
        if operation not in {"killCursors", "endSessions"}:  # of a client that is closed meanwhile
            names.append(operation)
        init(call, client, operation, *args)

    monkeypatch.setattr(calls.Call, "__init__", noted)
    yield names
    assert calls.current() is None


def filled(side: Side, uri: str, database: str, **options: Any) -> Any:
    """A collection with a few documents; what begins with a client has begun."""
    coll = side.do(side.client, uri, **options)[database].coll
    side.do(coll.insert_many, [{"a": i} for i in range(FEW)])
    side.do(coll.find_one)
    return coll


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_healthy_operation_makes_no_call(
    name: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    begun: list[str],
) -> None:  # fmt: skip
    instrument(**UNWATCHED)
    coll = filled(side, proxy.uri, database)
    begun.clear()
    OPERATIONS[name](side, coll)
    assert begun == []


def outcome(side: Side, act: Act, coll: Any, told: Any) -> list[Any]:
    """What an operation ended with, and what was decided meanwhile."""
    raised: Any = None
    try:
        act(side, coll)
    except PyMongoError as error:
        raised = error
    facts = ("server", "attempts", "retry_reasons", "retry_rule")
    ended = type(raised), *(getattr(raised, name, None) for name in facts)
    decided = [(type(e), e.operation, e.namespace, e.reason, e.server) for e in told.events]
    told.events.clear()
    return [ended, *decided]


@pytest.fixture
def no_sdk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(metrics_api, "_METER_PROVIDER", None)
    yield
    pymongo_resilience.uninstrument()


@pytest.mark.usefixtures("no_sdk")
@pytest.mark.parametrize("name", OPERATIONS)
def test_without_an_sdk_a_healthy_operation_makes_no_call_and_the_driver_no_events(
    name: str, side: Side, proxy: ReplicaSet, database: str, begun: list[str]
) -> None:
    pymongo_resilience.instrument()
    coll = filled(side, proxy.uri, database)
    begun.clear()
    OPERATIONS[name](side, coll)
    assert begun == []
    assert not coll.database.client._event_listeners.enabled_for_commands


@pytest.mark.usefixtures("no_sdk")
def test_without_an_sdk_a_wait_for_the_pool_makes_no_call(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    begun: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a pool that is too small, every operation would."""
    enter, waits = TimedWait.enter, []

    def noted(wait: TimedWait, *args: Any) -> Any:
        waits.append(wait)
        return enter(wait, *args)

    monkeypatch.setattr(TimedWait, "enter", noted)
    pymongo_resilience.instrument()
    coll = filled(side, proxy.uri, database, maxPoolSize=1)
    proxy.inject(Latency(0.05))
    begun.clear()
    waits.clear()
    if side.runner is None:
        with ThreadPoolExecutor(FEW) as threads:
            list(threads.map(lambda _: coll.find_one(), range(FEW)))
    else:
        side.runner.run(all_of(coll.find_one() for _ in range(FEW)))
    assert len(waits) >= FEW - 1
    assert begun == []


async def all_of(coroutines: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    return await asyncio.gather(*coroutines)


@pytest.mark.usefixtures("no_sdk")
def test_operations_are_shown_as_soon_as_there_is_an_sdk(
    side: Side, proxy: ReplicaSet, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pymongo_resilience.instrument()
    coll = filled(side, proxy.uri, database)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    side.do(coll.find_one)
    assert [span.name for span in exporter.get_finished_spans()] == [
        "find",
        f"find {database}.coll",
    ]


@pytest.mark.parametrize("times", [1, 100])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_failed_attempt_is_decided_on_as_with_telemetry(
    name: str, times: int, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    seen = []
    for shown in (True, False):
        told = instrument(**{**UNWATCHED, "traces": shown, "metrics": shown}).decisions
        coll = filled(side, proxy.uri, database)
        proxy.inject(Fail(name, times, code=91, labels=("RetryableWriteError",)))
        seen.append(outcome(side, OPERATIONS[name], coll, told))
        proxy.clear()
        pymongo_resilience.uninstrument()
    watched, unwatched = seen
    assert len(watched) > 1
    assert unwatched == watched
    assert calls.found() is None


def test_a_repeated_operation_leaves_nothing_behind(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, begun: list[str]
) -> None:
    told = instrument(**UNWATCHED).decisions
    coll = filled(side, proxy.uri, database)
    begun.clear()
    for name in ("find", "insert", "aggregate"):
        proxy.inject(CutAfter(name))
        OPERATIONS[name](side, coll)
    assert begun == ["find", "insert", "aggregate"]
    assert len(told.events) == 3
    OPERATIONS["find"](side, coll)
    assert begun == ["find", "insert", "aggregate"]


def test_one_transaction_number_for_all_attempts(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(**UNWATCHED)
    sent = SentCommands()
    coll = filled(side, proxy.uri, database, event_listeners=[sent])
    proxy.inject(CutAfter("insert"))
    side.do(coll.insert_one, {"_id": "once"})
    numbers = [command["txnNumber"] for command in sent.named("insert")[1:]]
    assert len(numbers) == 2
    assert len(set(numbers)) == 1
    assert side.do(coll.count_documents, {"_id": "once"}) == 1


@pytest.mark.parametrize("name", ["find", "insert", "getMore"])
def test_timeouts_and_policies_hold_from_the_first_attempt_on(
    name: str, side: Side, server: EmbeddedServer, control: Any, instrument: Instrument
) -> None:
    instrument(**UNWATCHED)
    coll = filled(side, server.uri, "test")
    OPERATIONS[name](side, coll)

    def within(around: Any) -> Act:
        def act(side: Side, coll: Any) -> object:
            with around:
                return OPERATIONS[name](side, coll)

        return act

    bound = bind(coll, Policy(timeout_ms=100))
    of_client = side.do(side.client, server.uri, timeoutMS=100)[coll.database.name].coll
    with fail_command(control, name, blockConnection=True, blockTimeMS=1000):
        for act, used in (
            (within(pymongo.timeout(0.1)), coll),
            (within(override(timeout_ms=100)), coll),
            (OPERATIONS[name], bound),
            (OPERATIONS[name], of_client),
        ):
            with pytest.raises(OperationTimeoutError):
                act(side, used)
    assert calls.found() is None


def test_a_cursor_keeps_the_first_policy_of_the_process(
    side: Side, server: EmbeddedServer, control: Any, instrument: Instrument
) -> None:
    instrument(**UNWATCHED)
    coll = filled(side, server.uri, "test")
    assert not POLICIES.used
    with override(timeout_ms=100):
        cursor = coll.find({})
    assert POLICIES.used
    with fail_command(control, "find", blockConnection=True, blockTimeMS=1000):
        with pytest.raises(OperationTimeoutError):
            side.documents(cursor)


def test_operations_inside_of_a_failed_one_belong_to_it(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, begun: list[str]
) -> None:
    """The outermost wrapper wins, of those that have put their calls off."""
    told = instrument(**UNWATCHED).decisions
    coll = filled(side, proxy.uri, database)
    begun.clear()
    proxy.inject(CutAfter("aggregate"))
    side.do(coll.count_documents, {})
    assert begun == ["aggregate"]
    assert [event.namespace for event in told.events] == [f"{database}.coll"]


def test_an_operation_of_a_listener_fails_inside_of_one_that_is_put_off(
    proxy: ReplicaSet, database: str, instrument: Instrument, begun: list[str]
) -> None:
    told = instrument(**UNWATCHED).decisions
    inside, side = Inside(), Side("sync", None)
    other = filled(side, proxy.uri, database)
    coll = filled(side, proxy.uri, database, event_listeners=[inside])
    begun.clear()

    def act() -> None:
        proxy.inject(CutAfter("find"))
        other.find_one()

    inside.act = act
    coll.insert_one({})
    assert len(told.events) == 1
    assert begun == ["insert", "find"]
    side.close()


def test_what_a_failed_selection_waits_for_is_known(side: Side, instrument: Instrument) -> None:
    instrument(**UNWATCHED)
    client = side.do(side.client, "mongodb://localhost:1", serverSelectionTimeoutMS=50)
    with pytest.raises(ServerSelectionTimeoutError):
        side.do(client.test.coll.find_one)
    assert calls.found() is None


def test_an_error_that_the_driver_makes_later_names_its_server(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(**UNWATCHED)
    coll = filled(side, proxy.uri, database)
    with pytest.raises(BulkWriteError) as raised:
        side.do(coll.insert_many, [{"_id": 1}, {"_id": 1}])
    facts: Any = raised.value
    assert facts.server is not None
    assert facts.attempts == 1


def test_an_interruption_leaves_nothing_behind(
    proxy: ReplicaSet, database: str, instrument: Instrument, begun: list[str]
) -> None:
    instrument(**UNWATCHED)
    side = Side("sync", None)
    interrupting = [False]

    def interrupt(_: Any) -> None:
        if interrupting:
            raise KeyboardInterrupt

    interrupting.clear()
    coll = filled(side, proxy.uri, database, event_listeners=[OnCommands(started=interrupt)])
    begun.clear()
    interrupting.append(True)
    with pytest.raises(KeyboardInterrupt):
        coll.find_one()
    interrupting.clear()
    assert begun == []
    coll.find_one()
    side.close()


def test_an_operation_in_a_coroutine_that_is_closed_is_left_to_the_driver(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    told = instrument(**UNWATCHED).decisions
    side = Side("sync", None)
    coll = filled(side, proxy.uri, database)

    async def reads_at_last() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            proxy.inject(CutAfter("find"))
            coll.find_one()

    async def main() -> None:
        unfinished = reads_at_last()
        unfinished.send(None)
        unfinished.close()

    asyncio.run(main())
    assert told.events == []
    side.close()
