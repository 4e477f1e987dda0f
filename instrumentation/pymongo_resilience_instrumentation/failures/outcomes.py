"""How a call ended, in the words of the telemetry contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymongo_resilience.errors import (
    CircuitBreakerOpenError,
    OperationTimeoutError,
    OverloadShedError,
)
from pymongo_resilience.rules.retry_rules import Rule

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.calls import Call

_BY_RULE = {
    Rule.ATTEMPTS: "attempts_exhausted",
    Rule.DEADLINE: "deadline",
    Rule.OVERLOAD_WAIT: "overloaded",
    Rule.TERMINAL: "terminal",
    Rule.BUDGET: "budget",
    Rule.BREAKER: "breaker_open",
    Rule.LOAD_SHEDDING: "load_shed",
}


def outcome_of(call: Call, error: BaseException | None) -> str:
    """``ok``, ``retried_ok``, or the reason why the error reached the application."""
    if error is None:
        return "retried_ok" if call.reasons else "ok"
    if isinstance(error, OperationTimeoutError):
        return "deadline"
    if isinstance(error, CircuitBreakerOpenError):
        return _BY_RULE[Rule.BREAKER]
    if isinstance(error, OverloadShedError):
        return _BY_RULE[Rule.LOAD_SHEDDING]
    if call.declined_by is None:
        return "not_retryable"
    return _BY_RULE.get(call.declined_by, "not_retryable")
