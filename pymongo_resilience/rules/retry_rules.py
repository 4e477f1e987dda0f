"""The rules of retries, in order. Pure: applying them changes nothing.

A decision takes two steps, because a strategy may be a coroutine: ``declined`` applies the rules
that need no strategy, and ``verdict`` those that need its answer. docs/retries.md explains the
rules.
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
"""Seconds that are kept for the next attempt when a delay is shortened, because sleeps end late."""
NEVER_RETRIED = frozenset({Kind.GET_MORE, Kind.CLEANUP})
"""Once sent, these are retried only if the server rejected them."""
RETRIED_IF_DECLARED = frozenset({Kind.COMMAND, Kind.AGGREGATE_WRITE})
"""The same, unless the application declares that a second execution does no harm."""


class Rule(enum.StrEnum):
    """The rule that declined a retry. Telemetry exports the value."""

    SELECTION = "selection"
    """No server could be selected. Reported, never retried."""
    NEVER_RETRIED = "never_retried"
    """Rule 0: the operation is retried only if it was not sent or was rejected."""
    TRANSACTION_OVER = "transaction_over"
    """Rule 0: a commit or abort of a transaction that the server has aborted. The caller retries
    the whole transaction.
    """
    TIME_LIMIT = "time_limit"
    """Rules 0 and 4: the command takes longer than a limit other than the deadline, and a retry
    would take as long. Either the server stopped it, at the application's own ``maxTimeMS`` or at a
    limit that the server has by itself; or ``socketTimeoutMS`` ended it and one retry, although the
    server is alive."""
    UNKNOWN_REASON = "unknown_reason"
    """Rule 1: the reason is unknown, or the pool is full, so a retry would not help."""
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
    """Rule 8: the server is overloaded, and the client's retry budget is spent or its patience with
    this operation has ended.
    """


WITHHELD = frozenset({
    Rule.ATTEMPTS, Rule.STRATEGY, Rule.OVERLOAD_WAIT, Rule.BREAKER, Rule.BUDGET,
})  # fmt: skip
"""Rules that decline a retry which would be safe and is normally made. The error and the log report
it, even after a single attempt that the server answered.
"""


class GiveUp(NamedTuple):
    """The decision to raise the error."""

    rule: Rule


class Retry(NamedTuple):
    """The decision to retry after ``delay`` seconds."""

    delay: float
    held_back: bool = False
    """The delay is longer because the client's budget is spent."""


Verdict = GiveUp | Retry


def ask_strategy(state: RetryState, failure: Failure) -> Any:
    """Return the strategy's answer, which may be an awaitable.

    Some reasons are always retried. Then the strategy is not asked, unless it follows MongoDB's
    specifications.
    """
    if failure.reason.always_retry and not follows_specification(state):
        return RetryAction(backoff.controlled(state.attempts))
    return state.strategy.retry_after(state, failure)


