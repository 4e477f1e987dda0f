"""A cursor's ``close()`` under overload: the whole policy, in its own time, and never an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.tools.testbed import CutAfter, Fail, Overload
from support.clients import SentCommands, Side, wait_until
from support.cursor_cleanup import (
    background_by_hand,
    close,
    documents,
    half_read,
    is_open,
    killed,
    leave_the_block,
    no_jitter,
    run_background,
)
from support.interruption import interrupt
from support.telemetry import Instrument

from pymongo_resilience.errors import RetryReason
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import ReplicaSet

__all__ = ["background_by_hand", "documents", "no_jitter"]
pytestmark = [pytest.mark.oldest, pytest.mark.usefixtures("background_by_hand")]


def _aggregate(side: Side, client: Any, database: str) -> Any:
    cursor = side.do(client[database].coll.aggregate, [{"$match": {}}], batchSize=2)
    side.do(cursor.next)
    return cursor


def _change_stream(side: Side, client: Any, database: str) -> Any:
    coll = client[database].coll
    stream = side.do(coll.watch, max_await_time_ms=1)
    if side.name == "async":
        side.do(stream.try_next)
    return stream


CURSORS: dict[str, Callable[[Side, Any, str], Any]] = {
    "find": half_read,
    "aggregate": _aggregate,
    "change stream": _change_stream,
}


@pytest.mark.parametrize("kind", CURSORS)
@pytest.mark.parametrize("close", [close, leave_the_block])
def test_an_overloaded_server_is_asked_until_the_cursor_is_gone(
    kind: str,
    close: Callable[[Side, Any], None],
    side: Side,
    proxy: ReplicaSet,
    documents: str,
    control: Any,
    sent: SentCommands,
    instrument: Instrument,
    no_jitter: None,
) -> None:
    telemetry = instrument(base_backoff_ms=1)
    client = side.client(proxy.uri, event_listeners=[sent])
    cursor = CURSORS[kind](side, client, documents)
    cursor_id = getattr(cursor, "_cursor", cursor).cursor_id
    assert cursor_id
    telemetry.clear()
    proxy.inject(Overload("killCursors", times=3))
    close(side, cursor)
    assert killed(sent) == [[cursor_id]] * 4
    assert not is_open(control, documents, cursor_id)
    assert not client._kill_cursors_queue
    events = telemetry.decisions.events
    assert [event.delay for event in events] == [0.002, 0.004, 0.008]
    assert {(e.operation, e.namespace, e.reason) for e in events} == {
        ("killCursors", f"{documents}.coll", RetryReason.OVERLOADED)
    }
    assert {event.server for event in events} == {proxy.members[0].host_and_port}
    (operation,) = telemetry.operations()
    assert operation.name == f"killCursors {documents}.coll"
    assert [span.name for span in telemetry.commands_of(operation)] == ["killCursors"] * 4


FAULTS: dict[str, Callable[[], Any]] = {
    "network": lambda: CutAfter("killCursors"),
    "not primary": lambda: Fail("killCursors", code=10107),
    "refused": lambda: Fail("killCursors", code=13),
    "one label": lambda: Fail("killCursors", code=462, labels=["SystemOverloadedError"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_after_any_other_error_it_is_left_to_the_background_as_ever(
    fault: str,
    side: Side,
    proxy: ReplicaSet,
    documents: str,
    sent: SentCommands,
    instrument: Instrument,
) -> None:
    telemetry = instrument(base_backoff_ms=1, timeout_ms=20_000)
    client = side.client(proxy.uri, event_listeners=[sent])
    cursor = half_read(side, client, documents)
    cursor_id = cursor.cursor_id
    proxy.inject(FAULTS[fault]())
    side.do(cursor.close)
    assert killed(sent) == [[cursor_id]]
    assert [entry[1] for entry in client._kill_cursors_queue] == [cursor_id]
    assert [event.rule for event in telemetry.decisions.events] == [Rule.NEVER_RETRIED]


@pytest.mark.parametrize(("option", "attempts"), [("retryReads", 1), ("retryWrites", 2)])
def test_it_belongs_to_a_read(
    option: str,
    attempts: int,
    side: Side,
    proxy: ReplicaSet,
    documents: str,
    sent: SentCommands,
    instrument: Instrument,
) -> None:
    telemetry = instrument(base_backoff_ms=1)
    client = side.client(proxy.uri, event_listeners=[sent], **{option: False})
    cursor = half_read(side, client, documents)
    proxy.inject(Overload("killCursors"))
    side.do(cursor.close)
    assert len(killed(sent)) == attempts
    rules = [getattr(event, "rule", None) for event in telemetry.decisions.events]
    assert rules == [Rule.SWITCHED_OFF if attempts == 1 else None]


TIMEOUT = 20.0


def test_no_wait_passes_the_refreshed_deadline(
    side: Side, proxy: ReplicaSet, documents: str, instrument: Instrument, no_jitter: None
) -> None:
    telemetry = instrument(base_backoff_ms=450, max_backoff_ms=600_000)
    client = side.client(proxy.uri)
    cursor = half_read(side, client, documents)
    overload = Overload("killCursors", times=50)
    proxy.inject(overload)
    with pymongo.timeout(1.5):
        wait_until(lambda: driver.csot.remaining() < 0.8)
        side.do(cursor.close)
    # What was left had no room for the first wait; the second would end after 2.7 s.
    assert overload.injected == 2
    first, second = telemetry.decisions.events
    assert first.delay == 0.9
    assert second.rule is Rule.OVERLOAD_WAIT


# An async cursor cannot be closed in the generator that a write reads from.
@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_what_is_closed_inside_of_a_call_has_the_time_of_the_call_and_its_own_retries(
    side: Side, proxy: ReplicaSet, documents: str, sent: SentCommands, instrument: Instrument
) -> None:
    telemetry = instrument(base_backoff_ms=1)
    client = side.client(proxy.uri, event_listeners=[sent])
    cursor = half_read(side, client, documents)
    telemetry.clear()
    proxy.inject(Overload("killCursors", times=2))

    def generated() -> Any:
        wait_until(lambda: driver.csot.remaining() < TIMEOUT - 0.1)
        cursor.close()
        yield {"_id": "new"}

    with pymongo.timeout(TIMEOUT):
        client[documents].coll.insert_many(generated())
    commands = sent.named("killCursors")
    assert len(commands) == 3
    assert all(command["maxTimeMS"] <= (TIMEOUT - 0.1) * 1000 for command in commands)
    kill, insert = telemetry.operations()
    assert kill.attributes["pymongo_resilience.attempts"] == 3
    assert insert.attributes["pymongo_resilience.attempts"] == 1
    assert insert.attributes["pymongo_resilience.outcome"] == "ok"


def test_who_is_interrupted_leaves_the_cursor_to_the_background(
    side: Side, proxy: ReplicaSet, documents: str, control: Any, instrument: Instrument
) -> None:
    """In the back-off between two attempts, at once."""
    telemetry = instrument(base_backoff_ms=60_000, max_backoff_ms=60_000, timeout_ms=600_000)
    client = side.client(proxy.uri)
    cursor = half_read(side, client, documents)
    cursor_id = cursor.cursor_id
    proxy.inject(Overload("killCursors"))
    assert interrupt(side, lambda: telemetry.decisions.events, cursor.close) < 5
    run_background(side, client)
    assert not is_open(control, documents, cursor_id)
