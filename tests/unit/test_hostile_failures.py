"""Any exception with anything inside: described, never believed further than it can be read."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from bson import Int64
from hypothesis import assume, example, given, strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pymongo.errors import (
    BulkWriteError,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from pymongo.pool_options import PoolOptions
from pymongo.synchronous.pool import Connection
from pymongo_resilience_instrumentation.driver.attempts import AttemptFacts
from pymongo_resilience_instrumentation.failures import classify, error_texts, reasons
from pymongo_resilience_instrumentation.selection.client_limits import breaker_error
from pymongo_resilience_instrumentation.telemetry import semconv
from pymongo_resilience_instrumentation.telemetry.metrics import error_type
from pymongo_resilience_instrumentation.timeouts import command_limits, timeout_errors as timeouts
from support.engine.driver_exceptions import built, exceptions, filled, made, nasty_children, others
from support.engine.fake_clock import FakeClock
from support.hostile_input import (
    BOTH_OVERLOAD_LABELS,
    error_documents,
    examples,
    labels,
    likely_errors,
    strange_floats,
)
from wrapt import FunctionWrapper

from pymongo_resilience.breakers import CircuitBreaker
from pymongo_resilience.config import Config
from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.rules.failure import Failure, RetryReason, Stage
from pymongo_resilience.rules.retry_rules import RetryRules
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience.rules.strategy import BestEffort

pytestmark = pytest.mark.oldest

attempts = st.builds(
    AttemptFacts,
    reached_connection=st.booleans(),
    carried_txn_number=st.booleans(),
    server=st.none() | st.just("db1.example:27017"),
    min_rtt=st.floats(0, 10) | strange_floats,
)


@examples(150)
@given(error=exceptions, attempt=attempts)
def test_every_exception_is_described(error: Exception, attempt: AttemptFacts) -> None:
    failure = classify.failure_of(error, attempt)
    assert type(failure) is Failure
    assert failure.error is error
    assert isinstance(failure.stage, Stage)
    assert isinstance(failure.reason, RetryReason)
    assert failure.code is None or isinstance(failure.code, int)
    assert not isinstance(failure.code, bool)
    assert failure.code_name is None or isinstance(failure.code_name, str)
    assert failure.labels <= set(classify.LABELS)
    assert failure.base_backoff is None or 0 <= failure.base_backoff < math.inf
    assert type(failure.selection) is type(failure.timed_out) is bool
    if not attempt.reached_connection:
        assert failure.stage is Stage.NOT_SENT


MANY = RetryState("update", "shop.orders", Kind.WRITE, BestEffort())
"""A write that nobody recognises when it comes again: an update of many documents."""
SENT = AttemptFacts(
    reached_connection=True, carried_txn_number=False, server="db1.example:27017", min_rtt=0.0
)


def _labels_are_there(error: Exception) -> bool:
    """Both overload labels, in any container: such an error was rejected at the door."""
    errors = [error, error.__dict__.get("_OperationFailure__details")]
    if isinstance(errors[1], dict):
        errors.append(errors[1].get("error"))
    return any(
        all(
            label in getattr(each, "__dict__", {}).get("_error_labels", ())
            for label in BOTH_OVERLOAD_LABELS
        )
        for each in errors
    )


@examples(150)
@given(error=built | nasty_children | others)
def test_no_error_makes_an_unsafe_write_be_repeated(error: Exception) -> None:
    """Unsure whether it was sent: it was. Unsure whether it may be repeated: it may not."""
    assume(not _labels_are_there(error))
    failure = classify.failure_of(error, SENT)
    assert not failure.retryable_overload
    assert RetryRules().declined(replace(MANY, attempts=1), failure) is not None


def _coded(code: int, said: list[str]) -> OperationFailure:
    return OperationFailure("told", code, {"ok": 0, "code": code, "errorLabels": said})


coded = st.builds(
    _coded, st.sampled_from(sorted(reasons.BY_CODE)), st.lists(st.sampled_from(classify.LABELS))
)
"""Hostile errors seldom have a code that means something."""


@examples(400)
@given(error=exceptions | coded, attempt=attempts)
@example(error=ServerSelectionTimeoutError("of a key vault"), attempt=SENT)
def test_a_reason_that_allows_any_write_proves_that_nothing_happened(
    error: Exception, attempt: AttemptFacts
) -> None:
    failure = classify.failure_of(error, attempt)
    assert failure.reason is not RetryReason.CIRCUIT_BREAKER_OPEN, "nothing has opened one"
    if failure.reason.allows_non_idempotent_retry:
        assert failure.retryable_overload or failure.stage is Stage.NOT_SENT


def refused_by_a_breaker() -> Exception:
    breaker = CircuitBreaker(Config(), FakeClock())
    at = "db1", 27017
    return breaker_error(at, breaker, next_probe_in=5.0, elsewhere=False, labels=[])


def test_a_refusal_from_within_an_attempt_is_another_client_s() -> None:
    unsent = SENT._replace(reached_connection=False)
    own, another_s = (classify.failure_of(refused_by_a_breaker(), it) for it in (unsent, SENT))
    assert (own.reason, own.next_probe_in) == (RetryReason.CIRCUIT_BREAKER_OPEN, 5.0)
    assert (another_s.reason, another_s.next_probe_in) == (RetryReason.UNKNOWN, None)
    assert another_s.stage is Stage.IN_FLIGHT


@examples(60)
@given(document=likely_errors | error_documents, said=labels)
def test_labels_count_as_strings_in_a_list_alone(document: dict[str, Any], said: Any) -> None:
    document["errorLabels"] = said
    error = made(lambda: OperationFailure("hostile", 6, document))
    assume(isinstance(error, OperationFailure))
    strings = {each for each in said if isinstance(each, str)} if isinstance(said, list) else set()
    failure = classify.failure_of(error, SENT)
    assert failure.labels == strings & set(classify.LABELS)
    ran = bool(document.get("ok")) or "writeConcernError" in document
    assert failure.executed is ran
    assert failure.retryable_overload is (strings >= BOTH_OVERLOAD_LABELS and not ran)
    assert (failure.reason is RetryReason.OVERLOADED) is failure.retryable_overload


def test_only_what_the_driver_refused_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may answer with the same class, code and words."""
    # The real method without its connection: a round trip that takes a minute is hard to have.
    monkeypatch.setattr("pymongo._csot.get_rtt", lambda: 60.0)
    refuse = FunctionWrapper(Connection.apply_timeout, command_limits.limit(EnabledFlag(on=True)))
    connection = SimpleNamespace(opts=PoolOptions(connect_timeout=20), max_wire_version=25)
    parameters = inspect.signature(Connection.apply_timeout).parameters  # 4.17: the client, too
    with pymongo.timeout(5), pytest.raises(ExecutionTimeout) as raised:
        refuse.__get__(connection)(*[None] * (len(parameters) - 1))
    assert classify.failure_of(raised.value, SENT).stage is Stage.NOT_SENT
    answer = ExecutionTimeout(str(raised.value), 50, raised.value.details)
    assert classify.failure_of(answer, SENT).stage is Stage.ANSWERED


