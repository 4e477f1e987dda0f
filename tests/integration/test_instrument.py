"""instrument() and uninstrument(): what is put on, what is taken off, and what stays in peace."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable
from logging import WARNING
from typing import Any

import pymongo
import pytest
import wrapt
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.telemetry.listeners import OurListener
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side, fail_command, retry_loops, wait_until
from support.command_listeners import OnCommands
from support.patched_places import differences, patched_places
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience import Config
from pymongo_resilience.testbed import CutBefore
from pymongo_resilience.testing import is_active, set_active


def test_uninstrument_restores_every_attribute_by_identity(instrument: Instrument) -> None:
    before = patched_places()
    instrument()
    changed = differences(before, patched_places())
    pymongo_resilience.uninstrument()
    assert len(changed) > 90
    assert differences(before, patched_places()) == set()
    assert not is_active()


def test_what_others_wrapped_over_ours_stays_and_ours_passes_through(
    side: Side,
    server: EmbeddedServer,
    database: str,
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry = instrument()
    owner = pymongo.AsyncMongoClient if side.name == "async" else pymongo.MongoClient
    collection = type(owner("mongodb://x/", connect=False).db.coll)
    ours = vars(collection)["insert_one"]
    seen: list[str] = []

    def theirs(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        seen.append("theirs")
        return wrapped(*args, **kwargs)

    outer = wrapt.FunctionWrapper(ours, theirs)
    collection.insert_one = outer
    caplog.clear()
    try:
        pymongo_resilience.uninstrument()
        assert vars(collection)["insert_one"] is outer
        warnings = [record for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 1
        assert f"{collection.__name__}.insert_one" in warnings[0].getMessage()
        side.do(side.client(server.uri)[database].coll.insert_one, {"_id": 1})
        assert seen == ["theirs"]
        assert telemetry.spans() == []
    finally:
        collection.insert_one = ours.__wrapped__


def test_clients_made_in_between_keep_working_with_listeners_asleep(
    side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    client = side.do(side.client, server.uri)
    side.do(client[database].coll.insert_one, {"_id": 1})
    assert len(telemetry.spans()) == 2
    pymongo_resilience.uninstrument()
    telemetry.clear()
    assert side.do(client[database].coll.find_one) == {"_id": 1}
    assert telemetry.spans() == []
    counted = [point.count for _, point in telemetry.points("db.client.operation.duration")]
    assert counted == [1]


def test_a_client_made_from_anothers_options_has_our_listeners_once(
    server: EmbeddedServer, instrument: Instrument
) -> None:
    instrument(metrics="all")
    with pymongo.MongoClient(server.uri) as first, first._duplicate() as second:
        count = [
            sum(isinstance(each, OurListener) for each in driver.clients.listeners_of(client))
            for client in (first, second)
        ]
        assert count == [3, 3]


def test_a_client_has_no_more_threads_with_the_library_than_without(
    server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    def threads_of_a_client() -> list[str]:
        before = set(threading.enumerate())
        with pymongo.MongoClient(server.uri) as client:
            client[database].coll.find_one()
            return sorted(thread.name for thread in set(threading.enumerate()) - before)

    plain = set(threads_of_a_client())
    instrument()
    assert set(threads_of_a_client()) <= plain


WRONG: dict[str, dict[str, Any]] = {
    "expected a Config": {"config": {"timeout_ms": 5}},
    "not both: timeout_ms, strategy": {"config": Config(), "timeout_ms": 5, "strategy": "mongodb"},
    "has no listener; did you mean listeners?": {"listener": []},
    'expected a name, as in "best_effort", or an object with': {"strategy": 5},
    "a listener is of type .*: expected an object with on_event": {"listeners": [print]},
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_argument_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(TypeError, match=text):
        pymongo_resilience.instrument(**WRONG[text])
    assert not is_active()


def test_options_come_by_keyword(
    side: Side, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadline that a variable sets holds beside another option in code."""
    monkeypatch.setenv("PYMONGO_RESILIENCE_TIMEOUT_MS", "20000")
    monkeypatch.setenv("PYMONGO_RESILIENCE_MAX_RETRIES", "3")
    monkeypatch.setenv("PYMONGO_RESILIENCE_STRATEGY", "mongodb")
    pymongo_resilience.instrument(max_retries=2, strategy="best_effort", metrics=False)
    try:
        config = pymongo_resilience.status(side.client(server.uri)).config
    finally:
        pymongo_resilience.uninstrument()
    assert config == Config(timeout_ms=20_000, max_retries=2, strategy="mongodb", metrics=False)


