"""The rules of retries, in order, in one place. Pure: asking spends nothing.

A decision has two steps, since a strategy may be a coroutine: ``declined`` applies the rules that
need no strategy, ``verdict`` those that follow its answer. docs/retries.md says what is not
obvious.
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
"""Seconds that a shortened delay leaves for the next attempt: sleeps end late."""
NEVER_RETRIED = frozenset({Kind.COMMAND, Kind.GET_MORE, Kind.AGGREGATE_WRITE, Kind.CLEANUP})
"""Once sent, these are retried only if the server rejected them."""


class Rule(enum.StrEnum):
    """The rule that declined a retry; the value is what telemetry shows."""

    SELECTION = "selection"
    """No server could be selected: reported, never retried."""
    NEVER_RETRIED = "never_repeated"
    """Rule 0: an operation that is retried only if it was not sent, or was rejected."""
    TRANSACTION_OVER = "transaction_over"
    """Rule 0: a commit or abort of an aborted transaction; its caller repeats the transaction."""
    TIME_LIMIT = "time_limit"
    """Rule 0: the server stopped the command at a limit other than the deadline: the application's
    own ``maxTimeMS``, or a limit that the server has by itself. A retry would take as long."""
    UNKNOWN_REASON = "unknown_reason"
    """Rule 1: the cause is unknown, or the pool is full: a retry would not help."""
    TERMINAL = "terminal"
    """Rule 1: the strategy treats the cause as terminal."""
    NOT_SAFE = "not_safe"
    """Rule 2: a repetition might apply the write twice."""
    SWITCHED_OFF = "switched_off"
    """Rule 3: retryReads or retryWrites is off."""
    ATTEMPTS = "attempts"
    """Rule 4: no attempts left."""
    STRATEGY = "strategy"
    """Rule 5: the strategy said no."""
    DEADLINE = "deadline"
    """Rule 6: no attempt fits before the deadline."""
    OVERLOAD_WAIT = "overload_wait"
    """Rule 6: the wait after an overload error does not end before the deadline. Nothing timed out:
    that error is raised."""
    BREAKER = "circuit_breaker"
    """Rule 7: the server's circuit breaker is open, and there is no time to wait for its probe."""
    BUDGET = "budget"
    """Rule 8: the server is overloaded, and the client's retry budget is spent, or has been patient
    with this operation for long enough."""


WITHHELD = frozenset({
    Rule.ATTEMPTS, Rule.STRATEGY, Rule.OVERLOAD_WAIT, Rule.BREAKER, Rule.BUDGET,
})  # fmt: skip
"""Rules that decline a retry which is safe and normally made: the error and the log say so, even
after a single attempt that the server has answered."""


class GiveUp(NamedTuple):
    """The error is final."""

    rule: Rule


class Retry(NamedTuple):
    """Repeat after ``delay`` seconds."""

    delay: float
    held_back: bool = False
    """The client's budget is spent, and the delay is longer for it."""


Verdict = GiveUp | Retry


def ask_strategy(state: RetryState, failure: Failure) -> Any:
    """Its answer, maybe to be awaited. Not asked where the cause is never its concern."""
    if failure.reason.always_retry and not follows_specification(state):
        return RetryAction(backoff.controlled(state.attempts))
    return state.strategy.retry_after(state, failure)


MAX_ATTEMPTS = 100_000
"""Of one command, whatever the clock shows: more than fit into a minute at 1 ms each."""


