"""Whose timeout an operation has, and until when: the table of timeouts/precedence.py, by row."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from pymongo import _csot
from pymongo.errors import InvalidOperation
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.call import Call
from pymongo_resilience_instrumentation.driver.csot import Timeout
from pymongo_resilience_instrumentation.limits import NO_DEADLINE, Limits
from pymongo_resilience_instrumentation.timeouts.precedence import (
    TimeoutRules,
    TransactionDeadline,
    enter_transaction,
)

from pymongo_resilience import Config, Policy, override
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.namespaces import NamespaceRules
from pymongo_resilience.rules.strategy import BestEffort
from pymongo_resilience.timeout_source import TimeoutSource

pytestmark = pytest.mark.oldest
NOW = 1_000.0
Block = Callable[[], contextlib.AbstractContextManager[Any]]


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: NOW)
    monkeypatch.setattr(driver.csot, "time", clock)
    monkeypatch.setattr(_csot, "time", clock)


def rules(
    *, rule: int | None = None, default: int | None = None, csot: bool = True
) -> TimeoutRules:
    policies = {} if rule is None else {"shop.orders": Policy(timeout_ms=rule)}
    namespaces = NamespaceRules(BestEffort(), policies)
    return TimeoutRules(namespaces, Config(timeout_ms=default), csot_available=csot)


def limits_of(
    rules: TimeoutRules,
    *,
    client: float | None = None,
    bound: int | None = None,
    session: Any = None,
) -> Limits:
    """What a find has under these rules, called where the caller is."""
    its_client: Any = SimpleNamespace(options=SimpleNamespace(timeout=client))
    call = Call(
        its_client,
        "find",
        ("shop", "orders"),
        session=session,
        block_policy=blocks.current(),
        bound_policy=Policy(timeout_ms=bound),
    )
    limits = Limits()
    rules.set_timeout(call, limits)
    return limits


ROWS: dict[str, tuple[Block, dict[str, Any], dict[str, Any], float | None, float, bool]] = {
    # where: what is around it; configuration; the call; seconds, end, by iteration
    "pymongo.timeout": (
        lambda: pymongo.timeout(9),
        {"rule": 1, "default": 1}, {"client": 1.0, "bound": 1}, 9.0, NOW + 9, False,
    ),
    "override": (
        lambda: override(timeout_ms=9_000),
        {"rule": 1, "default": 1}, {"client": 1.0, "bound": 1}, 9.0, NOW + 9, False,
    ),
    "override of 0": (
        lambda: override(timeout_ms=0),
        {"rule": 1, "default": 1}, {"client": 1.0, "bound": 1}, 0.0, math.inf, False,
    ),
    "bind": (
        contextlib.nullcontext,
        {"rule": 1, "default": 1}, {"client": 1.0, "bound": 9_000}, 9.0, NOW + 9, False,
    ),
    "rule": (
        contextlib.nullcontext,
        {"rule": 9_000, "default": 1}, {"client": 1.0}, 9.0, NOW + 9, True,
    ),
    "client": (
        contextlib.nullcontext, {"default": 1}, {"client": 9.0}, 9.0, NOW + 9, False,
    ),
    "client, of 0": (
        contextlib.nullcontext, {"default": 1}, {"client": 0.0}, 0.0, math.inf, False,
    ),
    "default": (contextlib.nullcontext, {"default": 9_000}, {}, 9.0, NOW + 9, True),
    "elsewhere": (contextlib.nullcontext, {}, {}, None, math.inf, False),
    "a pymongo without CSOT": (
        lambda: override(timeout_ms=1), {"rule": 1, "default": 1, "csot": False},
        {"client": 9.0}, 9.0, math.inf, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_the_first_row_that_applies_holds(row: str) -> None:
    around, configured, made, seconds, ends, by_iteration = ROWS[row]
    with around():
        limits = limits_of(rules(**configured), **made)
        with limits.deadline:
            assert driver.csot.DEADLINE.get() == ends
            if row != "a pymongo without CSOT":
                assert driver.csot.active_timeout() == seconds
    assert limits.timeout == seconds
    assert limits.source.is_configuration is by_iteration
    assert driver.csot.DEADLINE.get() == math.inf


@pytest.mark.parametrize("row", ["elsewhere", "a pymongo without CSOT"])
def test_without_a_timeout_of_ours_nothing_is_put_in_force(row: str) -> None:
    around, configured, made, *_ = ROWS[row]
    with around():
        assert limits_of(rules(**configured), **made).deadline is NO_DEADLINE


def test_in_a_transaction_what_is_left_of_it_is_all_there_is() -> None:
    session = SimpleNamespace()
    deadline = TransactionDeadline(Timeout(9.0, NOW + 3), blocks.timed(), NOW - 6)
    enter_transaction(session, deadline)
    limits = limits_of(rules(rule=1, default=1), client=1.0, bound=1, session=session)
    assert limits.timeout == 9.0
    with limits.deadline:
        assert driver.csot.remaining() == pytest.approx(3.0)
    with override(timeout_ms=1), pytest.raises(InvalidOperation):
        limits_of(rules(), session=session)


def test_cursors_need_what_would_hold_without_pymongo_timeout() -> None:
    with pymongo.timeout(1):
        by_default = limits_of(rules(default=9_000))
        bound = limits_of(rules(rule=9_000), bound=2_000)
    assert (by_default.own_timeout, by_default.own_source) == (9.0, TimeoutSource.CONFIGURATION)
    assert (bound.own_timeout, bound.own_source) == (2.0, TimeoutSource.BINDING)


@pytest.mark.parametrize(
    ("configured", "made", "expected"),
    [
        ({"default": 9_000}, Policy(), (9.0, TimeoutSource.CONFIGURATION, True)),
        ({"rule": 9_000}, Policy(), (9.0, TimeoutSource.RULE, True)),
        ({"default": 9_000}, Policy(timeout_ms=2_000), (2.0, TimeoutSource.BINDING, False)),
        (
            {"default": 9_000},
            Policy(timeout_mode="cursor_lifetime"),
            (9.0, TimeoutSource.CONFIGURATION, False),
        ),
        ({"default": 9_000, "csot": False}, Policy(), (None, TimeoutSource.NONE, False)),
        ({}, Policy(), (None, TimeoutSource.NONE, False)),
    ],
)
def test_several_calls_have_one_timeout_by_the_same_table(
    configured: dict[str, Any], made: Policy, expected: tuple[float | None, TimeoutSource, bool]
) -> None:
    client: Any = SimpleNamespace(options=SimpleNamespace(timeout=None))
    assert rules(**configured).timeout_for_group(client, ("shop", "orders"), made) == expected


def test_what_a_listener_sends_has_none() -> None:
    client: Any = SimpleNamespace(options=SimpleNamespace(timeout=None))

    def several() -> tuple[float | None, TimeoutSource, bool]:
        return rules(default=9_000).timeout_for_group(client, ("shop", "orders"), Policy())

    assert in_progress.call_foreign(several) == (None, TimeoutSource.NONE, False)
