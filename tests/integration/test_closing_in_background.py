"""The background task of a client: cursors that were garbage-collected, and what is left for it."""

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


FAULTS = {
    "refused": lambda: Fail("killCursors", code=13),
    "cut": lambda: CutBefore("killCursors"),
    "overload": lambda: Overload("killCursors"),
}


@by_hand
@pytest.mark.parametrize("fault", FAULTS)
def test_after_an_error_it_is_dropped_without_a_word(
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
    client = side.client(proxy.uri, event_listeners=[sent])
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
    proxy: ReplicaSet,
    documents: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
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
            del cursor
            gc.collect()
            await until(lambda: traces.named("killCursors"))

    asyncio.run(main())
    assert [each.get_span_context().trace_id for each in traces.around["ping"]] == [1]
    assert traces.around["killCursors"] == [trace.INVALID_SPAN]
    assert "killCursors" not in [span.name for span in telemetry.spans()]
