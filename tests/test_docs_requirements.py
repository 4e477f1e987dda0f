"""What the documents list of reasons, rules, strategies and deviations is whole.

The operations of docs/retries.md are compared with what the library does in
tests/integration/test_documented_operations.py, its reasons with the code in test_docs.py.
"""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from pathlib import Path

import pytest
from pymongo_resilience_instrumentation.failures.reasons import CODES, NOT_LISTED
from pymongo_resilience_instrumentation.public_operations import ALLOWED
from support.operations_table import documented, rows, section

from pymongo_resilience import Config
from pymongo_resilience.errors import RetryReason
from pymongo_resilience.rules import backoff, budget
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.rules.strategy import NAMED

ROOT = Path(__file__).parent.parent
RETRIES = "docs/retries.md"
DEVIATIONS = "docs/deviations.md"


def read(file: str) -> str:
    return (ROOT / file).read_text()


def test_the_read_commands_of_the_runner_are_those_listed() -> None:
    prefix = "Database.cursor_command with "
    listed = {name.removeprefix(prefix) for name in documented() if name.startswith(prefix)}
    assert listed == ALLOWED | {"any other command"}


def test_every_reason_and_every_code_is_in_the_table() -> None:
    table = rows(section(read(RETRIES), "Reasons"))
    by_reason = {cells[0].strip("`"): cells for cells in table}
    assert set(by_reason) == {reason.value for reason in RetryReason}
    for reason in RetryReason:
        _, causes, any_write = by_reason[reason.value]
        numbers = {int(number) for number in re.findall(r"(?<=[\w;:,] )\d+|^\d+", causes)}
        codes = CODES.get(reason, {})
        assert set(codes) <= numbers
        for number, name in codes.items():
            # A star for what MongoDB's specifications do not retry.
            shown = f"{number} {name}".strip()
            assert (number in NOT_LISTED) == (f"{shown} \\*" in causes)
        assert any_write == ("yes" if reason.allows_non_idempotent_retry else "no")


def test_every_reason_is_held_against_rfc_0049() -> None:
    shown = {cells[0].strip("`"): cells[2] for cells in rows(read("tests/reasons.md"))}
    assert shown == {each.value: "yes" if each.always_retry else "no" for each in RetryReason}


def test_every_rule_has_its_row() -> None:
    listed = rows(section(read("docs/errors.md"), "Why there was no further attempt"))
    assert [cells[0].strip("`") for cells in listed] == [rule.value for rule in Rule]
    assert all(len(cells) == 3 and all(cells) for cells in listed)


def test_every_strategy_has_its_row() -> None:
    tables = section(read(RETRIES), "How often, and after what delay").split("\n\n")
    listed = [cells[0] for table in tables if "| strategy" in table for cells in rows(table)]
    assert [re.findall(r"`(\w+)`", cell)[0] for cell in listed] == [*NAMED, "driver"]


def test_the_defaults_are_the_constants_of_the_text() -> None:
    """Deviation D2: options, but by default what Client Backpressure says."""
    config = Config()
    assert (config.max_retries, config.base_backoff_ms, config.max_backoff_ms) == (5, 100, 10_000)
    assert config.retry_budget == "ratio"
    assert (budget.RETURN_RATE, budget.RETRY, budget.CAPACITY) == (0.1, 1.0, 1000.0)
    longest = [backoff.overload(attempt, lambda: 1.0) for attempt in range(1, 6)]
    assert longest == [0.2, 0.4, 0.8, 1.6, 3.2]


DEVIATION_TESTS: dict[str, list[str]] = tomllib.loads(read("tests/deviations.toml"))


def test_every_deviation_has_its_tests() -> None:
    numbers = re.findall(r"^- \*\*(D\d+)\. ", read(DEVIATIONS), re.MULTILINE)
    assert set(numbers) == {f"D{number}" for number in range(1, len(numbers) + 1)}
    assert {name for name in DEVIATION_TESTS if name.startswith("D")} == set(numbers)


@pytest.mark.parametrize("number", DEVIATION_TESTS)
def test_the_tests_of_a_deviation_exist(number: str) -> None:
    assert DEVIATION_TESTS[number]
    for each in DEVIATION_TESTS[number]:
        file, _, name = each.partition("::")
        assert name in names_of_tests(ROOT / file), f"{file} has no {name}"


@functools.cache
def names_of_tests(file: Path) -> set[str]:
    """Functions; and of scenarios, their names, which are the first arguments."""
    tree = ast.parse(file.read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    in_tables = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "S"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }  # fmt: skip
    return functions | {str(name) for name in in_tables}
