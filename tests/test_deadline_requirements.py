"""tests/deadline-requirements.md: each requirement about timeouts is tested or explained.

It has each MUST of MongoDB's Client-Side Operations Timeout, under the heading that it has there.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from test_docs_requirements import names_of_tests

ROOT = Path(__file__).parent.parent
DOCUMENT = (ROOT / "tests" / "deadline-requirements.md").read_text()
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | "))
    for line in re.findall(r"^\| [a-z].*\|$", DOCUMENT, re.MULTILINE)
    if not line.startswith("| | ")
]
"""Name, what must be, status, and tests or a reason."""
PASSED = ("held", "held by pymongo")
STATUSES = (*PASSED, "documented", "**not kept**", "**out of reach**", "**not applicable**")
ROW_COUNT = 149
"""The text says MUST 131 times: each is a row, but "all blocking sections" is 14, and "other
sources" of timeouts 2. Three more are rules without the word: option-4, operations-1, await-7."""


def named_tests(text: str) -> list[str]:
    return re.findall(r"`(tests/[^`]+::\w+)`", text)


def test_none_is_lost_and_the_count_is_true() -> None:
    assert len({name for name, *_ in ROWS}) == len(ROWS) == ROW_COUNT
    counts = Counter(status for _, _, status, _ in ROWS)
    told = ", ".join(f"{counts[status]} {status.strip('*')}" for status in STATUSES)
    assert f"\n{ROW_COUNT} requirements: {told}.\n" in DOCUMENT


def test_each_section_of_the_text_is_there_once_with_its_rows() -> None:
    _, *sections = re.split(r"^## (.*)$", DOCUMENT, flags=re.MULTILINE)
    assert len(set(sections[::2])) == len(sections[::2])
    assert all(len(text.strip().splitlines()) > 2 for text in sections[1::2])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_it_has_tests_that_exist_or_a_reason(row: tuple[str, ...]) -> None:
    _, says, status, last = row
    assert says
    assert status in STATUSES
    assert named_tests(last) if status in PASSED else re.sub(r"`tests/[^`]+`", "", last).strip(" ,")
    for each in named_tests(last):
        file, _, name = each.partition("::")
        assert name in names_of_tests(ROOT / file), each
