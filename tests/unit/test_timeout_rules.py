"""Whose timeout an operation has, and until when: the table of timeouts/precedence.py, by row."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from pymongo.errors import InvalidOperation
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.driver.csot import Timeout
from pymongo_resilience_instrumentation.limits import NO_DEADLINE, Limits
from pymongo_resilience_instrumentation.operation import CURRENT, Operation
from pymongo_resilience_instrumentation.timeouts import precedence
from pymongo_resilience_instrumentation.timeouts.precedence import (
    TransactionDeadline,
    enter_transaction,
    leave_transaction,
    transaction_of,
)
from support.engine.fake_clock import FakeClock
from support.timeout_rules import (
    NOW,
    Around,
    activated,
    call_of,
    clock,
    limits_of,
    nested,
    request,
    rules,
)

from pymongo_resilience import Policy, override
from pymongo_resilience.clock import SHORTEST
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.policy import EMPTY_POLICY
from pymongo_resilience.timeout_source import TimeoutSource

__all__ = ["clock"]

pytestmark = pytest.mark.oldest


ROWS: dict[str, tuple[Around, dict[str, Any], dict[str, Any], float | None, float, bool]] = {
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
    with request(1.0):
        assert rules(**configured).timeout_for_group(client, ("shop", "orders"), made) == expected


def test_what_a_listener_sends_has_none() -> None:
    client: Any = SimpleNamespace(options=SimpleNamespace(timeout=None))

    def several() -> tuple[float | None, TimeoutSource, bool]:
        return rules(default=9_000).timeout_for_group(client, ("shop", "orders"), Policy())

    assert in_progress.call_foreign(several) == (None, TimeoutSource.NONE, False)


@pytest.mark.parametrize("is_public", [False, True])
def test_a_session_is_in_a_transaction_until_it_leaves_it(is_public: bool) -> None:
    session: Any = SimpleNamespace()
    assert transaction_of(session) is None
    assert transaction_of(None) is None
    deadline = TransactionDeadline(Timeout(9.0, NOW + 3), None, NOW - 6, TimeoutSource.BINDING)
    enter_transaction(session, deadline)
    assert transaction_of(session) is deadline
    limits = limits_of(rules(default=1), session=session, is_public=is_public)
    assert limits.transaction is deadline
    assert activated(limits) == (9.0, NOW + 3, TimeoutSource.BINDING)
    leave_transaction(session)
    leave_transaction(session)
    assert limits_of(rules(default=1_000), session=session).timeout == 1.0


@pytest.fixture
def session() -> Any:
    """Of a with_transaction inside of the blocks around the test."""
    session: Any = SimpleNamespace()
    enter_transaction(session, TransactionDeadline(Timeout(9.0, NOW + 9), blocks.timed(), NOW))
    return session


@pytest.mark.parametrize(
    "around",
    [
        lambda: override(timeout_ms=1),
        lambda: override(timeout_ms=0),
        lambda: pymongo.timeout(1),
        lambda: pymongo.timeout(0),
    ],
)
def test_an_operation_of_a_transaction_has_no_timeout_of_its_own(
    around: Around, session: Any
) -> None:
    with around():
        with pytest.raises(InvalidOperation):
            limits_of(rules(), session=session)
        # Commands that pymongo sends by itself cannot have one.
        assert limits_of(rules(), session=session, is_public=False).timeout == 9.0


@pytest.mark.parametrize(
    "around",
    [
        contextlib.nullcontext,
        lambda: override(idempotent=True),
        lambda: driver.csot.ActiveTimeout(5.0),
    ],
)
def test_what_is_no_timeout_of_its_own_is_accepted(around: Around, session: Any) -> None:
    with around():
        assert limits_of(rules(), session=session).timeout == 9.0


def test_a_block_around_the_transaction_is_not_the_operations() -> None:
    with override(timeout_ms=9_000):
        timeout = TransactionDeadline(Timeout(9.0, NOW + 9), blocks.timed(), NOW)
        timeout.refuse_others()


def test_the_timeout_that_is_active_inside_of_an_operation_is_that_operations() -> None:
    deadline = TransactionDeadline(Timeout(9.0, NOW + 9), None, NOW)
    token = CURRENT.set(Operation(call_of()))
    try:
        with pymongo.timeout(1):
            deadline.refuse_others()
        with override(timeout_ms=1), pytest.raises(InvalidOperation):
            deadline.refuse_others()
    finally:
        CURRENT.reset(token)


NONE, CONFIGURED, RULE = TimeoutSource.NONE, TimeoutSource.CONFIGURATION, TimeoutSource.RULE
CLIENT, BOUND, BLOCK = TimeoutSource.CLIENT, TimeoutSource.BINDING, TimeoutSource.BLOCK
PYMONGO = TimeoutSource.PYMONGO_TIMEOUT
Active = tuple[float | None, float, TimeoutSource]
BOTH_BLOCKS: dict[str, tuple[Around, Active]] = {
    "pymongo.timeout is shorter": (
        lambda: nested(pymongo.timeout(5), override(timeout_ms=8_000)), (5.0, NOW + 5, PYMONGO),
    ),
    "override is shorter": (
        lambda: nested(pymongo.timeout(5), override(timeout_ms=4_000)), (4.0, NOW + 4, BLOCK),
    ),
    "they are equal": (
        lambda: nested(pymongo.timeout(5), override(timeout_ms=5_000)), (5.0, NOW + 5, PYMONGO),
    ),
    "pymongo.timeout has no end": (
        lambda: nested(pymongo.timeout(0), override(timeout_ms=4_000)), (4.0, NOW + 4, BLOCK),
    ),
    "override has no end": (
        lambda: nested(pymongo.timeout(5), override(timeout_ms=0)), (5.0, NOW + 5, PYMONGO),
    ),
    "neither has an end": (
        lambda: nested(pymongo.timeout(0), override(timeout_ms=0)), (0.0, math.inf, PYMONGO),
    ),
    "one of 0 inside of another pymongo.timeout": (
        lambda: nested(pymongo.timeout(5), pymongo.timeout(0)), (5.0, NOW + 5, PYMONGO),
    ),
    "None inside of another pymongo.timeout": (
        lambda: nested(pymongo.timeout(5), pymongo.timeout(None)), (5.0, NOW + 5, PYMONGO),
    ),
    "pymongo.timeout(None)": (lambda: pymongo.timeout(None), (1.0, NOW + 1, CONFIGURED)),
}  # fmt: skip


@pytest.mark.parametrize("row", BOTH_BLOCKS)
def test_of_two_blocks_the_shorter_one_applies(row: str) -> None:
    around, active = BOTH_BLOCKS[row]
    with around():
        limits = limits_of(rules(default=1_000))
        assert activated(limits) == active
        assert (limits.timeout, limits.source) == (active[0], active[2])


ATTEMPTS: dict[str, tuple[Around, dict[str, Any], dict[str, Any], float | None]] = {
    "override": (
        lambda: override(attempt_timeout_ms=4_000),
        {"rule": Policy(attempt_timeout_ms=2), "attempt": 1},
        {"bound": Policy(attempt_timeout_ms=3)}, 4.0,
    ),
    "bind": (
        contextlib.nullcontext,
        {"rule": Policy(attempt_timeout_ms=2), "attempt": 1},
        {"bound": Policy(attempt_timeout_ms=3_000)}, 3.0,
    ),
    "rule": (
        contextlib.nullcontext, {"rule": Policy(attempt_timeout_ms=2_000), "attempt": 1}, {}, 2.0,
    ),
    "configuration": (contextlib.nullcontext, {"attempt": 1_000}, {}, 1.0),
    "none": (contextlib.nullcontext, {"default": 9_000}, {}, None),
    "configuration, while pymongo decides alone": (
        contextlib.nullcontext, {"default": 9_000, "attempt": 1_000, "observes": True}, {}, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ATTEMPTS)
def test_the_timeout_of_one_attempt_is_the_innermost(row: str) -> None:
    around, configured, made, seconds = ATTEMPTS[row]
    with around():
        assert limits_of(rules(**configured), **made).attempt_timeout == seconds


@pytest.mark.parametrize(
    ("around", "is_active"),
    [
        (contextlib.nullcontext, False),
        (lambda: pymongo.timeout(5), True),
        (lambda: pymongo.timeout(0), True),
        (lambda: pymongo.timeout(None), False),
        (lambda: nested(pymongo.timeout(5), pymongo.timeout(None)), True),
        (lambda: driver.csot.ActiveTimeout(5.0, source=BOUND), True),
    ],
)
@pytest.mark.parametrize("client", [None, 0.0, 3.0])
@pytest.mark.parametrize("default", [None, 0, 2_000])
def test_the_fast_way_agrees_with_the_table(
    around: Around, is_active: bool, client: float | None, default: int | None
) -> None:
    of_all = rules(default=default, attempt=1_000)
    with around():
        limits = Limits()
        of_all.set_common_timeout(call_of(client=client), limits)
        by_table = limits_of(of_all, client=client)
        assert activated(limits) == activated(by_table)
        assert limits.own_timeout == by_table.own_timeout
        assert limits.own_source == by_table.own_source
        for each in (limits, by_table):
            assert each.attempt_timeout == 1.0
            assert (each.timeout, each.source) == activated(each)[::2]
    own = None if default is None else default / 1000
    expected = (own, NONE if default is None else CONFIGURED)
    assert (limits.own_timeout, limits.own_source) == (
        expected if client is None else (client, CLIENT)
    )
    if not is_active:
        assert (limits.timeout, limits.source) == (limits.own_timeout, limits.own_source)


@pytest.mark.parametrize(
    ("configured", "are_common"),
    [
        ({}, True),
        ({"default": 1, "attempt": 1}, True),
        ({"rule": 1}, False),
        ({"rule": Policy(idempotent=True)}, False),
        ({"csot": False}, False),
        ({"observes": True}, False),
    ],
)
def test_the_fast_way_is_taken_unless_the_table_has_more_rows(
    configured: dict[str, Any], are_common: bool
) -> None:
    assert rules(**configured).are_common is are_common


OBSERVED: dict[str, tuple[Around, dict[str, Any], dict[str, Any], Active | None]] = {
    # What the library activates, or None if pymongo enforces what applies.
    "configuration": (
        contextlib.nullcontext, {"default": 9_000}, {}, (9.0, NOW + 9, CONFIGURED),
    ),
    "nothing": (contextlib.nullcontext, {}, {}, None),
    "client": (contextlib.nullcontext, {"default": 9_000}, {"client": 5.0}, None),
    "client alone": (contextlib.nullcontext, {}, {"client": 5.0}, None),
    "bind": (
        contextlib.nullcontext, {"default": 9_000}, {"client": 5.0, "bound": 2_000},
        (2.0, NOW + 2, BOUND),
    ),
    "override": (
        lambda: override(timeout_ms=4_000), {}, {"client": 5.0}, (4.0, NOW + 4, BLOCK),
    ),
    "override inside of a shorter pymongo.timeout": (
        lambda: nested(pymongo.timeout(3), override(timeout_ms=4_000)), {}, {},
        (3.0, NOW + 3, PYMONGO),
    ),
    "pymongo.timeout": (lambda: pymongo.timeout(3), {"default": 9_000}, {"bound": 2_000}, None),
    "pymongo.timeout(0)": (lambda: pymongo.timeout(0), {"default": 9_000}, {}, None),
    "None inside of another pymongo.timeout": (
        lambda: nested(pymongo.timeout(3), pymongo.timeout(None)), {"default": 9_000},
        {"client": 5.0, "bound": 2_000}, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", OBSERVED)
def test_while_pymongo_decides_only_the_librarys_timeouts_are_activated(row: str) -> None:
    around, configured, made, active = OBSERVED[row]
    with around():
        limits = limits_of(rules(observes=True, **configured), **made)
        if active is None:
            assert limits.deadline is NO_DEADLINE
            assert limits.timeout is None
            in_force = driver.csot.active_timeout()
            assert limits.timeout_of_pymongo == (
                made.get("client") if in_force is None else in_force
            )
            assert limits.source == (NONE if in_force is None else PYMONGO)
        else:
            assert activated(limits) == active


REQUESTS: dict[str, tuple[float, Around, dict[str, Any], dict[str, Any], Active, bool]] = {
    # what is left of the request; around the call; configuration; the call; what is active inside;
    # whether the request shortens it
    "the configuration's": (
        2.0, contextlib.nullcontext, {"default": 9_000}, {}, (2.0, NOW + 2, CONFIGURED), True,
    ),
    "a shorter one of the configuration": (
        2.0, contextlib.nullcontext, {"default": 1_000}, {}, (1.0, NOW + 1, CONFIGURED), False,
    ),
    "one as long": (
        2.0, contextlib.nullcontext, {"default": 2_000}, {}, (2.0, NOW + 2, CONFIGURED), False,
    ),
    "none": (2.0, contextlib.nullcontext, {}, {}, (2.0, NOW + 2, TimeoutSource.REQUEST), True),
    "one of 0": (
        2.0, contextlib.nullcontext, {}, {"client": 0.0}, (2.0, NOW + 2, CLIENT), True,
    ),
    "pymongo.timeout": (
        2.0, lambda: pymongo.timeout(5), {}, {}, (2.0, NOW + 2, PYMONGO), True,
    ),
    "a shorter pymongo.timeout": (
        2.0, lambda: pymongo.timeout(1), {}, {}, (1.0, NOW + 1, PYMONGO), False,
    ),
    "a hidden pymongo.timeout": (
        2.0, lambda: nested(pymongo.timeout(5), pymongo.timeout(0)), {}, {},
        (2.0, NOW + 2, PYMONGO), True,
    ),
    "a client's, which pymongo enforces": (
        2.0, contextlib.nullcontext, {"observes": True}, {"client": 5.0},
        (2.0, NOW + 2, TimeoutSource.REQUEST), True,
    ),
    "a client's shorter one, which pymongo enforces": (
        2.0, contextlib.nullcontext, {"observes": True}, {"client": 1.0}, (None, math.inf, NONE),
        False,
    ),
    "a pymongo without CSOT": (
        2.0, contextlib.nullcontext, {"csot": False}, {"client": 5.0}, (None, math.inf, NONE),
        False,
    ),
    "a request whose time is over": (
        -1.0, contextlib.nullcontext, {"default": 9_000}, {}, (SHORTEST, NOW - 1, CONFIGURED), True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", REQUESTS)
def test_an_operation_ends_with_the_incoming_request(row: str) -> None:
    seconds, around, configured, made, active, is_shorter = REQUESTS[row]
    without = limits_of(rules(**configured), **made)
    with request(seconds), around():
        limits = limits_of(rules(**configured), **made)
        assert activated(limits) == active
        assert (limits.without_request is not None) is is_shorter
        if around is contextlib.nullcontext:
            assert limits.to_keep() == (without.timeout, without.source)
        if is_shorter:
            assert (limits.timeout, limits.source) == (active[0], active[2])


def test_a_transaction_ends_with_the_incoming_request() -> None:
    session: Any = SimpleNamespace()
    deadline = TransactionDeadline(Timeout(9.0, NOW + 9), None, NOW, TimeoutSource.BLOCK)
    enter_transaction(session, deadline)
    with request(2.0):
        limits = limits_of(rules(), session=session)
        assert activated(limits) == (2.0, NOW + 2, BLOCK)
    assert limits.to_keep() == (9.0, BLOCK)


def test_a_timeout_begins_again_without_the_request_that_is_over(clock: FakeClock) -> None:
    with request(2.0):
        limits = limits_of(rules(default=9_000))
    clock.advance(3.0)
    precedence.refresh(limits)
    assert activated(limits) == (9.0, NOW + 12, CONFIGURED)
    assert limits.without_request is None
    assert (limits.timeout, limits.source) == (9.0, CONFIGURED)


def test_a_timeout_that_begins_again_outlasts_the_active_one(clock: FakeClock) -> None:
    limits = limits_of(rules(default=9_000))
    with limits.deadline:
        clock.advance(8.0)
        precedence.refresh(limits)
        assert activated(limits) == (9.0, NOW + 17, CONFIGURED)


@pytest.mark.parametrize("default", [None, 0])
def test_without_a_timeout_nothing_begins_again(default: int | None) -> None:
    limits = limits_of(rules(default=default))
    precedence.refresh(limits)
    precedence.leave_at_least(limits, 5.0)
    assert limits.timeout == (None if default is None else 0.0)
    assert activated(limits)[1] == math.inf


@pytest.mark.parametrize(
    ("passed", "least", "left"), [(8.0, 2.0, 2.0), (8.0, 20.0, 9.0), (20.0, 2.0, 2.0)]
)
def test_a_rest_is_extended_to_a_minimum_within_the_whole(
    passed: float, least: float, left: float, clock: FakeClock
) -> None:
    limits = limits_of(rules(default=9_000))
    with limits.deadline:
        clock.advance(passed)
        precedence.leave_at_least(limits, least)
        with limits.deadline:
            assert driver.csot.remaining() == left
            assert driver.csot.active_source() is CONFIGURED


@pytest.mark.parametrize("least", [0.5, 1.0])
def test_a_rest_that_is_long_enough_is_not_changed(least: float, clock: FakeClock) -> None:
    limits = limits_of(rules(default=9_000))
    before = limits.deadline
    with before:
        clock.advance(8.0)
        precedence.leave_at_least(limits, least)
    assert limits.deadline is before
    assert (limits.timeout, limits.source) == (9.0, CONFIGURED)


def test_a_rest_is_extended_only_if_a_timeout_is_active(clock: FakeClock) -> None:
    limits = limits_of(rules(default=9_000))
    clock.advance(8.0)
    precedence.leave_at_least(limits, 2.0)
    assert activated(limits)[1] == NOW + 9


def test_a_transaction_as_a_whole_has_one_timeout_by_the_same_table() -> None:
    client: Any = SimpleNamespace(options=SimpleNamespace(timeout=3.0))

    def of_transaction(bound: Policy = EMPTY_POLICY) -> tuple[float | None, TimeoutSource]:
        of_all = rules(rule=4_000, default=9_000)
        return of_all.timeout_for_transaction(client, ("shop", "orders"), bound)

    assert of_transaction() == (4.0, RULE)
    assert of_transaction(Policy(timeout_ms=2_000)) == (2.0, BOUND)
    with override(timeout_ms=5_000):
        assert of_transaction(Policy(timeout_ms=2_000)) == (5.0, BLOCK)
    with request(1.0):
        assert of_transaction() == (1.0, RULE)
    assert in_progress.call_foreign(of_transaction) == (None, NONE)
