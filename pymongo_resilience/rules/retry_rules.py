"""The rules that decide whether a failed attempt is retried. Applying them changes no state.

A decision takes two steps, because a strategy may be a coroutine: ``declined`` applies the rules
that need no strategy, and ``verdict`` applies those that need its answer. docs/retries.md explains
the rules.
"""

from __future__ import annotations

import enum
import math
import random
from dataclasses import dataclass
from typing import Any, NamedTuple

from pymongo_resilience.clock import SHORTEST, Deadline, Random

from . import backoff
from .budget import DISTRESS, PYMONGO_RETRIES
from .failure import Failure, RetryReason, Stage
from .retry_state import Kind, RetryState
from .strategy import TERMINAL, Answer, RetryAction, follows_specification

LAST_ATTEMPT = 0.005
"""Seconds that a shortened delay leaves for the next attempt, because sleeps end late."""
NEVER_RETRIED = frozenset({Kind.GET_MORE, Kind.CLEANUP})
"""Kinds of operations that, once sent, are retried only if the server rejected them."""
RETRIED_IF_DECLARED = frozenset({Kind.COMMAND, Kind.AGGREGATE_WRITE})
"""Kinds of operations that, once sent, are retried only if the server rejected them or if the
application declared them idempotent.
"""


class Rule(enum.StrEnum):
    """The rule that declined a retry. Telemetry exports the value."""

    SELECTION = "selection"
    """No server could be selected. A failed selection is never retried."""
    NEVER_RETRIED = "never_retried"
    """Rule 0: operations of this kind are retried only if they were not sent or were rejected."""
    TRANSACTION_OVER = "transaction_over"
    """Rule 0: a commit or abort of a transaction that the server has aborted. The caller retries
    the whole transaction.
    """
    TIME_LIMIT = "time_limit"
    """Rules 0 and 4: a limit that is not the deadline ended the command, and a retry would take as
    long.

    Rule 0: the server stopped the command, at the application's own ``maxTimeMS`` or at a limit
    of the server. Rule 4: ``socketTimeoutMS`` ended an attempt and its retry, although the server
    is alive.
    """
    UNKNOWN_REASON = "unknown_reason"
    """Rule 1: the reason of the failure is unknown, the pool is full, or the server refuses every
    write with a transaction number, so that a retry would not help.
    """
    TERMINAL = "terminal"
    """Rule 1: the strategy treats the reason as permanent."""
    NOT_SAFE = "not_safe"
    """Rule 2: a retry might apply the write twice."""
    SWITCHED_OFF = "switched_off"
    """Rule 3: retryReads or retryWrites is off."""
    ATTEMPTS = "attempts"
    """Rule 4: no attempts left."""
    STRATEGY = "strategy"
    """Rule 5: the strategy declined."""
    DEADLINE = "deadline"
    """Rule 6: no attempt fits before the deadline."""
    OVERLOAD_WAIT = "overload_wait"
    """Rule 6: the delay after an overload error would pass the deadline. Nothing has timed out yet,
    so the overload error itself is raised.
    """
    BREAKER = "circuit_breaker"
    """Rule 7: the server's circuit breaker is open, and there is not enough time to wait for its
    probe.
    """
    BUDGET = "budget"
    """Rule 8: the server is overloaded, and the client's retry budget is spent or this operation
    has been retried for too long.
    """


WITHHELD = frozenset({
    Rule.ATTEMPTS, Rule.STRATEGY, Rule.OVERLOAD_WAIT, Rule.BREAKER, Rule.BUDGET,
})  # fmt: skip
"""Rules that decline a retry which would be safe and is normally made. The error's text explains
these rules even if there was one attempt and the server answered it. In that case, other rules are
not explained.
"""


EXPLAINED = frozenset({RetryReason.THROTTLED, RetryReason.NO_RETRYABLE_WRITES})
"""Reasons for which the application can change a setting. The error's text names that setting even
if there was one attempt and the server answered it.
"""


def is_explained(rule: Rule | None, reason: RetryReason) -> bool:
    """Return True if an error's text should explain why there was no retry, even if the server
    answered the only attempt.

    Most of such answers are everyday errors of the application, which need no explanation.
    """
    return rule is not None and (rule in WITHHELD or reason in EXPLAINED)


class GiveUp(NamedTuple):
    """The decision to raise the error."""

    rule: Rule


class Retry(NamedTuple):
    """The decision to retry after ``delay`` seconds."""

    delay: float
    held_back: bool = False
    """True if the delay is longer because the client's budget is spent."""


Verdict = GiveUp | Retry