def test_the_rest_of_a_stumbling_error_is_still_read() -> None:
    """The driver repeats it, so what its property makes of the document must not be the end."""
    concern = {"code": 91, "errmsg": "shutting down", "errInfo": "no document"}
    error = BulkWriteError({"writeErrors": [], "writeConcernErrors": [concern]})
    with pytest.raises(AttributeError):
        _ = error.timeout
    failure = classify.failure_of(error, SENT)
    assert (failure.reason, failure.code) == (RetryReason.NOT_PRIMARY, 91)
    assert not failure.timed_out


@pytest.mark.parametrize(
    ("said", "code"),
    [(6, 6), (6.0, 6), (Int64(6), 6), (6.5, None), (math.nan, None), (math.inf, None), ("6", None),
     (None, None), ([6], None), ({}, None)],
)  # fmt: skip
def test_a_code_is_a_whole_number(said: Any, code: int | None) -> None:
    failure = classify.failure_of(OperationFailure("hostile", said, {"ok": 0, "code": said}), SENT)
    assert failure.code == code
    assert type(failure.code) in (int, Int64, type(None))
    assert failure.reason is (
        RetryReason.UNKNOWN if code is None else RetryReason.TEMPORARILY_UNAVAILABLE
    )


@pytest.mark.parametrize(
    ("said", "seconds"),
    [(50, 0.05), (0.5, 0.0005), (10**400, 1e9), (-1, None), (0, None), ("50", None),
     (math.nan, None), (math.inf, 1e9), (None, None), ({}, None)],
)  # fmt: skip
def test_the_base_of_the_back_off_is_a_positive_number(said: Any, seconds: float | None) -> None:
    error = OperationFailure("overloaded", 462, {"ok": 0, "baseBackoffMS": said})
    assert classify.failure_of(error, SENT).base_backoff == seconds


@examples(60)
@given(error=exceptions)
def test_every_exception_can_be_shown(error: Exception) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    semconv.end_span(provider.get_tracer("test").start_span("find"), error)
    (shown,) = exporter.get_finished_spans()
    assert shown.attributes is not None
    assert shown.attributes[semconv.EXCEPTION_TYPE] == error_texts.qualified_name(error)
    assert str(shown.attributes[semconv.EXCEPTION_MESSAGE]).startswith(type(error).__name__)
    assert isinstance(error_type(error), str)


@examples(60)
@given(error=built | filled)
def test_every_error_of_the_driver_can_run_out_of_time(error: Exception) -> None:
    assume(isinstance(error, PyMongoError))
    origin = error_texts.Origin(None, Stage.NOT_SENT, 2)
    late = timeouts.timed_out(error, origin, timeout_s=1.0, elapsed_s=1.5)
    assert isinstance(late, type(error))
    assert isinstance(late, OperationTimeoutError)
    assert late.timeout is True
    assert late.__cause__ is error
    assert str(error) in str(late)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("HostUnreachable", "HostUnreachable"),
        ('E11000 dup key: { email: "ada@example.org" }', None),
        ("x" * 101, None),
        ("", None),
        (7, None),
    ],
)
def test_only_a_name_leaves_as_the_name_of_a_code(said: Any, shown: str | None) -> None:
    """It becomes an attribute of metrics, too: not any text of a server's."""
    error = OperationFailure("hostile", 6, {"ok": 0, "code": 6, "codeName": said})
    assert error_texts.code_name(error) == shown
    assert error_type(error) == (shown or "pymongo.errors.OperationFailure")
