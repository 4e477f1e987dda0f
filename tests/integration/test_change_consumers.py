"""Consumers of change streams: whatever ends a stream is survived, or raised with what to do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pymongo
import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo.write_concern import WriteConcern
from support.clients import Side, fail_command, wait_until
from support.telemetry import Instrument

from pymongo_resilience import ConfigurationError
from pymongo_resilience.events import StreamNotice
from pymongo_resilience.streams import (
    AsyncChangeConsumer,
    AsyncCollectionTokens,
    ChangeConsumer,
    ChangeTooLargeError,
    CollectionTokens,
    ForeignTokenError,
    HistoryLostError,
    OvertakenError,
    StreamInvalidatedError,
)
from pymongo_resilience.testbed import CutAfter, CutBefore, Refuse, ReplicaSet, Reset

pytestmark = pytest.mark.oldest

QUICK = {"max_await_time_ms": 50}


class Running:
    """A consumer of one of pymongo's APIs, in a thread of its own; what its handler has seen."""

    def __init__(self, side: str, uri: str, database: str, **options: Any) -> None:
        self.side = side
        self.uri = uri
        self.database = database
        self.options = {"name": "test", **QUICK, **options}
        self.seen: list[Any] = []
        self.error: BaseException | None = None
        self.consumer: Any = None
        self.on_change: Callable[[Any], object] = lambda _: None
        """Called for each change, in the handler."""
        self.watched: Callable[[Any], Any] = lambda database: database.coll
        self.tokens: Any = None
        self._cancel: Callable[[], object] = lambda: None
        self._thread: threading.Thread | None = None

    def start(self) -> Running:
        """Returns once it watches."""
        self.error, self.consumer = None, None
        target = self._run if self.side == "sync" else lambda: asyncio.run(self._run_async())
        self._thread = threading.Thread(target=self._guarded, args=(target,))
        self._thread.start()
        wait_until(lambda: self.consumer is not None or self.error)
        return self

    def watches(self) -> Running:
        wait_until(lambda: self.error or (self.consumer and self.consumer._stream is not None))
        return self

    def stop(self) -> None:
        if self.consumer is not None:
            self.consumer.stop()
        self.join()

    def cancel(self) -> None:
        self._cancel()
        self.join()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(20)
        assert not self._thread.is_alive()

    def ids(self) -> list[Any]:
        return [each["documentKey"]["_id"] for each in self.seen if "documentKey" in each]

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def _handle(self, change: Any) -> None:
        self.on_change(change)
        self.seen.append(change)

    def _run(self) -> None:
        with MongoClient[Any](self.uri, appname="under-test") as client:
            database = client[self.database]
            exactly = self.options.get("delivery") == "exactly_once"

            def handle(change: Any, *session: Any) -> None:
                if exactly:
                    done = {"of": change["_id"]}
                    database.done.insert_one(done, session=session[0])
                self._handle(change)

            tokens = self.tokens or CollectionTokens(database.tokens, self.options["name"])
            source = self.watched(database)
            self.consumer = ChangeConsumer(source, handle, tokens=tokens, **self.options)
            self.consumer.run()

    async def _run_async(self) -> None:
        async with AsyncMongoClient[Any](self.uri, appname="under-test") as client:
            database = client[self.database]
            exactly = self.options.get("delivery") == "exactly_once"

            async def handle(change: Any, *session: Any) -> None:
                if exactly:
                    done = {"of": change["_id"]}
                    await database.done.insert_one(done, session=session[0])
                self._handle(change)

            tokens = self.tokens or AsyncCollectionTokens(database.tokens, self.options["name"])
            source = self.watched(database)
            self.consumer = AsyncChangeConsumer(source, handle, tokens=tokens, **self.options)
            task: Any = asyncio.current_task()
            loop = asyncio.get_running_loop()
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            await self.consumer.run()


Make = Callable[..., Running]


@pytest.fixture
def run(side: Side, proxy: ReplicaSet, database: str, control: Any) -> Iterator[Make]:
    for name in ("coll", "tokens", "done"):
        control[database].create_collection(name)
    made: list[Running] = []

    def make(**options: Any) -> Running:
        made.append(Running(side.name, proxy.uri, database, **options))
        return made[-1]

    yield make
    proxy.clear()
    for each in made:
        if each._thread is not None and each._thread.is_alive():
            with contextlib.suppress(AssertionError):
                each.stop()