def test_an_async_client_may_be_made_outside_of_an_event_loop(
    server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    client: Any = pymongo.AsyncMongoClient(server.uri)

    async def use() -> None:
        await client[database].coll.insert_one({"_id": 1})
        states = telemetry.points("pymongo_resilience.server.state")
        assert [attributes["pymongo_resilience.server.type"] for attributes, _ in states] == [
            "RSPrimary"
        ]
        await client.close()

    asyncio.run(use())
    assert [span.name for span in telemetry.operations()] == [
        f"insert {database}.coll",
        "endSessions admin",
    ]


def test_existing_clients_and_bound_methods_get_retries_and_one_warning_says_the_rest(
    side: Side,
    server: EmbeddedServer,
    database: str,
    control: pymongo.MongoClient[Any],
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gc.collect()
    client = side.do(side.client, server.uri)
    bound_find, bound_insert = client[database].coll.find_one, client[database].coll.insert_one
    caplog.clear()
    telemetry = instrument(timeout_ms=20_000)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "created before instrument()" in warnings[0]
    assert "before creating clients" in warnings[0]

    with fail_command(control, "insert", closeConnection=True, times=3):
        side.do(bound_insert, {"_id": 1})
    with fail_command(control, "find", closeConnection=True, times=3):
        assert side.do(bound_find, {"_id": 1}) == {"_id": 1}
    assert [event.operation for event in telemetry.decisions.events] == ["insert"] * 3 + [
        "find"
    ] * 3
    with fail_command(control, "insert", closeConnection=True, times=3):
        side.do(client[database].coll.insert_one, {"_id": 2})
    assert telemetry.operations(f"insert {database}.coll")[0].attributes is not None
    assert control[database].coll.count_documents({}) == 2


def test_disabled_by_configuration_nothing_is_patched(instrument: Instrument) -> None:
    before = patched_places()
    instrument(enabled=False)
    assert differences(before, patched_places()) == set()
    assert not is_active()
    instrument()
    assert is_active()


def test_the_driver_strategy_leaves_the_loop_alone_and_watches(
    side: Side, server: EmbeddedServer, database: str, control: Any, instrument: Instrument
) -> None:
    before = retry_loops()
    telemetry = instrument(config_strategy="driver")
    assert retry_loops() == before
    coll = side.client(server.uri)[database].coll
    with fail_command(control, "find", closeConnection=True, times=1):
        assert side.do(coll.find_one) is None
    assert telemetry.decisions.events == []
    assert [span.name for span in telemetry.operations()] == [f"find {database}.coll"]


def test_with_set_active_a_test_can_switch_the_library_off(
    side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    client = side.do(side.client, server.uri)
    with set_active(False):
        side.do(client[database].coll.find_one)
    assert telemetry.spans() == []
    side.do(client[database].coll.find_one)
    assert len(telemetry.spans()) == 2


def test_uninstrumenting_inside_of_set_active_is_for_good() -> None:
    pymongo_resilience.instrument(Config())
    with set_active(False):
        pymongo_resilience.uninstrument()
    assert not is_active()


def test_nothing_of_ours_is_registered_for_a_client_without_spans_and_metrics(
    side: Side, server: EmbeddedServer, instrument: Instrument
) -> None:
    instrument(traces=False, metrics=False)
    client = side.do(side.client, server.uri)
    assert client.options.event_listeners == []


def test_a_fault_of_ours_never_reaches_the_application(
    side: Side,
    server: EmbeddedServer,
    database: str,
    control: pymongo.MongoClient[Any],
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    instrument()
    client = side.do(side.client, server.uri)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    for place in (
        "pymongo_resilience_instrumentation.runtime.Runtime.begin",
        "pymongo_resilience_instrumentation.failures.classify.failure_of",
        "pymongo_resilience_instrumentation.telemetry.operation_spans.OperationSpans.begins",
        "pymongo_resilience_instrumentation.telemetry.operation_spans.OperationSpans.ends",
        "pymongo_resilience_instrumentation.telemetry.metrics.OperationMetrics.ends",
        "pymongo_resilience_instrumentation.telemetry.listeners.SentCommand",
        "pymongo_resilience_instrumentation.clients.client_registry.Clients.attributes",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, broken)
            caplog.set_level(logging.ERROR)
            with fail_command(control, "find", closeConnection=True, times=1):
                # The driver's own loop takes over: it repeats a read once.
                assert side.do(client[database].coll.find_one) is None
            assert side.do(client[database].coll.find_one) is None
    wait_until(lambda: "internal error in pymongo-resilience" in caplog.text)


def between_attempts(act: Callable[[], Any]) -> OnCommands:
    """A listener that does it after the first failure."""
    left = [act]

    def failed(_: Any) -> None:
        while left:
            left.pop()()

    return OnCommands(failed=failed)


def test_an_operation_that_began_before_instrument_ends_as_the_drivers_own(
    side: Side, proxy: Any, database: str, instrument: Instrument, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[Any] = []
    between = between_attempts(lambda: started.append(instrument(timeout_ms=20_000)))
    coll = side.do(side.client, proxy.uri, event_listeners=[between])[database].coll
    side.do(coll.find_one)
    proxy.inject(CutBefore("insert"))
    side.do(coll.insert_one, {})
    (telemetry,) = started
    assert telemetry.decisions.events == []
    assert telemetry.spans() == []
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= WARNING]
    assert "created before instrument()" in warning
    assert side.do(coll.count_documents, {}) == 1


def test_an_operation_that_began_before_uninstrument_ends_as_ours(
    side: Side, proxy: Any, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    between = between_attempts(pymongo_resilience.uninstrument)
    coll = side.do(side.client, proxy.uri, event_listeners=[between])[database].coll
    side.do(coll.find_one)
    proxy.inject(CutBefore("insert", times=3))
    side.do(coll.insert_one, {})
    assert not is_active()
    assert len(telemetry.decisions.events) == 3
    (operation,) = telemetry.operations(f"insert {database}.coll")
    assert operation.attributes["pymongo_resilience.outcome"] == "retried_ok"
    assert side.do(coll.count_documents, {}) == 1
