"""override(): who sees it, who does not, and what wins where both say something."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import FrozenInstanceError
from functools import partial
from typing import TYPE_CHECKING, Any, get_type_hints

import pytest
from hypothesis import given, strategies as st
from pymongo_resilience_instrumentation.bound_policies import policy_of
from support.engine.retry_strategies import BEST_EFFORT, FAST_FAIL

from pymongo_resilience import bind
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.policies.blocks import current, innermost, override
from pymongo_resilience.policies.policy import EMPTY_POLICY, Policy, PolicyFields
from pymongo_resilience.rules.strategy import BestEffort, FastFail

if TYPE_CHECKING:
    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience.rules.retry_state import RetryState


class Collection:
    """What bind() needs of one."""

    def with_options(self) -> None: ...


class SaysNothing:
    """No strategy."""


class ByClass:
    """A strategy that needs no object."""

    @classmethod
    def retry_after(cls, operation: RetryState, failure: Failure, /) -> None: ...


policies = st.builds(
    Policy,
    idempotent=st.none() | st.booleans(),
    strategy=st.none() | st.sampled_from([FAST_FAIL, BEST_EFFORT]),
    data=st.none() | st.dictionaries(st.text(max_size=2), st.integers()),
    timeout_ms=st.none() | st.integers(0, 9),
    timeout_mode=st.sampled_from([None, "cursor_lifetime", "iteration"]),
    hedge=st.none() | st.booleans() | st.integers(1, 9),
    atomic=st.none() | st.booleans(),
    resumable=st.none() | st.booleans() | st.just("if_possible"),
)


def test_without_a_block_nothing_is_said() -> None:
    assert current() == Policy(idempotent=None, strategy=None, data=None)


def test_a_block_holds_inside_and_not_after() -> None:
    with override(idempotent=True, strategy=FAST_FAIL, data={"robot": True}) as policy:
        assert current() is policy
        assert policy == Policy(idempotent=True, strategy=FAST_FAIL, data={"robot": True})
    assert current() is EMPTY_POLICY


def test_blocks_nest_field_by_field() -> None:
    with override(idempotent=True, data={"outer": 1}):
        with override(strategy=BEST_EFFORT, data={"inner": 2}):
            assert current() == Policy(True, BEST_EFFORT, {"inner": 2})
        assert current() == Policy(True, None, {"outer": 1})


@pytest.mark.parametrize(
    ("outer", "inner", "holds"),
    [(100, 200, 100), (200, 100, 100), (0, 100, 100), (100, 0, 100), (0, 0, 0), (100, None, 100)],
)
def test_of_two_timeouts_the_shorter_holds(outer: int, inner: int | None, holds: int) -> None:
    with override(timeout_ms=outer), override(timeout_ms=inner):
        assert current().timeout_ms == holds
    assert Policy(timeout_ms=inner).over(Policy(timeout_ms=outer)).timeout_ms == (
        outer if inner is None else inner
    ), "of two rules it is the nearer"


def test_one_instance_again_and_inside_itself() -> None:
    block = override(idempotent=True)
    with block:
        with block:
            assert current().idempotent is True
        assert current().idempotent is True
    assert current() is EMPTY_POLICY
    with block:
        assert current().idempotent is True
    assert current() is EMPTY_POLICY


def test_async_with() -> None:
    async def inside() -> None:
        async with override(idempotent=True) as policy:
            await asyncio.sleep(0)
            assert current() is policy
            assert policy.idempotent is True
        assert current() is EMPTY_POLICY
        with pytest.raises(LookupError):
            async with override(idempotent=True):
                raise LookupError
        assert current() is EMPTY_POLICY

    asyncio.run(inside())


def test_as_a_decorator() -> None:
    @override(idempotent=True, data={"job": 1})
    def pay(order: int) -> tuple[int, Policy]:
        """Pay."""
        return order, current()

    for order in (1, 2):
        assert pay(order) == (order, Policy(True, None, {"job": 1}))
    assert current() is EMPTY_POLICY
    assert (pay.__name__, pay.__doc__) == ("pay", "Pay.")


def test_tasks_do_not_see_each_others_but_inherit() -> None:
    async def work(name: str) -> list[Policy]:
        seen = [current()]
        async with override(data={"task": name}):
            await asyncio.sleep(0)
            seen.append(current())
            await asyncio.sleep(0)
        return [*seen, current()]

    async def main() -> list[list[Policy]]:
        with override(idempotent=True):
            return await asyncio.gather(work("a"), work("b"))

    outer = Policy(idempotent=True)
    assert asyncio.run(main()) == [
        [outer, Policy(True, None, {"task": "a"}), outer],
        [outer, Policy(True, None, {"task": "b"}), outer],
    ]


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Policy().idempotent = True  # type: ignore[misc]


@given(inner=policies, outer=policies)
def test_over_takes_each_field_from_the_innermost_that_says_something(
    inner: Policy, outer: Policy
) -> None:
    both = inner.over(outer)
    for name in PolicyFields.__annotations__:
        said = getattr(inner, name)
        assert getattr(both, name) == (getattr(outer, name) if said is None else said)


@given(one=policies, two=policies, three=policies)
def test_nesting_does_not_depend_on_how_it_is_bracketed(
    one: Policy, two: Policy, three: Policy
) -> None:
    assert one.over(two).over(three) == one.over(two.over(three))
    assert one.over(EMPTY_POLICY) == EMPTY_POLICY.over(one) == one


def test_a_policy_beside_an_empty_one_is_not_copied() -> None:
    """Most operations have at most one policy, and each of them merges."""
    one = Policy(timeout_ms=5)
    assert one.over(EMPTY_POLICY) is one
    assert EMPTY_POLICY.over(one) is one
    assert one.within(EMPTY_POLICY) is one
    assert EMPTY_POLICY.within(one) is one
    with override(timeout_ms=9):
        block = innermost()
        assert block is not None
        assert block.within(one) is block.within(one)
        assert block.within(one) == Policy(timeout_ms=5)
        assert block.within(EMPTY_POLICY) == Policy(timeout_ms=9)


def test_a_decorated_coroutine_function_runs_inside_the_block() -> None:
    @override(idempotent=True)
    async def inside(number: int) -> tuple[int, bool | None]:
        """Of the application."""
        await asyncio.sleep(0)
        return number, current().idempotent

    async def main() -> list[tuple[int, bool | None]]:
        return list(await asyncio.gather(*(inside(number) for number in range(3))))

    assert asyncio.iscoroutinefunction(inside)
    assert inside.__doc__ == "Of the application."
    assert asyncio.run(main()) == [(0, True), (1, True), (2, True)]
    assert current() is EMPTY_POLICY


@pytest.mark.parametrize("make", [Policy, override])
@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("strategy", "luck", r"strategy='luck': expected one of fast_fail, best_effort, mongodb$"),
        (
            "strategy",
            SaysNothing(),
            r"^strategy is of type SaysNothing: expected a name, ",
        ),
        ("strategy", BestEffort, r"^strategy is the class BestEffort: .* as in BestEffort\(\)$"),
        ("strategy", 0, r"^strategy is of type int: expected a name, .* object with"),
        ("idempotent", "no", r"idempotent='no': expected true or false$"),
        ("idempotent", 0, r"idempotent=0: expected true or false$"),
        ("resumable", 1, r"resumable=1: expected if_possible or true or false$"),
        ("resumable", "if possible", r"resumable='if possible': expected if_possible or true"),
        ("data", ["secret"], r"data is of type list: expected a mapping$"),
        ("data", "", r"data is of type str: expected a mapping$"),
        ("timeout_ms", -1, r"timeout_ms=-1: expected an integer from 0 to"),
        ("timeout_ms", 2**31, r"timeout_ms=2147483648: expected an integer from 0 to"),
        ("timeout_ms", True, r"timeout_ms=True: expected an integer from 0 to"),
        ("timeout_ms", 1.5, r"timeout_ms=1\.5: expected an integer from 0 to"),
        ("timeout_ms", "100", r"timeout_ms='100': expected an integer from 0 to"),
        ("timeout_mode", "next", r"timeout_mode='next': expected one of cursor_lifetime, iterat"),
        ("timeout_mode", True, r"timeout_mode=True: expected one of"),
        ("hedge", 0, r"hedge=0: expected true, false or an integer from 1"),
        ("hedge", 0.5, r"hedge=0\.5: expected true, false or an integer from 1"),
    ],
)
def test_a_field_of_a_wrong_type_is_refused(
    make: Any, field: str, value: object, text: str
) -> None:
    with pytest.raises((TypeError, ConfigurationError), match=text) as caught:
        make(**{field: value})
    assert "secret" not in str(caught.value)
    assert current() is EMPTY_POLICY


@pytest.mark.parametrize(
    ("make", "name"),
    [(Policy, "Policy"), (override, "override()"), (partial(bind, Collection()), "bind()")],
)
def test_an_unknown_field_is_one_error_with_the_nearest_and_all_that_exist(
    make: Any, name: str
) -> None:
    with pytest.raises(TypeError) as caught:
        make(timeout=5)
    text = str(caught.value)
    assert text.startswith(f"{name} has no timeout; did you mean timeout_ms? (it has idempotent, ")
    assert all(name in text for name in PolicyFields.__annotations__)


def test_the_fields_by_keyword_have_the_types_of_a_policy() -> None:
    assert get_type_hints(PolicyFields) == get_type_hints(Policy)


def test_a_binding_takes_a_policy_or_its_fields() -> None:
    coll = Collection()
    assert policy_of(bind(coll, timeout_ms=5)) == Policy(timeout_ms=5)
    with pytest.raises(TypeError, match="takes a Policy or its fields, not both: timeout_ms"):
        bind(coll, Policy(), timeout_ms=5)
    with pytest.raises(TypeError, match="policy is of type dict: expected a Policy"):
        bind(coll, {"timeout_ms": 500})  # type: ignore[arg-type]  # the mistake under test
    for wrong in (None, "coll", object()):
        with pytest.raises(TypeError, match=r"bind\(\) takes a collection or a database"):
            bind(wrong, Policy())


def test_a_class_may_be_a_strategy_where_its_method_needs_no_object() -> None:
    assert Policy(strategy=ByClass).strategy is ByClass


@pytest.mark.parametrize("cls", [BestEffort, FastFail])
def test_a_calculator_that_is_no_function_is_refused(cls: Any) -> None:
    with pytest.raises(TypeError, match="calculator is of type float: expected a function"):
        cls(0.1)


def test_all_illegal_values_are_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Policy(timeout_ms=-1, data=5, timeout_mode="iteration", hedge=0)  # type: ignore[arg-type]
    assert len(caught.value.problems) == 3


def test_a_policy_may_come_from_another_process() -> None:
    policy = Policy(atomic=True, hedge=True, resumable=True, data={"of": "it"}, timeout_ms=5)
    assert pickle.loads(pickle.dumps(policy)) == policy  # noqa: S301 - our own
