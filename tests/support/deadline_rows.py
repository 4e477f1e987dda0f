"""What a row of the requirements about timeouts is: never without a test or a reason.

The rows are in deadline_requirements.py, the checks in test_deadline_requirements.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

TESTS = Path(__file__).parent.parent


class Status(Enum):
    """What has become of a requirement; the text is what the document calls it."""

    HELD = "held"
    DRIVER = "held by pymongo"
    DOCUMENTED = "documented"
    DIFFERS = "not kept"
    UNREACHABLE = "out of reach"
    NOT_APPLICABLE = "not applicable"


PASSED = (Status.HELD, Status.DRIVER)
PLAIN = (*PASSED, Status.DOCUMENTED)
"""Not emphasized in the document."""


@dataclass(frozen=True)
class Requirement:
    """One MUST. Raises ValueError for one that is neither tested nor explained."""

    id: str
    says: str
    status: Status
    tests: tuple[str, ...] = ()
    """``tests/integration/test_waits.py::test_name``."""
    why: str = ""
    """The reason; of one that is held, what to know about it."""

    def __post_init__(self) -> None:
        if not (self.id.strip() and self.says.strip()):
            raise ValueError(f"{self.id!r}: a requirement without a name or a text")
        if self.status in PASSED and not self.tests:
            raise ValueError(f"{self.id}: {self.status.value}, and no test shows it")
        if self.status not in PASSED and not self.why.strip():
            raise ValueError(f"{self.id}: {self.status.value}, and no reason is given")


@dataclass(frozen=True)
class Section:
    """The rows of one section of the text, by its heading there."""

    heading: str
    rows: tuple[Requirement, ...]


def held(name: str, says: str, *tests: str, why: str = "") -> Requirement:
    """It is true, and these tests would fail if it were not."""
    return Requirement(name, says, Status.HELD, _paths(tests), why)


def driver(name: str, says: str, *tests: str, why: str = "") -> Requirement:
    """pymongo sees to it; these tests of ours show that it does, with the library around it."""
    return Requirement(name, says, Status.DRIVER, _paths(tests), why)


def documented(name: str, says: str, heading: str, link: str) -> Requirement:
    """It is about documentation: the section that says so, by its heading and its link."""
    return Requirement(name, says, Status.DOCUMENTED, (), f"[{heading}]({link})")


def differs(name: str, says: str, why: str, *tests: str) -> Requirement:
    """It is not true, on purpose or until it is."""
    return Requirement(name, says, Status.DIFFERS, _paths(tests), why)


def unreachable(name: str, says: str, why: str) -> Requirement:
    """Nothing above the driver could see to it."""
    return Requirement(name, says, Status.UNREACHABLE, (), why)


def not_applicable(name: str, says: str, why: str) -> Requirement:
    """It speaks of what pymongo or Python does not have."""
    return Requirement(name, says, Status.NOT_APPLICABLE, (), why)


def of_encryption(name: str, says: str) -> Requirement:
    """The library adds nothing there, and cannot try it: see encryption-3."""
    return unreachable(
        name,
        says,
        "Inside of libmongocrypt's callbacks, where pymongo does what it does; not tried here, for "
        "want of a mongocryptd.",
    )


def _paths(tests: Iterable[str]) -> tuple[str, ...]:
    """``waits::test_name`` is of tests/integration/test_waits.py; other places are said in full."""
    return tuple(
        each
        if each.startswith("tests/")
        else "tests/integration/test_{}.py::{}".format(*each.split("::"))
        for each in tests
    )


def counted(sections: Iterable[Section]) -> Counter[Status]:
    return Counter(row.status for section in sections for row in section.rows)


def count_text(sections: Iterable[Section]) -> str:
    """``"3 requirements: 1 held, 2 out of reach"``."""
    counts = counted(sections)
    parts = ", ".join(f"{counts[status]} {status.value}" for status in Status)
    return f"{sum(counts.values())} requirements: {parts}"


HEAD = "| | what must be | | tests, and what to know |\n|---|---|---|---|\n"


def document_tables(sections: Iterable[Section]) -> str:
    """The tables of tests/deadline-requirements.md; links in the rows are relative to docs/."""
    sections = tuple(sections)
    tables = [
        f"## {section.heading}\n\n{HEAD}" + "".join(map(_line, section.rows))
        for section in sections
    ]
    text = "\n".join([f"{count_text(sections)}.\n", *tables])
    return re.sub(r"\]\((?=[a-z-]+\.md)", "](../docs/", text)


def _line(row: Requirement) -> str:
    return f"| {row.id} | {row.says} | {_status(row)} | {_last(row)} |\n"


def _status(row: Requirement) -> str:
    return (
        row.status.value
        if row.status in {*PASSED, Status.DOCUMENTED}
        else f"**{row.status.value}**"
    )


def _last(row: Requirement) -> str:
    tests = ", ".join(f"`{each}`" for each in row.tests)
    return " ".join(part for part in (row.why, tests) if part)