def ask_strategy(state: RetryState, failure: Failure) -> Any:
    """Return the strategy's answer, which may be an awaitable.

    Failures with some reasons (``RetryReason.always_retry``) are always retried. For these, a
    strategy is called only if it follows MongoDB's specifications.
    """
    if failure.reason.always_retry and not follows_specification(state):
        return RetryAction(backoff.controlled(state.attempts))
    return state.strategy.retry_after(state, failure)


MAX_ATTEMPTS = 100_000
"""Maximum attempts of one command, in case the clock stands still. One minute has room for fewer
attempts than this, even if each takes only 1 ms.
"""


@dataclass(frozen=True, eq=False, repr=False)
class RetryRules:
    """The rules, with the options they need. Immutable, so thread- and task-safe."""

    max_retries: int = 5
    """Maximum retries of a command after an overload error (Client Backpressure, MAX_RETRIES),
    unless the client sets its own maximum.
    """
    base_backoff: float = backoff.OVERLOAD_BASE
    """Seconds."""
    max_backoff: float = backoff.OVERLOAD_LIMIT
    """Seconds."""
    random: Random = random.random

    def decide(self, state: RetryState, failure: Failure) -> Verdict:
        """Apply all rules to a failure that ``state`` has counted. Needs a strategy that is not
        async.
        """
        rule = self.declined(state, failure)
        if rule is not None:
            return GiveUp(rule)
        return self.verdict(state, failure, ask_strategy(state, failure))

    def verdict(self, state: RetryState, failure: Failure, answer: Answer) -> Verdict:
        """Apply rules 5 to 8, given the strategy's answer."""
        if answer is None:
            # The two rules have different explanations. For a permanent error, another strategy
            # would not help.
            return GiveUp(Rule.TERMINAL if failure.reason in TERMINAL else Rule.STRATEGY)
        delay, held_back = max(0.0, answer.delay), self.holds_back(state, failure)
        if held_back:
            delay = max(delay, backoff.held_back(state.attempts, self.random))
        elif state.retries >= 1 and is_extra(state):
            # Spread the extra retries over the time that is allowed for them, even if the strategy
            # returned a shorter delay.
            delay = max(delay, backoff.exponential(state.attempts, self.random))
        if failure.overloaded:
            return self._after_overload(state, failure, delay, held_back=held_back)
        limit = state.time_limit
        room = math.inf if limit is None else _room(limit, failure)
        # Here and below, "not >=" and "not <=" are intentional: comparisons with NaN are False, so
        # a NaN counts as no time left.
        if not room >= (LAST_ATTEMPT if delay else SHORTEST):
            # Without a deadline, running out of time means that the retries are used up.
            return GiveUp(Rule.ATTEMPTS if state.deadline is None else Rule.DEADLINE)
        # An early attempt is better than none, so shorten the delay until one more attempt fits.
        delay = min(delay, max(0.0, room - LAST_ATTEMPT))
        if failure.next_probe_in is not None and not failure.elsewhere:
            # Rule 7: do not shorten this wait, because the breaker refuses all attempts until its
            # probe. Without a time limit, do not wait for the probe at all.
            if not failure.next_probe_in <= (0.0 if limit is None else room):
                return GiveUp(Rule.BREAKER)
            delay = max(delay, failure.next_probe_in)
        return Retry(delay, held_back)

    def _after_overload(
        self, state: RetryState, failure: Failure, wait: float, *, held_back: bool
    ) -> Verdict:
        """Apply rules 6 and 8 after an overload error.

        Args:
            state: The operation's state.
            failure: The overload error.
            wait: The delay in seconds from the strategy or the budget. It is shortened if the
                remaining time is too short.
            held_back: Whether ``wait`` is longer because the budget is spent.
        """
        base = self.base_backoff if failure.base_backoff is None else failure.base_backoff
        delay = backoff.overload(state.attempts, self.random, base, self.max_backoff)
        if failure.retry_after is not None:
            # The server may send the same ``retry_after`` to many clients. They must not all come
            # back at once, so add it to the random delay.
            base = max(base, failure.retry_after)
            delay += min(failure.retry_after, self.max_backoff)
        limit = state.time_limit
        # Do not shorten the specification's delay: an early retry would add to the overload.
        if limit is not None and not limit.allows(delay):
            return GiveUp(Rule.ATTEMPTS if state.deadline is None else Rule.OVERLOAD_WAIT)
        # Two kinds of retries are allowed even if the budget is spent: those of commits and aborts,
        # and, in a grace period, those that pymongo would make as well.
        is_exempt = must_end_transaction(state) or (
            state.in_grace and state.rejections <= PYMONGO_RETRIES
        )
        allowed = state.budget.allows(failure) and not _is_too_late(state, delay, base)
        if state.budget.is_rejection(failure) and not (is_exempt or allowed):
            return GiveUp(Rule.BUDGET)
        if not wait > delay:
            return Retry(delay)
        room = math.inf if limit is None else _room(limit, failure)
        return Retry(max(delay, min(wait, room - LAST_ATTEMPT)), held_back)

    def max_retries_of(self, own: int | None) -> int:
        """Return the maximum number of retries after an overload error.

        Args:
            own: The client's own maximum, or None to use the configured one.
        """
        return self.max_retries if own is None else own

    def holds_back(self, state: RetryState, failure: Failure) -> bool:
        """Return True if a retry must wait longer because the budget is spent.

        This is rule 8 for failures other than rejections. Such retries are delayed but not
        declined. Otherwise, an election would cause errors before the deadline. The first retry is
        not delayed, as in every driver, and neither are retries after failures that do not come
        from a server in distress, such as write conflicts.
        """
        budget = state.budget
        if state.attempts < 2 or follows_specification(state):  # noqa: PLR2004 - the first retry
            return False
        excluded = failure.reason not in DISTRESS or budget.is_rejection(failure)
        return not excluded and not budget.allows(failure)

    def declined(self, state: RetryState, failure: Failure) -> Rule | None:
        """Apply rules 0 to 4. Return the rule that declines, or None if the strategy decides."""
        # The error names the first rule that declines, so the order decides what the user reads.
        # The deadline is first, because an expired deadline must be an OperationTimeoutError.
        if failure.timed_out and _deadline_is_over(state, failure):
            return Rule.DEADLINE
        # Only the lost router can continue the transaction, so a retry could not succeed.
        if failure.router_lost:
            return Rule.NEVER_RETRIED
        if failure.selection:
            return Rule.TERMINAL if failure.terminal else Rule.SELECTION
        # When a session expires, the server forgets its transaction numbers and no longer
        # recognizes a retry of the write.
        if failure.session_expired and not (state.kind is Kind.WRITE and state.declared_idempotent):
            return Rule.NOT_SAFE
        if state.kind is Kind.TRANSACTION_END and failure.transaction_over:
            return Rule.TRANSACTION_OVER
        # With both overload labels, the server has not run the command, so any command is safe to
        # retry.
        if not failure.retryable_overload:
            if failure.reason is RetryReason.UNKNOWN and failure.stopped_by_server:
                return Rule.TIME_LIMIT
            if _is_never_retried(state, failure):
                return Rule.NEVER_RETRIED
            if failure.reason in (RetryReason.UNKNOWN, RetryReason.NO_RETRYABLE_WRITES):
                return Rule.UNKNOWN_REASON
            if failure.reason is RetryReason.POOL_EXHAUSTED and not _waits_again(state):
                return Rule.UNKNOWN_REASON
            if not self._safe(state, failure):
                return Rule.NOT_SAFE
        # MongoDB's Transactions specification retries commits and aborts even if retryWrites is
        # off.
        if not state.retries_enabled and state.kind is not Kind.TRANSACTION_END:
            return Rule.SWITCHED_OFF
        rule = self._attempts_left(state, failure)
        # The explanation of ATTEMPTS recommends a timeout for more retries. For a permanent error
        # that would be wrong advice.
        return Rule.TERMINAL if rule is Rule.ATTEMPTS and failure.reason in TERMINAL else rule

    def _safe(self, state: RetryState, failure: Failure) -> bool:
        """Apply rule 2: return True if a retry cannot apply a write twice.

        Not for errors with both overload labels, after which any command is safe to retry.
        """
        if state.kind in (Kind.READ, Kind.TRANSACTION_END) or failure.carried_txn_number:
            return True
        if failure.stage is Stage.NOT_SENT:
            # This attempt was not sent, but an earlier one may have been. The earlier one was
            # retried, so either it carried a transaction number, as the next attempt will, or the
            # write is declared idempotent.
            return True
        # Only unacknowledged writes have no reply. pymongo waits for the reply to any other
        # command, whatever its write concern.
        has_reply = state.acknowledged or state.kind is not Kind.WRITE
        return has_reply and state.declared_idempotent

    def _attempts_left(self, state: RetryState, failure: Failure) -> Rule | None:
        """Apply rule 4: return the rule that declines a further attempt, or None."""
        if failure.server_answered and _is_slow_again(state, failure):
            return Rule.TIME_LIMIT
        must_end = state.overloaded and must_end_transaction(state)
        if state.overloaded and not (must_end and state.deadline is not None):
            # After one overload error, the maximum counts all retries of the command, even with a
            # deadline (Client Backpressure, "Interaction with Other Retry Policies").
            most = self.max_retries_of(state.max_retries)
            return Rule.ATTEMPTS if state.retries >= most else None
        if state.deadline is not None and (must_end or not state.once):
            # Also limit the total delay and the number of attempts, because a clock that stands
            # still, as in a test, never reaches the deadline.
            over = state.waited > state.deadline.timeout or state.attempts >= MAX_ATTEMPTS
            return Rule.DEADLINE if over else None
        if state.retry_window is not None and not state.once:
            # With ``timeout_ms=0`` there is no deadline, but retries must end at some time.
            return Rule.ATTEMPTS if state.retry_window.expired() else None
        if state.retries < 1 or is_extra(state):
            return None
        return Rule.ATTEMPTS


