"""Span trees compared whole: names, kinds, parents and every attribute."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pymongo
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import SpanKind, StatusCode
from pymongo import DeleteOne, InsertOne, UpdateOne
from pymongo_resilience_instrumentation.telemetry.operation_spans import OperationSpans
from pymongo_resilience_instrumentation.tools.testbed import CutAfter
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import SentCommands, Side, fail_command
from support.servers import cases
from support.telemetry import Instrument, Telemetry

from pymongo_resilience.testbed import ReplicaSet
from pymongo_resilience.testing import set_active

MIXED = [InsertOne({"_id": 9}), UpdateOne({"_id": 9}, {"$set": {"a": 1}}), DeleteOne({"_id": 9})]

COLLECTION: dict[str, tuple[Callable[[Any], tuple[Any, ...]], str, list[str]]] = {
    "find_one": (lambda c: (c.find_one,), "find", ["find"]),
    "insert_one": (lambda c: (c.insert_one, {"_id": 5}), "insert", ["insert"]),
    "insert_many": (lambda c: (c.insert_many, [{"_id": 6}, {"_id": 7}]), "insert", ["insert"]),
    "update_one": (lambda c: (c.update_one, {}, {"$set": {"a": 1}}), "update", ["update"]),
    "update_many": (lambda c: (c.update_many, {}, {"$set": {"a": 1}}), "update", ["update"]),
    "replace_one": (lambda c: (c.replace_one, {"_id": 1}, {"a": 1}), "update", ["update"]),
    "delete_one": (lambda c: (c.delete_one, {"_id": 1}), "delete", ["delete"]),
    "delete_many": (lambda c: (c.delete_many, {"_id": {"$gt": 0}}), "delete", ["delete"]),
    "find_one_and_update": (
        lambda c: (c.find_one_and_update, {}, {"$set": {"a": 1}}),
        "findAndModify",
        ["findAndModify"],
    ),
    "find_one_and_replace": (
        lambda c: (c.find_one_and_replace, {}, {"a": 1}),
        "findAndModify",
        ["findAndModify"],
    ),
    "find_one_and_delete": (
        lambda c: (c.find_one_and_delete, {}),
        "findAndModify",
        ["findAndModify"],
    ),
    "aggregate": (lambda c: (c.aggregate, [{"$match": {}}]), "aggregate", ["aggregate"]),
    "count_documents": (lambda c: (c.count_documents, {}), "aggregate", ["aggregate"]),
    "estimated_document_count": (lambda c: (c.estimated_document_count,), "count", ["count"]),
    "distinct": (lambda c: (c.distinct, "a"), "distinct", ["distinct"]),
    "bulk_write": (lambda c: (c.bulk_write, MIXED), "bulkWrite", ["insert", "update", "delete"]),
    "create_index": (lambda c: (c.create_index, "a"), "createIndexes", ["createIndexes"]),
    "list_indexes": (lambda c: (c.list_indexes,), "listIndexes", ["listIndexes"]),
    "drop": (lambda c: (c.drop,), "dropCollection", ["drop"]),
}


def _expected_operation(operation: str, database: str, collection: str | None) -> dict[str, Any]:
    target = database if collection is None else f"{database}.{collection}"
    expected = {
        "db.system.name": "mongodb",
        "db.namespace": database,
        "db.operation.name": operation,
        "db.operation.summary": f"{operation} {target}",
        "pymongo_resilience.attempts": 1,
        "pymongo_resilience.outcome": "ok",
    }
    if collection is not None:
        expected["db.collection.name"] = collection
    return expected


def _check_command(
    span: ReadableSpan, command: str, database: str, collection: str | None, port: int
) -> None:
    attributes = dict(span.attributes or {})
    for name in ("db.mongodb.server_connection_id", "db.mongodb.driver_connection_id"):
        value = attributes.pop(name)
        assert isinstance(value, int)
        assert value > 0
    uuid.UUID(attributes.pop("db.mongodb.lsid"))
    if "db.mongodb.txn_number" in attributes:
        value = attributes.pop("db.mongodb.txn_number")
        assert isinstance(value, int)
        assert value > 0
    target = database if collection is None else f"{database}.{collection}"
    expected = {
        "db.system.name": "mongodb",
        "db.namespace": database,
        "db.command.name": command,
        "db.query.summary": f"{command} {target}",
        "server.address": "127.0.0.1",
        "server.port": port,
        "network.transport": "tcp",
    }
    if collection is not None:
        expected["db.collection.name"] = collection
    assert attributes == expected
    assert span.name == command
    assert span.kind is SpanKind.CLIENT
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("method", COLLECTION)
def test_an_operation_on_a_collection_draws_its_whole_tree(
    side: Side, method: str, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    make, operation, commands = COLLECTION[method]
    telemetry = instrument()
    client = side.do(side.client, server.uri)
    coll = client[database].coll
    side.do(coll.insert_many, [{"_id": 1, "a": 0}, {"_id": 2, "a": 0}])
    telemetry.clear()
    side.do(*make(coll))
    spans = telemetry.spans()
    root = spans[-1]
    assert len(spans) == 1 + len(commands)
    assert root.name == f"{operation} {database}.coll"
    assert root.kind is SpanKind.CLIENT
    assert root.parent is None
    assert dict(root.attributes or {}) == _expected_operation(operation, database, "coll")
    assert list(root.events) == []
    for span, command in zip(spans[:-1], commands, strict=True):
        assert span.parent is not None
        assert span.parent.span_id == root.context.span_id
        assert span.context.trace_id == root.context.trace_id
        _check_command(span, command, database, "coll", server.address[1])


OTHERS: dict[str, tuple[Callable[[Any, str], tuple[Any, ...]], str, str | None, str, str]] = {
    # method: (the call, operation, its collection, command, the command's database)
    "command": (lambda c, d: (c[d].command, "ping"), "runCommand", None, "ping", "db"),
    "cursor_command": (
        lambda c, d: (c[d].cursor_command, "find", "coll"), "runCommand", None, "find", "db",
    ),
    "list_collection_names": (
        lambda c, d: (c[d].list_collection_names,),
        "listCollections", None, "listCollections", "db",
    ),
    "drop_collection": (
        lambda c, d: (c[d].drop_collection, "coll"), "dropCollection", "coll", "drop", "db",
    ),
    "aggregate": (
        lambda c, d: (c[d].aggregate, [{"$documents": [{"a": 1}]}]),
        "aggregate", None, "aggregate", "db",
    ),
    "list_database_names": (
        lambda c, _: (c.list_database_names,), "listDatabases", None, "listDatabases", "admin",
    ),
    "drop_database": (
        lambda c, d: (c.drop_database, d), "dropDatabase", None, "dropDatabase", "db",
    ),
}  # fmt: skip


@pytest.mark.parametrize("method", cases(OTHERS, {"aggregate": "5.1"}))
def test_an_operation_on_a_database_or_client_draws_its_tree(
    side: Side, method: str, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    make, operation, collection, command, place = OTHERS[method]
    telemetry = instrument()
    client = side.do(side.client, server.uri)
    side.do(client[database].coll.insert_one, {"_id": 1})
    telemetry.clear()
    side.do(*make(client, database))
    command_span, root = telemetry.spans()
    where = database if place == "db" else "admin"
    assert dict(root.attributes or {}) == _expected_operation(operation, where, collection)
    assert command_span.name == command
    assert command_span.parent is not None
    assert command_span.parent.span_id == root.context.span_id


def test_nothing_on_admin_has_the_attribute_of_a_collection(
    side: Side, server: EmbeddedServer, instrument: Instrument
) -> None:
    telemetry = instrument()
    side.do(side.client(server.uri).admin.coll.find_one)
    find, operation = telemetry.spans()
    assert (find.name, operation.name) == ("find", "find admin.coll")
    assert find.attributes["db.namespace"] == operation.attributes["db.namespace"] == "admin"
    assert "db.collection.name" not in {*find.attributes, *operation.attributes}


def test_a_cursors_first_batch_and_each_get_more_have_spans_of_their_own(
    side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    coll = side.do(side.client, server.uri)[database].coll
    side.do(coll.insert_many, [{"_id": n} for n in range(5)])
    telemetry.clear()
    assert len(side.documents(coll.find(batch_size=2))) == 5
    names = [span.name for span in telemetry.operations()]
    assert names == [f"find {database}.coll"] + [f"getMore {database}.coll"] * 2
    find, first, last = (telemetry.commands_of(each)[0] for each in telemetry.operations())
    cursor_id = find.attributes["db.mongodb.cursor_id"]
    assert isinstance(cursor_id, int)
    assert cursor_id != 0
    assert first.attributes["db.mongodb.cursor_id"] == cursor_id
    assert last.attributes["db.mongodb.cursor_id"] == cursor_id
    assert first.attributes["db.collection.name"] == "coll"
    assert first.attributes["db.query.summary"] == f"getMore {database}.coll"


def test_each_attempt_is_a_command_span_and_each_decision_an_event(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    client = side.do(side.client, proxy.uri)
    side.do(client.admin.command, "ping")
    telemetry.clear()
    proxy.inject(CutAfter("insert", times=2))
    side.do(client[database].coll.insert_one, {"_id": 1})
    (root,) = telemetry.operations()
    commands = telemetry.commands_of(root)
    assert [span.name for span in commands] == ["insert"] * 3
    assert len({span.attributes["db.mongodb.txn_number"] for span in commands}) == 1
    statuses = [span.status.status_code for span in commands]
    assert statuses == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert commands[0].attributes["exception.type"] == "pymongo.errors.AutoReconnect"
    assert root.status.status_code is StatusCode.UNSET
    assert root.attributes["pymongo_resilience.attempts"] == 3
    assert root.attributes["pymongo_resilience.outcome"] == "retried_ok"
    assert root.attributes["pymongo_resilience.deadline"] == 20.0
    assert (
        root.attributes["pymongo_resilience.retry.reasons"]
        == ("socket_closed_while_in_flight",) * 2
    )
    assert 0 < root.attributes["pymongo_resilience.backoff.total"] < 0.01
    address = "{}:{}".format(*proxy.address)
    decisions = [event for event in root.events if event.name.startswith("retry.")]
    assert [event.name for event in decisions] == ["retry.scheduled"] * 2
    for event in decisions:
        assert event.attributes["pymongo_resilience.reason"] == "socket_closed_while_in_flight"
        assert event.attributes["pymongo_resilience.server"] == address
        assert isinstance(event.attributes["pymongo_resilience.delay"], float)


CANARY = "canary-4711"


def test_an_error_is_shown_on_both_layers_without_the_servers_text(
    side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    coll = side.do(side.client, server.uri)[database].coll
    side.do(coll.create_index, "email", unique=True)
    side.do(coll.insert_one, {"email": CANARY})
    telemetry.clear()
    with pytest.raises(pymongo.errors.DuplicateKeyError, match=CANARY):
        side.do(coll.insert_one, {"email": CANARY})
    with pytest.raises(pymongo.errors.OperationFailure):
        side.do(coll.find_one, {"$where": CANARY, CANARY: {"$nonsense": 1}})
    insert, find = telemetry.operations()
    assert insert.attributes["exception.type"] == "pymongo.errors.DuplicateKeyError"
    assert insert.attributes["exception.message"] == "DuplicateKeyError, code 11000"
    assert insert.attributes["pymongo_resilience.outcome"] == "not_retryable"
    for span in (find, *telemetry.commands_of(find)):
        assert span.status.status_code is StatusCode.ERROR
        lines = span.attributes["exception.stacktrace"].splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert lines[-1] == span.attributes["exception.message"]
        assert lines[-1].startswith("OperationFailure, code ")
    code = telemetry.commands_of(find)[0].attributes["db.response.status_code"]
    assert code.isdigit()
    assert CANARY not in "".join(span.to_json() for span in telemetry.spans())


def test_operations_are_children_of_the_applications_span_under_threads(
    server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("application")
    wrong: list[str] = []

    def work(client: Any, number: int) -> None:
        for _ in range(10):
            with tracer.start_as_current_span("request"):
                client[database].coll.find_one({"_id": number})
                if trace.get_current_span().name != "request":
                    wrong.append("current span")

    with pymongo.MongoClient(server.uri) as client:
        threads = [threading.Thread(target=work, args=(client, n)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    _each_command_below_its_own_operation(telemetry, 160)


def test_operations_are_children_of_the_applications_span_under_tasks(
    server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("application")

    async def work(client: Any, number: int) -> None:
        with tracer.start_as_current_span("request"):
            await client[database].coll.find_one({"_id": number})
            assert trace.get_current_span().name == "request"

    async def main() -> None:
        async with pymongo.AsyncMongoClient(server.uri) as client:
            await asyncio.gather(*(work(client, number) for number in range(200)))

    asyncio.run(main())
    _each_command_below_its_own_operation(telemetry, 200)


def _each_command_below_its_own_operation(telemetry: Telemetry, count: int) -> None:
    # The close() of a client is an operation as well.
    operations = [span for span in telemetry.operations() if span.name != "endSessions admin"]
    assert len(operations) == count
    assert len({span.parent.span_id for span in operations if span.parent}) == count
    assert [len(telemetry.commands_of(span)) for span in operations] == [1] * count


def test_cancellation_ends_every_span_and_the_wait_between_attempts(
    server: EmbeddedServer, database: str, control: Any, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=60_000)

    async def main() -> float:
        async with pymongo.AsyncMongoClient(server.uri, appname="under-test") as client:
            coll = client[database].coll
            await coll.find_one()
            telemetry.clear()
            loop = asyncio.get_running_loop()
            with (
                fail_command(control, "find", blockConnection=True, blockTimeMS=5000, times=1),
                pytest.raises(TimeoutError),
            ):
                async with asyncio.timeout(0.1):
                    await coll.find_one()
            with fail_command(control, "find", errorCode=6):
                started = loop.time()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.7):
                        await coll.find_one()
                return loop.time() - started

    took = asyncio.run(main())
    assert took < 5
    in_flight, waiting = telemetry.operations(f"find {database}.coll")
    for root in (in_flight, waiting):
        assert root.attributes["exception.type"] == "asyncio.exceptions.CancelledError"
        assert all(span.end_time is not None for span in telemetry.commands_of(root))
    assert len(telemetry.commands_of(in_flight)) == 1
    command = telemetry.commands_of(in_flight)[0]
    assert command.attributes["exception.type"] == "asyncio.exceptions.CancelledError"
    assert root.attributes["pymongo_resilience.attempts"] > 3


def test_a_coroutine_that_is_never_finished_ends_its_span_wherever_it_is_collected(
    server: EmbeddedServer,
    database: str,
    control: Any,
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry = instrument()

    async def begin(client: Any) -> Any:
        operation = client[database].coll.find_one()
        operation.send(None)
        return operation

    async def main() -> None:
        async with pymongo.AsyncMongoClient(server.uri, appname="under-test") as client:
            await client.admin.command("ping")
            telemetry.clear()
            caplog.clear()
            operation = await asyncio.create_task(begin(client))
            # pymongo's own context variable cannot be restored from here either, and says so.
            with contextlib.suppress(ValueError):
                operation.close()

    asyncio.run(main())
    assert len(telemetry.operations(f"find {database}.coll")) == 1
    ours = ("pymongo_resilience", "opentelemetry")
    assert [record for record in caplog.records if record.name.startswith(ours)] == []


def test_a_cancelled_commit_leaves_no_span_open(
    server: EmbeddedServer, database: str, control: Any, instrument: Instrument
) -> None:
    telemetry = instrument()

    async def main() -> None:
        async with pymongo.AsyncMongoClient(server.uri, appname="under-test") as client:
            await client[database].coll.insert_one({"_id": 0})
            session = client.start_session()
            await session.start_transaction()
            await client[database].coll.insert_one({"_id": 1}, session=session)
            block = {"blockConnection": True, "blockTimeMS": 5000, "times": 1}
            with (
                fail_command(control, "commitTransaction", **block),
                pytest.raises(TimeoutError),
            ):
                async with asyncio.timeout(0.1):
                    await session.commit_transaction()
            await session.end_session()

    asyncio.run(main())
    (commit,) = [span for span in telemetry.spans() if span.name == "commitTransaction"]
    assert commit.attributes["exception.type"] == "asyncio.exceptions.CancelledError"


def test_a_task_started_inside_of_an_operation_outlives_its_span_and_deadline(
    server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    """For example a flusher that a command listener of the application starts lazily."""
    telemetry = instrument(timeout_ms=2500)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("application")
    tasks: list[asyncio.Task[None]] = []

    async def main() -> None:
        finished = asyncio.Event()

        class Starter(SentCommands):
            def started(self, event: Any) -> None:
                if event.command_name == "find" and not tasks:
                    tasks.append(asyncio.create_task(flush()))

        async def flush() -> None:
            await finished.wait()
            for number in range(3):
                await client[database].flushed.insert_one({"_id": number})

        async with pymongo.AsyncMongoClient(server.uri, event_listeners=[Starter()]) as client:
            with set_active(False):  # to connect takes longer, on a busy machine
                await client.admin.command("ping")
            with tracer.start_as_current_span("request"):
                await client[database].coll.find_one()
            await asyncio.sleep(2.6)
            finished.set()
            await tasks[0]

    asyncio.run(main())
    (find,) = telemetry.operations(f"find {database}.coll")
    inserts = telemetry.operations(f"insert {database}.flushed")
    assert len(inserts) == 3
    assert [len(telemetry.commands_of(span)) for span in inserts] == [1, 1, 1]
    assert find.parent is not None
    assert {span.parent.span_id for span in inserts if span.parent} == {find.parent.span_id}


def _find_with_an_audit_log(uri: str, database: str) -> None:
    """An application's listener that writes through a client of its own."""
    with pymongo.MongoClient(uri) as audit:

        class Audit(SentCommands):
            def started(self, event: Any) -> None:
                if event.command_name == "find":
                    audit[database].audit.insert_one({"command": event.command_name})

        with pymongo.MongoClient(uri, event_listeners=[Audit()]) as client:
            client[database].coll.find_one()


