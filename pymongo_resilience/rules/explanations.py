"""One sentence for each rule that explains why an operation was not retried, and what to do.

The placeholders stand for names of methods, options and classes, for numbers, and for addresses.
They never contain values of documents or texts from a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .failure import CURSOR_NOT_FOUND, Failure, RetryReason, Stage
from .retry_rules import Rule
from .retry_state import Kind, RetryState

NOT_RETRIED: Final[Mapping[Rule, str]] = {
    Rule.SELECTION: "{name}: no server could be selected, and a failed selection is not retried",
    Rule.NEVER_RETRIED: "{name} {never}",
    Rule.TRANSACTION_OVER: "{name}: {over}",
    Rule.TIME_LIMIT: "{name}: {time_limit}, and a retry would take as long",
    Rule.UNKNOWN_REASON: "{name}: {no_help}",
    Rule.TERMINAL: "{name}: a retry would not help ({reason})",
    Rule.NOT_SAFE: "{name} was sent {unsafe}",
    Rule.SWITCHED_OFF: "{name}: {switch}",
    Rule.ATTEMPTS: "{name}: reached the limit of {limit}",
    Rule.STRATEGY: "{name}: the retry strategy {strategy} declined",
    Rule.DEADLINE: "{name}: another attempt would not finish before the deadline",
    Rule.OVERLOAD_WAIT: (
        "{name}: the server {load}, and the wait before a retry would pass the deadline. Send "
        "less, or set a longer timeout"
    ),
    Rule.BREAKER: (
        "{name}: the server's circuit breaker is open, and the operation cannot wait for its next "
        "probe, because it has no timeout or too little time left. Check that server"
    ),
    Rule.BUDGET: (
        "{name}: the server {load}, and the client's retry budget allows no further retry. Send "
        "{less}"
    ),
}
_SENT_ONCE: Final = {
    Kind.COMMAND: (
        "it is not declared idempotent, so a retry might apply it twice. If running it twice is "
        "safe, declare it idempotent"
    ),
    Kind.AGGREGATE_WRITE: (
        "$out or $merge may have written part of the result, and it is not declared idempotent. "
        "Check the target collection, then run it again"
    ),
    Kind.CLEANUP: "the server ends idle cursors and sessions by itself",
}
"""Why these operations are not retried once they were sent. A getMore is explained in ``_lost``."""
_RESUME_FINDS: Final = (
    'override(resumable="if_possible") does that automatically for a find that has no sort or is '
    "sorted by _id"
)
_READS_OFF: Final = "retryReads is off for this client. Set retryReads=true to allow retries"
_DECLARE: Final = "declare it idempotent with override(idempotent=True) or a policy"
_WRITES_OFF: Final = (
    "retryWrites is off for this client. Set retryWrites=true to allow retries, or, if the server "
    f"does not support retryable writes, {_DECLARE}"
)
_SWITCHES: Final = {
    Kind.READ: _READS_OFF,
    Kind.GET_MORE: _READS_OFF,
    Kind.COMMAND: (
        "retryReads or retryWrites is off for this client. Set both to true to allow retries of "
        "commands"
    ),
}
_NO_RETRYABLE_WRITES: Final = (
    "the server does not support retryable writes. Set retryWrites=false in the URI. Writes that "
    "are declared idempotent with override(idempotent=True) or a policy are retried even then"
)


def why_not_retried(rule: Rule, state: RetryState, failure: Failure) -> str:
    """Return the sentence of NOT_RETRIED for one failed operation."""
    # Each sentence uses only some of these values. Computing all of them is cheap, because this
    # runs once for each failed operation.
    return NOT_RETRIED[rule].format(
        name=state.method or state.name,
        never=_never(state, failure),
        reason=failure.reason.value,
        unsafe=_unsafe(state, failure),
        no_help=_no_help(failure),
        load="throttles this client" if _is_throttled(failure) else "is overloaded",
        less=_less(failure),
        switch=_SWITCHES.get(state.kind, _WRITES_OFF),
        limit=_limit(state, failure),
        over=_over(state),
        time_limit=_time_limit(failure),
        strategy=type(state.strategy).__name__,
    )


def _never(state: RetryState, failure: Failure) -> str:
    """Return what happened to an attempt that is never retried, and why."""
    if failure.router_lost:
        return (
            "was not sent: the mongos router that its transaction started on cannot be reached. "
            "Run the whole transaction again, as with_transaction does"
        )
    if state.in_transaction:
        because = "a transaction must be retried as a whole. Run it again, as with_transaction does"
    elif state.kind is Kind.GET_MORE:
        because = _lost(state, failure)
    else:
        because = _SENT_ONCE.get(state.kind, "it may have been applied. Check whether it was")
    if failure.stage is not Stage.NOT_SENT:
        return f"is never retried once it was sent: {because}"
    if state.kind is Kind.CLEANUP:
        return f"was not sent, and is not retried: {because}"
    return f"was not sent, and the strategy {type(state.strategy).__name__} does not retry it"


def names_lost_cursor(state: RetryState, failure: Failure) -> bool:
    """Return True if the server no longer has the cursor of a getMore."""
    return state.kind is Kind.GET_MORE and failure.code == CURSOR_NOT_FOUND


def _lost(state: RetryState, failure: Failure) -> str:
    """Return why a getMore is not retried, and how to continue."""
    what = "the server may have advanced the cursor"
    if names_lost_cursor(state, failure):
        what = "the server has closed the cursor, because it was idle or the server was restarted"
    if state.not_resumable:
        return f"{what}. Start the query again. It was not resumed, because {state.not_resumable}"
    return f"{what}. Start the query again; {_RESUME_FINDS}"


def _unsafe(state: RetryState, failure: Failure) -> str:
    if failure.session_ends is not None and failure.session_expired:
        minutes = failure.session_ends.timeout / 60
        return (
            f"over {minutes:g} minutes ago, and the server may have ended its session, so a retry "
            "might apply it twice. Check whether it was applied"
        )
    if not state.acknowledged:
        return "without acknowledgment, so it is unknown whether it was applied"
    if _is_throttled(failure):
        return (
            "and the server throttled it, but may have executed a part of it. To have it retried, "
            f"{_DECLARE}. Or raise the throughput of the collection"
        )
    if not state.retries_enabled:
        # Declaring the write is enough, with every server. Do not advise to set only
        # retryWrites=true: some servers refuse that, and they do not recognize every write.
        return (
            f"while retryWrites is off. To allow retries, {_DECLARE}. With retryWrites=true, "
            "writes with a transaction number, such as insert_one, are retried too"
        )
    return (
        "and is not declared idempotent, so a retry might apply it twice. Check whether it was "
        "applied"
    )


def _is_throttled(failure: Failure) -> bool:
    return failure.reason is RetryReason.THROTTLED


def _less(failure: Failure) -> str:
    return (
        "less, or raise the throughput of the collection"
        if _is_throttled(failure)
        else "less until the server recovers"
    )


def _no_help(failure: Failure) -> str:
    if failure.reason is RetryReason.NO_RETRYABLE_WRITES:
        return _NO_RETRYABLE_WRITES
    return "a retry would not help"


def _time_limit(failure: Failure) -> str:
    if failure.server_answered:
        return "socketTimeoutMS ended it while the server answered other requests"
    if failure.application_limit_ms is None:
        return "a time limit of the server, and not the deadline, ended it"
    return f"maxTimeMS={failure.application_limit_ms}, which the application set, ended it"


def _over(state: RetryState) -> str:
    if state.once:
        return "this server has no such open transaction, so it has nothing to abort"
    return (
        "the server has ended the transaction. Run the whole transaction again, as "
        "with_transaction does"
    )


def _limit(state: RetryState, failure: Failure) -> str:
    if state.overloaded:
        retries = _number_of_retries(state.attempts - 1)
        after = "throttling" if _is_throttled(failure) else "an overload error"
        return f"{retries} after {after}. Send {_less(failure)}"
    if state.once:
        return "one retry; the background task sends it again later"
    if state.retry_window is None:
        retries = _number_of_retries(state.retries)
        return f"{retries} without a timeout. Set timeout_ms to retry until it expires"
    return "serverSelectionTimeoutMS, which limits retries if the timeout is 0"


def _number_of_retries(number: int) -> str:
    return "one retry" if number == 1 else f"{number} retries"
