"""Bursts of several processes in turn, so that what disturbs the machine meets them all."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Spec:
    """One process."""

    state: str
    uri: str
    warm_up: dict[str, int]
    """How many operations of each workload come before the first burst."""
    asynchronous: bool = False
    at_once: int = 1
    """Threads, or tasks of an async client."""
    callgrind: str = ""
    """Where callgrind writes to; empty without it."""


class Worker:
    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def ready(self) -> None:
        if self._answer() != "ready":
            raise RuntimeError("a worker of the benchmark did not begin; see its error above")

    def burst(self, workload: str, count: int) -> float:
        """What one operation cost: seconds or instructions."""
        if self._child.stdin is None:
            raise RuntimeError("the worker has no pipes")
        self._child.stdin.write(f"{workload} {count}\n")
        self._child.stdin.flush()
        return float(self._answer()) / count

    def _answer(self) -> str:
        return "" if self._child.stdout is None else self._child.stdout.readline().strip()


def with_callgrind(spec: Spec, directory: str, number: int) -> tuple[Spec, list[str]]:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        sys.exit(
            "valgrind is not there, which counts instructions (Debian: apt-get install valgrind)"
        )
    out = str(Path(directory) / f"worker{number}")
    command = [valgrind, "--tool=callgrind", "--quiet", "--instr-atstart=no"]
    command += [f"--callgrind-out-file={out}"]
    return Spec(**asdict(spec) | {"callgrind": out}), command


@contextmanager
def workers(specs: Iterable[Spec], *, instructions: bool = False) -> Iterator[list[Worker]]:
    environ = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        begun = []
        for number, each in enumerate(specs):
            spec, command = with_callgrind(each, directory, number) if instructions else (each, [])
            child = stack.enter_context(
                subprocess.Popen(  # noqa: S603 - our own
                    [*command, sys.executable, str(WORKER), json.dumps(asdict(spec))],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environ,
                )
            )
            begun.append(Worker(child))
        for worker in begun:
            worker.ready()
        yield begun


def interleaved(
    begun: list[Worker], workload: str, *, bursts: int, count: int
) -> list[list[float]]:
    """What one operation cost in each burst of each worker."""
    costs: list[list[float]] = [[] for _ in begun]
    for _ in range(bursts):
        for worker, cost in zip(begun, costs, strict=True):
            cost.append(worker.burst(workload, count))
    return costs


def quartiles(costs: list[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(costs, n=4, method="inclusive")
    return low, middle, high
