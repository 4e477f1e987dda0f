"""Every row of the table, in a thread and in a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.engine.failing_work import (
    RESULT,
    AwaitedWork,
    BlockingWork,
    Outcome,
    run_in_task,
    run_in_thread,
)
from support.engine.scenarios import SCENARIOS, Scenario

from pymongo_resilience.events import RetryDeclined, RetryScheduled
from pymongo_resilience.rules.failure import RetryReason, Stage
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.rules.retry_state import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience.events import Event


def work_of(kind: Any, scenario: Scenario) -> Any:
    return kind(
        scenario.call,
        scenario.faults,
        scenario.strategy,
        timeout=scenario.timeout,
        window=scenario.window,
        own_max_retries=scenario.own_max_retries,
        budget=scenario.budget(),
    )


def in_thread(scenario: Scenario) -> Outcome:
    return run_in_thread(scenario.retry_rules(), work_of(BlockingWork, scenario))


def in_task(scenario: Scenario) -> Outcome:
    return run_in_task(scenario.retry_rules(), work_of(AwaitedWork, scenario))


@pytest.mark.parametrize("run", [in_thread, in_task])
@pytest.mark.parametrize(("name", "scenario"), SCENARIOS, ids=[name for name, _ in SCENARIOS])
def test_the_row_holds(
    name: str,
    scenario: Scenario,
    run: Callable[[Scenario], Outcome],
) -> None:
    outcome = run(scenario)
    if scenario.tokens is not None:
        assert outcome.tokens == pytest.approx(scenario.tokens[1])
    assert outcome.rule is scenario.end
    assert outcome.result == (RESULT if scenario.end is None else None)
    assert outcome.attempts == scenario.attempts
    assert outcome.waits == pytest.approx(scenario.waits)
    assert outcome.slept == [wait for wait in outcome.waits if wait > 0]
    attempts_took = sum(fault.takes for fault in scenario.faults[: scenario.attempts])
    assert outcome.elapsed == pytest.approx(sum(scenario.waits) + attempts_took)
    events = [
        e._replace(why="", error="")
        if isinstance(e, RetryDeclined)
        else e._replace(error="", held_back=False)
        for e in outcome.events
        if isinstance(e, (RetryDeclined, RetryScheduled))
    ]
    assert len(events) == len(outcome.events)
    assert events == expected_events(scenario, outcome.waits)
    if scenario.end is not None:
        assert "find" in outcome.events[-1].why, "in words, too"


def expected_events(scenario: Scenario, waits: list[float]) -> list[Event]:
    events: list[Event] = []
    attempt = 0
    for number, fault in enumerate(scenario.faults[: scenario.attempts], start=1):
        attempt = 1 if fault.next_command else attempt + 1
        facts = (
            "find",
            "shop.orders",
            fault.reason,
            fault.server or f"host{number}:27017",
            attempt,
        )
        if number <= len(waits):
            events.append(RetryScheduled(*facts, waits[number - 1]))
        else:
            assert scenario.end is not None
            events.append(RetryDeclined(*facts, scenario.end))
    return events


def test_names_are_unique_and_rows_differ() -> None:
    names = [name for name, _ in SCENARIOS]
    assert len(set(names)) == len(names)


def test_every_rule_declines_somewhere_and_success_too() -> None:
    assert {row.end for _, row in SCENARIOS} == {*Rule, None}


def test_every_kind_fails_and_is_repeated_somewhere() -> None:
    assert {row.call.kind for _, row in SCENARIOS if row.waits} == set(Kind)
    assert {row.call.kind for _, row in SCENARIOS if row.end} == set(Kind)


def test_every_reason_and_stage_occurs() -> None:
    faults = [fault for _, row in SCENARIOS for fault in row.faults]
    assert {fault.reason for fault in faults} == set(RetryReason)
    assert {fault.stage for fault in faults} == set(Stage)
