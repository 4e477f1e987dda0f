"""What labels mean, what a bulk's next command forgets, and how long a session is remembered."""

from __future__ import annotations

import pytest
from support.engine.fake_clock import FakeClock
from support.engine.retry_strategies import FAST_FAIL

from pymongo_resilience.clock import Deadline
from pymongo_resilience.rules.failure import Failure, RetryReason, Stage
from pymongo_resilience.rules.retry_rules import RetryRules, Rule
from pymongo_resilience.rules.retry_state import Kind, RetryState


def failure(*labels: str) -> Failure:
    return Failure(ValueError(), Stage.ANSWERED, RetryReason.UNKNOWN, labels=frozenset(labels))


@pytest.mark.parametrize(
    ("labels", "overloaded", "retryable_overload", "no_writes_performed"),
    [
        ((), False, False, False),
        (("SystemOverloadedError",), True, False, False),
        (("RetryableError",), False, False, False),
        (("SystemOverloadedError", "RetryableError"), True, True, False),
        (("NoWritesPerformed",), False, False, True),
        (("SystemOverloadedError", "NoWritesPerformed"), True, False, True),
        (("SystemOverloadedError", "RetryableError", "NoWritesPerformed"), True, True, True),
        (("RetryableWriteError",), False, False, False),
        (("systemoverloadederror", "retryableerror"), False, False, False),
    ],
)
def test_labels(
    labels: tuple[str, ...], overloaded: bool, retryable_overload: bool, no_writes_performed: bool
) -> None:
    facts = failure(*labels)
    assert facts.overloaded is overloaded
    assert facts.retryable_overload is retryable_overload
    assert facts.no_writes_performed is no_writes_performed


def test_the_next_command_of_a_bulk_counts_anew_but_the_reasons_stay() -> None:
    operation = RetryState("insert", "shop.orders", Kind.WRITE, FAST_FAIL)
    operation.count(failure("SystemOverloadedError"))
    operation.next_command()
    assert (operation.attempts, operation.overloaded) == (0, False)
    assert operation.reasons == [RetryReason.UNKNOWN]


@pytest.mark.parametrize("labels", [(), ("SystemOverloadedError", "RetryableError")])
@pytest.mark.parametrize("kind", [Kind.WRITE, Kind.TRANSACTION_END])
@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("idempotent", [False, True])
def test_what_may_be_forgotten_there_is_not_repeated(
    labels: tuple[str, ...], kind: Kind, stage: Stage, idempotent: bool
) -> None:
    """The last attempt may be one that was not sent, or was rejected at the door."""
    clock = FakeClock()
    sent = Failure(
        ValueError(),
        stage,
        RetryReason.SOCKET_NOT_AVAILABLE,
        carried_txn_number=True,
        labels=frozenset(labels),
        session_ends=Deadline.after(clock, 1800),
    )
    deadline = Deadline.after(clock, 36000)
    operation = RetryState(
        "update", "a.b", kind, FAST_FAIL, declared_idempotent=idempotent, deadline=deadline
    )
    clock.advance(1799)
    assert RetryRules().declined(operation, sent) is None
    clock.advance(1)
    forgotten = RetryRules().declined(operation, sent)
    if kind is Kind.WRITE and idempotent:
        assert forgotten is None
    else:
        assert forgotten is Rule.NOT_SAFE