@pytest.fixture(params=["at_least_once", "exactly_once"])
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def stored(control: Any, database: str) -> Any:
    found = control[database].tokens.find_one({"_id": "test"})
    return found and found["token"]


@pytest.mark.parametrize("instrumented", [False, True])
def test_changes_are_handled_and_a_restart_goes_on(
    instrumented: bool, delivery: str, run: Make, control: Any, database: str, instrument: Any
) -> None:
    if instrumented:
        instrument(timeout_ms=20_000)
    coll = control[database].coll
    running = run(delivery=delivery).start().watches()
    wait_until(lambda: stored(control, database))
    coll.insert_many([{"_id": n} for n in range(5)])
    wait_until(lambda: len(running.seen) == 5)
    running.stop()
    assert running.error is None
    coll.insert_many([{"_id": n} for n in range(5, 10)])
    running.start()
    wait_until(lambda: len(running.seen) == 10)
    running.stop()
    assert running.ids() == list(range(10))
    if delivery == "exactly_once":
        assert control[database].done.count_documents({}) == 10


@pytest.mark.parametrize("watched", ["database", "client"])
def test_databases_and_deployments_are_watched_too(
    watched: str, run: Make, control: Any, database: str
) -> None:
    pipeline = [{"$match": {"ns.coll": "coll", "ns.db": database}}]
    running = run(pipeline=pipeline)
    running.watched = lambda db: db if watched == "database" else db.client
    running.start().watches()
    wait_until(lambda: stored(control, database))
    control[database].coll.insert_one({"_id": 1})
    wait_until(lambda: running.seen)
    running.stop()
    assert running.ids() == [1]


@pytest.mark.parametrize("fault", [CutAfter("getMore", times=3), CutBefore("getMore", times=3)])
def test_lost_connections_lose_no_change(
    fault: Any, delivery: str, run: Make, control: Any, database: str, proxy: ReplicaSet
) -> None:
    running = run(delivery=delivery).start().watches()
    wait_until(lambda: stored(control, database))
    for n in range(6):
        control[database].coll.insert_one({"_id": n})
        if n == 2:
            proxy.inject(fault)
        if n == 4:
            proxy.inject(Reset())
    wait_until(lambda: set(running.ids()) == set(range(6)), timeout=20)
    running.stop()
    assert list(dict.fromkeys(running.ids())) == list(range(6))
    if delivery == "exactly_once":
        assert control[database].done.count_documents({}) == 6


def test_a_lost_reply_of_a_commit_doubles_nothing(
    run: Make, control: Any, database: str, proxy: ReplicaSet
) -> None:
    running = run(delivery="exactly_once").start().watches()
    wait_until(lambda: stored(control, database))
    proxy.inject(CutAfter("commitTransaction", times=2))
    control[database].coll.insert_many([{"_id": n} for n in range(3)])
    wait_until(lambda: control[database].done.count_documents({}) == 3, timeout=20)
    running.stop()
    assert control[database].done.count_documents({}) == 3


def observed(database: Any, attempts: list[float]) -> Any:
    """A collection that notes when a stream is opened."""

    class Observed(type(database.coll)):  # type: ignore[misc] - of either API
        def watch(self, *args: Any, **options: Any) -> Any:
            attempts.append(time.monotonic())
            return super().watch(*args, **options)

    return Observed(database, "coll")


def test_while_there_is_no_server_it_tries_once_a_second_at_most(
    run: Make, control: Any, database: str, proxy: ReplicaSet, instrument: Instrument
) -> None:
    telemetry = instrument()
    running = run()
    running.uri += "&serverSelectionTimeoutMS=160"
    attempts: list[float] = []
    running.watched = lambda database: observed(database, attempts)
    running.start().watches()
    wait_until(lambda: stored(control, database))
    proxy.inject(Refuse(60))

    def lost() -> list[StreamNotice]:
        events = telemetry.decisions.events
        return [each for each in events if isinstance(each, StreamNotice) and each.step == "lost"]

    wait_until(lambda: len(lost()) >= 2, timeout=20)
    assert all(each.pause is not None for each in lost())
    assert min(b - a for a, b in pairwise(attempts)) >= 1
    proxy.clear()
    control[database].coll.insert_one({"_id": 1})
    wait_until(lambda: running.seen, timeout=20)
    running.stop()
    steps = [
        each.step.value for each in telemetry.decisions.events if isinstance(each, StreamNotice)
    ]
    assert steps[0] == "opened"
    assert steps[-2:] == ["resumed", "stopped"]
    counted = {
        attributes["pymongo_resilience.stream.step"]: point.value
        for attributes, point in telemetry.points("pymongo_resilience.stream.steps")
    }
    assert counted["lost"] == len(lost())


