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
from pymongo_resilience_instrumentation.tools.testbed import CutBefore, Fail, Overload
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
@pytest.mark.parametrize(("rejected", "sent_in_all"), [(3, 4), (50, 6)])
def test_it_is_tried_again_by_five_later_ticks_at_the_most(
    rejected: int,
    sent_in_all: int,
    side: Side,
    proxy: ReplicaSet,
    documents: str,
    control: Any,
    sent: SentCommands,
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:
    instrument(max_retries=1000, **LONGEST)
    client = side.client(proxy.uri, event_listeners=[sent])
    cursor_id = dropped(side, client, documents)
    proxy.inject(Overload("killCursors", times=rejected))
    for ticks in range(1, 9):
        run_background(side, client)
        assert killed(sent) == [[cursor_id]] * min(ticks, sent_in_all)
    proxy.clear()
    assert is_open(control, documents, cursor_id) == (rejected >= sent_in_all)
    assert not client._kill_cursors_queue
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@by_hand
def test_a_cursor_with_a_connection_of_its_own_gives_it_back_and_is_killed_later(
    side: Side,
    proxy: ReplicaSet,
    documents: str,
    control: Any,
    sent: SentCommands,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instrument(**LONGEST)
    client = side.client(proxy.uri, event_listeners=[sent], maxPoolSize=1)
    # As behind a load balancer, which the test bed has not.
    monkeypatch.setattr(client, "_should_pin_cursor", lambda session: True)
    cursor_id = dropped(side, client, documents)
    monkeypatch.undo()
    proxy.inject(Overload("killCursors", times=7))
    for _ in range(7):
        run_background(side, client)
    # The pool's only connection is free.
    side.do(client.admin.command, "ping")
    assert [entry[1] for entry in client._kill_cursors_queue] == []
    # Once by the driver's own way for those, which queues it.
    assert killed(sent) == [[cursor_id]] * 7
    assert is_open(control, documents, cursor_id)


FAULTS = {
    "refused": lambda: Fail("killCursors", code=13),
    "cut": lambda: CutBefore("killCursors"),
    "retryReads": lambda: Overload("killCursors"),
}


@by_hand
@pytest.mark.parametrize("fault", FAULTS)
def test_after_any_other_error_it_is_dropped_without_a_word(
    fault: str,
    side: Side,
    proxy: ReplicaSet,
    documents: str,
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """pymongo prints a traceback."""
    instrument(**LONGEST)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent], retryReads=fault != "retryReads")
    dropped(side, client, documents)
    proxy.inject(FAULTS[fault]())
    run_background(side, client)
    run_background(side, client)
    assert len(killed(sent)) == 1
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


@by_hand
def test_a_client_that_is_closed_tries_once_and_nothing_is_left_behind(
    side: Side,
    proxy: ReplicaSet,
    documents: str,
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:
    instrument(**LONGEST)
    client = side.client(proxy.uri)
    dropped(side, client, documents)
    overload = Overload("killCursors", times=50)
    proxy.inject(overload)
    run_background(side, client)
    dropped(side, client, documents)
    side.do(client.close)
    assert overload.injected == 2
    assert client._kill_cursors_queue == []
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
    reference = weakref.ref(client)
    side.clients.remove(client)
    del client
    wait_until(lambda: gc.collect() is not None and reference() is None)


class Traces(SentCommands):
    """Which spans were current where the commands were sent."""

    def __init__(self) -> None:
        super().__init__()
        self.around: dict[str, list[trace.Span]] = {}

    def started(self, event: Any) -> None:
        super().started(event)
        self.around.setdefault(event.command_name, []).append(trace.get_current_span())


@by_hand
def test_the_application_s_trace_has_no_part_in_it(
    proxy: ReplicaSet, documents: str, instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task of an async client inherits the context of whoever used the client first."""
    monkeypatch.setattr("pymongo.common.KILL_CURSOR_FREQUENCY", 0.02)
    telemetry = instrument(**LONGEST)
    traces = Traces()

    async def main() -> None:
        async with pymongo.AsyncMongoClient(proxy.uri, event_listeners=[traces]) as client:
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
            await until(lambda: len(traces.named("killCursors")) == 2)

    asyncio.run(main())
    assert [each.get_span_context().trace_id for each in traces.around["ping"]] == [1]
    assert traces.around["killCursors"] == [trace.INVALID_SPAN] * 2
    assert "killCursors" not in [span.name for span in telemetry.spans()]
