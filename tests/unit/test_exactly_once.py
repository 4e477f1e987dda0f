"""Every history of up to five attempts: acknowledged is applied once, and errors are right.

The histories are in ``support/exactly_once``; docs/proof.md states what they prove and assume.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
from support.engine.fake_clock import FakeClock
from support.engine.retry_strategies import half
from support.exactly_once.histories import (
    End,
    Operation,
    Run,
    ends,
    problems_at_server,
    problems_of_client,
    servers,
)
from support.exactly_once.reference_server import Command

from pymongo_resilience.rules.budget import UNLIMITED, RatioBudget, RetryBudget, TokenBucket
from pymongo_resilience.rules.failure import Failure
from pymongo_resilience.rules.retry_rules import Retry, RetryRules, Rule
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience.rules.strategy import NAMED

ONE = Command(("a",), numbered=True)
UNNUMBERED = Command(("a",))
OPERATIONS = (
    Operation("insert_one", Kind.WRITE, (ONE,)),
    Operation("insert_many", Kind.WRITE, (Command(("a", "b"), numbered=True),)),
    Operation("update_many", Kind.WRITE, (Command(("a", "b")),)),
    Operation("update_many, declared idempotent", Kind.WRITE, (UNNUMBERED,), idempotent=True),
    Operation("mixed bulk_write", Kind.WRITE, (ONE, Command(("b", "c")))),
    Operation("unacknowledged insert", Kind.WRITE, (UNNUMBERED,), acknowledged=False),
    Operation("find", Kind.READ, (Command(()),)),
    # A batch that is fetched twice is a batch that is skipped.
    Operation("getMore", Kind.GET_MORE, (UNNUMBERED,)),
    Operation("command", Kind.COMMAND, (UNNUMBERED,)),
    Operation("command, declared idempotent", Kind.COMMAND, (UNNUMBERED,), idempotent=True),
    Operation("aggregate with $out", Kind.AGGREGATE_WRITE, (Command(("a", "b")),)),
    Operation("$out, declared idempotent", Kind.AGGREGATE_WRITE, (UNNUMBERED,), idempotent=True),
    Operation("statement of a transaction", Kind.WRITE, (UNNUMBERED,), in_transaction=True),
    Operation("commit", Kind.TRANSACTION_END, (ONE,), in_transaction=True),
)
BUDGETS: dict[str, Callable[[FakeClock], RetryBudget]] = {
    "ratio": RatioBudget,
    "tokens": lambda _: TokenBucket(),
    "off": lambda _: UNLIMITED,
}
TIMEOUTS = (None, 2.0)
RULES = RetryRules(random=half)
INSERT_ONE, INSERT_MANY, UPDATE_MANY = OPERATIONS[:3]


def every_end(
    operation: Operation, strategy: str, budget: str, most: int, **changes: object
) -> Iterator[End]:
    for timeout in TIMEOUTS:
        yield from ends(
            operation,
            NAMED[strategy],
            BUDGETS[budget],
            timeout,
            most=most,
            **{"rules": RULES, **changes},  # type: ignore[arg-type]  # by keyword
        )


def first_problem(found: Iterator[End]) -> tuple[str | None, int]:
    """Return the first history that breaks a promise, in words, and how many were visited."""
    visited = 0
    for end in found:
        seen = [step.choice.name for step in end.world.steps]
        for problem in problems_of_client(end):
            return f"{problem}: {seen}", visited
        histories, behind = servers(end)
        visited += histories
        for server, fates in behind:
            for problem in problems_at_server(end, server):
                names = [fate.name for fate in fates]
                return f"{problem}: {[*zip(seen, names, strict=True)]}", visited
    return None, visited


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_every_history_of_three_attempts_keeps_the_promises(operation: Operation) -> None:
    problem, visited = first_problem(every_end(operation, "fast_fail", "ratio", 3))
    assert problem is None
    assert visited > 3


@pytest.mark.thorough("visits hundreds of thousands of histories")
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_every_history_of_five_attempts_keeps_the_promises(
    operation: Operation, capsys: pytest.CaptureFixture[str]
) -> None:
    problem, visited = first_problem(every_end(operation, "fast_fail", "ratio", 5))
    with capsys.disabled():
        sys.stdout.write(f"\n{operation.name}: {visited:,} histories of up to five attempts\n")
    assert problem is None


@pytest.mark.thorough("visits every combination of strategy and budget")
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("strategy", NAMED)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_every_strategy_and_budget_keeps_them(
    operation: Operation, strategy: str, budget: str
) -> None:
    problem, _visited = first_problem(every_end(operation, strategy, budget, 3))
    assert problem is None


# Broken on purpose: each must be found, or the search proves nothing.


class NewNumberForEachAttempt(Run):
    def _number_to_send(self) -> int | None:
        return None if super()._number_to_send() is None else self.allocate()


class NoNumberAfterNoWritesPerformed(Run):
    """Trusts the label, which speaks of one attempt, for the attempts before it."""

    def plan(self, failure: Failure, retry: Retry, /) -> None:
        super().plan(failure, retry)
        if failure.no_writes_performed:
            self.number_of.clear()


class NewestErrorAlways(Run):
    """Raises the newest error, whose label may deny what an earlier attempt has done."""

    def final_error(self, failure: Failure, rule: Rule, /) -> Exception:
        self.last = None
        return super().final_error(failure, rule)


class RetriesEverything(RetryRules):
    def _safe(self, state: RetryState, failure: Failure) -> bool:
        return True


class RetriesPastTheDeadline(RetryRules):
    def decide(self, state: RetryState, failure: Failure) -> Retry:
        return Retry(5.0)

    def declined(self, state: RetryState, failure: Failure) -> None:
        return None

    def verdict(self, state: RetryState, failure: Failure, answer: object) -> Retry:
        return Retry(5.0)


@pytest.mark.parametrize(
    ("operation", "broken", "expected"),
    [
        (INSERT_ONE, {"make_run": NewNumberForEachAttempt}, "different transaction numbers"),
        (INSERT_ONE, {"make_run": NoNumberAfterNoWritesPerformed}, "different transaction numbers"),
        (INSERT_ONE, {"make_run": NewestErrorAlways}, "has the label NoWritesPerformed"),
        (UPDATE_MANY, {"rules": RetriesEverything(random=half)}, "applied more than once"),
        pytest.param(
            INSERT_MANY,
            {"rules": RetriesPastTheDeadline(random=half)},
            "the deadline",
            marks=pytest.mark.thorough("visits many histories before it finds the bug"),
        ),
    ],
    ids=[
        "a new number for each attempt",
        "no number after NoWritesPerformed",
        "the newest error always",
        "retries of what is not safe",
        "retries past the deadline",
    ],
)
def test_a_broken_rule_is_found(
    operation: Operation, broken: dict[str, object], expected: str
) -> None:
    problem, _visited = first_problem(every_end(operation, "fast_fail", "ratio", 4, **broken))
    assert problem is not None
    assert expected in problem
