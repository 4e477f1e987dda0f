"""Namespace rules in a TOML file: what they become, and everything that can be wrong with them."""

from __future__ import annotations

import pickle
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from pymongo_resilience.config import FILE_VARIABLE, Config
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.policies.namespaces import EXPECTED_PATTERN, KEYS
from pymongo_resilience.policies.policy import Policy
from pymongo_resilience.rules.strategy import NAMED

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """\
timeout_ms = 500

[policies."shop.*"]
strategy = "best_effort"
idempotent = true

[policies."shop.fs.files"]
strategy = "mongodb"
data = {team = "files", level = 3}

[policies."*.audit"]
idempotent = false
timeout_mode = "iteration"
hedge = 20
atomic = true
resumable = true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "resilience.toml"


def problems(file: Path, content: str) -> list[str]:
    file.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        Config.from_toml(file)
    with pytest.raises(ConfigurationError):
        Config.from_env({FILE_VARIABLE: str(file)})
    assert all(problem.startswith(f"{file}: ") for problem in caught.value.problems)
    return [problem.removeprefix(f"{file}: ") for problem in caught.value.problems]


def test_every_field_of_a_policy_is_a_key() -> None:
    assert set(KEYS) == {field.name for field in fields(Policy)}


def test_rules_of_a_file(file: Path) -> None:
    file.write_text(GOOD)
    expected = Config(
        timeout_ms=500,
        policies={
            "shop.*": Policy(True, NAMED["best_effort"]),
            "shop.fs.files": Policy(None, NAMED["mongodb"], {"team": "files", "level": 3}),
            "*.audit": Policy(
                False,
                timeout_mode="iteration",
                hedge=20,
                atomic=True,
                resumable=True,
            ),
        },
    )
    assert Config.from_toml(file) == expected
    assert Config.from_env({FILE_VARIABLE: str(file)}) == expected
    assert list(expected.policies) == ["shop.*", "shop.fs.files", "*.audit"]


def test_a_config_with_rules_goes_to_another_process(file: Path) -> None:
    file.write_text(GOOD)
    there = pickle.loads(pickle.dumps(Config.from_toml(file)))  # noqa: S301 - our own
    assert list(there.policies) == ["shop.*", "shop.fs.files", "*.audit"]
    assert hash(there) == hash(Config(timeout_ms=500))


@pytest.mark.parametrize("name", NAMED)
def test_every_strategy_has_its_name(name: str, file: Path) -> None:
    file.write_text(f'[policies."a.b"]\nstrategy = "{name}"\n')
    assert Config.from_toml(file).policies["a.b"].strategy is NAMED[name]
    assert Policy(strategy=name) == Policy(strategy=NAMED[name])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("strategy = 'luck'", "strategy='luck': expected one of fast_fail, best_effort, mongodb"),
        ("strategy = 'driver'",
         "strategy='driver': expected one of fast_fail, best_effort, mongodb"),
        ("strategy = 1", "strategy=1: expected one of fast_fail, best_effort, mongodb"),
        ("timeout_mode = 'next'",
         "timeout_mode='next': expected one of cursor_lifetime, iteration"),
        ("idempotent = 1", "idempotent=1: expected true or false"),
        ("idempotent = 'yes'", "idempotent='yes': expected true or false"),
        ("hedge = 1.5", "hedge=1.5: expected true, false or an integer from 1 to 2147483647"),
        ("atomic = 1", "atomic=1: expected true or false"),
        ("data = 'secret'", "data is of type str: expected a mapping"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_with_its_place(line: str, problem: str, file: Path) -> None:
    assert problems(file, f'[policies."shop.*"]\n{line}\n') == [f"policies.'shop.*'.{problem}"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("policies = 5", 'policies is of type int: expected tables, as in [policies."shop.*"]'),
        ("[[policies]]\ndata = {key = 'secret'}",
         'policies is of type list: expected tables, as in [policies."shop.*"]'),
        ("policies.'a.b' = 5", "policies.'a.b' is of type int: expected a table"),
        ("[policies.shop]", f"policies.'shop': {EXPECTED_PATTERN}"),
    ],
)  # fmt: skip
def test_what_is_no_table_of_rules_is_named(content: str, problem: str, file: Path) -> None:
    assert problems(file, content) == [problem]


def test_a_pattern_without_quotes_is_no_pattern(file: Path) -> None:
    (problem,) = problems(file, "[policies.shop.orders]\nidempotent = true\n")
    assert problem.startswith("policies.'shop': expected ")


def test_all_problems_are_reported_at_once(file: Path) -> None:
    file.write_text(
        'metrics = 1\n[policies."shop.*"]\nstrategy = "luck"\nidempotent = 2\n'
        "[policies.log]\ndata = 3\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        Config.from_env({FILE_VARIABLE: str(file), "PYMONGO_RESILIENCE_STRATEGY": "fate"})
    assert [problem.split(": expected")[0] for problem in caught.value.problems] == [
        f"{file}: policies.'shop.*'.strategy='luck'",
        f"{file}: policies.'shop.*'.idempotent=2",
        f"{file}: policies.'log'",
        f"{file}: policies.'log'.data is of type int",
        f"{file}: metrics=1",
        "PYMONGO_RESILIENCE_STRATEGY='fate'",
    ]


def test_an_unknown_key_is_a_warning_with_the_nearest_name(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text(
        '[policys."shop.*"]\n[policies."shop.*"]\nstrategie = "mongodb"\nretry_writes = false\n'
    )
    assert Config.from_toml(file) == Config(policies={"shop.*": Policy()})
    table, *keys = (set(record.getMessage().split()) for record in caplog.records)
    assert {str(file), "policys", "policies?"} <= table
    near, unlike = keys
    assert {str(file), "policies.'shop.*'", "strategie", "strategy?"} <= near
    assert {str(file), "policies.'shop.*'", "retry_writes"} <= unlike
