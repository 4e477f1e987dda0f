"""retry_transaction(): a loop over attempts that are repeated as with_transaction repeats."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from pymongo.errors import DuplicateKeyError, InvalidOperation, OperationFailure
from pymongo_resilience_instrumentation.telemetry import semconv
from support.clients import SentCommands, Side
from support.telemetry import Instrument
from support.transactions import LOW, DriversTime, drivers_time

import pymongo_resilience
from pymongo_resilience import OperationTimeoutError, override, retry_transaction
from pymongo_resilience.testbed import CutAfter, Fail, ReplicaSet

__all__ = ["drivers_time"]
pytestmark = pytest.mark.oldest
TRANSIENT: dict[str, Any] = {"code": 112, "labels": ["TransientTransactionError"]}
UNKNOWN: dict[str, Any] = {"code": 112, "labels": ["UnknownTransactionCommitResult"]}


class Interruption(BaseException):
    """As KeyboardInterrupt, which would end the test run."""


def run(side: Side, client: Any, body: Callable[[Any], Any]) -> None:
    def loop() -> None:
        for attempt in retry_transaction(client):
            with attempt as session:
                body(session)

    async def async_loop() -> None:
        async for attempt in retry_transaction(client):
            async with attempt as session:
                result = body(session)
                if inspect.isawaitable(result):
                    await result

    side.do(loop if side.runner is None else async_loop)


@pytest.mark.parametrize("instrumented", [True, False])
@pytest.mark.parametrize(
    ("fault", "names"),
    [
        (None, ["insert", "commitTransaction"]),
        (
            lambda: Fail("insert", 2, **TRANSIENT),
            ["insert", "abortTransaction"] * 2 + ["insert", "commitTransaction"],
        ),
        (
            lambda: Fail("commitTransaction", 2, **UNKNOWN),
            ["insert"] + ["commitTransaction"] * 3,
        ),
        (
            lambda: Fail("commitTransaction", **TRANSIENT),
            ["insert", "commitTransaction"] * 2,
        ),
        (lambda: CutAfter("commitTransaction"), ["insert"] + ["commitTransaction"] * 2),
    ],
    ids=["no error", "body", "unknown commit", "transient commit", "lost reply"],
)
def test_it_repeats_what_with_transaction_repeats(
    fault: Any, names: list[str], instrumented: bool, side: Side, proxy: ReplicaSet, database: str,
    control: Any, sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    instrument()
    if not instrumented:
        pymongo_resilience.uninstrument()
    control[database].create_collection("coll")
    client = side.client(proxy.uri, event_listeners=[sent])
    side.do(client.admin.command, "ping")
    sent.started_events.clear()
    if fault is not None:
        proxy.inject(fault())
    run(side, client, lambda session: client[database].coll.insert_one({}, session=session))
    assert [each.command_name for each in sent.started_events] == names
    assert control[database].coll.count_documents({}) == 1


def test_what_is_not_transient_is_raised_and_the_transaction_aborted(
    side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    instrument()
    control[database].coll.insert_one({"_id": 0})
    client = side.client(proxy.uri)
    coll, seen = client[database].coll, []

    def sync_body(session: Any) -> None:
        seen.append(session)
        coll.insert_one({"_id": 1}, session=session)
        coll.insert_one({"_id": 0}, session=session)

    async def async_body(session: Any) -> None:
        seen.append(session)
        await coll.insert_one({"_id": 1}, session=session)
        await coll.insert_one({"_id": 0}, session=session)

    with pytest.raises(DuplicateKeyError):
        run(side, client, sync_body if side.runner is None else async_body)
    assert [(each.in_transaction, each.has_ended) for each in seen] == [(False, True)]
    assert control[database].coll.count_documents({}) == 1


@pytest.mark.parametrize("error", [LookupError, Interruption, asyncio.CancelledError])
def test_however_the_block_ends_so_do_the_transaction_and_its_session(
    error: type[BaseException], side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    client, seen = side.client(proxy.uri), []

    def body(session: Any) -> None:
        seen.append(session)
        raise error

    with pytest.raises(error):
        run(side, client, body)
    assert [(each.in_transaction, each.has_ended) for each in seen] == [(False, True)]


def test_all_attempts_have_one_deadline(
    side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument,
    drivers_time: DriversTime,
) -> None:  # fmt: skip
    instrument()
    control[database].create_collection("coll")
    client = side.client(proxy.uri)
    proxy.inject(Fail("insert", 100, **TRANSIENT))
    runs: list[Any] = []

    def body(session: Any) -> Any:
        runs.append(session)
        if len(runs) == 3:
            drivers_time.passed += LOW / 1000
        return client[database].coll.insert_one({}, session=session)

    with override(timeout_ms=LOW), pytest.raises(OperationTimeoutError):
        run(side, client, body)
    assert len(runs) == 3
    assert all(each.has_ended and not each.in_transaction for each in runs)
    assert control[database].coll.count_documents({}) == 0


def test_the_application_may_end_the_transaction(
    side: Side, proxy: ReplicaSet, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    client = side.client(proxy.uri, event_listeners=[sent])
    run(side, client, lambda session: session.abort_transaction())
    assert sent.named("commitTransaction") == []


def test_the_other_api_s_client_is_refused(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    loops = retry_transaction(side.client(proxy.uri))
    with pytest.raises(TypeError, match="with"):
        aiter(loops) if side.runner is None else iter(loops)
    with pytest.raises(TypeError, match="MongoClient"):
        retry_transaction("mongodb://")


@pytest.mark.parametrize("name", ["read_concern", "write_concern", "max_commit_time_ms", "wrong"])
def test_an_option_that_no_transaction_has_is_refused_before_the_first_attempt(
    name: str, side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    wrong: dict[str, Any] = {name: "1"}
    with pytest.raises(TypeError, match=name):
        retry_transaction(side.client(proxy.uri), **wrong)


def test_the_other_api_s_with_is_refused_and_begins_nothing(
    side: Side, proxy: ReplicaSet, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    client = side.client(proxy.uri, event_listeners=[sent])

    def loop() -> None:
        for attempt in retry_transaction(client):
            asyncio.run(attempt.__aenter__())

    async def async_loop() -> None:
        async for attempt in retry_transaction(client):
            attempt.__enter__()

    with pytest.raises(TypeError, match="needs `"):
        side.do(loop if side.runner is None else async_loop)
    assert sent.started_events == []


def test_an_attempt_that_is_not_entered_is_no_transaction(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    client = side.client(proxy.uri)

    def loop() -> None:
        for _ in retry_transaction(client):
            pass

    async def async_loop() -> None:
        async for _ in retry_transaction(client):
            pass

    with pytest.raises(InvalidOperation, match="with attempt as session"):
        side.do(loop if side.runner is None else async_loop)


def test_an_attempt_that_is_taken_for_its_session_says_where_that_is(
    side: Side, proxy: ReplicaSet, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    coll = side.client(proxy.uri, event_listeners=[sent]).db.coll

    def loop() -> None:
        for attempt in retry_transaction(coll.database.client):
            coll.insert_one({}, session=attempt)

    async def async_loop() -> None:
        async for attempt in retry_transaction(coll.database.client):
            await coll.insert_one({}, session=attempt)

    with pytest.raises(AttributeError, match="with attempt as session"):
        side.do(loop if side.runner is None else async_loop)
    assert sent.started_events == []


def test_max_time_expired_of_a_commit_is_raised(
    side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    instrument()
    control[database].create_collection("coll")
    client = side.client(proxy.uri)
    proxy.inject(Fail("commitTransaction", **{**UNKNOWN, "code": 50}))
    with pytest.raises(OperationFailure):
        run(side, client, lambda session: client[database].coll.insert_one({}, session=session))


def test_a_repeated_transaction_is_an_event_a_retry_and_a_line_of_the_log(
    side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    telemetry = instrument()
    control[database].create_collection("coll")
    client = side.client(proxy.uri)
    proxy.inject(Fail("insert", 1, **TRANSIENT))
    proxy.inject(Fail("commitTransaction", 1, **TRANSIENT))
    with caplog.at_level("INFO", "pymongo_resilience.retry"):
        run(side, client, lambda session: client[database].coll.insert_one({}, session=session))
    spans = [span for span in telemetry.spans() if span.name == "transaction"]
    events = [[event.name for event in span.events] for span in spans]
    assert events == [[], [semconv.EVENT_SCHEDULED], [semconv.EVENT_SCHEDULED]]
    attributes = spans[1].events[0].attributes or {}
    assert attributes[semconv.REASON] == "write_conflict"
    assert attributes[semconv.SERVER] == proxy.primary.host_and_port
    (point,) = [
        point
        for attributes, point in telemetry.points(semconv.RETRIES)
        if attributes["db.operation.name"] == "transaction"
    ]
    assert (point.value, point.attributes[semconv.DECISION]) == (2, "scheduled")
    whole = [each for each in telemetry.decisions.events if each.operation == "transaction"]
    assert [(each.namespace, each.attempt) for each in whole] == [("admin", 1), ("admin", 2)]
    lines = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("transaction admin: attempt ") for line in lines) == 2


def test_as_a_decorator_each_call_is_a_transaction_of_its_own(
    side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    instrument()
    control[database].create_collection("coll")
    client = side.client(proxy.uri)
    coll, runs = client[database].coll, []
    if side.runner is None:

        @retry_transaction(client)
        def insert(number: int, *, session: Any) -> Any:
            """Insert it."""
            runs.append(number)
            return coll.insert_one({"_id": number}, session=session).inserted_id
    else:

        @retry_transaction(client)
        async def insert(number: int, *, session: Any) -> Any:
            """Insert it."""
            runs.append(number)
            return (await coll.insert_one({"_id": number}, session=session)).inserted_id

    proxy.inject(Fail("insert", 1, **TRANSIENT))
    assert [side.do(insert, 1), side.do(insert, 2)] == [1, 2]
    assert runs == [1, 1, 2]
    assert (insert.__name__, insert.__doc__) == ("insert", "Insert it.")
    assert control[database].coll.distinct("_id") == [1, 2]


def test_what_it_cannot_decorate_is_refused(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    decorate = retry_transaction(side.client(proxy.uri))

    async def coroutine(session: Any) -> None: ...
    def generator(session: Any) -> Any:
        yield

    wrong = [generator, coroutine if side.runner is None else str]
    for each in wrong:
        with pytest.raises(TypeError, match="decorates"):
            decorate(each)
