"""The subclass of pymongo's retry loop: whose it is, what it leaves behind, and its own faults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo.monitoring import CommandStartedEvent
from pymongo_resilience_instrumentation import in_progress
from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts
from pymongo_resilience_instrumentation.retries import after_failure, loop_steps
from pymongo_resilience_instrumentation.retries.after_failure import Retries
from pymongo_resilience_instrumentation.telemetry.operation_spans import OperationSpans
from support.clients import SentCommands, Side, retry_loops
from support.command_listeners import OnCommands
from support.telemetry import Instrument

from pymongo_resilience.testbed import CutAfter, Fail, ReplicaSet

pytestmark = pytest.mark.oldest

OPERATIONS: dict[str, Callable[[Side, Any], object]] = {
    "find_one": lambda side, coll: side.do(coll.find_one, {}),
    "insert_one": lambda side, coll: side.do(coll.insert_one, {}),
}
IN_RUN = {
    "PyMongoError", "ServerSelectionTimeoutError", "ClientBulkWriteException", "OperationFailure",
    "ConnectionFailure", "NoneType", "asyncio", "time", "sleep", "helpers_shared", "getattr",
    "isinstance", "code", "error", "options", "has_error_label", "append", "bool",
    "_RETRYABLE_ERROR_CODES", "_attempt_number", "_base_backoff_ms", "_bulk", "_check_last_error",
    "_client", "_deprioritized_servers", "_is_aggregate_write", "_is_not_eligible_for_retry",
    "_is_read", "_is_run_command", "_is_session_state_retryable", "_last_error", "_max_retries",
    "_operation", "_always_retryable", "_read", "_retry_policy", "_retryable", "_retrying",
    "_server", "_session", "_start_retryable_write", "_transaction", "_unpin", "_write",
    "attempt", "backoff", "enable_overload_retargeting", "has_completed_command",
    "in_transaction", "max_adaptive_retries", "retry_reads", "retry_writes", "retrying",
    "set_starting", "should_retry", "started_retryable_write", "topology_description",
    "topology_type_name", "_conn_mgr", "more_to_come",
}  # fmt: skip
"""What the ``run`` of pymongo 4.17 to 4.20.1 names. What else a newer one does, ours has to do."""


def faults_logged(caplog: pytest.LogCaptureFixture) -> int:
    return sum(line.startswith("internal error") for line in caplog.messages)


@pytest.mark.parametrize("loop", retry_loops())
def test_the_run_that_is_overridden_does_nothing_that_is_not_known(loop: type) -> None:
    run: Any = vars(loop)["run"]
    assert set(inspect.unwrap(run).__code__.co_names) - IN_RUN == set()


@pytest.mark.parametrize("more", [True, False])
def test_what_a_server_streams_to_an_exhaust_cursor_is_not_repeated(
    more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pymongo_loop: Any = SimpleNamespace(
        _client=None, _session=None, _retryable=True, _conn_mgr=SimpleNamespace(more_to_come=more)
    )
    attempts = DriverAttempts(pymongo_loop)
    attempts.operation = SimpleNamespace(is_closed_by=lambda _error: False)  # type: ignore[assignment]
    monkeypatch.setattr(loop_steps, "Retries", lambda *_: "retries")
    runtime: Any = SimpleNamespace(in_flight={})
    retries = loop_steps.after_first_failure(runtime, attempts, AutoReconnect())
    assert (retries is None) is more


@pytest.mark.parametrize("after", [0, 1])
def test_where_a_write_cannot_be_judged_the_driver_goes_on_with_its_number(
    after: int,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """``after``: so many failures that were judged."""
    classify = Retries.classify
    faults: list[Exception] = []

    def broken(self: Any, error: Exception) -> Any:
        if self.state.attempts == after:
            faults.append(error)
            raise RuntimeError("broken")
        return classify(self, error)

    telemetry = instrument(base_backoff_ms=1, timeout_ms=20_000)
    sent = SentCommands()
    coll = side.client(proxy.uri, event_listeners=[sent])[database].coll
    monkeypatch.setattr(Retries, "classify", broken)
    proxy.inject(CutAfter("insert", times=after + 1))
    side.do(coll.insert_one, {})
    assert len(faults) == faults_logged(caplog) == 1
    assert len(telemetry.decisions.events) == after
    numbers = [each["txnNumber"] for each in sent.named("insert")]
    assert len(numbers) == after + 2
    assert len(set(numbers)) == 1
    assert side.do(coll.count_documents, {}) == 1


def test_an_operation_inside_that_fails_leaves_the_one_around_it_its_retries(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """From a listener of commands, which can only be one of a sync client."""
    failed: list[Exception] = []

    def inside(event: CommandStartedEvent) -> None:
        if event.command.get("find") == "outer" and not failed:
            try:
                client[database].inner.find_one()
            except OperationFailure as error:
                failed.append(error)
            proxy.inject(Fail("find", code=91))

    telemetry = instrument(base_backoff_ms=1)
    with MongoClient(proxy.uri, event_listeners=[OnCommands(started=inside)]) as client:
        client[database].other.find_one()
        proxy.inject(Fail("find", code=11601))
        client[database].outer.find_one()
    assert len(failed) == 1
    kinds = [type(event).__name__ for event in telemetry.decisions.events]
    assert kinds == ["RetryDeclined", "RetryScheduled"]


def broken(*_: Any) -> Any:
    raise RuntimeError("broken")


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("times", [1, 9])
def test_where_retries_cannot_be_prepared_the_driver_repeats_and_later_the_error_is_raised(
    times: int,
    name: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry = instrument(base_backoff_ms=1, circuit_breaker="always" if times == 1 else "off")
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {})
    monkeypatch.setattr(after_failure, "retry_state_of", broken)
    proxy.inject(CutAfter("find" if name == "find_one" else "insert", times=times))
    with nullcontext() if times == 1 else pytest.raises(AutoReconnect):
        OPERATIONS[name](side, coll)
    assert faults_logged(caplog) == 1
    assert telemetry.decisions.events == []


def test_an_interruption_while_a_call_ends_ends_it(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[Any] = []

    def interrupted(_: Any, call: Any, *__: Any) -> None:
        ended.append(call)
        raise KeyboardInterrupt

    instrument()
    coll = side.client(proxy.uri)[database].coll
    monkeypatch.setattr(OperationSpans, "ends", interrupted)
    with pytest.raises(KeyboardInterrupt):
        side.do(coll.find_one)
    assert [call.ended for call in ended] == [True]
    assert in_progress.current_or_ended() is None
