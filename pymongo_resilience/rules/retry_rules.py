"""The rules of retries, in order, in one place. Pure: its only side effect is what a retry takes
from the budget.

A decision has two steps, since a strategy may be a coroutine: ``check_rules`` applies the rules
that need no strategy, ``apply_strategy`` those that follow its answer. docs/retries.md says what
is not obvious. At the end, what follows a failure in a transaction that is repeated as a
whole: with_transaction's rules, with the library's limits.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pymongo_resilience.clock import SHORTEST, Deadline, Random

from . import backoff
from .failure import TRANSIENT_TRANSACTION, Failure, RetryReason, Stage
from .retried_operation import DISTRESS, Kind, Operation
from .strategy import TERMINAL, Answer, RetryAction, follows_specification

LAST_ATTEMPT = 0.005
"""Seconds that a shortened delay leaves for the next attempt: sleeps end late."""
UNKNOWN_COMMIT = "UnknownTransactionCommitResult"
MAX_TIME_EXPIRED = 50
TRANSACTION_TIME_LIMIT = 120.0
"""Seconds, where there is no deadline."""
NEVER_REPEATED = frozenset({Kind.COMMAND, Kind.GET_MORE, Kind.AGGREGATE_WRITE, Kind.CLEANUP})


class Rule(enum.StrEnum):
    """The rule that declined a retry; the value is what telemetry shows."""

    SELECTION = "selection"
    """No server could be selected: reported, never retried."""
    NEVER_REPEATED = "never_repeated"
    """Rule 0: a kind of operation that is never repeated, but for overload."""
    TRANSACTION_OVER = "transaction_over"
    """Rule 0: a commit or abort of an aborted transaction; its caller repeats the transaction."""
    UNKNOWN_REASON = "unknown_reason"
    """Rule 1: the cause is unknown."""
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
    LOAD_SHEDDING = "load_shedding"
    """The client refused the operation itself."""
    BUDGET = "budget"
    """Rule 8: the server is overloaded, and the client's retry budget is spent."""


class GiveUp(NamedTuple):
    """The error is final."""

    rule: Rule


class Retry(NamedTuple):
    """Repeat after ``delay`` seconds."""

    delay: float
    held_back: bool = False
    """The client's budget is spent, and the delay is longer for it."""


class NeedsStrategy:
    """The rules allow a retry; the strategy decides."""