def ended_by(code: int, running: Running, control: Any, database: str) -> Any:
    """The error of a consumer whose stream the server ends with this code."""
    running.start().watches()
    wait_until(lambda: stored(control, database))
    before = stored(control, database)
    label = ["NonResumableChangeStreamError"]
    with fail_command(control, "getMore", "aggregate", errorCode=code, errorLabels=label):
        running.join()
    assert stored(control, database) == before, "the token is as it was"
    return running.error


@pytest.mark.parametrize(
    ("code", "error", "advice"),
    [
        (286, HistoryLostError, "tokens.forget()"),
        (280, ForeignTokenError, "tokens.forget()"),
        (10334, ChangeTooLargeError, "on_large_change"),
    ],
)
def test_what_it_cannot_survive_says_what_to_do(
    code: int, error: type[Exception], advice: str, run: Make, control: Any, database: str
) -> None:
    raised = ended_by(code, run(), control, database)
    assert type(raised) is error
    assert str(raised).startswith("test: ")
    assert advice in str(raised)
    assert raised.__cause__.code == code


def test_lost_history_is_raised_by_each_run_until_the_token_is_forgotten(
    run: Make, control: Any, database: str, side: Side
) -> None:
    running = run()
    assert type(ended_by(286, running, control, database)) is HistoryLostError
    with fail_command(control, "aggregate", errorCode=286, times=1):
        running.start().join()
    assert type(running.error) is HistoryLostError
    tokens = control[database].get_collection("tokens", write_concern=WriteConcern("majority"))
    tokens.delete_one({"_id": "test"})
    running.start().watches()
    wait_until(lambda: stored(control, database))
    control[database].coll.insert_one({"_id": 7})
    wait_until(lambda: running.seen)
    running.stop()


def test_a_token_of_another_stream_is_refused(run: Make, control: Any, database: str) -> None:
    running = run().start().watches()
    wait_until(lambda: stored(control, database))
    control[database].coll.insert_one({"_id": 1})
    wait_until(lambda: running.seen)
    running.stop()
    other = run()
    other.watched = lambda db: db.done
    other.start().join()
    assert type(other.error) is ForeignTokenError
    assert f"stream of {database}.coll, not of {database}.done" in str(other.error)
    assert other.seen == []


def test_an_invalidation_is_handled_and_the_stream_goes_on(
    delivery: str, run: Make, control: Any, database: str
) -> None:
    running = run(delivery=delivery).start().watches()
    wait_until(lambda: stored(control, database))
    control[database].coll.insert_one({"_id": 1})
    control[database].coll.drop()
    wait_until(lambda: [each["operationType"] for each in running.seen][-1:] == ["invalidate"])
    control[database].coll.insert_one({"_id": 2})
    wait_until(lambda: running.ids() == [1, 2])
    running.stop()
    assert running.error is None


def test_an_invalidation_may_end_it_and_the_next_run_goes_on(
    run: Make, control: Any, database: str
) -> None:
    running = run(on_invalidated="stop").start().watches()
    wait_until(lambda: stored(control, database))
    control[database].coll.drop()
    running.join()
    assert type(running.error) is StreamInvalidatedError
    control[database].coll.insert_one({"_id": 2})
    running.start()
    wait_until(lambda: running.ids() == [2])
    running.stop()


@pytest.mark.needs_mongod("the emulator has no limit")
def test_a_change_of_more_than_16_mb_is_handed_over_without_its_documents(
    run: Make, control: Any, database: str
) -> None:
    coll = control[database].coll
    coll.insert_one({"_id": 1})
    running = run(full_document="updateLookup", on_large_change="reduce").start().watches()
    wait_until(lambda: stored(control, database))
    coll.update_one({"_id": 1}, {"$set": {"text": "x" * (9 << 20)}})
    coll.insert_one({"_id": 2})
    wait_until(lambda: running.ids() == [1, 2])
    running.stop()
    assert "fullDocument" not in running.seen[0]
    assert "fullDocument" in running.seen[1]


