"""Span trees compared whole: names, kinds, parents and every attribute."""

from __future__ import annotations

import asyncio
from typing import Any

import pymongo
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import StatusCode
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import AT_ONCE, Side, run_at_once
from support.command_listeners import Inside
from support.telemetry import Instrument

from pymongo_resilience.testing import set_active


def test_nothing_on_admin_has_the_attribute_of_a_collection(
    side: Side, server: EmbeddedServer, instrument: Instrument
) -> None:
    telemetry = instrument()
    side.do(side.client(server.uri).admin.coll.find_one)
    find, operation = telemetry.spans()
    assert (find.name, operation.name) == ("find", "find admin.coll")
    assert find.attributes["db.namespace"] == operation.attributes["db.namespace"] == "admin"
    assert "db.collection.name" not in {*find.attributes, *operation.attributes}


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


@pytest.mark.parametrize("how", AT_ONCE)
def test_operations_are_children_of_the_applications_span(
    how: str, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("application")
    left: list[str] = []
    """The current span's name after each operation."""

    def in_a_thread(client: Any, number: int) -> None:
        with tracer.start_as_current_span("request"):
            client[database].coll.find_one({"_id": number})
            left.append(trace.get_current_span().name)

    async def in_a_task(client: Any, number: int) -> None:
        with tracer.start_as_current_span("request"):
            await client[database].coll.find_one({"_id": number})
            left.append(trace.get_current_span().name)

    run_at_once(how, server.uri, in_a_thread, in_a_task)
    assert left == ["request"] * 200
    # The close() of a client is an operation as well.
    operations = [span for span in telemetry.operations() if span.name != "endSessions admin"]
    assert len({span.parent.span_id for span in operations if span.parent}) == 200
    assert [len(telemetry.commands_of(span)) for span in operations] == [1] * 200


def test_a_task_started_inside_of_an_operation_outlives_its_span_and_deadline(
    server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    """For example a flusher that a command listener of the application starts lazily."""
    telemetry = instrument(timeout_ms=2500)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("application")
    inside, tasks = Inside(), list[asyncio.Task[None]]()

    async def main() -> None:
        finished = asyncio.Event()

        async def flush() -> None:
            await finished.wait()
            for number in range(3):
                await client[database].flushed.insert_one({"_id": number})

        async with pymongo.AsyncMongoClient(server.uri, event_listeners=[inside]) as client:
            with set_active(False):  # to connect takes longer, on a busy machine
                await client.admin.command("ping")
            inside.act = lambda: tasks.append(asyncio.create_task(flush()))
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