NEEDS_STRATEGY = NeedsStrategy()
Verdict = GiveUp | Retry


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

    def check_rules(self, operation: Operation, failure: Failure) -> GiveUp | Retry | NeedsStrategy:
        """Rules 0 to 4, for a failure that ``operation`` has recorded."""
        declined = self._declined(operation, failure)
        if declined is not None:
            return GiveUp(declined)
        if failure.reason.always_retry and not follows_specification(operation):
            controlled = RetryAction(backoff.controlled(operation.attempts))
            return self.apply_strategy(operation, failure, controlled)
        return NEEDS_STRATEGY

    def apply_strategy(self, operation: Operation, failure: Failure, answer: Answer) -> Verdict:
        """Rules 5 to 8, with the strategy's answer."""
        if answer is None:
            return GiveUp(Rule.TERMINAL if failure.reason in TERMINAL else Rule.STRATEGY)
        if not failure.overloaded:
            delay = max(0.0, answer.delay)
            # After a conflict, which no server in distress causes, none has to wait.
            held_back = failure.reason in DISTRESS and self.holds_back(operation)
            if held_back:
                delay = max(delay, backoff.held_back(operation.attempts, self.random))
            verdict = self._fit(operation, failure, delay, held_back=held_back)
            if isinstance(verdict, GiveUp) or failure.next_probe_in is None or failure.elsewhere:
                return verdict
            return self._wait_for_probe(operation, failure, failure.next_probe_in, verdict)
        base = self.base_backoff if failure.base_backoff is None else failure.base_backoff
        delay = backoff.overload(operation.attempts, self.random, base, self.max_backoff)
        if operation.time_limit is not None and not operation.time_limit.allows(delay):
            return GiveUp(Rule.ATTEMPTS if operation.deadline is None else Rule.OVERLOAD_WAIT)
        wait, budget, held_back = answer.delay, operation.budget, False
        if budget is not None:
            rejected = budget.is_rejection(failure)
            if not budget.allows(overloaded=rejected):
                if rejected:
                    return GiveUp(Rule.BUDGET)
                held_back = True
                wait = max(wait, backoff.held_back(operation.attempts, self.random))
        longer = self._fit(operation, failure, wait) if wait > delay else None
        if isinstance(longer, Retry):
            return Retry(max(delay, longer.delay), held_back)
        return Retry(delay)

    def holds_back(self, operation: Operation) -> bool:
        """Rule 8 for what is no overload: the budget is spent, and a retry has to wait. An election
        must not become an error within a deadline, so none is declined; the first may go at once,
        as every driver's does."""
        budget = operation.budget
        if budget is None or operation.attempts < 2 or follows_specification(operation):  # noqa: PLR2004
            return False
        return budget.holds_back and not budget.allows(overloaded=False)

    def _declined(self, operation: Operation, failure: Failure) -> Rule | None:
        if failure.reason is RetryReason.LOAD_SHED:
            return Rule.LOAD_SHEDDING
        if failure.timed_out and _deadline_is_over(operation, failure):
            return Rule.DEADLINE
        if failure.selection:
            return Rule.TERMINAL if failure.terminal else Rule.SELECTION
        if failure.forgotten and not (
            operation.kind is Kind.WRITE and operation.declared_idempotent
        ):
            return Rule.NOT_SAFE
        if operation.kind is Kind.TRANSACTION:
            return self._attempts_left(operation)
        if operation.kind is Kind.TRANSACTION_END and failure.transaction_over:
            return Rule.TRANSACTION_OVER
        if not failure.retryable_overload:
            if operation.kind in NEVER_REPEATED or (
                operation.in_transaction and operation.kind is not Kind.TRANSACTION_END
            ):
                return Rule.NEVER_REPEATED
            if failure.reason is RetryReason.UNKNOWN:
                return Rule.UNKNOWN_REASON
            if not self._safe(operation, failure):
                return Rule.NOT_SAFE
        if not operation.retries_enabled and operation.kind is not Kind.TRANSACTION_END:
            return Rule.SWITCHED_OFF
        return self._attempts_left(operation)

    def _safe(self, operation: Operation, failure: Failure) -> bool:
        """Rule 2 for errors without both overload labels."""
        if operation.kind in (Kind.READ, Kind.TRANSACTION_END) or failure.carried_txn_number:
            return True
        if not operation.acknowledged:
            return False
        return failure.stage is Stage.NOT_SENT or operation.declared_idempotent

    def _attempts_left(self, operation: Operation) -> Rule | None:
        """Rule 4."""
        retries = operation.attempts - 1 - operation.unattempted
        if operation.overloaded:
            own = operation.max_retries
            most = self.max_retries if own is None else own
            return Rule.ATTEMPTS if retries >= most else None
        if operation.deadline is not None:
            # A clock that stands still, as a test's may, passes no deadline.
            return Rule.DEADLINE if operation.waited > operation.deadline.timeout else None
        if operation.retry_window is not None:
            return Rule.ATTEMPTS if operation.retry_window.expired() else None
        return Rule.ATTEMPTS if retries >= 1 else None

    def _fit(
        self, operation: Operation, failure: Failure, delay: float, *, held_back: bool = False
    ) -> Verdict:
        """Rule 6 for delays that are not an overloaded server's: shortened for one last attempt."""
        if operation.time_limit is None:
            return Retry(delay, held_back)
        room = _room(operation.time_limit, failure)
        # Here and below, the comparison is written so that NaN leaves no room.
        if not room >= (LAST_ATTEMPT if delay else SHORTEST):
            # Without a deadline, only the number of attempts ended it.
            return GiveUp(Rule.ATTEMPTS if operation.deadline is None else Rule.DEADLINE)
        return Retry(min(delay, max(0.0, room - LAST_ATTEMPT)), held_back)

    def _wait_for_probe(
        self, operation: Operation, failure: Failure, next_probe_in: float, retry: Retry
    ) -> Verdict:
        """Rule 7: an attempt before the probe would be refused again, so that wait is not
        shortened. Without a deadline, do not wait for the probe."""
        limit = operation.time_limit
        room = 0.0 if limit is None else _room(limit, failure)
        # Written so that NaN does not fit.
        if not next_probe_in <= room:
            return GiveUp(Rule.BREAKER)
        return retry._replace(delay=max(retry.delay, next_probe_in))


def _room(limit: Deadline, failure: Failure) -> float:
    """Seconds in which one more attempt can be begun, so that its answer may be back in time."""
    # Written so that a NaN round-trip time counts as 0, and a NaN limit leaves no room.
    return limit.remaining() - max(0.0, failure.min_rtt)


def _deadline_is_over(operation: Operation, failure: Failure) -> bool:
    """For an attempt that timed out. Once sent, its limit is the operation's deadline; before that,
    server selection, the pool and connecting have their own limits."""
    if operation.deadline is None:
        return False
    return failure.stage is not Stage.NOT_SENT or not _room(operation.deadline, failure) >= SHORTEST


class Repeat(enum.Enum):
    """What is repeated (Convenient API for Transactions, "Sequence of Actions")."""

    NOTHING = "nothing"
    COMMIT = "commit"
    TRANSACTION = "transaction"


def what_to_repeat(
    has_label: Callable[[str], bool],
    code: int | None,
    *,
    committing: bool = False,
    applied: bool = False,
) -> Repeat:
    """After an error with these labels, of the body or of the commit; ``applied``: the reply shows
    that the commit ran, so a new transaction would be a second one."""
    if committing and has_label(UNKNOWN_COMMIT) and code != MAX_TIME_EXPIRED:
        return Repeat.COMMIT
    again = has_label(TRANSIENT_TRANSACTION) and not applied
    return Repeat.TRANSACTION if again else Repeat.NOTHING


def transaction_verdict(
    rules: RetryRules, operation: Operation, failure: Failure, what: Repeat
) -> Verdict:
    """Whether ``what`` is done, and after how many seconds. The command's own budget has been
    charged."""
    budget, operation.budget = operation.budget, None
    operation.record(failure)
    operation.budget = budget
    answer = rules.check_rules(operation, failure)
    if isinstance(answer, GiveUp):
        return answer
    if what is Repeat.NOTHING:
        return GiveUp(Rule.UNKNOWN_REASON)
    if not isinstance(answer, NeedsStrategy):
        return answer
    delay = backoff.transaction(operation.attempts, rules.random)
    return rules.apply_strategy(operation, failure, RetryAction(delay))