class HandlerError(Exception):
    pass


def fails(running: Running, number: int, times: int, error: Exception | None = None) -> list[int]:
    """Have the handler fail so often for one change; returns its calls for it."""
    calls: list[int] = []

    def on_change(change: Any) -> None:
        if change["documentKey"]["_id"] == number:
            calls.append(number)
            if len(calls) <= times:
                raise error or HandlerError()

    running.on_change = on_change
    return calls


def insert_three(running: Running, control: Any, database: str) -> None:
    running.start().watches()
    wait_until(lambda: stored(control, database))
    control[database].coll.insert_many([{"_id": n} for n in range(3)])


def test_the_handlers_error_ends_it_unchanged_and_its_change_comes_again(
    delivery: str, run: Make, control: Any, database: str
) -> None:
    running = run(delivery=delivery)
    fails(running, 1, 1)
    insert_three(running, control, database)
    running.join()
    assert type(running.error) is HandlerError
    assert running.ids() == [0]
    running.start()
    wait_until(lambda: running.ids() == [0, 1, 2])
    running.stop()
    if delivery == "exactly_once":
        assert control[database].done.count_documents({}) == 3


def test_a_change_that_the_handler_fails_for_is_skipped_with_a_record(
    delivery: str, run: Make, side: Side, control: Any, database: str
) -> None:
    skipped: list[Any] = []
    running = run(
        delivery=delivery,
        on_handler_error="skip",
        handler_retries=1,
        on_skip=lambda change, error, *session: skipped.append((change, error, session)),
    )
    calls = fails(running, 1, 100)
    insert_three(running, control, database)
    wait_until(lambda: running.ids() == [0, 2], timeout=20)
    running.stop()
    assert len(calls) == 2, "it was called again once"
    ((change, error, session),) = skipped
    assert change["documentKey"] == {"_id": 1}
    assert type(error) is HandlerError
    assert len(session) == (delivery == "exactly_once")
    assert (running.consumer.handled, running.consumer.skipped) == (2, 1)


def test_a_server_that_is_away_is_not_the_handlers_fault(
    delivery: str, run: Make, control: Any, database: str
) -> None:
    running = run(
        delivery=delivery, on_handler_error="skip", on_skip=lambda *_: pytest.fail("skipped")
    )
    fails(running, 1, 2, AutoReconnect("of the handler's own database"))
    insert_three(running, control, database)
    wait_until(lambda: running.ids()[-1:] == [2], timeout=20)
    running.stop()
    assert list(dict.fromkeys(running.ids())) == [0, 1, 2]


def test_stop_ends_it_after_the_change_that_is_handled(
    delivery: str, run: Make, control: Any, database: str
) -> None:
    running = run(delivery=delivery)
    running.on_change = lambda change: running.consumer.stop()
    insert_three(running, control, database)
    running.join()
    assert running.error is None
    assert running.ids() == [0]
    running.on_change = lambda _: None
    running.start()
    wait_until(lambda: running.ids() == [0, 1, 2])
    running.stop()


def test_an_interrupted_handler_has_its_change_again(
    delivery: str, run: Make, control: Any, database: str
) -> None:
    """As by a cancellation or KeyboardInterrupt in the middle of a batch."""

    class Interrupted(BaseException):
        pass

    def interrupt(change: Any) -> None:
        if change["documentKey"]["_id"] == 1:
            raise Interrupted

    running = run(delivery=delivery)
    running.on_change = interrupt
    insert_three(running, control, database)
    running.join()
    assert type(running.error) is Interrupted
    running.on_change = lambda _: None
    running.start()
    wait_until(lambda: running.ids() == [0, 1, 2], timeout=20)
    running.stop()
    if delivery == "exactly_once":
        assert control[database].done.count_documents({}) == 3


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_a_cancelled_run_ends_at_once_and_the_next_goes_on(
    delivery: str, run: Make, control: Any, database: str
) -> None:
    running = run(delivery=delivery, max_await_time_ms=20_000)
    insert_three(running, control, database)
    wait_until(lambda: len(running.seen) == 3)
    began = time.monotonic()
    running.cancel()
    assert time.monotonic() - began < 5
    assert isinstance(running.error, asyncio.CancelledError)
    control[database].coll.insert_one({"_id": 3})
    running.options |= QUICK
    running.start()
    wait_until(lambda: running.ids()[-1:] == [3])
    running.stop()
    # The transaction of the last one may not have been committed.
    assert running.ids() in ([0, 1, 2, 3], [0, 1, 2, 2, 3])
    if delivery == "exactly_once":
        assert control[database].done.count_documents({}) == 4


