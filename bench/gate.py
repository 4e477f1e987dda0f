"""Fails where a healthy operation takes more instructions than it did, as a ratio to plain pymongo.

    python bench/gate.py            compare with bench/baseline.json
    python bench/gate.py --record   write it anew: a commit of its own, with the reason

Counted by callgrind in the same run for both, so neither the machine nor its load matters. Other
versions of Python, pymongo or OpenTelemetry may: the baseline says which ones it was made with.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import states
from canned import canned_server
from healthy import measure
from workloads import FIND, INSERT

BASELINE = Path(__file__).with_name("baseline.json")
ALLOWED = 0.05
CHOSEN = [
    states.RAW,
    states.EXECUTOR,
    *(f"{states.OURS}, {what}" for what in (states.API, states.OFF, states.ON)),
]
MADE_WITH = ("pymongo", "opentelemetry-api", "opentelemetry-sdk")


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in MADE_WITH}


def ratios() -> dict[str, float]:
    found = {}
    with canned_server() as uri:
        for workload in (FIND, INSERT):
            raw, *rows = measure(uri, workload, CHOSEN, instructions=True)
            for row in rows:
                ratio = row["quartiles"][0] / raw["quartiles"][0]
                found[f"{workload}: {row['state']}"] = round(ratio, 4)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write the baseline anew")
    now = ratios()
    if parser.parse_args().record:
        written = {"made_with": versions(), "ratios": now}
        BASELINE.write_text(json.dumps(written, indent=1) + "\n")
        return
    kept = json.loads(BASELINE.read_text())
    worse = []
    for name, before in kept["ratios"].items():
        change = now[name] / before - 1
        print(f"{name:35} {before:.3f} -> {now[name]:.3f} of raw ({change:+.1%})")
        if change > ALLOWED:
            worse.append(name)
    if worse:
        print(f"baseline: {kept['made_with']}\nhere:     {versions()}")
        sys.exit(f"more than {ALLOWED:.0%} above the baseline: {', '.join(worse)}")


if __name__ == "__main__":
    main()
