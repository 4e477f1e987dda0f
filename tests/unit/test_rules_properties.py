"""What holds for any order of failures, any call, any policy and any strategy.

What holds for the retry budget is in test_budget.py, and among the rules' rows in
support/engine/scenarios.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from hypothesis import assume, example, given, strategies as st
from support.engine.engine_inputs import (
    SHORTEST_ATTEMPT,
    Setting,
    Whimsical,
    any_retry_rules,
    calls,
    faults,
    forgiving_calls,
    forgiving_faults,
    seconds,
    settings_of_any_kind,
)
from support.engine.failing_work import (
    START,
    AwaitedWork,
    BlockingWork,
    Call,
    FakeWork,
    Fault,
    failure_of,
    run_in_task,
    run_in_thread,
)
from support.engine.fake_clock import FakeClock
from support.engine.retry_strategies import AT_ONCE

from pymongo_resilience.clock import Deadline
from pymongo_resilience.events import RetryDeclined, RetryScheduled
from pymongo_resilience.rules.failure import RetryReason, Stage
from pymongo_resilience.rules.retry_rules import RETRIED_IF_DECLARED, GiveUp, Retry, RetryRules
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience.rules.strategy import MongoDB, RetryAction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.engine.failing_work import Outcome

    from pymongo_resilience.rules.failure import Failure

W = TypeVar("W", bound=FakeWork)
BOTH_LABELS = {"SystemOverloadedError", "RetryableError"}


def permitted(call: Call, fault: Fault) -> bool:
    """Rules 0 to 3, and that no failed selection is repeated."""
    if fault.selection or fault.router_lost:
        return False
    ends_a_transaction = call.kind is Kind.TRANSACTION_END
    if not call.retries_enabled and not ends_a_transaction:
        return False
    if fault.labels >= BOTH_LABELS:
        return True
    is_hopeless = fault.reason in (RetryReason.UNKNOWN, RetryReason.NO_RETRYABLE_WRITES)
    if is_hopeless or call.kind is Kind.CLEANUP:
        return False
    if fault.reason is RetryReason.POOL_EXHAUSTED:
        # A full pool is waited for once more by a read, as by pymongo.
        return call.kind is Kind.READ and not call.in_transaction
    if fault.stage is Stage.NOT_SENT:
        return True
    if call.kind is Kind.GET_MORE:
        return False
    if call.kind in RETRIED_IF_DECLARED and not call.idempotent:
        return False
    if call.in_transaction and not ends_a_transaction:
        return False
    if call.kind is Kind.READ or ends_a_transaction or call.txn_number:
        return True
    return call.idempotent and (call.acknowledged or call.kind is not Kind.WRITE)


def asks_for_less(fault: Fault) -> bool:
    """The server is overloaded, or throttles."""
    return "SystemOverloadedError" in fault.labels or fault.reason is RetryReason.THROTTLED


def refused_until(fault: Fault) -> float:
    """Seconds before which rule 7 sends no other attempt."""
    if fault.next_probe_in is None or fault.elsewhere or asks_for_less(fault):
        return 0.0
    return fault.next_probe_in


def run_forever(setting: Setting) -> Outcome:
    return run_in_thread(setting.retry_rules, work_for(setting, BlockingWork))


def work_for(setting: Setting, kind: type[W], patience: int = 10_000) -> W:
    """Work of a client that is new, so that all runs of one setting are the same."""
    strategy = setting.strategy
    return kind(
        setting.call,
        setting.endless_faults(),
        strategy.anew() if isinstance(strategy, Whimsical) else strategy,
        timeout=setting.timeout,
        window=setting.window,
        patience=patience,
        own_max_retries=setting.own_max_retries,
    )


def repeated(setting: Setting, outcome: Outcome) -> Iterator[tuple[int, Fault]]:
    """Every fault after which another attempt was made, with the attempt's number from 1."""
    for number, event in enumerate(outcome.events, start=1):
        if isinstance(event, RetryScheduled):
            yield number, setting.faults[(number - 1) % len(setting.faults)]


def recorded(call: Call, fault: Fault, timeout: float | None) -> tuple[RetryState, Failure]:
    """An operation whose first attempt has just failed."""
    deadline = None if timeout is None else Deadline.after(FakeClock(START), timeout)
    operation = RetryState(
        "find",
        "shop.orders",
        call.kind,
        AT_ONCE,
        retries_enabled=call.retries_enabled,
        in_transaction=call.in_transaction,
        acknowledged=call.acknowledged,
        declared_idempotent=call.idempotent,
        deadline=deadline,
    )
    failure = failure_of(fault, call)
    operation.count(failure)
    return operation, failure


def waits(setting: Setting, outcome: Outcome) -> Iterator[tuple[Fault, float, float]]:
    """Of each retry the fault before it, when that was, and when its wait ended."""
    now = 0.0
    for number, event in enumerate(outcome.events, start=1):
        fault = setting.faults[(number - 1) % len(setting.faults)]
        now += fault.takes
        if isinstance(event, RetryScheduled):
            yield fault, now, now + event.delay
            now += event.delay


