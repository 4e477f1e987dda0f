"""The figures of a whole run of ``make coverage``, for tests/README.md. Fails if one is too low."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS))
from support import marked_tables  # noqa: E402 - found in that folder

GOALS = {"lines": 97.0, "branches": 95.0}
"""Percent, in each package."""
PACKAGES = {
    "pymongo_resilience/": "engine",
    "instrumentation/": "instrumentation",
}


def main(report: str) -> int:
    """Return 1 if fewer lines or branches were run than the goal."""
    counts = {package: Counter[str]() for package in PACKAGES.values()}
    for name, file in json.loads(Path(report).read_text())["files"].items():
        (package,) = (each for folder, each in PACKAGES.items() if name.startswith(folder))
        counts[package].update(
            {key: value for key, value in file["summary"].items() if isinstance(value, int)}
        )
    rows = ["| package | lines | branches |", "|---|---|---|"]
    reached = True
    for package, count in counts.items():
        found = {
            "lines": 100 * count["covered_lines"] / count["num_statements"],
            "branches": 100 * count["covered_branches"] / count["num_branches"],
        }
        rows.append(
            f"| {package} | " + " | ".join(f"{each:.1f} %" for each in found.values()) + " |"
        )
        reached = reached and all(found[each] >= goal for each, goal in GOALS.items())
    print("\n".join(rows))
    marked_tables.write(TESTS / "README.md", "coverage", "make coverage", rows)
    return int(not reached)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
