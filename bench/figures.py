"""Saves figures so that they read on light pages and on dark ones."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

CLASSES = {"fill: #ffffff": "page", "stroke: #000000": "line", "fill: #000000": "area"}
"""What matplotlib draws white and black, which is the other way round on dark pages."""
STYLE = """<style>.page{fill:#ffffff}.line{stroke:#000000}.area{fill:#000000}
@media (prefers-color-scheme: dark) {
.page{fill:#0d1117}.line{stroke:#e6edf3}.area{fill:#e6edf3}text{fill:#e6edf3}
}</style>
"""


def save(figure: Figure, file: Path, name: str, mark: str = "") -> None:
    """The same figure makes the same file; ``mark`` names its data in it."""
    # A name for what the figure refers to in itself, instead of a random one.
    mpl.rcParams["svg.hashsalt"] = name
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["path.simplify_threshold"] = 0.5
    figure.savefig(file, format="svg", metadata={"Date": None, "Description": mark})
    # Hundredths of a point will do; not so in what is read.
    text = re.sub(r"(\.\d\d)\d+(?=[^<]*>)", r"\1", file.read_text())
    text = re.sub(r'style="([^"]*)"', _with_classes, text)
    file.write_text(text.replace("</defs>", f"</defs>{STYLE}", 1))


def _with_classes(match: re.Match[str]) -> str:
    declarations = match[1].split("; ")
    names = [CLASSES[each] for each in declarations if each in CLASSES]
    left = "; ".join(each for each in declarations if each not in CLASSES)
    return f'class="{" ".join(names)}" style="{left}"' if names else match[0]
