"""Saves figures so that they read on light pages and on dark ones."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

DARK = """<style>@media (prefers-color-scheme: dark) {
text {fill: #e6edf3 !important}
[style*="fill: #ffffff"] {fill: #0d1117 !important}
[style*="stroke: #000000"] {stroke: #e6edf3 !important}
[style*="fill: #000000"] {fill: #e6edf3 !important}
}</style>
"""
"""What matplotlib draws black and white is the other way round there."""


def save(figure: Figure, file: Path, name: str, mark: str = "") -> None:
    """The same figure makes the same file; ``mark`` names its data in it."""
    # A name for what the figure refers to in itself, instead of a random one.
    mpl.rcParams["svg.hashsalt"] = name
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["path.simplify_threshold"] = 0.5
    figure.savefig(file, format="svg", metadata={"Date": None, "Description": mark})
    # Hundredths of a point will do.
    text = re.sub(r"(\.\d\d)\d+", r"\1", file.read_text())
    file.write_text(text.replace("</defs>", f"</defs>{DARK}", 1))