def test_of_two_consumers_with_one_name_one_is_overtaken(
    run: Make, control: Any, database: str
) -> None:
    first = run(delivery="exactly_once").start().watches()
    wait_until(lambda: stored(control, database))
    second = run(delivery="exactly_once").start().watches()
    control[database].coll.insert_many([{"_id": n} for n in range(20)])
    wait_until(lambda: first.error or second.error, timeout=20)
    ended = first if first.error else second
    assert type(ended.error) is OvertakenError
    wait_until(lambda: control[database].done.count_documents({}) == 20, timeout=20)
    for each in (first, second):
        each.stop()
    assert len(control[database].done.distinct("of")) == 20


class OwnTokens:
    """The application's own store."""

    def __init__(self) -> None:
        self.saved: list[Any] = []

    def load(self) -> Any:
        return self.saved[-1] if self.saved else None

    def save(self, token: Any, /) -> None:
        self.saved.append(token)


def test_an_own_store_of_tokens_and_fewer_saves(run: Make, control: Any, database: str) -> None:
    tokens = OwnTokens()
    running = run(save_every=3)
    running.tokens = tokens
    running.start().watches()
    wait_until(lambda: tokens.saved)
    control[database].coll.insert_many([{"_id": n} for n in range(7)])
    wait_until(lambda: len(running.seen) == 7)
    running.stop()
    assert len(tokens.saved) == 1 + 2 + 1, "where it began, after 3 and 6, and at the end"
    control[database].coll.insert_one({"_id": 7})
    running.start()
    wait_until(lambda: running.ids()[-1] == 7)
    running.stop()
    assert running.ids() == list(range(8))


def test_every_wrong_argument_is_named(side: Side) -> None:
    client = side.client("mongodb://db1/", connect=False)
    cls: Any = ChangeConsumer if side.runner is None else AsyncChangeConsumer
    store: Any = CollectionTokens if side.runner is None else AsyncCollectionTokens
    with pytest.raises(ConfigurationError) as caught:
        cls(
            client.shop.orders,
            print,
            name="test",
            tokens=OwnTokens(),
            delivery="exactly_once",
            on_handler_error="skip",
            handler_retries=-1,
            save_every=0,
            start_after={},
        )
    assert [each.partition(":")[0].partition("=")[0] for each in caught.value.problems] == [
        *("handler_retries", "save_every", "delivery", "save_every", "on_handler_error"),
        "start_after",
    ]
    other = side.client("mongodb://db2/", connect=False)
    tokens = store(other.shop.tokens, "test")
    with pytest.raises(ConfigurationError, match="the same client"):
        cls(client.shop, print, name="test", tokens=tokens, delivery="exactly_once")
    with pytest.raises(TypeError, match="watches one of"):
        cls("orders", print, name="test", tokens=OwnTokens())
    with pytest.raises(TypeError, match="handler"):
        cls(client, None, name="test", tokens=OwnTokens())
    with pytest.raises(TypeError):
        store(client.shop, "test")
    with pytest.raises(TypeError, match="name"):
        store(client.shop.tokens, "")


def test_errors_that_do_not_pass_are_raised(run: Make, control: Any, database: str) -> None:
    running = run(pipeline=[{"$nothing": 1}])
    running.start().join()
    assert isinstance(running.error, OperationFailure | pymongo.errors.PyMongoError)
    running = run()
    with fail_command(control, "aggregate", errorCode=13):
        running.start().join()
    assert isinstance(running.error, OperationFailure)


def test_a_stop_before_the_run_is_not_lost(side: Side, proxy: ReplicaSet, database: str) -> None:
    """As by a signal while the process starts."""
    client = side.client(proxy.uri)
    if side.runner is None:
        tokens: Any = CollectionTokens(client[database].tokens, "test")
        consumer: Any = ChangeConsumer(client[database].coll, print, name="test", tokens=tokens)
    else:
        tokens = AsyncCollectionTokens(client[database].tokens, "test")
        consumer = AsyncChangeConsumer(client[database].coll, print, name="test", tokens=tokens)
    consumer.stop()
    side.do(consumer.run)
    assert not consumer.is_stopping, "the next run is another one"
