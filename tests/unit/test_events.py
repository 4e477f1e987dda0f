"""Who hears of decisions: the broadcast and the log."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from pymongo_resilience.events import (
    BreakerClosed,
    BreakerOpened,
    Broadcast,
    Event,
    EventLog,
    ReadHedged,
    RetryDeclined,
    RetryScheduled,
)
from pymongo_resilience.rules.failure import RetryReason
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testing import RecordingListener

SCHEDULED = RetryScheduled(
    "find", "shop.orders", RetryReason.NOT_PRIMARY, "db1.example:27017", 1, 0.0015, "Error, code 6"
)
DECLINED = RetryDeclined(
    "find",
    "shop.orders",
    RetryReason.NOT_PRIMARY,
    "db1.example:27017",
    2,
    Rule.ATTEMPTS,
    "find: without a timeout there is one retry: set timeout_ms",
)
OPENED = BreakerOpened("db1.example:27017", 20, 12, 5.0)
CLOSED = BreakerClosed("db1.example:27017")
NO_SERVER = RetryDeclined(
    "insert", "shop.orders", RetryReason.NODE_NOT_AVAILABLE, None, 1, Rule.SELECTION
)


class Faulty:
    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.calls = 0

    def on_event(self, event: Event, /) -> None:
        self.calls += 1
        raise self.error


@pytest.fixture(autouse=True)
def _all_records(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="pymongo_resilience")


def test_everyone_hears_everything_in_order() -> None:
    one, two = RecordingListener(), RecordingListener()
    broadcast = Broadcast([one, two])
    for event in (SCHEDULED, DECLINED):
        broadcast.on_event(event)
    assert one.events == two.events == [SCHEDULED, DECLINED]


def test_a_listener_that_raises_is_logged_once_and_kept_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before, faulty, after = RecordingListener(), Faulty(LookupError("mine")), RecordingListener()
    broadcast = Broadcast([before, faulty, after])
    for _ in range(3):
        broadcast.on_event(SCHEDULED)
    assert before.events == after.events == [SCHEDULED] * 3
    assert faulty.calls == 3, "it may recover: it goes on hearing"
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("pymongo_resilience", "ERROR")
    assert "Faulty" in record.getMessage()
    assert record.exc_info is not None
    assert repr(record.exc_info[1]) == repr(faulty.error)


def test_events_carry_facts_and_no_error_text() -> None:
    """What a listener exports must not leak documents: there is no field for them."""
    common = ["operation", "namespace", "reason", "server", "attempt"]
    assert RetryScheduled._fields == (*common, "delay", "error", "held_back")
    assert RetryDeclined._fields == (*common, "rule", "why", "error")
    hedge = ["server", "second_server", "waited", "winner"]
    assert ReadHedged._fields == ("operation", "namespace", *hedge)
    assert BreakerClosed._fields == ("server",)
    counts = ["calls", "failures", "next_probe_in"]
    assert BreakerOpened._fields == ("server", *counts)


SERVER = "db1.example:27017"
FIND = {
    "operation": "find", "namespace": "shop.orders", "reason": "not_primary", "server": SERVER,
}  # fmt: skip
LOGGED: dict[str, tuple[Event, str, str, tuple[str, ...], dict[str, Any]]] = {
    # name: (event, logger, level, facts of the line, fields of the record)
    "scheduled": (
        SCHEDULED, "retry", "INFO",
        ("find shop.orders", "1", SERVER, "not_primary", "0.002 s", "Error, code 6"),
        {**FIND, "event": "retry.scheduled", "attempt": 1, "delay": 0.0015,
         "error": "Error, code 6", "held_back": False},
    ),
    "held back": (
        SCHEDULED._replace(held_back=True), "retry", "INFO", ("budget",), {"held_back": True},
    ),
    "declined": (
        DECLINED, "retry", "WARNING",
        ("find shop.orders", "2", SERVER, "not_primary", DECLINED.why),
        {**FIND, "event": "retry.declined", "attempt": 2, "rule": "attempts",
         "why": DECLINED.why, "error": ""},
    ),
    "an ordinary error": (
        NO_SERVER, "retry", "DEBUG", ("no server", "node_not_available"), {"server": None},
    ),
    "opened": (
        OPENED, "circuit_breaker", "WARNING", (SERVER, "open", "12 of 20", "5.000 s"),
        {"event": "circuit_breaker.opened", "server": SERVER, "calls": 20, "failures": 12,
         "next_probe_in": 5.0},
    ),
    "closed": (
        CLOSED, "circuit_breaker", "INFO", (SERVER, "closed"),
        {"event": "circuit_breaker.closed", "server": SERVER},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGGED)
def test_an_event_is_logged_with_its_facts(name: str, caplog: pytest.LogCaptureFixture) -> None:
    event, logger, level, facts, fields = LOGGED[name]
    EventLog().on_event(event)
    (record,) = caplog.records
    assert (record.name, record.levelname) == (f"pymongo_resilience.{logger}", level)
    assert [fact for fact in facts if fact not in record.getMessage()] == []
    # What a formatter for JSON makes of the record's own attributes: plain values only.
    ordinary = vars(logging.makeLogRecord({})).keys() | {"message"}
    own = {name: value for name, value in vars(record).items() if name not in ordinary}
    (shown,) = json.loads(json.dumps(own)).values()
    assert shown.items() >= fields.items()
    assert "event" not in fields or shown == fields
