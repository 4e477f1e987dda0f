"""Each rule says in words why there was no further attempt, and names nothing but the operation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.engine.fake_clock import FakeClock
from support.engine.retry_strategies import FAST_FAIL

from pymongo_resilience.clock import Deadline
from pymongo_resilience.rules.explanations import why_not_retried
from pymongo_resilience.rules.failure import Failure, RetryReason, Stage
from pymongo_resilience.rules.retry_rules import Rule, is_explained
from pymongo_resilience.rules.retry_state import Kind, RetryState

SECRET = "a value of a document"
FAILURE = Failure(ValueError(SECRET), Stage.IN_FLIGHT, RetryReason.ACCESS_ERROR, code_name=SECRET)


def why(rule: Rule, failure: Failure = FAILURE, **facts: Any) -> str:
    made = RetryState(
        "update", SECRET, facts.pop("kind", Kind.WRITE), FAST_FAIL, data={"a": SECRET}, **facts
    )
    return why_not_retried(rule, made, failure)


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("method", ["", "update_many"])
def test_every_rule_names_the_operation_and_no_value(rule: Rule, method: str) -> None:
    said = why(rule, method=method)
    assert said.startswith(method or "update")
    assert SECRET not in said


def test_the_name_of_an_error_has_no_text_of_a_server() -> None:
    named = replace(FAILURE, code=13)
    assert named.error_name == "ValueError, code 13"
    assert (
        replace(named, code_name="Unauthorized").error_name == "ValueError, code 13 (Unauthorized)"
    )


@pytest.mark.parametrize(
    ("rule", "reason", "explained"),
    [
        (None, RetryReason.ACCESS_ERROR, False),
        (None, RetryReason.THROTTLED, False),
        (Rule.NOT_SAFE, RetryReason.ACCESS_ERROR, False),
        (Rule.NOT_SAFE, RetryReason.THROTTLED, True),
        (Rule.NOT_SAFE, RetryReason.NO_RETRYABLE_WRITES, True),
        (Rule.DEADLINE, RetryReason.ACCESS_ERROR, False),
        (Rule.ATTEMPTS, RetryReason.ACCESS_ERROR, True),
        (Rule.BUDGET, RetryReason.THROTTLED, True),
    ],
)
def test_what_the_server_answered_to_the_only_attempt_is_explained(
    rule: Rule | None, reason: RetryReason, explained: bool
) -> None:
    """If a retry was withheld, or a setting would allow it."""
    assert is_explained(rule, reason) is explained


def test_no_two_rules_say_the_same() -> None:
    assert len({why(rule) for rule in Rule}) == len(Rule)


@pytest.mark.parametrize(
    ("rule", "facts", "said"),
    [
        (Rule.NOT_SAFE, {"acknowledged": False},
         "update was sent without acknowledgment"),
        (Rule.SWITCHED_OFF, {},
         "update: retryWrites is off for this client. Set retryWrites=true to allow retries"),
        (Rule.SWITCHED_OFF, {"kind": Kind.READ},
         "update: retryReads is off for this client. Set retryReads=true to allow retries"),
        (Rule.SWITCHED_OFF, {"kind": Kind.COMMAND},
         "update: retryReads or retryWrites is off for this client. Set both to true"),
        (Rule.ATTEMPTS, {"retry_window": Deadline.after(FakeClock(), 1)},
         "update: reached the limit of serverSelectionTimeoutMS"),
        (Rule.ATTEMPTS, {"attempts": 2},
         "update: reached the limit of one retry without a timeout. Set timeout_ms"),
        (Rule.ATTEMPTS, {"attempts": 9},
         "update: reached the limit of 8 retries without a timeout. Set timeout_ms"),
        (Rule.ATTEMPTS, {"overloaded": True, "attempts": 2},
         "update: reached the limit of one retry after an overload error"),
        (Rule.ATTEMPTS, {"once": True},
         "update: reached the limit of one retry; the background task sends it again later"),
        (Rule.STRATEGY, {}, "update: the retry strategy FastFail declined"),
        (Rule.TERMINAL, {}, "update: a retry would not help (access_error)"),
        (Rule.NOT_SAFE, {"retries_enabled": False}, "update was sent while retryWrites is off"),
        (Rule.NOT_SAFE, {}, "update was sent and is not declared idempotent"),
        (Rule.NEVER_RETRIED, {"in_transaction": True},
         "update is never retried once it was sent: a transaction must be retried as a whole"),
        (Rule.NEVER_RETRIED, {},
         "update is never retried once it was sent: it may have been applied"),
        (Rule.NEVER_RETRIED, {"kind": Kind.AGGREGATE_WRITE, "method": "aggregate"},
         "aggregate is never retried once it was sent: $out or $merge may have written part"),
        (Rule.TRANSACTION_OVER, {"kind": Kind.TRANSACTION_END},
         "update: the server has ended the transaction. Run the whole transaction again"),
        (Rule.TRANSACTION_OVER, {"kind": Kind.TRANSACTION_END, "once": True},
         "update: this server has no such open transaction, so it has nothing to abort"),
        (Rule.BREAKER, {"deadline": Deadline.after(FakeClock(), 1)},
         "update: the server's circuit breaker is open, and the operation cannot wait"),
    ],
)  # fmt: skip
def test_what_it_depends_on(rule: Rule, facts: dict[str, Any], said: str) -> None:
    assert why(rule, **facts).startswith(said)


ENDED = Deadline(FakeClock(1800.0), 1800.0, 1800.0)
LATER = Deadline(FakeClock(1799.0), 1800.0, 1800.0)


@pytest.mark.parametrize(
    ("rule", "changes", "kind", "said"),
    [
        (Rule.NOT_SAFE, {"session_ends": ENDED}, Kind.WRITE,
         "update was sent over 30 minutes ago, and the server may have ended its session"),
        (Rule.NOT_SAFE, {"session_ends": LATER}, Kind.WRITE, "update was sent and is not declared"),
        (Rule.TIME_LIMIT, {"server_answered": True}, Kind.READ, "update: socketTimeoutMS ended it"),
        (Rule.TIME_LIMIT, {"application_limit_ms": 700}, Kind.READ,
         "update: maxTimeMS=700, which the application set, ended it"),
        (Rule.TIME_LIMIT, {}, Kind.READ, "update: a time limit of the server"),
        (Rule.NEVER_RETRIED, {"router_lost": True}, Kind.WRITE,
         "update was not sent: the mongos router that its transaction started on"),
        (Rule.NEVER_RETRIED, {"stage": Stage.NOT_SENT}, Kind.CLEANUP,
         "update was not sent, and is not retried: the server ends idle cursors"),
        (Rule.NEVER_RETRIED, {"stage": Stage.NOT_SENT}, Kind.COMMAND,
         "update was not sent, and the strategy FastFail does not retry it"),
    ],
)  # fmt: skip
def test_what_it_depends_on_in_the_failure(
    rule: Rule, changes: dict[str, Any], kind: Kind, said: str
) -> None:
    assert why(rule, replace(FAILURE, **changes), kind=kind).startswith(said)


@pytest.mark.parametrize(
    ("rule", "reason", "facts"),
    [
        (Rule.NOT_SAFE, RetryReason.THROTTLED, {}),
        (Rule.NOT_SAFE, RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT, {"retries_enabled": False}),
        (Rule.SWITCHED_OFF, RetryReason.SOCKET_NOT_AVAILABLE, {"retries_enabled": False}),
        (Rule.UNKNOWN_REASON, RetryReason.NO_RETRYABLE_WRITES, {}),
    ],
)
def test_no_advice_leads_from_one_setting_of_retry_writes_to_the_other(
    rule: Rule, reason: RetryReason, facts: dict[str, Any]
) -> None:
    """Each names the declaration, which helps on servers with and without retryable writes."""
    assert "override(idempotent=True)" in why(rule, replace(FAILURE, reason=reason), **facts)


@pytest.mark.parametrize("rule", [Rule.ATTEMPTS, Rule.BUDGET, Rule.OVERLOAD_WAIT])
def test_throttling_is_called_so(rule: Rule) -> None:
    throttled = replace(FAILURE, reason=RetryReason.THROTTLED)
    text = why(rule, throttled, overloaded=True, attempts=2)
    assert "throttl" in text
    assert "overload" not in text
