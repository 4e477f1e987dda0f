"""What holds for a client's retry budget, for any order of failures of one operation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import example, given, strategies as st
from support.engine.endless_failures import repeated, run_forever
from support.engine.engine_inputs import Setting, Tokens, budgets, settings_of_any_kind
from support.engine.failing_work import Call, Fault
from support.engine.retry_strategies import AT_ONCE, half

from pymongo_resilience.events import RetryDeclined, RetryScheduled
from pymongo_resilience.rules.failure import RETRYABLE, SYSTEM_OVERLOADED, RetryReason
from pymongo_resilience.rules.retry_rules import RetryRules, Rule
from pymongo_resilience.rules.retry_state import Kind

if TYPE_CHECKING:
    from support.engine.failing_work import Outcome

OVERLOAD = Fault(
    reason=RetryReason.OVERLOADED, labels=frozenset({SYSTEM_OVERLOADED, RETRYABLE}), takes=1.0
)
OTHERWISE = Fault(reason=RetryReason.LOCK_TIMEOUT, takes=1.0)
POOR = Setting(
    call=Call(kind=Kind.READ),
    faults=(OVERLOAD, OTHERWISE),
    strategy=AT_ONCE,
    retry_rules=RetryRules(random=half),
    timeout=None,
    window=None,
    own_max_retries=None,
    tokens=Tokens(capacity=15, there=10),
)
"""Lives from hand to mouth: each token that it spends returns before the next is due."""
with_budgets = st.builds(
    lambda setting, tokens: replace(setting, tokens=tokens), settings_of_any_kind, budgets
)


def replayed(setting: Setting, outcome: Outcome) -> list[int]:
    """How many tenths there are after each failed attempt, in the words of the text."""
    assert setting.tokens is not None
    tenths, levels = setting.tokens.there, []
    retried = dict(repeated(setting, outcome))
    for number in range(1, outcome.attempts + 1):
        fault = setting.faults[(number - 1) % len(setting.faults)]
        overloaded = SYSTEM_OVERLOADED in fault.labels
        if number > 1 and not overloaded:
            tenths = min(setting.tokens.capacity, tenths + 10)
        if overloaded and number in retried:
            tenths -= 10
        levels.append(tenths)
    return levels


@given(setting=with_budgets)
@example(setting=POOR)
def test_a_retry_after_an_overload_takes_a_token_that_is_there(setting: Setting) -> None:
    outcome = run_forever(setting)
    levels = replayed(setting, outcome)
    assert setting.tokens is not None
    assert all(0 <= level <= setting.tokens.capacity for level in levels)
    assert outcome.tokens == levels[-1] / 10


@given(setting=with_budgets)
@example(setting=POOR)
def test_a_budget_declines_and_changes_nothing_else(setting: Setting) -> None:
    """Until it declines all is as without it, and it is the last rule to decline."""
    plain = run_forever(replace(setting, tokens=None))
    outcome = run_forever(setting)
    last = outcome.events[-1]
    assert isinstance(last, RetryDeclined)
    if last.rule is not Rule.BUDGET:
        assert replace(outcome, tokens=None) == plain
        return
    number = len(outcome.events)
    assert outcome.events[:-1] == plain.events[: number - 1]
    assert isinstance(plain.events[number - 1], RetryScheduled)
    fault = setting.faults[(number - 1) % len(setting.faults)]
    assert SYSTEM_OVERLOADED in fault.labels
    assert replayed(setting, outcome)[-1] < 10
