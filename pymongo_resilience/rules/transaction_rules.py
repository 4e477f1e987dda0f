"""What follows a failure in a transaction: with_transaction's rules, with the library's limits.
Pure.

Source: Convenient API for Transactions, "Sequence of Actions".
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from .failure import TRANSIENT_TRANSACTION
from .retry_rules import GiveUp, NeedsStrategy, Rule
from .strategy import RetryAction

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience.clock import Random

    from .failure import Failure
    from .retried_operation import Operation
    from .retry_rules import RetryRules, Verdict

UNKNOWN_COMMIT = "UnknownTransactionCommitResult"
MAX_TIME_EXPIRED = 50
TIME_LIMIT = 120.0
"""Seconds, where there is no deadline."""
_FIRST_PAUSE, _GROWTH, _LONGEST_PAUSE = 0.005, 1.5, 0.5


class Repeat(Enum):
    """What is repeated."""

    NOTHING = "nothing"
    COMMIT = "commit"
    TRANSACTION = "transaction"


def repeat(
    has_label: Callable[[str], bool],
    code: int | None,
    *,
    committing: bool = False,
    applied: bool = False,
) -> Repeat:
    """After an error with these labels, of the body or of the commit.

    ``applied``: the reply of the commit shows that it ran, so a new transaction would be a second
    one.
    """
    if committing and has_label(UNKNOWN_COMMIT) and code != MAX_TIME_EXPIRED:
        return Repeat.COMMIT
    again = has_label(TRANSIENT_TRANSACTION) and not applied
    return Repeat.TRANSACTION if again else Repeat.NOTHING


def pause(retry: int, random: Random) -> float:
    """Seconds before this retry of a transaction; the first one is 1."""
    return random() * min(_FIRST_PAUSE * _GROWTH ** min(retry, 100), _LONGEST_PAUSE)


def verdict(rules: RetryRules, operation: Operation, failure: Failure, what: Repeat) -> Verdict:
    """Whether ``what`` is done, and after how many seconds.

    The failure counts for ``operation``, and not for its budget: the command's own has done that.
    """
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
    delay = pause(operation.attempts, rules.random)
    return rules.apply_strategy(operation, failure, RetryAction(delay))
