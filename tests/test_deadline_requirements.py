"""The requirements about timeouts: each is tested or explained, and the tests are there and run.

That deadline-requirements.md is written from them is checked in test_docs.py.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Any

import pytest
from support.deadline_requirements import SECTIONS
from support.deadline_rows import PASSED, Requirement, Status, count_text, counted
from test_docs_requirements import names_of_tests

ROOT = Path(__file__).parent.parent
ROWS = [row for section in SECTIONS for row in section.rows]
ROW_COUNT = 149
"""The text says MUST 131 times: each is a row, but "all blocking sections" is 14, and "other
sources" of timeouts 2. Three more are rules without the word: option-4, operations-1, await-7."""


def test_each_has_a_name_of_its_own() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)


def test_each_section_of_the_text_is_there_once() -> None:
    headings = [section.heading for section in SECTIONS]
    assert len(set(headings)) == len(headings)
    assert all(section.rows for section in SECTIONS)


@pytest.mark.parametrize("row", [row for row in ROWS if row.tests], ids=lambda row: row.id)
def test_its_tests_exist_and_are_not_skipped(row: Requirement) -> None:
    for each in row.tests:
        file, _, name = each.partition("::")
        assert (ROOT / file).is_file(), each
        assert name in names_of_tests(ROOT / file), each
        assert name not in skipped_in(ROOT / file), each


@functools.cache
def skipped_in(file: Path) -> set[str]:
    return skipped(ast.parse(file.read_text()))


SKIPPING = {"skip", "xfail"}


def skipped(tree: ast.Module) -> set[str]:
    """The tests that are never run, or may fail, whatever the case: by a mark of their own, or by
    one of the module."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if any(_skips(node.value) for node in tree.body if _names_marks(node)):
        return {function.name for function in functions}
    return {
        function.name
        for function in functions
        if any(_skips(each) for each in function.decorator_list)
    }


def _names_marks(node: Any) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
    )


def _skips(marks: ast.expr) -> bool:
    attributes = [each.attr for each in ast.walk(marks) if isinstance(each, ast.Attribute)]
    return not SKIPPING.isdisjoint(attributes)


@pytest.mark.parametrize(
    "text",
    [
        "@pytest.mark.skip\ndef test_a(): ...",
        "@pytest.mark.skip(reason='later')\ndef test_a(): ...",
        "@other\n@pytest.mark.xfail(strict=True)\ndef test_a(): ...",
        "pytestmark = pytest.mark.skip\ndef test_a(): ...",
        "pytestmark = [pytest.mark.oldest, pytest.mark.skip('later')]\ndef test_a(): ...",
    ],
)
def test_one_that_is_skipped_is_found(text: str) -> None:
    """So that the check above can fail."""
    assert skipped(ast.parse(text)) == {"test_a"}


def test_one_that_runs_is_not() -> None:
    assert skipped(ast.parse("pytestmark = pytest.mark.oldest\ndef test_a(): ...")) == set()


@pytest.mark.parametrize("status", Status)
def test_a_row_without_a_test_or_a_reason_cannot_be_made(status: Status) -> None:
    with pytest.raises(ValueError, match="row-1"):
        Requirement("row-1", "something must be", status)
    # A reason is no test.
    if status in PASSED:
        with pytest.raises(ValueError, match="no test"):
            Requirement("row-1", "something must be", status, why="It is obvious.")


def test_none_is_lost_and_the_count_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\ntimeouts: {count_text(SECTIONS)}")  # noqa: T201 - the count is what a run tells
    assert sum(counted(SECTIONS).values()) == ROW_COUNT
