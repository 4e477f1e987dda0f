"""What is prepared once somebody uses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pymongo_resilience import Policy, override
from pymongo_resilience.policies.first_use import HEDGED_READS, FirstUse


@pytest.fixture
def prepared() -> list[str]:
    return []


def test_it_is_prepared_with_the_first_use_alone(prepared: list[str]) -> None:
    feature = FirstUse()
    feature.prepare_with(lambda: prepared.append("now"))
    assert prepared == []
    feature.use()
    once = list(prepared)
    feature.use()
    assert once
    assert prepared == once


def test_it_is_prepared_at_once_where_it_was_used(prepared: list[str]) -> None:
    feature = FirstUse()
    feature.use()
    feature.prepare_with(lambda: prepared.append("now"))
    assert prepared == ["now"]


def test_what_begins_to_wait_during_the_first_use_is_prepared(prepared: list[str]) -> None:
    """As instrument() does in another thread."""
    feature = FirstUse()
    feature.prepare_with(lambda: feature.prepare_with(lambda: prepared.append("now")))
    feature.use()
    assert prepared


def test_what_was_switched_off_is_not_prepared(prepared: list[str]) -> None:
    feature = FirstUse()
    feature.prepare_with(lambda: prepared.append("now"))
    feature.forget()
    feature.use()
    assert prepared == []


@pytest.fixture
def unused() -> Iterator[None]:
    before, HEDGED_READS.used = HEDGED_READS.used, False
    yield
    HEDGED_READS.used = before


@pytest.mark.usefixtures("unused")
def test_a_policy_that_hedges_is_a_use_and_another_is_none() -> None:
    Policy(hedge=False, timeout_ms=1)
    with override(priority="low"):
        assert not HEDGED_READS.used
    Policy(hedge=1)
    assert HEDGED_READS.used
