"""The figure of the simulated fleets in bench/overload.md, drawn from the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures import save
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter, ScalarFormatter

# Okabe and Ito's, which people tell apart who see few colours; and markers, for those who see none.
STYLES = (
    ("#000000", "o", "--"),
    ("#E69F00", "^", "-"),
    ("#56B4E9", "D", "-"),
    ("#CC79A7", "s", "-"),
    ("#009E73", "v", "-"),
)


def draw(outcomes: list[dict[str, Any]], file: Path, mark: str = "") -> None:
    """The same outcomes make the same file; ``mark`` names them in it."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    steady = [each for each in outcomes if each["case"] == "steady"]
    for place, clients in enumerate(sorted({each["clients"] for each in steady}), 1):
        panel = figure.add_subplot(2, 3, place)
        some = [each for each in steady if each["clients"] == clients]
        _lines(panel, some, "load", "goodput", f"{clients:,} client{'s' * (clients > 1)}: goodput")
        panel.set_xscale("log")
        panel.yaxis.set_major_formatter(PercentFormatter(1))
    pulses = [each for each in outcomes if each["case"] == "pulse"]
    panel = figure.add_subplot(2, 3, 6)
    _lines(panel, pulses, "seconds", "errors", "8 clients, a pulse of 2x: errors, by its seconds")
    panel.set_xscale("log")
    panel.set_xlabel("seconds", fontsize=8)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8)
    save(figure, file, "fleet", mark)


def _lines(panel: Axes, some: list[dict[str, Any]], x: str, y: str, title: str) -> None:
    names = list(dict.fromkeys(each["policy"] for each in some))
    for name, (colour, marker, line) in zip(names, STYLES, strict=True):
        points = [each for each in some if each["policy"] == name]
        panel.plot(
            [each[x] for each in points],
            [each[y] for each in points],
            label=name,
            color=colour,
            marker=marker,
            linestyle=line,
            markersize=4,
        )
    panel.set_title(title, fontsize=8)
    panel.set_xscale("log")
    panel.set_xticks(sorted({each[x] for each in some}))
    panel.xaxis.set_major_formatter(ScalarFormatter())
    panel.xaxis.set_minor_locator(NullLocator())
    panel.tick_params(labelsize=7)
    panel.grid(alpha=0.3)
    panel.set_ylim(bottom=0)