def must_end_transaction(state: RetryState) -> bool:
    """Return True for a commit or an abort, unless the strategy follows MongoDB's specifications.

    After rejections, these are retried until the deadline, even if the budget is spent. Without the
    commit, the outcome of the transaction is unknown; without the abort, it keeps its locks.
    """
    return state.kind is Kind.TRANSACTION_END and not follows_specification(state)


def _is_too_late(state: RetryState, delay: float, base: float) -> bool:
    """Return True if a retry that pymongo would not make comes too long after the first rejection.

    The budget decides how long that is.
    """
    since = state.rejected_since
    if since is None or state.rejections <= PYMONGO_RETRIES:
        return False
    return state.budget.is_too_late(since, delay, base)


def is_extra(state: RetryState) -> bool:
    """Return True if a retry is extra, in addition to the single retry that an operation without a
    deadline gets.

    After a server is lost, the library finds out within milliseconds if it is back, but pymongo
    only within half a second. So pymongo's single retry may succeed after a short outage in which
    the library's would fail. Retries are therefore extra until pymongo would have retried.
    """
    excluded = state.time_limit is not None or state.once or follows_specification(state)
    return not (excluded or state.overloaded or state.pymongo_would_have_retried)


def _waits_again(state: RetryState) -> bool:
    """Return True if the operation may wait for a connection of a full pool a second time.

    As in pymongo, only a read may, and only once. The connections are in use by this process, and
    more waiting operations would not help.
    """
    is_read = state.kind is Kind.READ and not state.in_transaction
    return is_read and state.reasons.count(RetryReason.POOL_EXHAUSTED) == 1


