"""An operation in a ``finally`` or ``except`` block is one like any other: also while a generator
is closed, as WSGI servers do if a client disconnects. Whatever an operation, a method of GridFS or
a transaction ends with, nothing that was active for it stays active. Plain pymongo runs beside it.
"""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, closing, suppress
from contextvars import ContextVar, copy_context
from typing import Any

import gridfs
import pymongo
import pytest
from opentelemetry import trace
from pymongo import InsertOne, UpdateOne, _csot as pymongo_csot
from pymongo_resilience_instrumentation import in_progress
from support.clients import SentCommands, Side
from support.telemetry import Instrument

from pymongo_resilience import override
from pymongo_resilience.testbed import CutAfter, CutAtHandshake, CutBefore, ReplicaSet, Slow

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]


def _in_generator(side: Side, work: Callable[[], Any], decorate: Callable[..., Any]) -> None:
    """Run ``work`` in the ``finally`` of a generator that is closed after its first step."""
    if side.runner is None:

        @decorate
        def rows() -> Any:
            try:
                yield 1
                yield 2
            finally:
                work()

        with closing(rows()) as generator:
            next(generator)
        return

    @decorate
    async def async_rows() -> Any:
        try:
            yield 1
            yield 2
        finally:
            await work()

    async def main() -> None:
        async with aclosing(async_rows()) as generator:
            await anext(generator)

    side.do(main)


def _in_except_block(side: Side, work: Callable[[], Any], _: object) -> None:
    """The error that is handled was raised while another generator was closed."""

    async def main() -> None:
        try:
            _close_badly()
        except OSError:
            await work()

    if side.runner is not None:
        side.do(main)
        return
    try:
        _close_badly()
    except OSError:
        work()


def _plainly(side: Side, work: Callable[[], Any], _: object) -> None:
    side.do(work)


PLACES = pytest.mark.parametrize("place", [_plainly, _in_generator, _in_except_block])


def _names(sent: SentCommands) -> list[str]:
    return [event.command_name for event in sent.started_events]


def _undecorated(function: Any) -> Any:
    return function


def _close_badly() -> None:
    """Raise an OSError whose context is a GeneratorExit."""

    def chunks() -> Iterator[bytes]:
        try:
            yield b"x"
        finally:
            raise OSError("body was closed")

    generator = chunks()
    next(generator)
    generator.close()


@PLACES
def test_it_is_retried_and_shown(
    place: Any, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {"_id": 1, "n": 0})
    for expected in (1, 2):
        if expected == 2:
            telemetry = instrument()
        proxy.inject(CutAfter("update"))
        place(side, lambda: coll.update_one({"_id": 1}, {"$inc": {"n": 1}}), _undecorated)
        assert side.do(coll.find_one) == {"_id": 1, "n": expected}
    (span,) = telemetry.operations(f"update {database}.coll")
    assert span.attributes["pymongo_resilience.attempts"] == 2


