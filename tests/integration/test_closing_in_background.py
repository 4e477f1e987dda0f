"""Cursors that were garbage-collected: tried again at the next tick, five times, without a wait."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from typing import Any

import pymongo
import pytest
from opentelemetry import trace
from pymongo_resilience_instrumentation.tools.testbed.faults import CutBefore, Fail, Overload
from support.clients import SentCommands, Side, wait_until
from support.cursor_cleanup import (
    background_by_hand,
    documents,
    half_read,
    is_open,
    killed,
    run_background,
    until,
)
from support.telemetry import Instrument

from pymongo_resilience import RetryReason
from pymongo_resilience.rules.events import RetryScheduled
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import ReplicaSet

__all__ = ["background_by_hand", "documents"]
pytestmark = pytest.mark.oldest
by_hand = pytest.mark.usefixtures("background_by_hand")

LONGEST = {"base_backoff_ms": 60_000, "max_backoff_ms": 60_000}
"""Whoever sleeps a back-off of these is noticed."""


def dropped(side: Side, client: Any, database: str) -> int:
    """The id of a cursor that is open on the server, and that nobody has any more."""
    cursor = half_read(side, client, database)
    cursor_id = int(cursor.cursor_id)
    del cursor
    gc.collect()
    assert cursor_id in [entry[1] for entry in client._kill_cursors_queue]
    return cursor_id


@by_hand
def test_it_is_killed_by_a_later_tick(
    side: Side, proxy: ReplicaSet, documents: str, control: Any, instrument: Instrument
) -> None:
    telemetry = instrument(**LONGEST)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    cursor_id = dropped(side, client, documents)
    proxy.inject(Overload("killCursors", times=3))
    for ticks in range(1, 5):
        run_background(side, client)
        assert killed(sent) == [[cursor_id]] * ticks
    assert not is_open(control, documents, cursor_id)
    assert not client._kill_cursors_queue
    assert [
        (event.operation, event.namespace, event.reason, event.attempt, event.delay)
        for event in telemetry.decisions.events
    ] == [
        ("killCursors", f"{documents}.coll", RetryReason.OVERLOADED, attempt, 3600.0)
        for attempt in (1, 2, 3)
    ]


@by_hand
def test_after_five_more_ticks_it_is_dropped(
    side: Side,
    proxy: ReplicaSet,
    documents: str,
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry = instrument(max_retries=1000, **LONGEST)
    client = side.client(proxy.uri)
    dropped(side, client, documents)
    overload = Overload("killCursors", times=50)
    proxy.inject(overload)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "pymongo_resilience"):
        for _ in range(8):
            run_background(side, client)
    assert overload.injected == 6
    assert not client._kill_cursors_queue
    last = telemetry.decisions.events[-1]
    assert (last.rule, last.attempt) == (Rule.ATTEMPTS, 6)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert f"killCursors {documents}.coll: 1 dropped" in lines
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@by_hand
def test_fewer_retries_are_fewer_ticks(
    side: Side, proxy: ReplicaSet, documents: str, instrument: Instrument
) -> None:
    instrument(max_retries=2, **LONGEST)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    proxy.inject(Overload("killCursors", times=50))
    old = dropped(side, client, documents)
    run_background(side, client)
    run_background(side, client)
    young = dropped(side, client, documents)
    for _ in range(4):
        run_background(side, client)
    assert [sorted(ids) for ids in killed(sent)] == [
        [old], [old], sorted([old, young]), [young], [young],
    ]  # fmt: skip


@by_hand
def test_each_cursor_has_a_count_of_its_own(
    side: Side, proxy: ReplicaSet, documents: str, instrument: Instrument
) -> None:
    instrument(**LONGEST)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    proxy.inject(Overload("killCursors", times=50))
    old = dropped(side, client, documents)
    for _ in range(3):
        run_background(side, client)
    young = dropped(side, client, documents)
    for _ in range(8):
        run_background(side, client)
    both = sorted([old, young])
    assert [sorted(ids) for ids in killed(sent)] == [[old]] * 3 + [both] * 3 + [[young]] * 3


@by_hand
@pytest.mark.parametrize("before", range(1, 7))
def test_what_close_left_behind_has_the_rest_of_its_six_attempts(
    before: int, side: Side, proxy: ReplicaSet, documents: str, instrument: Instrument
) -> None:
    """A network error ends the close, and leaves the cursor to the background."""
    instrument(base_backoff_ms=1)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    cursor = half_read(side, client, documents)
    if before > 1:
        proxy.inject(Overload("killCursors", times=before - 1))
    proxy.inject(CutBefore("killCursors"))
    proxy.inject(Overload("killCursors", times=50))
    side.do(cursor.close)
    assert len(killed(sent)) == before
    for _ in range(8):
        run_background(side, client)
    assert len(killed(sent)) == 6
    assert not client._kill_cursors_queue


@by_hand
@pytest.mark.parametrize("most", [0, 2])
def test_with_fewer_retries_the_background_has_fewer(
    most: int, side: Side, proxy: ReplicaSet, documents: str, instrument: Instrument
) -> None:
    """But after a network error alone one attempt, as in plain pymongo."""
    instrument(base_backoff_ms=1, max_retries=most)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    cursor = half_read(side, client, documents)
    if most:
        proxy.inject(Overload("killCursors", times=most))
    proxy.inject(CutBefore("killCursors"))
    proxy.inject(Overload("killCursors", times=50))
    side.do(cursor.close)
    for _ in range(8):
        run_background(side, client)
    assert len(killed(sent)) == (3 if most else 2)
    assert not client._kill_cursors_queue


def _close(side: Side, client: Any, database: str) -> None:
    side.do(half_read(side, client, database).close)


def _collect(side: Side, client: Any, database: str) -> None:
    dropped(side, client, database)


def _close_change_stream(side: Side, client: Any, database: str) -> None:
    stream = side.do(client[database].coll.watch, max_await_time_ms=1)
    if side.name == "async":
        side.do(stream.try_next)
    side.do(stream.close)


def _close_after_a_cut(side: Side, client: Any, database: str) -> None:
    cursor = half_read(side, client, database)
    with pymongo.timeout(0.001):
        side.do(cursor.close)


@by_hand
@pytest.mark.parametrize("ticks", [0, 8])
@pytest.mark.parametrize("way", [_close, _collect, _close_change_stream, _close_after_a_cut])
def test_whoever_sends_it_a_command_is_sent_six_times_at_most(
    way: Any, ticks: int, side: Side, proxy: ReplicaSet, documents: str, instrument: Instrument
) -> None:
    """By a close, by the background task, and when the client is closed."""
    instrument(retry_budget="off", base_backoff_ms=1)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    proxy.inject(Overload("killCursors", times=50))
    proxy.inject(Overload("endSessions", times=50))
    way(side, client, documents)
    for _ in range(ticks):
        run_background(side, client)
    for _ in range(2):
        side.do(client.close)
    commands = [str(command["cursors"]) for command in sent.named("killCursors")]
    assert 1 <= len(commands) <= 6
    assert len(set(commands)) == 1
    assert 1 <= len(sent.named("endSessions")) <= 6


@by_hand
def test_a_cursor_with_a_connection_of_its_own_gives_it_back_and_is_killed_later(
    side: Side,
    proxy: ReplicaSet,
    documents: str,
    control: Any,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instrument(**LONGEST)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent], maxPoolSize=1)
    # As behind a load balancer, which the test bed has not.
    monkeypatch.setattr(client, "_should_pin_cursor", lambda session: True)
    cursor_id = dropped(side, client, documents)
    monkeypatch.undo()
    proxy.inject(Overload("killCursors", times=6))
    for _ in range(6):
        run_background(side, client)
    # The pool's only connection is free.
    side.do(client.admin.command, "ping")
    assert [entry[1] for entry in client._kill_cursors_queue] == []
    assert killed(sent) == [[cursor_id]] * 6
    assert is_open(control, documents, cursor_id)


@by_hand
@pytest.mark.parametrize("off", ["refused", "retryReads"])
def test_after_any_other_error_it_is_dropped_as_ever(
    off: str, side: Side, proxy: ReplicaSet, documents: str, instrument: Instrument
) -> None:
    telemetry = instrument(**LONGEST)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent], retryReads=off != "retryReads")
    fault, rule = {
        "refused": (Fail("killCursors", code=13), Rule.NEVER_REPEATED),
        "retryReads": (Overload("killCursors"), Rule.SWITCHED_OFF),
    }[off]
    dropped(side, client, documents)
    proxy.inject(fault)
    run_background(side, client)
    run_background(side, client)
    assert len(killed(sent)) == 1
    assert [event.rule for event in telemetry.decisions.events] == [rule]


def test_the_driver_s_own_thread_or_task_does_it(
    side: Side,
    proxy: ReplicaSet,
    documents: str,
    control: Any,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pymongo.common.KILL_CURSOR_FREQUENCY", 0.02)
    telemetry = instrument(**LONGEST)
    client = side.client(proxy.uri)
    cursor = half_read(side, client, documents)
    cursor_id = int(cursor.cursor_id)
    proxy.inject(Overload("killCursors", times=3))
    del cursor
    gc.collect()

    def is_gone() -> bool:
        if side.name == "async":
            side.do(asyncio.sleep, 0.03)
        return not is_open(control, documents, cursor_id)

    # Looked at now and then: whoever looks reads one of its eight documents.
    wait_until(lambda: len(telemetry.decisions.events) == 3 if side.name == "sync" else is_gone())
    wait_until(is_gone)
    assert [event.delay for event in telemetry.decisions.events] == [0.02] * 3


@by_hand
def test_a_client_that_is_closed_tries_once_and_nothing_is_left_behind(
    side: Side,
    proxy: ReplicaSet,
    documents: str,
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry = instrument(**LONGEST)
    client = side.client(proxy.uri)
    dropped(side, client, documents)
    overload = Overload("killCursors", times=50)
    proxy.inject(overload)
    run_background(side, client)
    dropped(side, client, documents)
    # pymongo logs the error with its frames, which hold the client.
    with caplog.at_level(logging.CRITICAL, "pymongo.client"):
        side.do(client.close)
    assert overload.injected == 2
    assert client._kill_cursors_queue == []
    assert len(telemetry.decisions.events) == 1
    reference = weakref.ref(client)
    side.clients.remove(client)
    del client
    wait_until(lambda: gc.collect() is not None and reference() is None)


@by_hand
def test_the_application_s_trace_has_no_part_in_it(
    proxy: ReplicaSet,
    documents: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The task of an async client inherits the context of whoever used the client first."""
    monkeypatch.setattr("pymongo.common.KILL_CURSOR_FREQUENCY", 0.02)
    telemetry = instrument(**LONGEST)

    async def main() -> None:
        async with pymongo.AsyncMongoClient(proxy.uri) as client:
            span = trace.NonRecordingSpan(
                trace.SpanContext(1, 1, is_remote=False, trace_flags=trace.TraceFlags(1))
            )
            with trace.use_span(span):
                await client.admin.command("ping")
            cursor = client[documents].coll.find(batch_size=2)
            await cursor.next()
            proxy.inject(Overload("killCursors"))
            del cursor
            gc.collect()
            await until(lambda: len(sent()) == 2)

    def sent() -> list[Any]:
        return [span for span in telemetry.spans() if span.name == "killCursors"]

    asyncio.run(main())
    assert [span.parent for span in sent()] == [None, None]


@by_hand
def test_the_tries_are_no_more_than_the_client_wants(
    side: Side, proxy: ReplicaSet, documents: str, instrument: Instrument
) -> None:
    instrument()
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent], maxAdaptiveRetries=1)
    dropped(side, client, documents)
    proxy.inject(Overload("killCursors", times=20))
    for _ in range(4):
        run_background(side, client)
    assert len(killed(sent)) == 2


@by_hand
def test_a_later_tick_that_kills_it_gives_its_token_back(
    side: Side, proxy: ReplicaSet, documents: str, instrument: Instrument
) -> None:
    """As any retry that succeeds; without it, half a dozen cursors would drain a small budget."""
    telemetry = instrument(retry_budget="tokens", retry_token_capacity=1)
    client = side.client(proxy.uri)
    for _ in range(3):
        dropped(side, client, documents)
        proxy.inject(Overload("killCursors"))
        run_background(side, client)
        run_background(side, client)
    assert [type(event) for event in telemetry.decisions.events] == [RetryScheduled] * 3
