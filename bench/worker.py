"""One process in one state: runs a burst of a workload on demand, and reports what it cost.

Started by ``bursts.py``. Reads a workload and a number of operations per line, and answers with the
CPU seconds, or under valgrind the instructions, of all of its threads together.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import configurations
from canned import BUILD, cores, need
from workloads import AsyncWork, SyncWork

if TYPE_CHECKING:
    from collections.abc import Callable

MARKS = BUILD / "callgrind_marks.so"


def cpu_seconds(burst: Callable[[], None]) -> float:
    began = time.process_time()
    burst()
    return time.process_time() - began


class Instructions:
    """Counted by callgrind, which writes them to a file of its own after each burst."""

    def __init__(self, out: str) -> None:
        self._marks = ctypes.CDLL(str(need(MARKS)))
        self._out = Path(out)
        self._bursts = 0

    def __call__(self, burst: Callable[[], None]) -> float:
        self._marks.begin_counting()
        burst()
        self._marks.end_counting()
        self._bursts += 1
        written = self._out.with_name(f"{self._out.name}.{self._bursts}")
        totals = [line for line in written.read_text().splitlines() if line.startswith("totals:")]
        written.unlink()
        return float(totals[-1].split()[1])


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    if not spec["callgrind"]:
        os.sched_setaffinity(0, {cores()[0]})
    around = configurations.prepare(spec["state"])
    kind = AsyncWork if spec["asynchronous"] else SyncWork
    work = kind(spec["uri"], around, spec["at_once"])
    counter = Instructions(spec["callgrind"]) if spec["callgrind"] else cpu_seconds
    for workload, count in spec["warm_up"].items():
        work.burst(workload, count)
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        workload, operations = line.split()
        print(counter(partial(work.burst, workload, int(operations))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
