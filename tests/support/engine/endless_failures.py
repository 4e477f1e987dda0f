"""Runs whose every attempt fails, so that only the engine can end them, and what it must refuse.

The permission of rules 0 to 3 is stated here a second time, in the words of the design, so that
it does not depend on how the rules put it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from support.engine.engine_inputs import Whimsical
from support.engine.failing_work import BlockingWork, FakeWork, run_in_thread

from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.rules.budget import UNLIMITED
from pymongo_resilience.rules.failure import RetryReason, Stage
from pymongo_resilience.rules.retry_state import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.engine.engine_inputs import Setting
    from support.engine.failing_work import Call, Fault, Outcome

W = TypeVar("W", bound=FakeWork)
BOTH_LABELS = {"SystemOverloadedError", "RetryableError"}


def permitted(call: Call, fault: Fault) -> bool:
    """Rules 0 to 3, and that no failed selection is repeated."""
    if fault.selection:
        return False
    ends_a_transaction = call.kind is Kind.TRANSACTION_END
    if not call.retries_enabled and not ends_a_transaction:
        return False
    if fault.labels >= BOTH_LABELS:
        return True
    if call.kind in {Kind.GET_MORE, Kind.COMMAND, Kind.AGGREGATE_WRITE, Kind.CLEANUP}:
        return False
    if call.in_transaction and not ends_a_transaction:
        return False
    if fault.reason is RetryReason.UNKNOWN:
        return False
    if call.kind is Kind.READ or ends_a_transaction or call.txn_number:
        return True
    return call.acknowledged and (fault.stage is Stage.NOT_SENT or call.idempotent)


def refused_until(fault: Fault) -> float:
    """Seconds before which rule 7 sends no other attempt."""
    if fault.next_probe_in is None or fault.elsewhere or "SystemOverloadedError" in fault.labels:
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
        budget=UNLIMITED if setting.tokens is None else setting.tokens.bucket(),
    )


def repeated(setting: Setting, outcome: Outcome) -> Iterator[tuple[int, Fault]]:
    """Every fault after which another attempt was made, with the attempt's number from 1."""
    for number, event in enumerate(outcome.events, start=1):
        if isinstance(event, RetryScheduled):
            yield number, setting.faults[(number - 1) % len(setting.faults)]
