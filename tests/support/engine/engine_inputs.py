"""Hypothesis strategies: any call, any order of faults, any policy, any answers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from support.engine.failing_work import Call, Fault
from support.engine.retry_strategies import BEST_EFFORT, FAST_FAIL, MONGODB

from pymongo_resilience.rules.failure import (
    NO_WRITES_PERFORMED,
    RETRYABLE,
    SYSTEM_OVERLOADED,
    RetryReason,
    Stage,
)
from pymongo_resilience.rules.retry_rules import RetryRules
from pymongo_resilience.rules.retry_state import Kind
from pymongo_resilience.rules.strategy import RetryAction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience.rules.retry_state import RetryState
    from pymongo_resilience.rules.strategy import RetryStrategy

SHORTEST_ATTEMPT = 1 / 64


class Whimsical:
    """Gives prepared answers in turn, whatever it is asked; some of them are no answers."""

    def __init__(self, answers: list[object]) -> None:
        self._answers = answers
        self._asked = 0

    def anew(self) -> Whimsical:
        """The same answers from the first one on."""
        return Whimsical(self._answers)

    def __repr__(self) -> str:
        return "Whimsical(...)"

    def retry_after(self, operation: RetryState, failure: Failure, /) -> Any:
        answer = self._answers[self._asked % len(self._answers)]
        self._asked += 1
        if isinstance(answer, float):
            return RetryAction(answer)  # raises for what cannot be waited for
        return answer


@dataclass(frozen=True)
class Setting:
    """All that one run depends on."""

    call: Call
    faults: tuple[Fault, ...]
    strategy: RetryStrategy
    retry_rules: RetryRules
    timeout: float | None
    window: float | None
    own_max_retries: int | None
    """What the client says of its own."""

    @property
    def cap(self) -> int:
        """How many retries there are once an overload error was seen."""
        own = self.own_max_retries
        return self.retry_rules.max_retries if own is None else own

    def endless_faults(self) -> Iterator[Fault]:
        """The faults over and over: nothing but the engine can end this."""
        return cycle(self.faults)


labels = st.frozensets(st.sampled_from([SYSTEM_OVERLOADED, RETRYABLE, NO_WRITES_PERFORMED]))
seconds = st.integers(0, 640).map(lambda ticks: ticks / 64)
own_bases = st.integers(1, 640).map(lambda ticks: ticks / 64)

plain_calls = st.sampled_from([Call(kind=kind) for kind in Kind])
calls = plain_calls | st.builds(
    Call,
    kind=st.sampled_from(Kind),
    txn_number=st.booleans(),
    in_transaction=st.booleans(),
    acknowledged=st.booleans(),
    idempotent=st.booleans(),
    retries_enabled=st.booleans(),
)
faults = st.builds(
    Fault,
    reason=st.sampled_from(RetryReason),
    stage=st.sampled_from(Stage),
    labels=labels,
    base_backoff=st.none() | own_bases,
    min_rtt=seconds,
    selection=st.sampled_from([False, False, False, True]),
    timed_out=st.sampled_from([False, False, False, True]),
    takes=seconds.map(lambda taken: max(taken, SHORTEST_ATTEMPT)),
    next_probe_in=st.none() | seconds,
    elsewhere=st.booleans(),
    router_lost=st.sampled_from([False, False, False, True]),
)
forgiving_faults = st.builds(
    Fault,
    reason=st.sampled_from(
        sorted(
            set(RetryReason) - {RetryReason.UNKNOWN, RetryReason.NO_RETRYABLE_WRITES},
            key=lambda each: each.value,
        )
    ),
    stage=st.sampled_from(Stage),
    labels=labels,
    base_backoff=st.none() | own_bases,
    retry_after=st.none() | own_bases,
    min_rtt=st.sampled_from([0.0, 1 / 64]),
    takes=st.sampled_from([SHORTEST_ATTEMPT, 0.125, 1.0]),
    next_probe_in=st.sampled_from([None, None, 1 / 64, 0.5]),
    elsewhere=st.booleans(),
)
"""Faults that are seldom the last: long runs come of them."""
forgiving_calls = st.sampled_from(
    [Call(kind=Kind.READ), Call(kind=Kind.WRITE, txn_number=True), Call(kind=Kind.TRANSACTION_END)]
)
answers = st.none() | st.floats(width=32) | st.sampled_from(["soon", 0, True])
strategies = st.sampled_from([BEST_EFFORT, FAST_FAIL, MONGODB]) | st.lists(
    answers, min_size=1, max_size=5
).map(Whimsical)
dice = st.sampled_from([0.0, 0.25, 0.5, 0.999])
any_retry_rules = st.builds(
    lambda retries, base, limit, thrown: RetryRules(retries, base, limit, lambda: thrown),
    st.integers(0, 8),
    st.sampled_from([0.001, 0.1, 60.0]),
    st.sampled_from([0.001, 10.0, 600.0]),
    dice,
)


own_numbers = st.none() | st.integers(0, 8)


def _settings(
    call: st.SearchStrategy[Call], fault: st.SearchStrategy[Fault]
) -> st.SearchStrategy[Setting]:
    return st.builds(
        Setting,
        call=call,
        faults=st.lists(fault, min_size=1, max_size=8).map(tuple),
        strategy=strategies,
        retry_rules=any_retry_rules,
        timeout=st.none() | seconds,
        window=st.none() | seconds,
        own_max_retries=own_numbers,
    )


settings_of_any_kind = _settings(calls, faults) | _settings(forgiving_calls, forgiving_faults)