@given(setting=settings_of_any_kind)
def test_no_retry_that_rules_0_to_3_forbid(setting: Setting) -> None:
    outcome = run_forever(setting)
    for number, fault in repeated(setting, outcome):
        assert permitted(setting.call, fault), f"attempt {number} was repeated"


@given(call=forgiving_calls | calls, fault=forgiving_faults | faults, retry_rules=any_retry_rules)
def test_what_rules_0_to_3_permit_is_repeated(
    call: Call, fault: Fault, retry_rules: RetryRules
) -> None:
    """The other direction, for the first failure with all the time in the world."""
    assume(permitted(call, fault))
    assume(not refused_until(fault))
    assume(retry_rules.max_retries > 0)
    work = BlockingWork(call, [fault], AT_ONCE)
    outcome = run_in_thread(retry_rules, work)
    assert outcome.attempts == 2


@given(setting=settings_of_any_kind)
def test_attempts_never_past_the_cap(setting: Setting) -> None:
    outcome = run_forever(setting)
    overloaded = False
    ends = setting.call.kind is Kind.TRANSACTION_END and setting.timeout is not None
    to_the_deadline = ends and not isinstance(setting.strategy, MongoDB)
    for number, fault in repeated(setting, outcome):
        overloaded = overloaded or asks_for_less(fault)
        if overloaded:
            assert to_the_deadline or number <= setting.cap
        elif setting.timeout is None and setting.window is None:
            assert number == 1


@given(setting=settings_of_any_kind)
def test_no_wait_past_the_deadline(setting: Setting) -> None:
    """Rule 6: nor is the server's minimum round-trip time waited away, but after an overload."""
    assume(setting.timeout is not None)
    assert setting.timeout is not None
    for fault, failed, goes_on in waits(setting, run_forever(setting)):
        assert failed < setting.timeout, "repeated though the time was up"
        room = 0.0 if asks_for_less(fault) else fault.min_rtt
        assert goes_on <= setting.timeout - room + 1e-9, "waited past the deadline"


@given(setting=settings_of_any_kind)
def test_no_retry_before_the_probe(setting: Setting) -> None:
    """Rule 7: and none at all where nothing says how long to wait for it at most."""
    outcome = run_forever(setting)
    for number, fault in repeated(setting, outcome):
        event = outcome.events[number - 1]
        assert isinstance(event, RetryScheduled)
        assert event.delay >= refused_until(fault)
        if setting.timeout is None and setting.window is None:
            assert refused_until(fault) == 0


@given(setting=settings_of_any_kind, window=seconds)
def test_no_retry_after_the_window(setting: Setting, window: float) -> None:
    """With ``timeout_ms=0`` repeating ends where the window does, the waits included."""
    setting = replace(setting, timeout=None, window=window)
    closes = setting.faults[0].takes + window
    for _, failed, goes_on in waits(setting, run_forever(setting)):
        assert failed < closes
        assert goes_on <= closes + 1e-9


@given(setting=settings_of_any_kind)
def test_the_engine_terminates(setting: Setting) -> None:
    ends = [limit for limit in (setting.timeout, setting.window) if limit is not None]
    within_time = (max(ends) / SHORTEST_ATTEMPT if ends else 0) + 3
    bound = int(max(within_time, setting.cap + 1))
    outcome = run_in_thread(setting.retry_rules, work_for(setting, BlockingWork, patience=bound))
    assert outcome.rule is not None, "every attempt fails: it cannot have succeeded"
    assert isinstance(outcome.events[-1], RetryDeclined)
    assert len(outcome.events) == outcome.attempts


@given(setting=settings_of_any_kind)
def test_a_thread_and_a_task_agree(setting: Setting) -> None:
    in_task = run_in_task(setting.retry_rules, work_for(setting, AwaitedWork))
    assert in_task == run_forever(setting)


@given(
    call=calls,
    fault=faults,
    retry_rules=any_retry_rules,
    answer=st.none() | st.floats(max_value=86_400.0, allow_nan=False).map(RetryAction),
    timeout=st.none() | seconds,
)
@example(
    call=Call(kind=Kind.READ),
    fault=Fault(reason=RetryReason.LOCK_TIMEOUT),
    retry_rules=RetryRules(),
    answer=RetryAction(86_400.0),
    timeout=1.0,
)
def test_an_answer_refuses_or_delays(
    call: Call,
    fault: Fault,
    retry_rules: RetryRules,
    answer: RetryAction | None,
    timeout: float | None,
) -> None:
    """Against the answer "at once": never a retry more, never an earlier one."""
    operation, failure = recorded(call, fault, timeout)
    at_once = retry_rules.verdict(operation, failure, RetryAction(0.0))
    verdict = retry_rules.verdict(operation, failure, answer)
    if isinstance(at_once, GiveUp) or answer is None:
        assert isinstance(verdict, GiveUp)
        return
    assert isinstance(verdict, Retry), "a delay is shortened, not refused"
    assert verdict.delay >= at_once.delay
    assert verdict.delay >= 0
    if timeout is not None:
        assert verdict.delay <= timeout
