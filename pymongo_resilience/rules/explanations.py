"""Why an operation was not retried, in one sentence for each rule.

What is in braces are facts: names of methods, options and classes, numbers and addresses, never a
value of a document nor a text of a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .failure import Failure, Stage
from .retry_rules import Rule
from .retry_state import Kind, RetryState

NOT_RETRIED: Final[Mapping[Rule, str]] = {
    Rule.SELECTION: "{name}: a failed server selection is not repeated",
    Rule.NEVER_RETRIED: "{name} {never}",
    Rule.TRANSACTION_OVER: (
        "{name}: the transaction has ended: repeat all of it, as with_transaction does"
    ),
    Rule.TIME_LIMIT: "{name}: {time_limit} ended it, and a retry would take as long",
    Rule.UNKNOWN_REASON: "{name}: a retry would not help",
    Rule.TERMINAL: "{name}: a retry would not help ({reason})",
    Rule.NOT_SAFE: "{name} was sent {unsafe}",
    Rule.SWITCHED_OFF: "{name}: {switch}",
    Rule.ATTEMPTS: "{name}: the limit of retries is reached: {limit}",
    Rule.STRATEGY: "{name}: the strategy {strategy} declined",
    Rule.DEADLINE: "{name}: no attempt fits before the deadline",
    Rule.OVERLOAD_WAIT: (
        "{name}: the wait after an overload error would pass the deadline: send less, or set a "
        "longer timeout"
    ),
    Rule.BREAKER: "{name}: no timeout leaves time for the circuit breaker's next probe",
    Rule.BUDGET: (
        "{name}: the server is overloaded, and the client's retry budget allows no more: send less "
        "until it recovers"
    ),
}
_SENT_ONCE: Final = {
    Kind.COMMAND: "what a command runs is not known",
    Kind.GET_MORE: "the server may have moved the cursor on",
    Kind.AGGREGATE_WRITE: "$out or $merge may have written a part of its result",
    Kind.CLEANUP: "the server ends by itself what it would end",
}
"""Why these are not retried, unless they were not sent."""
_READS_OFF: Final = "retryReads is off: a retry needs retryReads=true of the client"
_WRITES_OFF: Final = "retryWrites is off: a retry needs retryWrites=true of the client"
_SWITCHES: Final = {
    Kind.READ: _READS_OFF,
    Kind.GET_MORE: _READS_OFF,
    Kind.COMMAND: "retryReads or retryWrites is off: a retry needs both of the client",
}


def why_not_retried(rule: Rule, state: RetryState, failure: Failure) -> str:
    """The sentence of NOT_REPEATED for one failed operation."""
    return NOT_RETRIED[rule].format(
        name=state.method or state.name,
        never=_never(state, failure),
        reason=failure.reason.value,
        unsafe=_unsafe(state, failure),
        switch=_SWITCHES.get(state.kind, _WRITES_OFF),
        limit=_limit(state),
        time_limit=_time_limit(failure),
        strategy=type(state.strategy).__name__,
    )


def _never(state: RetryState, failure: Failure) -> str:
    """What is known of the attempt, and why none follows."""
    if failure.router_lost:
        return (
            "was not sent: the router that its transaction began on cannot be reached. Repeat all "
            "of the transaction, as with_transaction does"
        )
    if state.in_transaction:
        because = "a transaction is repeated as a whole"
    else:
        because = _SENT_ONCE.get(state.kind, "whether it was applied is not known")
    if failure.stage is not Stage.NOT_SENT:
        return f"is never repeated once it was sent: {because}"
    if state.kind is Kind.CLEANUP:
        return f"was not sent, and is not repeated: {because}"
    return f"was not sent, and the strategy {type(state.strategy).__name__} does not repeat it"


def _unsafe(state: RetryState, failure: Failure) -> str:
    if failure.session_ends is not None and failure.session_expired:
        minutes = failure.session_ends.timeout / 60
        return f"over {minutes:g} minutes ago, and its session may have ended"
    if not state.acknowledged:
        return "unacknowledged: whether it was executed is unknown"
    if not state.retries_enabled:
        # Named together, or each piece of advice would lead to the other.
        return (
            "while retryWrites is off. A retry needs retryWrites=true, and for a write that the "
            "server does not recognize also a declaration that it is idempotent"
        )
    return "and is not declared idempotent"


def _time_limit(failure: Failure) -> str:
    if failure.application_limit_ms is None:
        return "a time limit of the server, and not the deadline,"
    return f"maxTimeMS={failure.application_limit_ms}, which the application set,"


def _limit(state: RetryState) -> str:
    if state.overloaded:
        return f"{state.attempts - 1} after an overload error"
    if state.once:
        return "one, since the background task sends it again"
    if state.retry_window is None:
        return (
            f"{'one' if state.retries == 1 else state.retries} without timeout_ms: set it for more"
        )
    return "serverSelectionTimeoutMS with a timeout of 0"