@dataclass(frozen=True, eq=False, repr=False)
class RetryRules:
    """Immutable, so thread- and task-safe; an operation belongs to one thread or task."""

    max_retries: int = 5
    """How often a command is repeated once an overload error was seen (Client Backpressure,
    MAX_RETRIES), unless its operation has a number of its own."""
    base_backoff: float = backoff.OVERLOAD_BASE
    """Seconds, as the next one."""
    max_backoff: float = backoff.OVERLOAD_LIMIT
    random: Random = random.random

    def decide(self, state: RetryState, failure: Failure) -> Verdict:
        """All rules, for a failure that ``operation`` has counted and a strategy of the library."""
        rule = self.declined(state, failure)
        if rule is not None:
            return GiveUp(rule)
        return self.verdict(state, failure, ask_strategy(state, failure))

    def verdict(self, state: RetryState, failure: Failure, answer: Answer) -> Verdict:
        """Rules 5 to 8, with the strategy's answer."""
        if answer is None:
            return GiveUp(Rule.TERMINAL if failure.reason in TERMINAL else Rule.STRATEGY)
        delay, held_back = max(0.0, answer.delay), self.holds_back(state, failure)
        if held_back:
            delay = max(delay, backoff.held_back(state.attempts, self.random))
        elif state.retries >= 1 and is_extra(state):
            # Extra retries are spread over their time, whatever the strategy says.
            delay = max(delay, backoff.exponential(state.attempts, self.random))
        if failure.overloaded:
            return self._after_overload(state, failure, delay, held_back=held_back)
        limit = state.time_limit
        room = math.inf if limit is None else _room(limit, failure)
        # Here and below, the comparison is written so that NaN leaves no room.
        if not room >= (LAST_ATTEMPT if delay else SHORTEST):
            # Without a deadline, only the number of attempts ended it.
            return GiveUp(Rule.ATTEMPTS if state.deadline is None else Rule.DEADLINE)
        delay = min(delay, max(0.0, room - LAST_ATTEMPT))
        if failure.next_probe_in is not None and not failure.elsewhere:
            # Rule 7: an attempt before the probe would be refused again, so that wait is not
            # shortened. Without a deadline, do not wait for the probe.
            if not failure.next_probe_in <= (0.0 if limit is None else room):
                return GiveUp(Rule.BREAKER)
            delay = max(delay, failure.next_probe_in)
        return Retry(delay, held_back)

    def _after_overload(
        self, state: RetryState, failure: Failure, wait: float, *, held_back: bool
    ) -> Verdict:
        """``wait``: what else delays the retry, cut to the time that is left."""
        base = self.base_backoff if failure.base_backoff is None else failure.base_backoff
        delay = backoff.overload(state.attempts, self.random, base, self.max_backoff)
        limit = state.time_limit
        if limit is not None and not limit.allows(delay):
            return GiveUp(Rule.ATTEMPTS if state.deadline is None else Rule.OVERLOAD_WAIT)
        granted = must_end_transaction(state) or (
            state.in_grace and state.rejections <= PYMONGO_RETRIES
        )
        allowed = state.budget.allows(failure) and not _is_too_late(state, delay, base)
        if state.budget.is_rejection(failure) and not (granted or allowed):
            return GiveUp(Rule.BUDGET)
        if not wait > delay:
            return Retry(delay)
        room = math.inf if limit is None else _room(limit, failure)
        return Retry(max(delay, min(wait, room - LAST_ATTEMPT)), held_back)

    def max_retries_of(self, own: int | None) -> int:
        """How often a command is repeated once an overload error was seen; ``own``: the number of
        the client, where it has one."""
        return self.max_retries if own is None else own

    def holds_back(self, state: RetryState, failure: Failure) -> bool:
        """Rule 8 for what is no rejection: the budget is spent, and a retry has to wait.

        An election must not become an error within a deadline, so none is declined; the first may
        go at once, as every driver's does. After a conflict, which no server in distress causes,
        none waits."""
        budget = state.budget
        if state.attempts < 2 or follows_specification(state):  # noqa: PLR2004 - the first retry
            return False
        excluded = failure.reason not in DISTRESS or budget.is_rejection(failure)
        return not excluded and not budget.allows(failure)

    def declined(self, state: RetryState, failure: Failure) -> Rule | None:
        """Rules 0 to 4: the one that declines; None where the strategy is to be asked."""
        if failure.timed_out and _deadline_is_over(state, failure):
            return Rule.DEADLINE
        if failure.router_lost:
            return Rule.NEVER_RETRIED
        if failure.selection:
            return Rule.TERMINAL if failure.terminal else Rule.SELECTION
        if failure.session_expired and not (state.kind is Kind.WRITE and state.declared_idempotent):
            return Rule.NOT_SAFE
        if state.kind is Kind.TRANSACTION_END and failure.transaction_over:
            return Rule.TRANSACTION_OVER
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
        if not state.retries_enabled and state.kind is not Kind.TRANSACTION_END:
            return Rule.SWITCHED_OFF
        rule = self._attempts_left(state)
        # More retries would not help, so the error must not recommend them.
        return Rule.TERMINAL if rule is Rule.ATTEMPTS and failure.reason in TERMINAL else rule

    def _safe(self, state: RetryState, failure: Failure) -> bool:
        """Rule 2 for errors without both overload labels."""
        if state.kind in (Kind.READ, Kind.TRANSACTION_END) or failure.carried_txn_number:
            return True
        if failure.stage is Stage.NOT_SENT:
            # If an earlier attempt was sent, it carried a transaction number, which this one would
            # carry as well, or the write is declared idempotent.
            return True
        return state.acknowledged and state.declared_idempotent

    def _attempts_left(self, state: RetryState) -> Rule | None:
        """Rule 4."""
        must_end = state.overloaded and must_end_transaction(state)
        if state.overloaded and not (must_end and state.deadline is not None):
            most = self.max_retries_of(state.max_retries)
            return Rule.ATTEMPTS if state.retries >= most else None
        if state.deadline is not None and (must_end or not state.once):
            # A clock that stands still, as a test's may, passes no deadline.
            over = state.waited > state.deadline.timeout or state.attempts >= MAX_ATTEMPTS
            return Rule.DEADLINE if over else None
        if state.retry_window is not None and not state.once:
            return Rule.ATTEMPTS if state.retry_window.expired() else None
        if state.retries < 1 or is_extra(state):
            return None
        return Rule.ATTEMPTS


