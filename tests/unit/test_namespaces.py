"""Namespace rules: what a pattern matches, and what holds where several of them do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st
from support.engine.retry_strategies import BEST_EFFORT, FAST_FAIL, MONGODB

from pymongo_resilience.config import Config
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.policies import namespaces
from pymongo_resilience.policies.namespaces import NamespaceRules, matches
from pymongo_resilience.policies.policy import EMPTY_POLICY, Policy

if TYPE_CHECKING:
    from collections.abc import Mapping

EVERYWHERE = [
    ("shop", "orders"),
    ("shop", "fs.files"),
    ("log", "audit"),
    ("shop", None),
    ("", None),
]


def rules(policies: Mapping[str, Policy]) -> NamespaceRules:
    return NamespaceRules(FAST_FAIL, policies)


def covered(pattern: str) -> list[tuple[str, str | None]]:
    made = rules({pattern: Policy(idempotent=True)})
    return [each for each in EVERYWHERE if made.policy_of(*each).idempotent]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("shop.orders", [("shop", "orders")]),
        ("shop.fs.files", [("shop", "fs.files")]),
        ("shop.fs.*", [("shop", "fs.files")]),
        ("shop.*", [("shop", "orders"), ("shop", "fs.files"), ("shop", None)]),
        ("sh*.*", [("shop", "orders"), ("shop", "fs.files"), ("shop", None)]),
        ("*.audit", [("log", "audit")]),
        ("*.*.files", [("shop", "fs.files")]),
        ("*.*", EVERYWHERE),
        ("shop.o*s", [("shop", "orders")]),
        ("shop.**", [("shop", "orders"), ("shop", "fs.files"), ("shop", None)]),
        ("Shop.*", []),
        ("shop.order", []),
        ("shop.order?", []),
        ("shop.[o]rders", []),
        ("hop.orders", []),
    ],
)
def test_what_a_pattern_covers(pattern: str, expected: list[tuple[str, str | None]]) -> None:
    assert covered(pattern) == expected


letters = st.text("ab.", max_size=6)
globs = st.text("ab.*", max_size=6)


@given(pattern=globs, name=letters)
def test_a_star_is_any_text_and_nothing_else_is_special(pattern: str, name: str) -> None:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert matches(pattern, name) == bool(re.fullmatch(expression, name, re.DOTALL))


def test_a_pattern_of_many_stars_takes_no_time_on_a_long_name() -> None:
    """A regular expression would try every way to share out the name's characters."""
    assert not matches("*a" * 50 + "*b", "a" * 10_000)


@pytest.mark.parametrize(
    ("wider", "narrower"),
    [
        ("*.*", "shop.*"),
        ("*.*", "*.orders"),
        ("sh*.*", "shop.*"),
        ("shop*.*", "shop.*"),
        ("shop.*", "shop.o*"),
        ("shop.o*", "shop.orders"),
        ("shop.orders*", "shop.orders"),
        ("shop.*", "*.orders"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_the_pattern_that_says_more_wins_wherever_it_stands(
    wider: str, narrower: str, order: int
) -> None:
    given = [(wider, Policy(strategy=BEST_EFFORT)), (narrower, Policy(strategy=MONGODB))]
    assert rules(dict(given[::order])).policy_of("shop", "orders").strategy is MONGODB


def test_of_two_that_say_as_much_the_first_one_wins() -> None:
    first, second = Policy(strategy=BEST_EFFORT), Policy(strategy=MONGODB)
    for one, other in (("s*.orders", "*p.orders"), ("*p.orders", "s*.orders")):
        assert rules({one: first, other: second}).policy_of("shop", "orders") == first


def test_all_rules_that_match_hold_field_by_field() -> None:
    made = rules(
        {
            "shop.orders": Policy(strategy=MONGODB),
            "log.*": Policy(data={"other": 1}),
            "shop.*": Policy(idempotent=False, strategy=BEST_EFFORT),
            "*.*": Policy(idempotent=True, data={"everywhere": 1}),
        }
    )
    assert made.policy_of("shop", "orders") == Policy(False, MONGODB, {"everywhere": 1})
    assert made.policy_of("shop", "users") == Policy(False, BEST_EFFORT, {"everywhere": 1})
    assert made.policy_of("log", "audit") == Policy(True, None, {"other": 1})


def test_without_rules_nothing_is_looked_up() -> None:
    made = rules({})
    assert made.policy_of("shop", "orders") is EMPTY_POLICY
    assert made._of.cache_info().currsize == 0


def test_the_strategy_of_a_policy_goes_before_that_of_the_process() -> None:
    made = rules({"shop.*": Policy(strategy=MONGODB)})
    assert made.strategy_of(made.policy_of("shop", "orders")) is MONGODB
    assert made.strategy_of(made.policy_of("log", "audit")) is FAST_FAIL


@pytest.mark.parametrize(
    ("policy", "any_timeout"),
    [
        (Policy(timeout_ms=5), True),
        (Policy(timeout_ms=0), True),
        (Policy(attempt_timeout_ms=5), True),
        (Policy(timeout_mode="iteration", hedge=5), False),
    ],
)
def test_rules_know_whether_one_of_them_sets_a_timeout(policy: Policy, any_timeout: bool) -> None:
    made = rules({"log.*": Policy(idempotent=True), "shop.*": policy})
    assert made.have_timeouts is any_timeout
    assert made.any
    assert not rules({}).any
    assert not rules({}).have_timeouts


def test_what_is_remembered_has_an_end() -> None:
    made = rules({"shop.*": Policy(idempotent=True)})
    for number in range(namespaces.REMEMBERED + 10):
        assert made.policy_of("shop", f"day{number}").idempotent
    assert made._of.cache_info().currsize == namespaces.REMEMBERED


@pytest.mark.parametrize("pattern", ["shop", "*", "", ".", "shop.", ".orders", None, 5, b"a.b"])
def test_what_is_no_pattern_is_named(pattern: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Config(policies={pattern: Policy()})
    expected = 'expected "database.collection", in which * matches any text, as in "shop.*"'
    assert caught.value.problems == (f"policies[{pattern!r}]: {expected}",)


def test_all_that_is_wrong_with_rules_is_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Config(max_retries=-1, policies={"a.b": BEST_EFFORT, "c": Policy()})  # type: ignore[dict-item]
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "max_retries=-1",
        "policies['a.b'] is of type BestEffort",
        "policies['c']",
    ]


@pytest.mark.parametrize("given", [None, 5, "shop.*", [("shop.*", Policy())], Policy()])
def test_rules_that_are_no_mapping_are_one_error(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"of type {type(given).__name__}: expected patt"):
        Config(policies=given)


def test_rules_are_copied_when_they_are_given() -> None:
    given = {"shop.*": Policy(idempotent=True)}
    config = Config(policies=given)
    made = NamespaceRules(FAST_FAIL, config.policies)
    given.clear()
    assert config.policies == {"shop.*": Policy(idempotent=True)}
    assert made.policy_of("shop", "orders").idempotent
