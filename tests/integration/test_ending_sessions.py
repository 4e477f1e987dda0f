"""endSessions of a client's ``close()``: repeated for half a second, and never an error."""

from __future__ import annotations

import time
from typing import Any

import pymongo
import pytest
from pymongo_resilience_instrumentation.tools.testbed import CutAfter, Fail, Overload
from pymongo_resilience_instrumentation.tools.testbed.fault import (
    Answer,
    Hang,
    Interception,
    Verdict,
)
from pymongo_resilience_instrumentation.tools.testbed.relay import Connection
from pymongo_resilience_instrumentation.tools.testbed.wire import Message
from support.clients import SentCommands, Side
from support.cursor_cleanup import no_jitter
from support.interruption import interrupt
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience.errors import RetryReason
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import ReplicaSet

__all__ = ["no_jitter"]
pytestmark = pytest.mark.oldest


def used(side: Side, proxy: ReplicaSet, **options: Any) -> tuple[Any, SentCommands]:
    """A client that has a session to end, and what it sent."""
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent], **options)
    wait_for_server(side, client)
    return client, sent


def test_it_is_repeated_until_the_server_takes_it(
    side: Side, proxy: ReplicaSet, instrument: Instrument, no_jitter: None
) -> None:
    telemetry = instrument(base_backoff_ms=1)
    client, sent = used(side, proxy)
    proxy.inject(Overload("endSessions", times=3))
    side.do(client.close)
    assert len(sent.named("endSessions")) == 4
    assert len({str(command["endSessions"]) for command in sent.named("endSessions")}) == 1
    assert [
        (event.operation, event.namespace, event.reason, event.server, event.delay)
        for event in telemetry.decisions.events
    ] == [
        ("endSessions", "admin", RetryReason.OVERLOADED, proxy.members[0].host_and_port, delay)
        for delay in (0.002, 0.004, 0.008)
    ]


@pytest.mark.parametrize("base", [1, 100])
def test_a_server_that_stays_overloaded_costs_half_a_second_at_most(
    base: int, side: Side, proxy: ReplicaSet, instrument: Instrument, no_jitter: None
) -> None:
    telemetry = instrument(base_backoff_ms=base)
    client, _ = used(side, proxy)
    overload = Overload("endSessions", times=50)
    proxy.inject(overload)
    start = time.monotonic()
    side.do(client.close)
    took = time.monotonic() - start
    # Fewer, where the machine is too busy for as many.
    assert 0 < overload.injected <= {1: 6, 100: 2}[base]
    *scheduled, last = telemetry.decisions.events
    assert last.rule is Rule.ATTEMPTS
    assert sum(event.delay for event in scheduled) < 0.5
    # What is over the waits is six round trips on a busy machine.
    assert took < 4


class _NoAnswerToTheSecond(Interception):
    """Sheds the first endSessions, and says nothing to the next."""

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        if request.command_name != "endSessions":
            return None
        self.injected += 1
        return Answer(Overload().document) if self.injected == 1 else Hang(8.0)


def test_a_repetition_that_hangs_is_cut_off(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument(base_backoff_ms=1)
    client, _ = used(side, proxy)
    fault = _NoAnswerToTheSecond()
    proxy.inject(fault)
    start = time.monotonic()
    side.do(client.close)
    assert fault.injected == 2
    assert time.monotonic() - start < 4.0


@pytest.mark.parametrize(
    "fault", [lambda: Fail("endSessions", code=13), lambda: CutAfter("endSessions")]
)
def test_any_other_error_is_ignored_as_ever(
    fault: Any, side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    telemetry = instrument(base_backoff_ms=1)
    client, sent = used(side, proxy)
    proxy.inject(fault())
    side.do(client.close)
    assert len(sent.named("endSessions")) == 1
    assert [event.rule for event in telemetry.decisions.events] == [Rule.NEVER_RETRIED]


def test_without_a_server_it_is_ignored_as_ever(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    telemetry = instrument(base_backoff_ms=1)
    client, _ = used(side, proxy, serverSelectionTimeoutMS=200)
    proxy.stop()
    side.do(client.close)
    assert [event.operation for event in telemetry.decisions.events] == ["endSessions"]


@pytest.mark.parametrize("option", ["retryReads", "retryWrites"])
def test_it_needs_both_switches(
    option: str, side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    telemetry = instrument(base_backoff_ms=1)
    client, sent = used(side, proxy, **{option: False})
    proxy.inject(Overload("endSessions"))
    side.do(client.close)
    assert len(sent.named("endSessions")) == 1
    assert [event.rule for event in telemetry.decisions.events] == [Rule.SWITCHED_OFF]


def test_a_deadline_around_close_ends_it_earlier(
    side: Side, proxy: ReplicaSet, instrument: Instrument, no_jitter: None
) -> None:
    telemetry = instrument(base_backoff_ms=240)
    client, sent = used(side, proxy)
    proxy.inject(Overload("endSessions", times=50))
    with pymongo.timeout(0.45):
        side.do(client.close)
    assert len(sent.named("endSessions")) == 1
    assert [event.rule for event in telemetry.decisions.events] == [Rule.ATTEMPTS]


def test_a_close_that_is_interrupted_ends_at_once(
    side: Side, proxy: ReplicaSet, instrument: Instrument, no_jitter: None
) -> None:
    telemetry = instrument(base_backoff_ms=200)
    client, sent = used(side, proxy)
    proxy.inject(Overload("endSessions"))
    interrupt(side, lambda: telemetry.decisions.events, client.close)
    assert len(sent.named("endSessions")) == 1, "it ended while it waited to send the second"
    side.do(client.close)