def must_end_transaction(state: RetryState) -> bool:
    """Return True for a commit or an abort. They are retried after rejections whatever the budget
    has left, and until the deadline: what the transaction did, or its locks, depend on it."""
    return state.kind is Kind.TRANSACTION_END and not follows_specification(state)


def _is_too_late(state: RetryState, delay: float, base: float) -> bool:
    """Return True if the budget ends the retries of this operation that pymongo would not make."""
    since = state.rejected_since
    if since is None or state.rejections <= PYMONGO_RETRIES:
        return False
    return state.budget.is_too_late(since, delay, base)


def is_extra(state: RetryState) -> bool:
    """Whether a retry would not count as the one that an operation without a deadline has.

    The library finds a lost server within milliseconds, and the driver within half a second. So the
    driver's one retry outlives a short outage in which the library's would fail."""
    excluded = state.time_limit is not None or state.once or follows_specification(state)
    return not (excluded or state.overloaded or state.waits_like_pymongo)


def _waits_again(state: RetryState) -> bool:
    """Return True if an operation waits for a full pool once more, as pymongo has it: a read, once.

    The pool is full of this process's own work, which more waiting would only feed.
    """
    is_read = state.kind is Kind.READ and not state.in_transaction
    return is_read and state.reasons.count(RetryReason.POOL_EXHAUSTED) == 1


def _is_never_retried(state: RetryState, failure: Failure) -> bool:
    """Rule 0 for errors without both overload labels."""
    statement = state.in_transaction and state.kind is not Kind.TRANSACTION_END
    if not statement and state.kind not in NEVER_RETRIED:
        return False
    # MongoDB's specifications make no exception for what was not sent, and nobody waits for a
    # cleanup that a server does by itself later.
    retries_unsent = state.kind is not Kind.CLEANUP and not follows_specification(state)
    return failure.stage is not Stage.NOT_SENT or not retries_unsent


def _room(limit: Deadline, failure: Failure) -> float:
    """Seconds in which one more attempt can be begun, so that its answer may be back in time."""
    # Written so that a NaN round-trip time counts as 0, and a NaN limit leaves no room.
    return limit.remaining() - max(0.0, failure.min_rtt)


def _deadline_is_over(state: RetryState, failure: Failure) -> bool:
    """Return True if it was the deadline that ended an attempt that timed out. Server selection,
    the pool, connections, sockets and the server have limits of their own, which end earlier."""
    if state.deadline is None or failure.application_limit_ms is not None:
        return False
    return is_over(_room(state.deadline, failure), state.deadline.timeout, failure.stage)


def is_over(left: float, timeout: float, stage: Stage) -> bool:
    """Return True if ``left`` seconds of a timeout are none.

    A server that stops a command at its ``maxTimeMS`` goes by its own clock, and may answer a
    moment before the client's clock has reached the deadline.
    """
    early = 0.01 * (1 + timeout) if stage is Stage.ANSWERED else 0.0
    # Written so that a NaN leaves no time.
    return not left - early >= SHORTEST
