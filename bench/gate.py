"""Fails where a healthy operation takes more instructions than it did, as a ratio to plain pymongo.

    python bench/gate.py            compare with bench/baseline.json
    python bench/gate.py --record   write it anew: a commit of its own, with the reason

Counted by callgrind in the same run for both, so neither the machine nor its load matters. The
versions do: only where they are those of the baseline can it fail, and ``make gate`` installs them
(bench/gate-requirements.txt). Elsewhere it compares, and says at last that it has not judged.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import configurations
from canned import canned_server
from measuring import SIDES, compared, groups, measure
from workloads import CURSOR, FIND, INSERT

BASELINE = Path(__file__).with_name("baseline.json")
ALLOWED = 0.05
CHOSEN = [
    configurations.RAW,
    configurations.EXECUTOR,
    *(
        f"{configurations.OURS}, {what}"
        for what in (configurations.API, configurations.OFF, configurations.ON)
    ),
]
MEASURED = {SIDES[False]: [FIND, INSERT, CURSOR], SIDES[True]: [FIND]}
MADE_WITH = (
    "pymongo",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-instrumentation",
    "wrapt",
)
Change = tuple[str, float | None, float | None]
"""The name of a ratio, what it was and what it is; None where one of them has no such ratio."""


def made_with() -> dict[str, str]:
    """Of Python the first two numbers: the third hardly changes what it executes."""
    python = ".".join(platform.python_version_tuple()[:2])
    here = {"python": f"{python} {platform.machine()}"}
    return here | {name: version(name) for name in MADE_WITH}


def ratios() -> dict[str, float]:
    found = {}
    with canned_server(heartbeats=False) as uri:
        for side, workloads in MEASURED.items():
            rows = measure(
                uri,
                workloads,
                CHOSEN,
                asynchronous=side == SIDES[True],
                processes=1,
                instructions=True,
            )
            for group in groups(rows):
                for row in compared(group):
                    if row["state"] != configurations.RAW:
                        name = f"{row['workload']}, {side}: {row['state']}"
                        found[name] = round(1 + row["of_raw"], 4)
    return found


def changes(before: dict[str, float], now: dict[str, float]) -> list[Change]:
    names = [*before, *(name for name in now if name not in before)]
    return [(name, before.get(name), now.get(name)) for name in names]


def line(change: Change) -> str:
    name, before, now = change
    if before is None:
        return f"{name:40} new: {now:.3f} of raw"
    if now is None:
        return f"{name:40} {before:.3f} of raw -> not measured any more"
    return f"{name:40} {before:.3f} -> {now:.3f} of raw ({now / before - 1:+.1%})"


def worse(some: list[Change]) -> list[str]:
    """Those past what is allowed, and those that have no counterpart, of which nobody knows."""
    return [
        name
        for name, before, now in some
        if before is None or now is None or now / before - 1 > ALLOWED
    ]


def differing(kept: dict[str, str], here: dict[str, str]) -> list[str]:
    return [
        f"{name}: {kept.get(name, 'none')} in the baseline, {here.get(name, 'none')} here"
        for name in dict.fromkeys([*kept, *here])
        if kept.get(name) != here.get(name)
    ]


def judgement(kept: dict[str, Any], now: dict[str, float], here: dict[str, str]) -> tuple[str, str]:
    """``passed``, ``failed`` or ``skipped``, and why."""
    others = differing(kept["made_with"], here)
    if others:
        return "skipped", (
            f"NOT JUDGED, the baseline is of other versions and must be recorded anew "
            f"(make gate ARGS=--record): {'; '.join(others)}"
        )
    bad = worse(changes(kept["ratios"], now))
    if bad:
        return "failed", (
            f"FAILED, more than {ALLOWED:.0%} above the baseline, or without one: {'; '.join(bad)}"
        )
    return "passed", f"passed, nothing is more than {ALLOWED:.0%} above the baseline"


def junit(file: Path, how: str, why: str) -> None:
    """One test case, as CI counts them."""
    kinds = {"failed": "failures", "skipped": "skipped"}
    counts = {kind: str(int(how == name)) for name, kind in kinds.items()}
    suite = ET.Element("testsuite", name="gate", tests="1", errors="0", **counts)
    case = ET.SubElement(suite, "testcase", classname="bench", name="gate")
    if how in kinds:
        ET.SubElement(case, {"failed": "failure", "skipped": "skipped"}[how], message=why)
    ET.ElementTree(suite).write(file)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="write the baseline anew")
    parser.add_argument("--junit", type=Path, help="write how it ended to this file, as JUnit does")
    given = parser.parse_args()
    kept = json.loads(BASELINE.read_text())
    now, here = ratios(), made_with()
    for change in changes(kept["ratios"], now):
        print(line(change))
    if given.record:
        BASELINE.write_text(json.dumps({"made_with": here, "ratios": now}, indent=1) + "\n")
        for each in differing(kept["made_with"], here):
            print(each)
        print(f"recorded in {BASELINE.name}: say in the commit why")
        return
    how, why = judgement(kept, now, here)
    if given.junit is not None:
        junit(given.junit, how, why)
    if how == "failed":
        sys.exit(why)
    print(why)


if __name__ == "__main__":
    main()
