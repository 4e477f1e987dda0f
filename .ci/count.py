"""Prints one line for all test runs: ``count.py REPORTS SECONDS [FAILED_STEP ...]``.

Ends with status 1 where a test or a step failed, or where no test ran at all.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET


def main(reports: str, seconds: str, *failed_steps: str) -> int:
    total = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for report in Path(reports).glob("*.xml"):
        for suite in ET.parse(report).getroot().iter("testsuite"):  # noqa: S314 - written by our own pytest
            for kind in total:
                total[kind] += int(suite.get(kind, "0"))
    failed = total["failures"] + total["errors"]
    passed = total["tests"] - failed - total["skipped"]
    if failed_steps:
        print("failed: " + ", ".join(failed_steps))
    print(f"{passed} passed, {failed} failed, {total['skipped']} skipped in {seconds} s")
    return int(bool(failed or failed_steps or not passed))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
