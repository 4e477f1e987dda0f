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


def test_the_end_of_the_process_is_no_fault_of_a_listener() -> None:
    with pytest.raises(KeyboardInterrupt):
        Broadcast([Faulty(KeyboardInterrupt())]).on_event(SCHEDULED)


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


def logged(event: Event, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    EventLog().on_event(event)
    (record,) = caplog.records
    assert record.name == "pymongo_resilience.retry"
    return record


def check_facts(record: logging.LogRecord, *facts: str) -> None:
    """What a person who reads the line is told, in whatever words."""
    message = record.getMessage()
    assert [fact for fact in facts if fact not in message] == []


def shown_as_json(record: logging.LogRecord) -> Any:
    """What a formatter for JSON makes of the record's own attributes: plain values only."""
    ordinary = vars(logging.makeLogRecord({})).keys() | {"message"}
    own = {name: value for name, value in vars(record).items() if name not in ordinary}
    (fields,) = json.loads(json.dumps(own)).values()
    return fields


def test_a_scheduled_retry_is_logged_with_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    record = logged(SCHEDULED, caplog)
    assert record.levelname == "INFO"
    check_facts(record, "find shop.orders", "1", "db1.example:27017", "not_primary", "0.002 s")
    check_facts(record, "Error, code 6")
    assert "budget" not in record.getMessage()
    assert shown_as_json(record) == {
        "event": "retry.scheduled",
        "operation": "find",
        "namespace": "shop.orders",
        "reason": "not_primary",
        "server": "db1.example:27017",
        "attempt": 1,
        "delay": 0.0015,
        "error": "Error, code 6",
        "held_back": False,
    }


def test_a_retry_that_the_budget_holds_back_says_so(caplog: pytest.LogCaptureFixture) -> None:
    check_facts(logged(SCHEDULED._replace(held_back=True), caplog), "budget")


def test_a_declined_retry_is_logged_with_its_rule(caplog: pytest.LogCaptureFixture) -> None:
    record = logged(DECLINED, caplog)
    assert record.levelname == "WARNING"
    check_facts(record, "find shop.orders", "2", "db1.example:27017", "not_primary", DECLINED.why)
    assert shown_as_json(record) == {
        "event": "retry.declined",
        "operation": "find",
        "namespace": "shop.orders",
        "reason": "not_primary",
        "server": "db1.example:27017",
        "attempt": 2,
        "rule": "attempts",
        "why": DECLINED.why,
        "error": "",
    }


def test_an_ordinary_error_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    record = logged(NO_SERVER, caplog)
    assert record.levelname == "DEBUG"
    check_facts(record, "no server", "node_not_available")
    assert shown_as_json(record)["server"] is None


def breaker_logged(event: Event, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    EventLog().on_event(event)
    (record,) = caplog.records
    assert record.name == "pymongo_resilience.circuit_breaker"
    return record


def test_a_breaker_that_opens_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    record = breaker_logged(OPENED, caplog)
    assert record.levelname == "WARNING"
    check_facts(record, "db1.example:27017", "open", "12 of 20", "5.000 s")
    assert shown_as_json(record) == {
        "event": "circuit_breaker.opened",
        "server": "db1.example:27017",
        "calls": 20,
        "failures": 12,
        "next_probe_in": 5.0,
    }


def test_a_breaker_that_closes_is_told(caplog: pytest.LogCaptureFixture) -> None:
    record = breaker_logged(CLOSED, caplog)
    assert record.levelname == "INFO"
    check_facts(record, "db1.example:27017", "closed")
    assert shown_as_json(record) == {
        "event": "circuit_breaker.closed",
        "server": "db1.example:27017",
    }
