"""Operations inside of a request with a deadline: they end with the request, whatever their own
timeouts are; what outlives the request has its own timeouts alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import gridfs
import pymongo
import pytest
from pymongo import AsyncMongoClient
from pymongo_resilience_instrumentation.timeouts import precedence
from support.clients import SentCommands, Side, fail_command, wait_until
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server
from support.wsgi_asgi import ask_asgi_in_task

from pymongo_resilience import OperationTimeoutError, Policy, bind, override
from pymongo_resilience.deadlines import ASGIMiddleware, detached, request_deadline
from pymongo_resilience.events import RequestExpired
from pymongo_resilience.testbed import BlackHole, EmbeddedServer, ReplicaSet, Slow
from pymongo_resilience.testing import set_active

pytestmark = pytest.mark.oldest

REQUEST = 300
"""Milliseconds."""
LATE = 2.0
"""Seconds that a busy machine may take longer; the timeouts of the tests are minutes."""
MINUTE = 60_000

OWN: dict[str, Callable[[Any], Any]] = {
    "none": lambda coll: coll,
    "binding": lambda coll: bind(coll, timeout_ms=MINUTE),
}


def in_time(began: float, milliseconds: float = REQUEST) -> bool:
    return time.monotonic() - began < milliseconds / 1000 + LATE


@pytest.fixture
def client(side: Side, proxy: ReplicaSet, sent: SentCommands) -> Any:
    client = side.client(proxy.uri, event_listeners=[sent])
    wait_for_server(side, client)
    sent.started_events.clear()
    return client


@pytest.fixture
def coll(client: Any, database: str) -> Any:
    return client[database].coll


def expire(side: Side, proxy: ReplicaSet, function: Callable[..., Any], *args: Any) -> Any:
    """Its error, while no command is answered."""
    proxy.inject(Slow(20))
    began = time.monotonic()
    try:
        with pytest.raises(OperationTimeoutError) as caught, request_deadline(timeout_ms=REQUEST):
            side.do(function, *args)
        assert in_time(began)
        return caught.value
    finally:
        proxy.clear()


@pytest.mark.each_setup
@pytest.mark.parametrize("own", OWN)
def test_an_operation_ends_with_its_request(
    own: str, side: Side, proxy: ReplicaSet, coll: Any, instrument: Instrument
) -> None:
    telemetry = instrument()
    error = expire(side, proxy, OWN[own](coll).insert_one, {"n": 1})
    assert "the time that the incoming request had left" in str(error)
    assert 0 < error.timeout_s <= REQUEST / 1000
    assert error.elapsed_s < REQUEST / 1000 + LATE
    (span,) = telemetry.operations()
    assert span.attributes["pymongo_resilience.deadline.source"] == "request"
    assert span.attributes["pymongo_resilience.deadline"] == pytest.approx(error.timeout_s)


def test_with_the_drivers_own_retries_it_does_too(
    side: Side, proxy: ReplicaSet, coll: Any, instrument: Instrument
) -> None:
    instrument(config_strategy="driver")
    proxy.inject(Slow(20))
    began = time.monotonic()
    with pytest.raises(pymongo.errors.PyMongoError) as caught, request_deadline(timeout_ms=REQUEST):
        side.do(coll.find_one)
    assert caught.value.timeout
    assert in_time(began)


@pytest.mark.parametrize("shorter", ["block", "pymongo", "client", "configuration"])
def test_a_shorter_timeout_of_its_own_applies(
    shorter: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
) -> None:
    telemetry = instrument(timeout_ms=100 if shorter == "configuration" else None)
    options = {"timeoutMS": 100} if shorter == "client" else {}
    client = side.client(proxy.uri, **options)
    wait_for_server(side, client)
    around = {
        "block": override(timeout_ms=100),
        "pymongo": pymongo.timeout(0.1),
    }.get(shorter, nullcontext())
    proxy.inject(Slow(20))
    began = time.monotonic()
    with (
        request_deadline(timeout_ms=MINUTE),
        around,
        pytest.raises(OperationTimeoutError) as caught,
    ):
        side.do(client[database].coll.find_one)
    assert in_time(began, 100)
    assert "request" not in str(caught.value)
    (span,) = telemetry.operations()
    assert "pymongo_resilience.deadline.source" not in span.attributes
    proxy.clear()


@pytest.mark.parametrize("longer", ["block", "pymongo", "zero", "pymongo, none", "client"])
def test_a_longer_timeout_does_not(
    longer: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    options = {"timeoutMS": MINUTE} if longer == "client" else {}
    client = side.client(proxy.uri, **options)
    wait_for_server(side, client)
    blocks: dict[str, Callable[[], Any]] = {
        "block": lambda: override(timeout_ms=MINUTE),
        "zero": lambda: override(timeout_ms=0),
        "pymongo": lambda: pymongo.timeout(MINUTE / 1000),
        "pymongo, none": lambda: pymongo.timeout(None),
        "client": override,
    }

    def find() -> Any:
        with blocks[longer]():
            return client[database].coll.find_one()

    async def find_async() -> Any:
        with blocks[longer]():
            return await client[database].coll.find_one()

    expire(side, proxy, find if side.runner is None else find_async)


def test_all_operations_share_what_is_left(
    side: Side, proxy: ReplicaSet, coll: Any, instrument: Instrument
) -> None:
    instrument(timeout_ms=MINUTE)
    proxy.inject(Slow(0.3))
    began, outcomes = time.monotonic(), []
    with request_deadline(timeout_ms=1200):
        for _ in range(10):
            try:
                outcomes.append(side.do(coll.find_one))
            except OperationTimeoutError as error:
                outcomes.append(type(error))
    assert in_time(began, 1200)
    assert 7 <= len([each for each in outcomes if each is not None]) < 10


def test_a_request_that_is_over_sends_nothing(
    side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    began = time.monotonic()
    with request_deadline(timeout_ms=0):
        for call in (
            lambda: side.do(coll.find_one),
            lambda: side.do(coll.insert_one, {}),
            lambda: side.do(coll.bulk_write, [pymongo.InsertOne({})]),
            lambda: side.do(coll.database.command, "ping"),
            lambda: side.documents(coll.find()),
            lambda: side.do(coll.watch),
        ):
            with pytest.raises(OperationTimeoutError):
                call()
    assert time.monotonic() - began < 1
    assert sent.started_events == []
    assert side.do(coll.find_one) is None, "and the client is as it was"


def test_a_request_that_is_over_opens_no_connection_and_loses_no_server(
    side: Side, client: Any, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    (server,) = client._topology._servers.values()
    before = server.pool.gen.get_overall()

    def drop_connections() -> None:
        for each in list(server.pool.conns):
            server.pool.conns.remove(each)
            side.do(each.close_conn, "stale")

    with request_deadline(timeout_ms=0):
        for call in (
            lambda: side.do(client.test.coll.find_one),
            lambda: side.do(client.test.coll.insert_one, {}),
            lambda: side.documents(client.test.coll.find()),
        ):
            drop_connections()
            with pytest.raises(OperationTimeoutError):
                call()
    assert server.description.is_server_type_known
    assert server.pool.gen.get_overall() == before
    assert not server.pool.conns


def test_a_cursor_keeps_nothing_of_the_request(
    side: Side, coll: Any, control: Any, database: str, instrument: Instrument
) -> None:
    instrument()
    with set_active(False):
        control[database].coll.insert_many([{"n": n} for n in range(5)])
    with request_deadline(timeout_ms=REQUEST):
        cursor = coll.find({}, batch_size=2)
        first = [side.do(cursor.next)]
    time.sleep(REQUEST / 1000)
    assert len(first + side.documents(cursor)) == 5
    with request_deadline(timeout_ms=REQUEST):
        cursor = coll.find({}, batch_size=2)
        side.do(cursor.next)
        time.sleep(REQUEST / 1000)
        with pytest.raises(OperationTimeoutError):
            side.documents(cursor)


@pytest.mark.parametrize("timeout_ms", [None, MINUTE])
def test_a_wait_for_news_ends_with_the_request_and_is_no_error_of_configuration(
    timeout_ms: int | None, side: Side, coll: Any, control: Any, database: str, instrument: Any
) -> None:
    instrument(timeout_ms=timeout_ms)
    with set_active(False):
        control[database].create_collection("coll")
    began = time.monotonic()
    with request_deadline(timeout_ms=REQUEST):
        stream = side.do(coll.watch, max_await_time_ms=20_000)
        with pytest.raises(OperationTimeoutError):
            side.do(stream.next)
        assert in_time(began)
    with set_active(False):
        control[database].coll.insert_one({"_id": 1})
    assert side.do(stream.next)["documentKey"] == {"_id": 1}, "afterwards it goes on"
    side.do(stream.close)


def test_a_transaction_ends_with_its_request_and_is_aborted_in_the_background(
    side: Side, proxy: ReplicaSet, coll: Any, control: Any, database: str, instrument: Instrument
) -> None:
    instrument()
    with set_active(False):
        control[database].coll.insert_one({"_id": 1, "n": 0})
    client = coll.database.client
    calls: list[int] = []

    def work(session: Any) -> Any:
        calls.append(1)
        coll.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
        proxy.inject(BlackHole(20))
        coll.find_one({}, session=session)

    async def work_async(session: Any) -> Any:
        calls.append(1)
        await coll.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
        proxy.inject(BlackHole(20))
        await coll.find_one({}, session=session)

    def run() -> None:
        with client.start_session() as session:
            session.with_transaction(work)

    async def run_async() -> None:
        async with client.start_session() as session:
            await session.with_transaction(work_async)

    began = time.monotonic()
    with pytest.raises(OperationTimeoutError), request_deadline(timeout_ms=300):
        side.do(run if side.runner is None else run_async)
    assert in_time(began, 300)
    assert calls == [1]
    proxy.clear()

    def unlocked() -> bool:
        side.turn()
        with pymongo.timeout(0.5):
            try:
                control[database].coll.update_one({"_id": 1}, {"$set": {"free": True}})
            except pymongo.errors.PyMongoError:
                return False
        return True

    wait_until(unlocked, timeout=20)
    with set_active(False):
        assert control[database].coll.find_one() == {"_id": 1, "n": 0, "free": True}


def test_a_callback_may_give_its_operations_a_timeout_with_a_header_and_without(
    side: Side, coll: Any, instrument: Instrument
) -> None:
    """Without another timeout: with one of the transaction, that is refused."""
    instrument()
    client = coll.database.client

    async def run() -> None:
        async with client.start_session() as session:

            async def work(_: Any) -> None:
                with override(timeout_ms=5_000):
                    await coll.insert_one({}, session=session)

            await session.with_transaction(work)

    def run_sync() -> None:
        def work(session: Any) -> None:
            with override(timeout_ms=5_000):
                coll.insert_one({}, session=session)

        with client.start_session() as session:
            session.with_transaction(work)

    run_it = run_sync if side.runner is None else run
    side.do(run_it)
    with request_deadline(timeout_ms=MINUTE):
        side.do(run_it)


def test_the_applications_limits_stay_beside_it(
    side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    with request_deadline(timeout_ms=5_000):
        side.do(coll.find_one, {}, max_time_ms=777)
        side.do(coll.find_one, {}, max_time_ms=MINUTE)
    shorter, longer = (each["maxTimeMS"] for each in sent.named("find"))
    assert shorter == 777
    assert 4_000 < longer <= 5_000


def test_gridfs_keeps_nothing_of_the_request(server: EmbeddedServer, instrument: Any) -> None:
    instrument()
    with pymongo.MongoClient(server.uri) as client:
        bucket = gridfs.GridFSBucket(client[f"files_{time.monotonic_ns()}"])
        with request_deadline(timeout_ms=2_000):
            stream = bucket.open_upload_stream("name")
        time.sleep(0.01)
        with override(timeout_ms=5_000):
            stream.write(b"x" * 1000)
            stream.close()
        with request_deadline(timeout_ms=0), pytest.raises(OperationTimeoutError):
            bucket.open_download_stream(stream._id).read()
        client.drop_database(bucket._collection.database.name)


def test_killed_cursors_are_left_to_the_background(
    side: Side, coll: Any, control: Any, database: str, sent: SentCommands, instrument: Any
) -> None:
    instrument()
    with set_active(False):
        control[database].coll.insert_many([{} for _ in range(5)])
    with request_deadline(timeout_ms=MINUTE):
        cursor = coll.find({}, batch_size=2)
        side.do(cursor.next)
        with request_deadline(timeout_ms=0):
            began = time.monotonic()
            side.do(cursor.close)
            assert in_time(began, 0)
    side.wait_until(lambda: sent.named("killCursors"))


def test_asgi_under_faults(server: EmbeddedServer, database: str, instrument: Instrument) -> None:
    """Each request with its own deadline, at once in one event loop; what they start in the
    background has none."""
    telemetry = instrument(timeout_ms=MINUTE)
    late: list[float] = []
    outcomes: list[str] = []

    async def run() -> None:
        with ReplicaSet(server.address, members=1) as proxy:
            client: AsyncMongoClient[Any] = AsyncMongoClient(proxy.uri)
            await client.admin.command("ping")
            background: set[asyncio.Task[Any]] = set()
            answered = asyncio.Event()

            async def after() -> Any:
                await answered.wait()
                return await client[database].coll.find_one()

            async def app(scope: Any, receive: Any, send: Any) -> None:
                began = time.monotonic()
                try:
                    for _ in range(20):
                        await client[database].coll.find_one()
                    outcomes.append("ok")
                except OperationTimeoutError:
                    outcomes.append("late")
                late.append(time.monotonic() - began - int(scope["path"][1:]) / 1000)
                background.add(asyncio.create_task(after()))
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b""})

            handle = ASGIMiddleware(app, header="x-request-timeout-ms")
            proxy.inject(Slow(0.02))
            await asyncio.gather(
                *(
                    ask_asgi_in_task(handle, {"X-Request-Timeout-Ms": str(ms)}, f"/{ms}")
                    for ms in range(100, 300, 10)
                ),
                ask_asgi_in_task(handle, {"X-Request-Timeout-Ms": "0"}),
            )
            answered.set()
            assert await asyncio.gather(*background) == [None] * 20
            await client.close()

    asyncio.run(run())
    assert outcomes == ["late"] * 20
    assert max(late) < LATE
    assert telemetry.decisions.events.count(RequestExpired("asgi")) == 1
    ((attributes, point),) = telemetry.points("pymongo_resilience.expired_requests")
    assert (attributes, point.value) == ({"pymongo_resilience.received_by": "asgi"}, 1)


def test_detached_work_does_not_end_with_the_request(
    side: Side, proxy: ReplicaSet, coll: Any, instrument: Instrument
) -> None:
    instrument()
    proxy.inject(Slow(0.3))
    with request_deadline(timeout_ms=REQUEST), detached():
        assert side.do(coll.find_one) is None


def test_a_rule_for_the_namespace_is_cut_as_well(
    side: Side, proxy: ReplicaSet, coll: Any, database: str, instrument: Instrument
) -> None:
    instrument(policies={f"{database}.*": Policy(timeout_ms=MINUTE)})
    expire(side, proxy, coll.find_one)


def test_a_retry_ends_with_the_request(
    side: Side, coll: Any, control: Any, instrument: Instrument
) -> None:
    instrument()
    began = time.monotonic()
    with (
        fail_command(control, "find", errorCode=91),
        pytest.raises(OperationTimeoutError),
        request_deadline(timeout_ms=REQUEST),
    ):
        side.do(coll.find_one)
    assert in_time(began)


@pytest.mark.usefixtures("caplog")
def test_a_bug_of_ours_does_not_drop_the_deadline(
    side: Side, coll: Any, sent: SentCommands, instrument: Instrument, monkeypatch: Any
) -> None:
    """It is logged, and the operation is refused before anything is sent."""

    def fails(*_: object) -> None:
        raise LookupError("a bug")

    instrument()
    monkeypatch.setattr(precedence, "_end_with_request", fails)
    with (
        request_deadline(timeout_ms=MINUTE),
        pytest.raises(pymongo.errors.InvalidOperation, match="deadline of the incoming request"),
    ):
        side.do(coll.find_one)
    assert sent.started_events == []
    assert side.do(coll.find_one) is None, "without a request nothing is missed"