MAX_ATTEMPTS = 100_000
"""Maximum attempts of one command, even if the clock stands still. More than fit into a minute at 1
ms each.
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
            # The rules differ in their explanation: for a permanent error, another strategy would
            # not help either.
            return GiveUp(Rule.TERMINAL if failure.reason in TERMINAL else Rule.STRATEGY)
        delay, held_back = max(0.0, answer.delay), self.holds_back(state, failure)
        if held_back:
            delay = max(delay, backoff.held_back(state.attempts, self.random))
        elif state.retries >= 1 and is_extra(state):
            # Spread extra retries over their time, whatever delay the strategy returned.
            delay = max(delay, backoff.exponential(state.attempts, self.random))
        if failure.overloaded:
            return self._after_overload(state, failure, delay, held_back=held_back)
        limit = state.time_limit
        room = math.inf if limit is None else _room(limit, failure)
        # Here and below, comparisons are written so that a NaN leaves no room.
        if not room >= (LAST_ATTEMPT if delay else SHORTEST):
            # Without a deadline, the limit was the time in which retries are allowed.
            return GiveUp(Rule.ATTEMPTS if state.deadline is None else Rule.DEADLINE)
        # Rather try early than not at all: shorten the delay so that one more attempt fits.
        delay = min(delay, max(0.0, room - LAST_ATTEMPT))
        if failure.next_probe_in is not None and not failure.elsewhere:
            # Rule 7: before its probe, the breaker would refuse the attempt again, so this wait is
            # not shortened. Without a time limit, do not wait for the probe.
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
            wait: Seconds by which the strategy or the budget delay the retry. Shortened if the time
                does not suffice.
            held_back: Whether the budget delays it.
        """
        base = self.base_backoff if failure.base_backoff is None else failure.base_backoff
        delay = backoff.overload(state.attempts, self.random, base, self.max_backoff)
        limit = state.time_limit
        # The specification's delay is never shortened: an early retry would add to the overload.
        if limit is not None and not limit.allows(delay):
            return GiveUp(Rule.ATTEMPTS if state.deadline is None else Rule.OVERLOAD_WAIT)
        # Retries that pymongo would make as well, in the grace period, and commits and aborts do
        # not depend on the budget.
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
            own: The client's own maximum, or None.
        """
        return self.max_retries if own is None else own

    def holds_back(self, state: RetryState, failure: Failure) -> bool:
        """Return True if a retry must wait because the budget is spent (rule 8, other than
        rejections).

        No such retry is declined, or an election would cause errors before the deadline. The first
        retry is immediate, as in every driver. Failures that a server in distress does not cause,
        such as write conflicts, are not delayed.
        """
        budget = state.budget
        if state.attempts < 2 or follows_specification(state):  # noqa: PLR2004 - the first retry
            return False
        excluded = failure.reason not in DISTRESS or budget.is_rejection(failure)
        return not excluded and not budget.allows(failure)

    def declined(self, state: RetryState, failure: Failure) -> Rule | None:
        """Apply rules 0 to 4. Return the rule that declines, or None if the strategy decides."""
        if failure.timed_out and _deadline_is_over(state, failure):
            return Rule.DEADLINE
        # Only that router can continue the transaction, so a retry could not succeed.
        if failure.router_lost:
            return Rule.NEVER_RETRIED
        if failure.selection:
            return Rule.TERMINAL if failure.terminal else Rule.SELECTION
        # The server forgets transaction numbers together with the session, so it could no longer
        # recognize a retry of the write.
        if failure.session_expired and not (state.kind is Kind.WRITE and state.declared_idempotent):
            return Rule.NOT_SAFE
        if state.kind is Kind.TRANSACTION_END and failure.transaction_over:
            return Rule.TRANSACTION_OVER
        # With both overload labels, the server has not run the command, so any command is safe to
        # retry.
        if not failure.retryable_overload:
            if failure.stopped_by_server and failure.reason is RetryReason.UNKNOWN:
                return Rule.TIME_LIMIT
            if _is_never_retried(state, failure):
                return Rule.NEVER_RETRIED
            if failure.reason is RetryReason.UNKNOWN:
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
        """Rule 2, for errors without both overload labels."""
        if state.kind in (Kind.READ, Kind.TRANSACTION_END) or failure.carried_txn_number:
            return True
        if failure.stage is Stage.NOT_SENT:
            # An earlier attempt may have been sent. It was retried, so it carried a transaction
            # number, which the next attempt carries as well, or the write is declared idempotent.
            return True
        # pymongo waits for the reply of any other command, whatever the write concern.
        has_reply = state.acknowledged or state.kind is not Kind.WRITE
        return has_reply and state.declared_idempotent

    def _attempts_left(self, state: RetryState, failure: Failure) -> Rule | None:
        """Rule 4."""
        if failure.server_answered and _is_slow_again(state, failure):
            return Rule.TIME_LIMIT
        must_end = state.overloaded and must_end_transaction(state)
        if state.overloaded and not (must_end and state.deadline is not None):
            most = self.max_retries_of(state.max_retries)
            return Rule.ATTEMPTS if state.retries >= most else None
        if state.deadline is not None and (must_end or not state.once):
            # A clock that stands still, as in a test, never passes the deadline. Also limit the
            # total delay and the number of attempts.
            over = state.waited > state.deadline.timeout or state.attempts >= MAX_ATTEMPTS
            return Rule.DEADLINE if over else None
        if state.retry_window is not None and not state.once:
            return Rule.ATTEMPTS if state.retry_window.expired() else None
        if state.retries < 1 or is_extra(state):
            return None
        return Rule.ATTEMPTS


def must_end_transaction(state: RetryState) -> bool:
    """Return True for a commit or an abort.

    After rejections, these are retried until the deadline, whatever the budget holds: the outcome
    of the transaction, or its locks, depend on them.
    """
    return state.kind is Kind.TRANSACTION_END and not follows_specification(state)


def _is_too_late(state: RetryState, delay: float, base: float) -> bool:
    """Return True if the budget ends those retries of this operation that pymongo would not
    make.
    """
    since = state.rejected_since
    if since is None or state.rejections <= PYMONGO_RETRIES:
        return False
    return state.budget.is_too_late(since, delay, base)


def is_extra(state: RetryState) -> bool:
    """Return True if a retry does not count as the single retry that an operation without a
    deadline gets.

    The library detects a lost server within milliseconds, pymongo within half a second. So
    pymongo's single retry may come after a short outage in which the library's single retry would
    fail. Until pymongo would have retried, retries are therefore extra.
    """
    excluded = state.time_limit is not None or state.once or follows_specification(state)
    return not (excluded or state.overloaded or state.pymongo_would_have_retried)


def _waits_again(state: RetryState) -> bool:
    """Return True if the operation waits for a full pool once more. As in pymongo, a read does so
    once.

    The pool is full of this process's own operations, and more waiting would only add to them.
    """
    is_read = state.kind is Kind.READ and not state.in_transaction
    return is_read and state.reasons.count(RetryReason.POOL_EXHAUSTED) == 1


def _is_slow_again(state: RetryState, failure: Failure) -> bool:
    """Return True if an earlier attempt on the same server had no reply either.

    The server goes on with each attempt that the client gives up, so more of them would keep it
    even busier. pymongo makes one retry. A commit or an abort costs the server little.
    """
    return state.unanswered_by.count(failure.server) > 1 and not must_end_transaction(state)


def _is_never_retried(state: RetryState, failure: Failure) -> bool:
    """Rule 0, for errors without both overload labels."""
    is_statement = state.in_transaction and state.kind is not Kind.TRANSACTION_END
    is_undeclared = state.kind in RETRIED_IF_DECLARED and not state.declared_idempotent
    if not (is_statement or is_undeclared or state.kind in NEVER_RETRIED):
        return False
    # MongoDB's specifications do not retry these even if they were not sent. A cleanup is not
    # retried either: nobody waits for it, and the server does the same by itself later.
    retries_unsent = state.kind is not Kind.CLEANUP and not follows_specification(state)
    return failure.stage is not Stage.NOT_SENT or not retries_unsent


def _room(limit: Deadline, failure: Failure) -> float:
    """Return the seconds in which an attempt can start and its reply still arrive in time."""
    # Written so that a NaN round-trip time counts as 0, and a NaN limit leaves no room.
    return limit.remaining() - max(0.0, failure.min_rtt)


def _deadline_is_over(state: RetryState, failure: Failure) -> bool:
    """Return True if the deadline ended an attempt that timed out.

    Other limits may have ended it before the deadline: those for server selection, the pool,
    connections, sockets and the server.
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
    # Written so that a NaN leaves no time.
    return not left - early >= SHORTEST
