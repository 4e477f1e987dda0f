"""endSessions of a client's ``close()``: sent once, within the timeout, and never an error."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pymongo_resilience_instrumentation.tools.testbed import CutAfter, Fail, Overload
from support.clients import SentCommands, Side
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest


@pytest.mark.parametrize(
    "fault",
    [
        None,
        lambda: Overload("endSessions"),
        lambda: Fail("endSessions", code=13),
        lambda: CutAfter("endSessions"),
    ],
    ids=["no error", "overload", "refused", "cut"],
)
def test_it_is_sent_once_whatever_it_ends_with(
    fault: Callable[[], Any] | None, side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    telemetry, sent = instrument(), SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    wait_for_server(side, client)
    telemetry.clear()
    if fault is not None:
        proxy.inject(fault())
    side.do(client.close)
    assert len(sent.named("endSessions")) == 1
    assert [operation.name for operation in telemetry.operations()] == ["endSessions admin"]


def test_without_a_server_closing_takes_the_timeout(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument(timeout_ms=300)
    client = side.client(proxy.uri, serverSelectionTimeoutMS=60_000)
    wait_for_server(side, client)
    proxy.stop()
    began = time.monotonic()
    side.do(client.close)
    assert time.monotonic() - began < 20