def test_an_operation_on_another_client_inside_of_one_has_a_span_of_its_own(
    server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    _find_with_an_audit_log(server.uri, database)
    (find,) = telemetry.operations(f"find {database}.coll")
    (insert,) = telemetry.operations(f"insert {database}.audit")
    assert [span.name for span in telemetry.commands_of(insert)] == ["insert"]
    assert "find" in [span.name for span in telemetry.commands_of(find)]


def test_a_fault_of_ours_inside_of_a_call_leaves_the_call_as_it_was(
    server: EmbeddedServer,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry = instrument()
    start = OperationSpans.start

    def broken_for_inserts(self: OperationSpans, call: Any, *more: Any) -> None:
        if call.operation == "insert":
            raise RuntimeError("broken")
        start(self, call, *more)

    monkeypatch.setattr(OperationSpans, "start", broken_for_inserts)
    _find_with_an_audit_log(server.uri, database)
    find, *closing = telemetry.operations()
    assert find.name == f"find {database}.coll"
    assert {span.name for span in closing} == {"endSessions admin"}
    assert find.attributes["pymongo_resilience.outcome"] == "ok"
    assert "find" in [span.name for span in telemetry.commands_of(find)]
    assert any("internal error" in each for each in caplog.messages)


class Odd(int):
    """An application's own number, which stumbles over itself."""

    def __format__(self, spec: str) -> str:
        raise ValueError


class OddError(pymongo.errors.PyMongoError):
    code = Odd(1)


def test_an_error_that_cannot_be_shown_ends_its_span_nevertheless(
    side: Side,
    server: EmbeddedServer,
    database: str,
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def documents() -> Iterator[dict[str, Any]]:
        yield {}
        raise OddError

    telemetry = instrument()
    coll = side.do(side.client, server.uri)[database].coll
    with pytest.raises(OddError):
        side.do(coll.insert_many, documents())
    assert [span.name for span in telemetry.spans()] == [f"insert {database}.coll"]
    assert any("internal error" in each for each in caplog.messages)


def test_what_a_write_is_fed_from_has_spans_of_its_own(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    with pymongo.MongoClient(proxy.uri) as client:
        source, target = client[database].source, client[database].target
        source.insert_many([{"_id": number} for number in range(5)])
        telemetry.clear()
        proxy.inject(CutAfter("find"))
        target.insert_many(source.find(batch_size=2))
        assert target.count_documents({}) == 5
    (find,) = telemetry.operations(f"find {database}.source")
    (insert,) = telemetry.operations(f"insert {database}.target")
    assert find.attributes["pymongo_resilience.attempts"] == 2
    assert insert.attributes["pymongo_resilience.attempts"] == 1
    assert len(telemetry.operations(f"getMore {database}.source")) == 2


def test_without_traces_nothing_is_drawn_and_the_rest_works(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(traces=False, timeout_ms=20_000)
    client = side.do(side.client, proxy.uri)
    side.do(client.admin.command, "ping")
    proxy.inject(CutAfter("insert", times=3))
    side.do(client[database].coll.insert_one, {"_id": 1})
    assert telemetry.spans() == []
    assert len(telemetry.decisions.events) == 3
    (attributes,) = [
        attributes
        for attributes, _ in telemetry.points("db.client.operation.duration")
        if attributes["db.operation.name"] == "insert"
    ]
    assert attributes["server.port"] == proxy.address[1]
