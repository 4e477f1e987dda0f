"""Everything that talks to a server, on a mongod: the session ``check_mongod``.

    nox -s check_mongod -- /path/to/mongod [name of a step ...]

Integration tests, MongoDB's own cases, the ledger (three seeds, both APIs, real elections) and the
demo. Writes build/mongod/report.json, and the table of docs/compatibility.md from it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests"))
from support import marked_tables  # noqa: E402 - found in that folder

FOLDER = ROOT / "build" / "mongod"
DOCUMENT = ROOT / "docs" / "compatibility.md"
BESIDE = (
    "-n",
    os.environ.get("WORKERS", "3"),
    "--dist",
    "worksteal",
    "-m",
    "not wheel and not alone",
)
SEEDS = (1, 2, 3)


def steps() -> dict[str, tuple[tuple[str, ...], dict[str, str]]]:
    """Arguments of pytest, and variables."""
    ledger = "tests/chaos/test_ledger.py"
    return {
        "integration": (("tests/integration", *BESIDE), {}),
        "integration alone": (("tests/integration", "-m", "alone"), {}),
        "MongoDB's cases": (("tests/conformance", *BESIDE), {}),
        **{f"ledger, seed {seed}": ((ledger,), {"CHAOS_SEED": str(seed)}) for seed in SEEDS},
    }


def main(mongod: str, *wanted: str) -> int:
    """Returns 1 where anything failed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    server = {"PYMONGO_RESILIENCE_TESTBED_SERVER": f"mongod={mongod}"}
    path = FOLDER / "report.json"
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() and wanted else {}
    report["server"] = _version(mongod)
    for name, (arguments, variables) in steps().items():
        if not wanted or name in wanted:
            results = FOLDER / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.xml"
            results.unlink(missing_ok=True)
            command = [sys.executable, "-m", "pytest", "-q", "--no-header", f"--junitxml={results}"]
            _run([*command, *arguments], server | variables)
            report[name] = _counted(results)
    if not wanted or "demo" in wanted:
        results = FOLDER / "demo.json"
        _run([sys.executable, "-m", "pymongo_resilience", "demo", "--json", str(results)], server)
        demo = json.loads(results.read_text()) if results.exists() else {"ok": False}
        report["demo"] = {"ok": demo["ok"], "verdict": demo.get("verdict", "did not end")}
    path.write_text(json.dumps(report, indent=2) + "\n")
    print("\n".join(lines(report)))
    marked_tables.write(DOCUMENT, "mongod", "make check-mongod", lines(report))
    return 0 if all(_passed(each) for each in report.values()) else 1


def _run(command: list[str], variables: dict[str, str]) -> None:
    """What failed is in its results."""
    subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=False)


def lines(report: dict[str, Any]) -> list[str]:
    """The rows for docs/compatibility.md."""
    rows = [f"| on MongoDB {report['server']} | result |", "|---|---|"]
    for name, found in report.items():
        if name == "demo":
            rows.append(f"| {name} | {found['verdict']} |")
        elif name != "server":
            counted = f"{found['passed']} passed, {found['failed']} failed"
            skipped = ", ".join(f"{count} {why}" for why, count in found["skipped"].items())
            rows.append(f"| {name} | {counted}{f'; skipped: {skipped}' if skipped else ''} |")
    return rows


def _version(mongod: str) -> str:
    told = subprocess.run([mongod, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"db version v(\S+)", told)
    return found[1] if found else "unknown"


def _counted(results: Path) -> dict[str, Any]:
    """Count one report of pytest. Skips are counted if the server is their reason."""
    try:
        cases = list(ET.parse(results).iter("testcase"))  # noqa: S314 - written by our own pytest
    except (OSError, ET.ParseError):
        cases = []
    outcomes = Counter(_outcome(case) for case in cases)
    skips = [skip.get("message", "") for case in cases for skip in case.iter("skipped")]
    reasons = [re.match(r"needs (MongoDB [\d.]+|a mongod|SecantusDB)", each) for each in skips]
    return {
        "passed": outcomes["passed"],
        # A run that broke off before it wrote its report has failed.
        "failed": outcomes["failed"] if cases else 1,
        "skipped": dict(Counter(found[0] for found in reasons if found)),
        "failures": [
            f"{case.get('classname')}::{case.get('name')}"
            for case in cases
            if _outcome(case) == "failed"
        ],
    }


def _outcome(case: ET.Element) -> str:
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in kinds else "passed"


def _passed(found: Any) -> bool:
    return not isinstance(found, dict) or (not found.get("failed") and found.get("ok", True))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