def _is_slow_again(state: RetryState, failure: Failure) -> bool:
    """Return True if an earlier attempt on the same server had no reply either.

    The server continues to execute each attempt that the client gives up, so further attempts would
    keep it even busier. pymongo retries once. Commits and aborts are excluded, because they cost
    the server little.
    """
    return state.unanswered_by.count(failure.server) > 1 and not must_end_transaction(state)


def _is_never_retried(state: RetryState, failure: Failure) -> bool:
    """Apply rule 0: return True if the kind of the operation forbids a retry.

    Not for errors with both overload labels, after which any command is safe to retry.
    """
    is_statement = state.in_transaction and state.kind is not Kind.TRANSACTION_END
    is_undeclared = state.kind in RETRIED_IF_DECLARED and not state.declared_idempotent
    if not (is_statement or is_undeclared or state.kind in NEVER_RETRIED):
        return False
    # By default, such operations are retried if they were not sent, which MongoDB's specifications
    # do not do. A cleanup is not retried even then: nobody waits for it, and the server cleans up
    # by itself later.
    retries_unsent = state.kind is not Kind.CLEANUP and not follows_specification(state)
    return failure.stage is not Stage.NOT_SENT or not retries_unsent


def _room(limit: Deadline, failure: Failure) -> float:
    """Return the seconds within which an attempt must start for its reply to arrive in time."""
    # With 0.0 as the first argument, max() treats a NaN round-trip time as 0. If the limit is NaN,
    # the result is NaN, which the callers treat as no time left.
    return limit.remaining() - max(0.0, failure.min_rtt)


def _deadline_is_over(state: RetryState, failure: Failure) -> bool:
    """Return True if the deadline ended an attempt that timed out.

    Another limit may have ended it before the deadline: the limit for server selection, for the
    pool, for connecting, for the socket, or ``maxTimeMS``.
    """
    if state.deadline is None or failure.application_limit_ms is not None:
        return False
    return is_over(_room(state.deadline, failure), state.deadline.timeout, failure.stage)


def is_over(left: float, timeout: float, stage: Stage) -> bool:
    """Return True if practically nothing of a timeout is left.

    Args:
        left: Seconds left.
        timeout: The whole timeout, in seconds.
        stage: How far the attempt got.
    """
    # A server that stops a command at its ``maxTimeMS`` uses its own clock. Its reply may arrive a
    # moment before the deadline on the client's clock.
    early = 0.01 * (1 + timeout) if stage is Stage.ANSWERED else 0.0
    # "not >=" instead of "<", so that a NaN counts as no time left.
    return not left - early >= SHORTEST
