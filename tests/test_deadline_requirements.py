"""The requirements about timeouts: each is tested or explained, and the tests are there.

That deadline-requirements.md is written from them is checked in test_docs.py.
"""

from __future__ import annotations

from pathlib import Path

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
def test_its_tests_exist(row: Requirement) -> None:
    for each in row.tests:
        file, _, name = each.partition("::")
        assert (ROOT / file).is_file(), each
        assert name in names_of_tests(ROOT / file), each


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
