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
from pymongo_resilience_instrumentation.driver.csot import Timeout
from pymongo_resilience_instrumentation.operation import NO_DEADLINE, Operation
from pymongo_resilience_instrumentation.timeouts.precedence import TimeoutRules, TransactionDeadline

from pymongo_resilience import Config, Policy, override
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.namespaces import NamespaceRules
from pymongo_resilience.rules.strategy import BestEffort

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


def call(*, client: float | None = None, bound: int | None = None) -> Operation:
    options = SimpleNamespace(timeout=client)
    made = Operation(SimpleNamespace(options=options), "find", ("shop", "orders"))
    made.bound = Policy(timeout_ms=bound)
    return made


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
        operation = call(**made)
        rules(**configured).set_timeout(operation)
        with operation.deadline:
            assert driver.csot.DEADLINE.get() == ends
            if row != "a pymongo without CSOT":
                assert driver.csot.timeout_in_force() == seconds
    assert operation.timeout == seconds
    assert operation.configured is by_iteration
    assert driver.csot.DEADLINE.get() == math.inf


@pytest.mark.parametrize("row", ["elsewhere", "a pymongo without CSOT"])
def test_without_a_timeout_of_ours_nothing_is_put_in_force(row: str) -> None:
    around, configured, made, *_ = ROWS[row]
    with around():
        operation = call(**made)
        rules(**configured).set_timeout(operation)
        assert operation.deadline is NO_DEADLINE


def test_in_a_transaction_what_is_left_of_it_is_all_there_is() -> None:
    operation = call(client=1.0, bound=1)
    operation.transaction = TransactionDeadline(Timeout(9.0, NOW + 3), blocks.timed(), NOW - 6)
    rules(rule=1, default=1).set_timeout(operation)
    assert operation.timeout == 9.0
    with operation.deadline:
        assert driver.csot.remaining() == pytest.approx(3.0)
    with override(timeout_ms=1), pytest.raises(InvalidOperation):
        rules().set_timeout(operation)


def test_cursors_need_what_would_hold_without_pymongo_timeout() -> None:
    with pymongo.timeout(1):
        by_default, bound = call(), call(bound=2_000)
        rules(default=9_000).set_timeout(by_default)
        rules(rule=9_000).set_timeout(bound)
    assert by_default.own_timeout == (9.0, True)
    assert bound.own_timeout == (2.0, False)


@pytest.mark.parametrize(
    ("configured", "made", "expected"),
    [
        ({"default": 9_000}, Policy(), (9.0, True, True)),
        ({"rule": 9_000}, Policy(), (9.0, True, True)),
        ({"default": 9_000}, Policy(timeout_ms=2_000), (2.0, False, False)),
        ({"default": 9_000}, Policy(timeout_mode="cursor_lifetime"), (9.0, True, False)),
        ({"default": 9_000, "csot": False}, Policy(), (None, False, False)),
        ({}, Policy(), (None, False, False)),
    ],
)
def test_several_calls_have_one_timeout_by_the_same_table(
    configured: dict[str, Any], made: Policy, expected: tuple[float | None, bool, bool]
) -> None:
    client = SimpleNamespace(options=SimpleNamespace(timeout=None))
    assert rules(**configured).of_several(client, ("shop", "orders"), made) == expected


def test_what_a_listener_sends_has_none() -> None:
    client = SimpleNamespace(options=SimpleNamespace(timeout=None))

    def several() -> tuple[float | None, bool, bool]:
        return rules(default=9_000).of_several(client, ("shop", "orders"), Policy())

    assert in_progress.reported(several) == (None, False, False)
