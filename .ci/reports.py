"""What pytest's reports say: counts, the slowest tests, the failed ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

NOTHING = "nothing::ran"
"""The one case of an environment that is not there."""
MONGODBS = "MongoDB's own tests"


@dataclass(frozen=True)
class Case:
    """One test in one environment."""

    part: str
    environment: str
    id: str
    outcome: str
    seconds: float


def cases(folder: Path) -> list[Case]:
    """Of the reports of both parts."""
    return [case for report in sorted(folder.glob("*/*.xml")) for case in cases_in(report)]


def cases_in(report: Path) -> list[Case]:
    """None where the run broke off before it had written all of it: its step has failed."""
    try:
        root = ET.parse(report).getroot()  # noqa: S314 - written by our own pytest
    except (OSError, ET.ParseError):
        return []
    environment = report.stem.partition(",")[0]
    return [_case(report.parent.name, environment, each) for each in root.iter("testcase")]


def mark_passed(report: Path, names: Iterable[str]) -> None:
    """Of tests that passed when they were run once more."""
    tree, chosen = ET.parse(report), set(names)  # noqa: S314 - as above
    for case in tree.getroot().iter("testcase"):
        if node_id(case.get("classname", ""), case.get("name", "")) in chosen:
            for child in [each for each in case if each.tag in {"failure", "error"}]:
                case.remove(child)
    tree.write(report)


def _case(part: str, environment: str, case: ET.Element) -> Case:
    kinds = {child.tag for child in case}
    outcome = "passed"
    if kinds & {"failure", "error"}:
        outcome = "failed"
    elif "skipped" in kinds:
        outcome = "skipped"
    name = node_id(case.get("classname", ""), case.get("name", ""))
    return Case(part, environment, name, outcome, float(case.get("time", "0")))


def node_id(classname: str, name: str) -> str:
    """``tests.unit.test_budget.TestBuckets`` and a name, as pytest's command line takes them."""
    parts = classname.split(".") if classname else []
    for end in range(len(parts), 0, -1):
        file = Path(*parts[:end]).with_suffix(".py")
        if file.is_file():
            return "::".join([file.as_posix(), *parts[end:], name])
    return f"{classname}::{name}"


def slowest(found: Iterable[Case], count: int = 10) -> list[str]:
    chosen = sorted(found, key=lambda case: case.seconds, reverse=True)[:count]
    return [f"{case.seconds:6.1f} s  {case.environment}: {case.id}" for case in chosen]


def distinct(found: Iterable[Case]) -> dict[str, int]:
    """How many different tests of each environment ran."""
    ran = {(case.environment, case.id) for case in found if case.id != NOTHING}
    return dict(sorted(Counter(f"{where}: {_kind(name)}" for where, name in ran).items()))


def _kind(name: str) -> str:
    return MONGODBS if name.startswith("tests/conformance/") else "tests"


def totals(found: Iterable[Case]) -> dict[str, int]:
    outcomes = Counter(case.outcome for case in found)
    return {kind: outcomes[kind] for kind in ("passed", "failed", "skipped")}
