"""The figure of docs/overload.md, drawn from the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures import save
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter, ScalarFormatter

# Okabe and Ito's, which people tell apart who see few colours; and markers, for those who see none.
STYLES = {
    "no retries, handshakes right": ("#999999", "s", "--"),
    "no retries": ("#000000", "o", "--"),
    "plain pymongo": ("#E69F00", "^", "-"),
    "bare": ("#009E73", "v", "-"),
    "timeout": ("#0072B2", "D", "-"),
    "timeout, tokens": ("#CC79A7", "P", "-"),
    # As the sides were called in reports before pymongo 4.20.1.
    "this library": ("#009E73", "v", "-"),
}
"""By the names of the sides in ``overload_runs.py``."""
SYNC = ", sync"
PANELS = (
    ("cold", "goodput of the first seconds, part of the capacity"),
    ("goodput", "goodput afterwards, part of the capacity"),
    ("errors", "operations that failed"),
    ("p99_ms", "p99 of those that succeeded, ms"),
)


def draw(points: list[dict[str, Any]], file: Path, mark: str = "") -> None:
    """The same points make the same file; ``mark`` names them in it."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    names = list(dict.fromkeys(point["side"] for point in points))
    loads = sorted({point["load"] for point in points})
    for place, (key, title) in enumerate(PANELS, 1):
        panel = figure.add_subplot(2, 2, place)
        for name in names:
            colour, marker, line = STYLES[name.removesuffix(SYNC)]
            line = ":" if name.endswith(SYNC) else line
            some = [point for point in points if point["side"] == name and point[key] is not None]
            panel.plot(
                [point["load"] for point in some],
                [point[key] for point in some],
                label=name,
                color=colour,
                marker=marker,
                linestyle=line,
                markersize=5,
            )
        panel.set_title(title, fontsize=10)
        panel.set_xscale("log")
        panel.set_xticks(loads)
        panel.xaxis.set_major_formatter(ScalarFormatter())
        panel.xaxis.set_minor_locator(NullLocator())
        panel.grid(alpha=0.3)
        if key == "p99_ms":
            # A short run has too few to tell.
            if any(point[key] is not None for point in points):
                panel.set_yscale("log")
                panel.yaxis.set_major_formatter(ScalarFormatter())
        else:
            panel.set_ylim(bottom=0)
        if key in {"cold", "goodput", "errors"}:
            panel.yaxis.set_major_formatter(PercentFormatter(1))
        panel.set_xlabel("operations offered, in times of the server's capacity", fontsize=8)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=min(6, (len(names) + 1) // 2), fontsize=7
    )
    save(figure, file, "overload", mark)
