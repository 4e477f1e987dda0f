"""What the library adds to a process's start and to the memory of each client.

    python bench/footprint.py [--runs 15] [--json FILE]

Start: CPU, the median of fresh processes with compiled modules, beyond importing pymongo and
OpenTelemetry: its API, and the base class of all its instrumentations, which brings wrapt. The
second figure is of a process that has imported pymongo and the API alone. Memory: what tracemalloc
sees for each of 50 clients that have sent a command, with the library and without. Needs a C
compiler, and the extra ``dev``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from canned import canned_server, cores
from markdown import table

RUNS = 15
BASE_CLASS = "import opentelemetry.instrumentation.instrumentor"
API = """
import time
import pymongo, opentelemetry.trace, opentelemetry.metrics
"""
INSTRUMENT = """
began = time.process_time()
from pymongo_resilience import instrument
instrument()
print((time.process_time() - began) * 1000)
"""
MEMORY = """
import gc, sys, tracemalloc
import pymongo
if sys.argv[1] == "ours":
    from pymongo_resilience import instrument
    instrument()
def made():
    client = pymongo.MongoClient(sys.argv[2])
    client.bench.coll.find_one()
    return client
kept = [made() for _ in range(5)]
gc.collect()
tracemalloc.start()
kept += [made() for _ in range(50)]
gc.collect()
print(tracemalloc.get_traced_memory()[0] / 50 / 1024, flush=True)
import os
os._exit(0)
"""


def said(program: str, *args: str, compiled: str = "") -> float:
    """``compiled``: where modules are kept compiled."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(  # noqa: S603 - our own
        [sys.executable, "-c", program, *args],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environ | {"PYTHONPYCACHEPREFIX": compiled} if compiled else environ,
    )
    return float(done.stdout)


def _median(program: str, compiled: str, runs: int) -> float:
    said(program, compiled=compiled)
    return statistics.median(said(program, compiled=compiled) for _ in range(runs))


def footprint(runs: int = RUNS) -> dict[str, float]:
    os.sched_setaffinity(0, {cores()[0]})
    with tempfile.TemporaryDirectory() as compiled:
        start = _median(API + BASE_CLASS + INSTRUMENT, compiled, runs)
        with_the_base = _median(API + INSTRUMENT, compiled, runs)
    with canned_server() as uri:
        raw, ours = said(MEMORY, "raw", uri), said(MEMORY, "ours", uri)
    return {
        "start_ms": start,
        "start_with_the_base_ms": with_the_base,
        "client_kib": ours - raw,
        "plain_client_kib": raw,
    }


def lines(found: dict[str, float]) -> list[tuple[str, str]]:
    """What is added, and how much."""
    return [
        (
            "import and instrument(), CPU, beyond pymongo and OpenTelemetry",
            f"{found['start_ms']:.0f} ms",
        ),
        (
            "the same, and OpenTelemetry's base class",
            f"{found['start_with_the_base_ms']:.0f} ms",
        ),
        (
            f"a client, beyond the {found['plain_client_kib']:.0f} KiB of a plain one",
            f"{found['client_kib']:.1f} KiB",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=RUNS, help="fresh processes")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    found = footprint(given.runs)
    print(table(["added", ""], lines(found)))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
