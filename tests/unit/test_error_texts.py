"""What an error says about its operation: its origin, its outcome, and its safe texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
)
from pymongo_resilience_instrumentation.failures import error_texts
from pymongo_resilience_instrumentation.failures.error_texts import Origin, state_origin
from pymongo_resilience_instrumentation.selection.client_limits import CircuitBreakerOpenError
from pymongo_resilience_instrumentation.timeouts.timeout_errors import timed_out

from pymongo_resilience.rules.failure import RetryReason, Stage
from pymongo_resilience.rules.outcome import AttemptRecord, Outcome
from pymongo_resilience.rules.retry_rules import WITHHELD, Rule

pytestmark = pytest.mark.oldest

LOST = RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT
AT = "db1:27017"


def record(delay: float | None) -> AttemptRecord:
    return AttemptRecord(AT, Stage.IN_FLIGHT, LOST, 0.0, delay)


def outcome_of(error: Exception | None, *attempts: AttemptRecord, rule: Rule | None = None) -> str:
    outcome = Outcome()
    outcome.attempts, outcome.declined_by = attempts, rule
    operation: Any = SimpleNamespace(outcome=outcome)
    return error_texts.outcome_of(operation, error)


def test_a_success_says_whether_it_was_retried() -> None:
    assert outcome_of(None) == "ok"
    assert outcome_of(None, record(0.0)) == "retried_ok"
    # An error that the application never sees, such as that of an abort.
    assert outcome_of(None, record(None)) == "ok"


OUTCOMES = {
    Rule.ATTEMPTS: "attempts_exhausted",
    Rule.DEADLINE: "deadline",
    Rule.OVERLOAD_WAIT: "overloaded",
    Rule.TERMINAL: "terminal",
    Rule.BUDGET: "budget",
    Rule.BREAKER: "breaker_open",
}


@pytest.mark.parametrize("rule", [*Rule, None])
def test_a_failure_says_what_ended_it(rule: Rule | None) -> None:
    expected = "not_retryable" if rule is None else OUTCOMES.get(rule, "not_retryable")
    assert outcome_of(AutoReconnect(""), record(None), rule=rule) == expected


def test_the_class_of_an_error_says_what_ended_it() -> None:
    origin = Origin(AT, Stage.IN_FLIGHT, 1)
    late = timed_out(NetworkTimeout(""), origin, timeout_s=1.0, elapsed_s=1.0)
    assert outcome_of(late, rule=Rule.ATTEMPTS) == "deadline"
    assert outcome_of(CircuitBreakerOpenError("open"), rule=Rule.ATTEMPTS) == "breaker_open"


def text_of(
    error: PyMongoError, stage: Stage, attempts: int, rule: Rule | None = None, **more: Any
) -> str:
    state_origin(error, Origin(more.pop("server", AT), stage, attempts), rule, **more)
    return str(error)


def test_an_error_says_where_it_is_from() -> None:
    assert text_of(AutoReconnect("lost"), Stage.IN_FLIGHT, 1) == "lost (db1:27017, 1 attempt)"
    assert text_of(AutoReconnect("lost"), Stage.IN_FLIGHT, 3) == "lost (db1:27017, 3 attempts)"
    assert text_of(AutoReconnect("lost"), Stage.NOT_SENT, 1, server=None) == "lost (1 attempt)"
    why = {"why": "find: a reason"}
    assert (
        text_of(AutoReconnect("lost"), Stage.IN_FLIGHT, 2, Rule.NOT_SAFE, **why)
        == "lost (db1:27017, 2 attempts; find: a reason)"
    )


@pytest.mark.parametrize("rule", [*Rule, None])
def test_a_servers_answer_to_the_only_attempt_keeps_its_text(rule: Rule | None) -> None:
    """Unless a retry was declined that is normally made."""
    is_kept = rule not in WITHHELD
    assert (text_of(OperationFailure("no", 1), Stage.ANSWERED, 1, rule) == "no") is is_kept
    assert text_of(OperationFailure("no", 1), Stage.ANSWERED, 2, rule).startswith("no (db1")
    assert text_of(AutoReconnect("no"), Stage.IN_FLIGHT, 1, rule).startswith("no (db1")


def test_an_error_has_the_facts_as_attributes() -> None:
    error: Any = OperationFailure("no", 1)
    state_origin(error, Origin(AT, Stage.ANSWERED, 3, [LOST, LOST]), Rule.ATTEMPTS)
    assert (error.server, error.attempts, error.retry_rule) == (AT, 3, Rule.ATTEMPTS)
    assert error.retry_reasons == (LOST, LOST)


def test_an_error_that_is_raised_again_keeps_its_first_origin() -> None:
    error: Any = AutoReconnect("lost")
    first = text_of(error, Stage.IN_FLIGHT, 2)
    assert text_of(error, Stage.IN_FLIGHT, 5, server="db2:27017") == first
    assert (error.server, error.attempts) == (AT, 2)


@pytest.mark.parametrize("arguments", [(), (7, "text")])
def test_an_error_without_a_text_gets_none(arguments: tuple[Any, ...]) -> None:
    error = PyMongoError()
    error.args = arguments
    state_origin(error, Origin(AT, Stage.IN_FLIGHT, 2))
    assert error.args == arguments


def test_other_arguments_of_an_error_stay() -> None:
    error = PyMongoError()
    error.args = ("lost", 7)
    state_origin(error, Origin(AT, Stage.IN_FLIGHT, 2))
    assert error.args == ("lost (db1:27017, 2 attempts)", 7)


@pytest.mark.parametrize(
    ("errors", "has_duplicate"),
    [
        ([{"code": 121}, {"code": 11000}], True),
        ([{"code": 121}], False),
        (["11000"], False),
        ([], False),
        ({"code": 11000}, False),
        (None, False),
    ],
)
def test_a_bulk_has_a_duplicate_if_a_statement_has(errors: Any, has_duplicate: bool) -> None:
    assert error_texts.has_duplicate(BulkWriteError({"writeErrors": errors})) is has_duplicate


def test_an_error_without_statements_has_no_duplicate() -> None:
    assert not error_texts.has_duplicate(AutoReconnect(""))
    assert not error_texts.has_duplicate(OperationFailure("", 11000))


def test_a_class_is_named_with_its_module_unless_it_is_built_in() -> None:
    assert error_texts.qualified_name(ValueError()) == "ValueError"
    assert error_texts.qualified_name(AutoReconnect("")) == "pymongo.errors.AutoReconnect"


def test_a_safe_message_has_class_code_and_name() -> None:
    said = {"ok": 0, "code": 13, "codeName": "Unauthorized", "errmsg": "a document"}
    error = OperationFailure("a document", 13, said)
    assert error_texts.safe_message(error) == "OperationFailure, code 13 (Unauthorized)"
    assert error_texts.safe_message(AutoReconnect("a document")) == "AutoReconnect"
    # AutoReconnect has its details as ``details`` as well, and they need not be a dictionary.
    assert error_texts.safe_message(AutoReconnect("", ["a document"])) == "AutoReconnect"


class UntextedError(OSError):
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (AutoReconnect("db1:27017: refused"), "db1:27017: refused"),
        (AutoReconnect("mongodb://ada:secret@db1 refused"), "mongodb://***@db1 refused"),
        (AutoReconnect("of a server", {"errmsg": "of a server"}), None),
        (AutoReconnect(), ""),
        (ConfigurationError("no such option"), "no such option"),
        (ConfigurationError(7), None),
        (OperationFailure("a document", 1), None),
        (RuntimeError(OperationFailure("a document", 1)), None),
        (RuntimeError("nested", OperationFailure("a document", 1)), None),
        (OSError("broken pipe"), "OSError: broken pipe"),
        (OSError("mongodb://ada:secret@db1"), "OSError: mongodb://***@db1"),
        (OSError(), "OSError"),
        (UntextedError("broken pipe"), "UntextedError"),
    ],
)
def test_a_local_text_is_one_that_no_server_wrote(error: Exception, text: str | None) -> None:
    assert error_texts.local_text(error) == text
