"""What labels mean, what a bulk's next command forgets, and how long a session is remembered."""

from __future__ import annotations

from dataclasses import replace

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


def test_throttling_asks_for_less_but_proves_no_rejection() -> None:
    facts = Failure(ValueError(), Stage.ANSWERED, RetryReason.THROTTLED)
    assert facts.overloaded
    assert not facts.rejected
    assert not facts.retryable_overload
    assert not facts.reason.allows_non_idempotent_retry


def test_the_next_command_of_a_bulk_counts_anew_but_the_reasons_stay() -> None:
    operation = RetryState("insert", "shop.orders", Kind.WRITE, FAST_FAIL)
    operation.count(failure("SystemOverloadedError"))
    operation.next_command()
    assert (operation.attempts, operation.overloaded) == (0, False)
    assert operation.reasons == [RetryReason.UNKNOWN]


def test_the_next_command_of_a_bulk_begins_like_the_first_one() -> None:
    new, used = (RetryState("insert", "shop.orders", Kind.WRITE, FAST_FAIL) for _ in range(2))
    used.in_grace, used.rejected_since = True, 5.0
    until = Deadline.after(FakeClock(), 0.5)
    paused = replace(failure("SystemOverloadedError"), pool_paused=True, unhurried_until=until)
    used.count(replace(paused, reason=RetryReason.NO_REPLY))
    used.next_command()
    used.reasons.clear()
    assert used == new


def test_an_attempt_that_found_a_paused_pool_is_no_retry() -> None:
    """Another operation's failure has paused it, so no connection was tried."""
    state = RetryState("find", "shop.orders", Kind.READ, FAST_FAIL)
    paused = replace(failure(), pool_paused=True)
    for each, retries in ((failure(), 0), (paused, 0), (failure(), 1), (paused, 1)):
        state.count(each)
        assert state.retries == retries
    assert (state.attempts, state.unattempted) == (4, 2)


def test_pymongo_would_have_retried_even_if_the_clock_stands_still() -> None:
    clock = FakeClock()
    state = RetryState("find", "shop.orders", Kind.READ, FAST_FAIL, waited=2.0)
    assert state.pymongo_would_have_retried
    state.count(replace(failure(), unhurried_until=Deadline.after(clock, 0.5)))
    assert not state.pymongo_would_have_retried
    state.waited = 2.4
    assert not state.pymongo_would_have_retried
    state.waited = 2.6
    assert state.pymongo_would_have_retried


def test_of_two_moments_of_pymongos_retry_the_later_one_counts() -> None:
    clock = FakeClock()
    state = RetryState("find", "shop.orders", Kind.READ, FAST_FAIL)
    for seconds in (0.5, 9.0, 1.0):
        state.count(replace(failure(), unhurried_until=Deadline.after(clock, seconds)))
    clock.advance(8.0)
    assert not state.pymongo_would_have_retried
    clock.advance(1.0)
    assert state.pymongo_would_have_retried


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("carried_txn_number", [False, True])
def test_applying_it_twice_is_known_to_do_no_harm(
    kind: Kind, declared: bool, carried_txn_number: bool
) -> None:
    state = RetryState("name", "a.b", kind, FAST_FAIL, declared_idempotent=declared)
    state.count(replace(failure(), carried_txn_number=carried_txn_number))
    harmless = kind in {Kind.READ, Kind.TRANSACTION_END}
    assert state.idempotent is (harmless or declared or carried_txn_number)


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
