"""Why a failed attempt was not repeated, in words: for errors and logs.

Names of methods, options and classes alone: no value of a document, no text of a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .retried_operation import Kind
from .retry_rules import Rule

if TYPE_CHECKING:
    from .failure import Failure
    from .retried_operation import Operation

NEVER_REPEATED = {
    Kind.COMMAND: "what a command runs is not known",
    Kind.GET_MORE: "the server may have moved the cursor on",
    Kind.AGGREGATE_WRITE: "half of what $out or $merge writes may be there",
    Kind.CLEANUP: "the server ends by itself what it would end",
}
WRITE = "whether it was applied is not known"
SELECTION = "a failed server selection is not repeated"
RETRY_SELECTION = "no server could be selected for a retry within serverSelectionTimeoutMS"

COMMITTED = "the transaction was committed, but its write concern was not satisfied"


def why_not_repeated(rule: Rule, operation: Operation, failure: Failure) -> str:
    """One clause, which names the operation."""
    if operation.name == "commitTransaction" and failure.executed:
        return COMMITTED
    name = operation.method or operation.name
    match rule:
        case Rule.NEVER_REPEATED if operation.in_transaction:
            return f"{name} in a transaction is never repeated by itself"
        case Rule.NEVER_REPEATED:
            return f"{name} is never repeated: {NEVER_REPEATED.get(operation.kind, WRITE)}"
        case Rule.NOT_SAFE if failure.session_ends is not None and failure.forgotten:
            minutes = failure.session_ends.timeout / 60
            return f"{name} was sent over {minutes:g} minutes ago, and its session may have ended"
        case Rule.NOT_SAFE if not operation.acknowledged:
            return f"{name} is unacknowledged: whether it was executed is unknown"
        case Rule.NOT_SAFE:
            return f"{name} was sent and is not declared idempotent"
    return f"{name}: {_reason(rule, operation, failure)}"


def _reason(rule: Rule, operation: Operation, failure: Failure) -> str:
    match rule:
        case Rule.SELECTION:
            return SELECTION if operation.attempts == 1 else RETRY_SELECTION
        case Rule.TERMINAL:
            return f"a retry would not help ({failure.reason.value})"
        case Rule.TRANSACTION_OVER:
            return "the transaction has ended: repeat all of it, as with_transaction does"
        case Rule.SWITCHED_OFF:
            return f"{_switch(operation)} is off"
        case Rule.ATTEMPTS:
            return _attempts(operation)
        case Rule.STRATEGY:
            return f"the strategy {type(operation.strategy).__name__} declined"
        case Rule.DEADLINE:
            return "no attempt fits before the deadline"
        case Rule.OVERLOAD_WAIT:
            return "the wait after an overload error would pass the deadline"
        case Rule.BREAKER if operation.time_limit is None:
            return "no timeout is set: a retry does not wait for the circuit breaker's next probe"
        case Rule.BREAKER:
            return "the circuit breaker's next probe is after the deadline"
        case Rule.LOAD_SHEDDING:
            return "refused by the client itself, by its priority"
        case Rule.BUDGET:
            return "the client's retry budget has no token left"
    return "a retry would not help"


def _switch(operation: Operation) -> str:
    if operation.kind in (Kind.READ, Kind.GET_MORE):
        return "retryReads"
    return "retryReads or retryWrites" if operation.kind is Kind.COMMAND else "retryWrites"


def _attempts(operation: Operation) -> str:
    if operation.overloaded:
        made = operation.attempts - 1
        retries = "1 retry" if made == 1 else f"{made} retries"
        return f"the limit of {retries} after an overload error is reached"
    if operation.retry_window is not None and operation.kind is Kind.TRANSACTION:
        return f"without a timeout, retries end after {operation.retry_window.timeout:.0f} s"
    if operation.retry_window is not None:
        return "with a timeout of 0, retries end after serverSelectionTimeoutMS"
    return "without a timeout there is one retry: set timeout_ms"
