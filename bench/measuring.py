"""Processes in several states side by side, and what each adds to plain pymongo."""

from __future__ import annotations

from importlib.metadata import version
from platform import python_version
from statistics import median
from typing import Any

import configurations
from bursts import Spec, interleaved, quartiles, workers
from workloads import LONG

OPERATIONS = 150
"""Of a burst; a tenth where one of them is a long cursor."""
OPERATIONS_COUNTED = 20
BURSTS = 60
BURSTS_COUNTED = 5
PROCESSES_COUNTED = 3
INSTRUCTIONS, CPU = "thousand instructions", "us CPU"
SIDES = ("sync", "async")
PACKAGES = (
    "pymongo",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-instrumentation-pymongo",
    "tenacity",
    "wrapt",
)

Row = dict[str, Any]


def measure(
    uri: str,
    workloads: list[str],
    chosen: list[str],
    *,
    asynchronous: bool = False,
    at_once: int = 1,
    bursts: int | None = None,
    processes: int | None = None,
    instructions: bool = False,
) -> list[Row]:
    """A row for each workload and state: what one operation takes, and the quartiles of it.

    ``bursts`` of each workload in each of so many ``processes`` for each state, one set of them
    after the other. What disturbs adds to CPU in most bursts and to instructions in some, where a
    monitor of the driver wakes up or garbage is collected: what counts of the ones is the lower
    quartile, and of the others the least of a process. Where a process has its objects in memory
    decides what Python finds in its caches, so of several processes the median counts.
    """
    operations = OPERATIONS_COUNTED if instructions else OPERATIONS
    bursts = bursts or (BURSTS_COUNTED if instructions else BURSTS)
    processes = processes or (PROCESSES_COUNTED if instructions else 1)
    counts = {each: burst_of(each, operations, at_once) for each in workloads}
    warm_up = {each: count if at_once > count // 2 else 2 * count for each, count in counts.items()}
    specs = [Spec(state, uri, warm_up, asynchronous, at_once) for state in chosen]
    scale = 1e-3 if instructions else 1e6
    costs: dict[tuple[str, str], list[list[float]]] = {
        (workload, state): [] for workload in counts for state in chosen
    }
    for _ in range(processes):
        with workers(specs, instructions=instructions) as begun:
            for workload, count in counts.items():
                measured = interleaved(begun, workload, bursts=bursts, count=count)
                for state, cost in zip(chosen, measured, strict=True):
                    costs[workload, state].append([scale * each for each in cost])
    found = []
    for (workload, state), cost in costs.items():
        low, middle, high = of_all(cost)
        found.append(
            {
                "workload": workload,
                "side": SIDES[asynchronous],
                "at_once": at_once,
                "state": state,
                "cost": least(cost) if instructions else low,
                "quartiles": [low, middle, high],
            }
        )
    return found


def least(costs: list[list[float]]) -> float:
    """Each process counts by the least of its bursts, and of the processes the median."""
    return median(map(min, costs))


def of_all(costs: list[list[float]]) -> tuple[float, float, float]:
    """The quartiles of the bursts of all processes together."""
    return quartiles([each for some in costs for each in some])


def burst_of(workload: str, operations: int, at_once: int) -> int:
    """So many that each thread or task has the same share of them."""
    count = operations // 10 if workload in LONG else operations
    return -(-count // at_once) * at_once


def groups(rows: list[Row]) -> list[list[Row]]:
    """The rows that were measured in turn, and that ``compared`` compares."""
    kept: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        kept.setdefault((row["workload"], row["side"]), []).append(row)
    return list(kept.values())


def compared(rows: list[Row]) -> list[Row]:
    """The same rows with what each adds to raw, as ratios: to raw, and to what contrib adds."""
    cost = {row["state"]: row["cost"] for row in rows}
    raw = cost[configurations.RAW]
    made = []
    for row in rows:
        who, *what = row["state"].split(", ")
        added = row["cost"] - raw
        more = {"added": added, "of_raw": added / raw}
        contrib = cost.get(f"{configurations.CONTRIB}, {what[0]}") if what else None
        ours = who in {configurations.OURS, configurations.BY_HAND}
        if ours and contrib is not None:
            more["of_contrib"] = added / (contrib - raw)
        made.append(row | more)
    return made


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    return {"python": python_version()} | {name: version(name) for name in packages}


def chosen_from(text: str, of: tuple[str, ...], what: str, separator: str = ",") -> list[str]:
    """What a command line names, in the order of ``of``; ends the program where it names others."""
    if text == "all":
        return list(of)
    named = [each.strip() for each in text.split(separator)]
    unknown = [each for each in named if each not in of]
    if unknown:
        raise SystemExit(
            f"no such {what}: {f'{separator} '.join(unknown)}\n"
            f"there are: {f'{separator} '.join(of)}"
        )
    return [each for each in of if each in named]
