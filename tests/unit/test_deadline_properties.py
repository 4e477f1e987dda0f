"""For any plan of attempts, retries, waits and nested timeouts: no wait ends past the deadline."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st
from support.engine.engine_inputs import (
    any_retry_rules,
    calls,
    faults,
    forgiving_calls,
    labels,
    strategies,
)
from support.engine.failing_work import Call, Fault
from support.engine.override_plans import Block, Plan, Ran, Slowness, Step, in_task, in_thread
from support.engine.retry_strategies import AT_ONCE, waiting
from support.examples import scaled

from pymongo_resilience.policies import blocks, policy
from pymongo_resilience.rules.failure import RetryReason, Stage
from pymongo_resilience.rules.retried_operation import Kind
from pymongo_resilience.rules.retry_rules import LAST_ATTEMPT, RetryRules, Rule

run = pytest.mark.parametrize(
    "run", [in_thread, lambda plan: asyncio.run(in_task(plan))], ids=["thread", "task"]
)
Run = Callable[[Plan], list[Ran]]

seconds = st.floats(0, 20)
any_faults = st.builds(
    lambda fault, takes, min_rtt: fault(takes=takes, min_rtt=min_rtt),
    faults | st.builds(Fault, reason=st.sampled_from(RetryReason), labels=labels),
    st.floats(0.05, 20),
    st.sampled_from([0.0, math.nan]) | st.floats(0, 5),
)
mended_faults = st.builds(
    Fault,
    reason=st.sampled_from([RetryReason.LOCK_TIMEOUT, RetryReason.SOCKET_NOT_AVAILABLE]),
    stage=st.sampled_from(Stage),
    takes=st.floats(0.05, 2),
    min_rtt=st.floats(0, 0.5),
)
"""Nothing but time ends their repetition."""
timeouts = st.none() | st.just(0) | st.integers(1, 30_000)
slowness = st.just(Slowness()) | st.builds(
    Slowness, *[st.sampled_from([0.0, 0.0, 0.1, 7.0]) for _ in range(4)]
)


def plans(step: st.SearchStrategy[Step]) -> st.SearchStrategy[Plan]:
    def block(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Block]:
        steps = st.lists(inside | seconds | step, max_size=3).map(tuple)
        return st.builds(Block, timeouts, steps)

    return st.builds(
        Plan,
        start=st.floats(0, 1e9),
        window=seconds,
        block=st.recursive(st.builds(Block, timeouts, st.tuples(step)), block, max_leaves=4),
    )


def steps(
    call: st.SearchStrategy[Call],
    fault: st.SearchStrategy[Fault],
    strategy: st.SearchStrategy[Any],
) -> st.SearchStrategy[Step]:
    some_faults = st.lists(fault, min_size=1, max_size=4).map(tuple)
    return st.builds(Step, call, some_faults, strategy, any_retry_rules, timeouts, slowness)


steps_of_any_kind = steps(calls | forgiving_calls, any_faults, strategies)
repeated_steps = steps(
    forgiving_calls, mended_faults, st.sampled_from([AT_ONCE, waiting(0.7), waiting(86_400.0)])
)


def resolution(ran: Ran) -> float:
    """Of the numbers that the times are: some roundings."""
    return 8 * math.ulp(ran.declined_at + 30)


def limit(plan: Plan, ran: Ran) -> float | None:
    """When its last wait has to have ended."""
    if ran.timeout_ms is None:
        return None
    if ran.timeout_ms == 0:
        return ran.first_failure + plan.window
    return ran.began + ran.timeout_ms / 1000


def slow_listener() -> Plan:
    """The wait is cut to what is left, and then somebody is told of it."""
    fault = Fault(reason=RetryReason.LOCK_TIMEOUT, takes=0.5)
    slow = Slowness(listener=0.25)
    step = Step(Call(kind=Kind.READ), (fault,), waiting(9.0), RetryRules(), None, slow)
    return Plan(0.0, 1.0, Block(1000, (step,)))


@run
@given(plan=plans(steps_of_any_kind) | plans(repeated_steps))
@example(plan=slow_listener())
def test_no_wait_ends_and_no_attempt_begins_past_the_deadline(run: Run, plan: Plan) -> None:
    """Who prepares an attempt and who is told of it may take longer than there is time."""
    for ran in run(plan):
        end = limit(plan, ran)
        if end is None:
            continue
        slow = ran.step.slowness
        for wait_ended in ran.waits:
            assert wait_ended <= end + resolution(ran)
        for attempt_began in ran.attempts[1:]:
            assert attempt_began <= end + slow.prepare + slow.listener + resolution(ran)


@run
@given(plan=plans(repeated_steps))
def test_what_only_time_can_end_is_ended_by_time(run: Run, plan: Plan) -> None:
    for ran in run(plan):
        if ran.timeout_ms:
            assert ran.rule is Rule.DEADLINE
        else:
            assert ran.rule is Rule.ATTEMPTS
        end = limit(plan, ran)
        if end is None:
            assert len(ran.attempts) == 2
        else:
            assert ran.declined_at >= end - ran.last_fault.min_rtt - LAST_ATTEMPT - resolution(ran)


@run
@given(plan=plans(steps_of_any_kind))
def test_time_is_the_reason_only_where_there_is_none_left(run: Run, plan: Plan) -> None:
    for ran in run(plan):
        if ran.rule is not Rule.DEADLINE:
            continue
        end = limit(plan, ran)
        assert ran.timeout_ms
        assert end is not None
        fault = ran.last_fault
        left = end - ran.declined_at
        answered_late = fault.timed_out and fault.stage is not Stage.NOT_SENT
        backs_off = "SystemOverloadedError" in fault.labels
        longest = ran.step.retry_rules.max_backoff if backs_off else 0.0
        if not answered_late:
            room = left - max(0.0, fault.min_rtt)
            assert room < LAST_ATTEMPT + resolution(ran) or left <= longest


@run
@given(plan=plans(steps_of_any_kind))
@settings(max_examples=scaled(30))
def test_nothing_is_left_of_the_blocks(run: Run, plan: Plan) -> None:
    run(plan)
    assert (blocks.current(), blocks.timed()) == (policy.NOTHING, None)