@PLACES
def test_no_operation_of_a_bulk_write_is_lost(
    place: Any, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """pymongo 4.20 loses the second operation, wherever it runs."""
    requests = [InsertOne({"_id": 1}), UpdateOne({"_id": 1}, {"$set": {"done": True}})]
    for name in ("plain", "ours"):
        if name == "ours":
            instrument()
        coll = side.client(proxy.uri)[database][name]
        proxy.inject(CutAtHandshake())
        place(side, lambda coll=coll: coll.bulk_write(requests), _undecorated)
        proxy.clear()
        found = side.do(coll.find_one)
        if name == "ours" or len(found) > 1:
            assert found == {"_id": 1, "done": True}


@PLACES
def test_a_block_around_it_holds(
    place: Any,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    sent: SentCommands,
) -> None:
    instrument()
    coll = side.client(proxy.uri, event_listeners=[sent])[database].coll
    side.do(coll.insert_one, {"n": 0})

    def work() -> Any:
        def change() -> Any:
            with override(atomic=True, timeout_ms=5_000):
                return coll.update_many({}, {"$inc": {"n": 1}})

        async def change_async() -> Any:
            with override(atomic=True, timeout_ms=5_000):
                return await coll.update_many({}, {"$inc": {"n": 1}})

        return change() if side.runner is None else change_async()

    place(side, work, _undecorated)
    assert _names(sent)[-2:] == ["update", "commitTransaction"]
    (update,) = sent.named("update")
    assert 0 < update["maxTimeMS"] <= 5_000


def test_a_decorated_generators_policy_holds_while_it_is_closed(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, sent: SentCommands
) -> None:
    instrument()
    coll = side.client(proxy.uri, event_listeners=[sent])[database].coll
    side.do(coll.insert_one, {"n": 0})
    decorate = override(atomic=True)
    _in_generator(side, lambda: coll.update_many({}, {"$inc": {"n": 1}}), decorate)
    assert _names(sent)[-2:] == ["update", "commitTransaction"]
    side.do(coll.update_many, {}, {"$inc": {"n": 1}})
    assert _names(sent)[-1] == "update", "it ends with the generator"


def _reset_elsewhere() -> None:
    variable: ContextVar[int] = ContextVar("variable")
    variable.reset(copy_context().run(variable.set, 1))


def _raise_generator_exit() -> None:
    raise GeneratorExit


ERRORS = pytest.mark.parametrize("fail", [_close_badly, _reset_elsewhere, _raise_generator_exit])
"""They look as if a coroutine was being closed."""
RAISED = (OSError, ValueError, GeneratorExit)


class Body(io.RawIOBase):
    """A stream of the application's, which fails."""

    def __init__(self, fail: Callable[[], None]) -> None:
        self._fail = fail

    def read(self, _size: int = -1) -> bytes:  # type: ignore[override]
        self._fail()
        raise AssertionError("not reached")

    def write(self, _data: Any) -> int:
        self._fail()
        raise AssertionError("not reached")


def _upload(bucket: Any, _client: Any, fail: Callable[[], None]) -> Any:
    return bucket.upload_from_stream("name", Body(fail))


def _download(bucket: Any, _client: Any, fail: Callable[[], None]) -> Any:
    return bucket.download_to_stream_by_name("there", Body(fail))


def _insert(_bucket: Any, client: Any, fail: Callable[[], None]) -> Any:
    def documents() -> Iterator[dict[str, Any]]:
        yield {}
        fail()

    return client.test.coll.insert_many(documents())


def _state() -> tuple[Any, ...]:
    return (
        pymongo_csot.get_timeout(),
        pymongo_csot.get_deadline(),
        in_progress.current_or_ended(),
        trace.get_current_span(),
    )


@ERRORS
@pytest.mark.parametrize("call", [_upload, _download, _insert])
def test_nothing_stays_active_whatever_the_applications_own_code_raises(
    call: Any,
    fail: Callable[[], None],
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
) -> None:
    client = side.client(proxy.uri)
    cls: Any = gridfs.GridFSBucket if side.runner is None else gridfs.AsyncGridFSBucket

    async def prepare() -> Any:
        bucket = cls(client[database])
        upload = bucket.upload_from_stream("there", b"bytes")
        if side.runner is not None:
            await upload
        return bucket

    bucket = side.do(prepare) if side.runner else cls(client[database])
    if side.runner is None:
        bucket.upload_from_stream("there", b"bytes")

    def states() -> list[Any]:
        found = [_state()]
        with suppress(*RAISED):
            call(bucket, client, fail)
        return [*found, _state()]

    async def states_async() -> list[Any]:
        found = [_state()]
        with suppress(*RAISED):
            await call(bucket, client, fail)
        return [*found, _state()]

    for is_plain in (True, False):
        if not is_plain:
            instrument()
        before, after = side.do(states if side.runner is None else states_async)
        assert after == before
        with pymongo.timeout(5):
            before, after = side.do(states if side.runner is None else states_async)
        assert after == before
        assert side.do(client[database].coll.find_one) is None


@ERRORS
def test_the_span_shows_the_applications_error(
    fail: Callable[[], None],
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
) -> None:
    telemetry = instrument()
    client = side.client(proxy.uri)
    with pytest.raises(RAISED) as caught:
        side.do(lambda: _insert(None, client, fail))
    side.do(client.admin.command, "ping")  # a GeneratorExit is shown with the next operation
    (span,) = telemetry.operations("insert test.coll")
    assert span.attributes["exception.type"] == caught.type.__name__


@pytest.mark.parametrize("fail", [_close_badly, _reset_elsewhere])
def test_a_transaction_is_aborted_at_once(
    fail: Callable[[], None],
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    sent: SentCommands,
) -> None:
    client = side.client(proxy.uri, event_listeners=[sent])
    coll = client[database].coll
    side.do(coll.insert_one, {"_id": 1})

    def run() -> None:
        def callback(session: Any) -> None:
            coll.update_one({"_id": 1}, {"$set": {"n": 1}}, session=session)
            fail()

        with client.start_session() as session, suppress(*RAISED):
            session.with_transaction(callback)

    async def run_async() -> None:
        async def callback(session: Any) -> None:
            await coll.update_one({"_id": 1}, {"$set": {"n": 1}}, session=session)
            fail()

        async with client.start_session() as session:
            with suppress(*RAISED):
                await session.with_transaction(callback)

    for is_plain in (True, False):
        if not is_plain:
            instrument()
        sent.started_events.clear()
        side.do(run if side.runner is None else run_async)
        assert _names(sent) == ["update", "abortTransaction"]


class Starting(pymongo.monitoring.CommandListener):
    """Starts a job inside of an insert, which goes on when the insert has ended."""

    def __init__(self, side: Side) -> None:
        self._is_async = side.runner is not None
        self.job: Callable[[], Any] = list
        self.goes_on: Any = asyncio.Event() if self._is_async else threading.Event()
        self.results: list[Any] = []

    def started(self, event: Any) -> None:
        if event.command_name != "insert":
            return
        if self._is_async:
            self.results.append(asyncio.get_running_loop().create_task(self._async_job()))
            return
        result: Future[Any] = Future()
        self.results.append(result)
        threading.Thread(target=copy_context().run, args=(self._sync_job, result)).start()

    def _sync_job(self, result: Future[Any]) -> None:
        try:
            self.goes_on.wait()
            result.set_result(self.job())
        except BaseException as error:  # noqa: BLE001 - the test's
            result.set_exception(error)

    async def _async_job(self) -> Any:
        await self.goes_on.wait()
        return await self.job()

    def succeeded(self, event: Any) -> None: ...
    def failed(self, event: Any) -> None: ...


def _started_inside(side: Side, client: Any, starting: Starting, database: str) -> Any:
    """Insert a document, let the job that this starts go on, and return its result."""
    with pymongo.timeout(20.0):
        # Connecting may take longer than the timeout on a busy machine.
        side.do(client[database].coll.find_one)

    async def main() -> Any:
        await client[database].coll.insert_one({})
        starting.goes_on.set()
        return await starting.results[0]

    if side.runner is not None:
        return side.do(main)
    client[database].coll.insert_one({})
    starting.goes_on.set()
    return starting.results[0].result()


def test_a_timeout_of_the_same_length_as_ours_is_the_applications(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """In a task that was started inside of an operation, whose timeout it inherits."""
    for name in ("plain", "ours"):
        if name == "ours":
            instrument(timeout_ms=1_000)
        starting = Starting(side)
        client = side.client(proxy.uri, event_listeners=[starting])
        coll = client[database].coll

        def find_twice(coll: Any = coll) -> None:
            proxy.inject(Slow(seconds=0.7))
            with pymongo.timeout(1.0):
                coll.find_one()
                coll.find_one()

        async def find_twice_async(coll: Any = coll) -> None:
            proxy.inject(Slow(seconds=0.7))
            with pymongo.timeout(1.0):
                await coll.find_one()
                await coll.find_one()

        starting.job = find_twice if side.runner is None else find_twice_async
        with pytest.raises(pymongo.errors.PyMongoError) as caught:
            _started_inside(side, client, starting, database)
        proxy.clear()
        assert caught.value.timeout


def test_an_ended_operations_timeout_shortens_none_of_the_applications(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """In a task that was started inside of the operation, and begins with a block of its own."""
    for name in ("plain", "ours"):
        if name == "ours":
            instrument(timeout_ms=1_000)
        starting = Starting(side)
        client = side.client(replica_set.uri, event_listeners=[starting])
        coll = client[database].coll

        def find(coll: Any = coll) -> None:
            time.sleep(1.0)
            for _ in range(2):
                with pymongo.timeout(20.0):
                    coll.find_one()
                    coll.find_one()
                coll.find_one()

        async def find_async(coll: Any = coll) -> None:
            await asyncio.sleep(1.0)
            for _ in range(2):
                with pymongo.timeout(20.0):
                    await coll.find_one()
                    await coll.find_one()
                await coll.find_one()

        starting.job = find if side.runner is None else find_async
        _started_inside(side, client, starting, database)


def test_a_cut_connection_is_no_error_in_a_handler_of_generator_exit(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.find_one)

    async def in_handler() -> Any:
        try:
            raise GeneratorExit
        except GeneratorExit:
            return await coll.insert_one({})

    def in_sync_handler() -> Any:
        try:
            raise GeneratorExit
        except GeneratorExit:
            return coll.insert_one({})

    for is_plain in (True, False):
        if not is_plain:
            instrument()
        proxy.inject(CutBefore("insert"))
        assert side.do(in_sync_handler if side.runner is None else in_handler).acknowledged
