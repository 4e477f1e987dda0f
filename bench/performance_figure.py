"""The figure of docs/performance.md: what is added, by state, by operation, and by how many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bars
import configurations
import matplotlib as mpl
from growth import growing
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from measuring import compared, groups

# Okabe and Ito's, which people tell apart who see few colours.
OURS, CONTRIB, EXECUTOR, ON, OTHERS = "#009E73", "#E69F00", "#56B4E9", "#0072B2", "#999999"
KINDS = (
    (configurations.EXECUTOR, "executor alone", EXECUTOR),
    (f"{configurations.CONTRIB}, {configurations.API}", "contrib, no SDK", CONTRIB),
    (f"{configurations.OURS}, {configurations.API}", "ours, no SDK", OURS),
)


def draw(rows: dict[str, Any], file: Path, mark: str) -> None:
    """The same rows make the same file; ``mark`` names them in it."""
    # A number names what the figure refers to in itself, instead of a random one.
    mpl.rcParams["svg.hashsalt"] = "performance"
    figure = Figure(figsize=(9, 10), layout="constrained")
    by_state, by_operation, by_number = figure.subplots(3, 1)
    found = [compared(group) for group in groups(rows["healthy"])]
    _states(by_state, found[0])
    _operations(by_operation, found)
    _numbers(by_number, growing(rows["growth"]))
    figure.savefig(file, format="svg", metadata={"Date": None, "Description": mark})


def _states(panel: Axes, rows: list[dict[str, Any]]) -> None:
    rows = [row for row in reversed(rows) if row["state"] != configurations.RAW]
    colours = {
        configurations.OURS: OURS,
        configurations.CONTRIB: CONTRIB,
        configurations.EXECUTOR: EXECUTOR,
    }
    for place, row in enumerate(rows):
        colour = colours.get(row["state"].split(", ")[0], OTHERS)
        panel.barh(place, row["of_raw"], color=colour)
        panel.annotate(f" {row['of_raw']:.1%}", (row["of_raw"], place), va="center", fontsize=8)
    panel.set_yticks(range(len(rows)), [row["state"] for row in rows], fontsize=8)
    name = f"{rows[0]['workload']}, {rows[0]['side']}"
    _titled(panel, f"{name}: instructions added, part of plain pymongo's")
    panel.xaxis.set_major_formatter(PercentFormatter(1))


def _operations(panel: Axes, found: list[list[dict[str, Any]]]) -> None:
    width = 0.8 / len(KINDS)
    for number, (state, label, colour) in enumerate(KINDS):
        values = [row["of_raw"] for group in found for row in group if row["state"] == state]
        places = [place + (number - 1) * width for place in range(len(values))]
        panel.bar(places, values, width, color=colour, label=label)
    names = [f"{group[0]['workload']}\n{group[0]['side']}" for group in found]
    panel.set_xticks(range(len(names)), names, fontsize=7)
    panel.axhline(bars.OF_RAW[configurations.EXECUTOR], color="black", linewidth=0.8, linestyle=":")
    _titled(panel, "each operation; dotted: the executor's bar")
    panel.yaxis.set_major_formatter(PercentFormatter(1))
    panel.legend(fontsize=8)


def _numbers(panel: Axes, rows: list[dict[str, Any]]) -> None:
    cases = list(dict.fromkeys(row["case"] for row in rows if "growth" in row))
    measured = list(
        dict.fromkeys(row["state"] for row in rows if row["state"] != configurations.CONTROL)
    )
    width = 0.8 / len(measured)
    colours = dict(zip(measured, (EXECUTOR, OURS, ON), strict=False))
    for number, state in enumerate(measured):
        values = [row["growth"] for row in rows if row["state"] == state and "growth" in row]
        places = [place + (number - 1) * width for place in range(len(values))]
        panel.bar(places, values, width, color=colours.get(state, OTHERS), label=state)
    panel.set_xticks(range(len(cases)), cases, fontsize=8)
    panel.axhline(bars.GROWTH, color="black", linewidth=0.8, linestyle=":")
    panel.axhline(0, color="black", linewidth=0.8)
    _titled(panel, "growth of what is added, from one to many; dotted: the bar")
    panel.yaxis.set_major_formatter(PercentFormatter(1))
    panel.legend(fontsize=8)


def _titled(panel: Axes, title: str) -> None:
    panel.set_title(title, fontsize=10)
    panel.grid(alpha=0.3)
    panel.set_axisbelow(True)
